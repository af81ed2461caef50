// Messages as they arrive. The page draws a few times a second and keeps a limited number of rows. What comes faster than
// it can show is counted, not shown: the page stays quick, and says so.

import { get, path } from "./api.js";
import { events, rawEvents } from "./event_stream.js";
import { parse } from "./json.js";
import { messageOf } from "./message.js";

/** @typedef {import("./message.js").Message} Message */

export const ROW_COUNT_MAX = 500;
const DRAW_INTERVAL = 150;
const SEARCH_INTERVAL = 700;
const SEARCH_COUNT = 200;

/**
 * @typedef {object} Tail
 * @property {string} stream
 * @property {string} topic
 * @property {number[] | null} partitions null: all
 * @property {string[]} filters
 * @property {(messages: Message[], droppedCount: number) => void} onRows newest last
 * @property {AbortSignal} signal
 */

/** Calls back with new messages until the signal aborts. @param {Tail} tail */
export async function follow(tail) {
  if (tail.filters.length > 0) await followSearch(tail);
  else await followEvents(tail);
}

/** @param {Tail} tail */
async function followEvents({ stream, topic, partitions, onRows, signal }) {
  // A slash in a name is escaped twice.
  const name = [stream, topic].map((part) => encodeURIComponent(encodeURIComponent(part))).join("/");
  /** @type {string[]} */
  let waiting = [];
  let dropped = 0;
  const draw = () => {
    if (waiting.length === 0 && dropped === 0) return;
    const texts = waiting;
    const lost = dropped;
    waiting = [];
    dropped = 0;
    const messages = texts.map((text) => messageOf(stream, topic, parse(text))).filter((message) => partitions === null || partitions.includes(message.partition));
    onRows(messages, lost);
  };
  const timer = setInterval(draw, DRAW_INTERVAL);
  try {
    for await (const batch of rawEvents(`events?topic=${name}&payload=base64&kind=new`, signal)) {
      for (const event of batch) {
        if (event.kind === "message") waiting.push(event.text);
        else if (event.kind === "ended" || event.kind === "stopped") throw new Error(parse(event.text).error?.reason ?? parse(event.text).reason);
      }
      if (waiting.length > ROW_COUNT_MAX) {
        dropped += waiting.length - ROW_COUNT_MAX;
        waiting = waiting.slice(-ROW_COUNT_MAX);
      }
    }
  } finally {
    clearInterval(timer);
    draw();
  }
}

/** With conditions, the server looks for new messages again and again. @param {Tail} tail */
async function followSearch({ stream, topic, partitions, filters, onRows, signal }) {
  const bounds = await get(path`streams/${stream}/topics/${topic}/bounds`, { signal });
  let positions = bounds.partitions.map((/** @type {any} */ row) => `${row.partition_id}.${row.next_offset}`).join("~");
  while (!signal.aborted) {
    /** @type {Message[]} */
    const found = [];
    const query = searchQuery({ filters, partitions, order: "oldest", positions, count: SEARCH_COUNT });
    for await (const { kind, data } of events(`${path`streams/${stream}/topics/${topic}/search`}?${query}`, signal)) {
      if (kind === "message") found.push(messageOf(stream, topic, data));
      else if (kind === "done") positions = data.positions;
      else if (kind === "stopped") throw new Error(data.reason);
    }
    if (found.length > 0) onRows(found, 0);
    await new Promise((resolve) => setTimeout(resolve, SEARCH_INTERVAL));
  }
}

/**
 * The query of a search.
 *
 * @param {{ filters: string[], partitions: number[] | null, order: string, positions?: string, count: number, bounds?: Record<string, string> }} wanted
 */
export function searchQuery({ filters, partitions, order, positions, count, bounds }) {
  const query = new URLSearchParams({ order, count: String(count), payload: "base64", payload_bytes: "64KiB", ...bounds });
  for (const filter of filters) query.append("filter", filter);
  for (const partition of partitions ?? []) query.append("partition_id", String(partition));
  if (positions !== undefined && positions !== "") query.set("positions", positions);
  return query.toString();
}
