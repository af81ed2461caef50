// All consumer groups, the one that is furthest behind first.

import { get, path } from "./api.js";
import { fill, h } from "./dom.js";
import { count } from "./format.js";
import { fetchLag } from "./group_lag.js";
import { groupTable } from "./group_table.js";
import { heading } from "./widgets.js";

/** @typedef {import("./group_table.js").GroupRow} GroupRow */

const INTERVAL = 3_000;
const TOPIC_COUNT_MAX = 2_000;
const GROUP_COUNT_MAX = 300;
const AT_ONCE = 6;

/** Runs steps, a few at a time. @template Item @param {Item[]} items @param {(item: Item) => Promise<void>} step */
export async function forEach(items, step) {
  const queue = [...items];
  await Promise.all(Array.from({ length: AT_ONCE }, async () => {
    for (let item = queue.shift(); item !== undefined; item = queue.shift()) await step(item);
  }));
}

/** All topics, as pairs of names. @param {AbortSignal} signal */
export async function allTopics(signal) {
  const streams = await get("streams", { signal });
  /** @type {{ stream: string, topic: any }[]} */
  const topics = [];
  await forEach(streams, async (/** @type {any} */ stream) => {
    const found = await get(path`streams/${stream.id}`, { signal });
    topics.push(...found.topics.map((/** @type {any} */ topic) => ({ stream: stream.name, topic })));
  });
  return topics;
}

/** @param {import("./views.js").Context} context */
export function show({ root, live, query, setQuery, signal, setTitle }) {
  setTitle("Consumer groups");
  const search = h("input", { type: "search", placeholder: "Find a group or a topic", "aria-label": "Find a group or a topic", value: query.get("find") ?? "", oninput: () => {
    setQuery({ find: search.value });
    draw();
  } });
  const note = h("p", { role: "status" });
  const table = groupTable(true, "There are no consumer groups. A consumer creates one when it joins.");
  fill(root, heading("Consumer groups"), h("div", { class: "filters" }, search, note), table.element);
  /** @type {GroupRow[]} */
  let rows = [];
  let round = 0;
  const draw = () => {
    const wanted = search.value.toLowerCase();
    table.update(rows.filter((row) => `${row.stream}/${row.topic} ${row.name}`.toLowerCase().includes(wanted)));
  };
  live(async () => {
    // New topics and groups are looked for less often than the lag.
    if (round % 5 === 0) {
      const topics = await allTopics(signal);
      /** @type {GroupRow[]} */
      const found = [];
      await forEach(topics.slice(0, TOPIC_COUNT_MAX), async ({ stream, topic }) => {
        const groups = await get(path`streams/${stream}/topics/${topic.id}/consumer-groups`, { signal });
        for (const group of groups) {
          const known = rows.find((row) => row.stream === stream && row.topic === topic.name && row.name === group.name);
          found.push({ stream, topic: topic.name, name: group.name, members: group.members_count, lag: known?.lag ?? null });
        }
      });
      rows = found;
      note.textContent = topics.length > TOPIC_COUNT_MAX ? `Groups of the first ${count(TOPIC_COUNT_MAX)} topics. Open a topic to see its own.` : "";
      draw();
    }
    round += 1;
    await forEach(rows.slice(0, GROUP_COUNT_MAX), async (row) => {
      try {
        row.lag = await fetchLag(row.stream, row.topic, row.name, signal);
      } catch (error) {
        // It was deleted in between.
        if (!(error instanceof Error && "status" in error && error.status === 404)) throw error;
      }
    });
    draw();
  }, INTERVAL);
}
