// Pipelines as they report themselves, and the sinks that publish staged messages.

import { get, path } from "./api.js";
import { fill, h } from "./dom.js";
import { ago, bytes, count, moment, shortCount } from "./format.js";
import { Table } from "./table.js";
import { badge, button, card, dialog, empty, facts, heading } from "./widgets.js";

/**
 * @typedef {object} Pipeline as GET /pipelines has it
 * @property {string} name
 * @property {string} username
 * @property {number} reported_at
 * @property {string} state
 * @property {string} consumer
 * @property {string} host
 * @property {number} started_at
 * @property {number} batch_count
 * @property {number} rows
 * @property {number} rows_per_second
 * @property {number} lag
 * @property {number} lost
 * @property {number} bad_rows
 * @property {number} restarts
 * @property {string} source
 * @property {string} sink
 * @property {string} error
 * @property {string} definition
 */
/** @typedef {{ name: string, user_id: number, batch: number | null, is_open: boolean, published_at: number, part_count: number, staged_size: number }} Sink */
/** @typedef {{ batch: number, part: number, attempt: number | bigint, message_count: number, size: number, is_finished: boolean, touched_at: number }} Part */

const INTERVAL = 2_000;
const SILENT = 120_000_000;
const ENDED = ["stopped", "finished", "failed"];
/** @type {Record<string, "good" | "bad" | "warn" | "plain">} */
const KINDS = { running: "good", finished: "good", failed: "bad", restarting: "warn", silent: "warn", starting: "plain" };

/** The state, or that it has not reported for a while. @param {Pipeline} row */
const stateOf = (row) => (!ENDED.includes(row.state) && Date.now() * 1_000 - row.reported_at > SILENT ? "silent" : row.state);

/** @param {import("./views.js").Context} context */
export function show({ root, live, signal, setTitle }) {
  setTitle("Pipelines");
  /** @type {Table<Pipeline>} */
  const pipelines = new Table({
    label: "Pipelines", key: (row) => `${row.username} ${row.name}`, sortColumn: 0,
    columns: [
      { title: "Pipeline", value: (row) => row.name, render: (row) => h("strong", null, row.name) },
      { title: "State", value: stateOf, render: (row) => badge(stateOf(row), KINDS[stateOf(row)]) },
      { title: "From", value: (row) => row.source },
      { title: "To", value: (row) => row.sink },
      { title: "Rows", value: (row) => row.rows, render: (row) => count(row.rows), isNumber: true },
      { title: "Rate", value: (row) => row.rows_per_second, render: (row) => `${shortCount(row.rows_per_second)}/s`, isNumber: true },
      { title: "Lag", value: (row) => row.lag, render: (row) => shortCount(row.lag), isNumber: true },
      { title: "Batches", value: (row) => row.batch_count, render: (row) => count(row.batch_count), isNumber: true },
      { title: "Reported", value: (row) => row.reported_at, render: (row) => ago(row.reported_at) },
      { title: "Last error", value: (row) => row.error, render: (row) => h("span", { class: "problem", title: row.error }, row.error) },
      { title: "", value: (row) => `${row.reported_at}`, isPlain: true, render: (row) => button("Details", () => void showPipeline(row)) },
    ],
  });
  /** @type {Table<Sink>} */
  const sinks = new Table({
    label: "Sinks", key: (row) => `${row.user_id} ${row.name}`, sortColumn: 0, empty: "Nothing was staged or published in parts.",
    columns: [
      { title: "Sink", value: (row) => row.name },
      { title: "Published batch", value: (row) => row.batch, render: (row) => row.batch === null ? "–" : count(row.batch), isNumber: true },
      { title: "State", value: (row) => row.is_open, render: (row) => row.is_open ? badge("publishing", "warn") : badge("settled", "good") },
      { title: "Published", value: (row) => row.published_at, render: (row) => row.published_at === 0 ? "never" : moment(row.published_at) },
      { title: "Staged parts", value: (row) => row.part_count, render: (row) => count(row.part_count), isNumber: true },
      { title: "Staged size", value: (row) => row.staged_size, render: (row) => bytes(row.staged_size), isNumber: true },
      { title: "", value: (row) => row.name, isPlain: true, render: (row) => button("Parts", () => void showParts(row, signal)) },
    ],
  });
  const list = h("div", null, pipelines.element);
  fill(root, heading("Pipelines"), list, card("Sinks and staged parts", h("p", { class: "help" }, "A sink publishes the messages of many tasks at once, exactly once. Parts that are staged and not published wait for their batch, or are left over from an attempt that failed; they expire."), sinks.element));
  live(async () => {
    /** @type {[Pipeline[], Sink[]]} */
    const [found, foundSinks] = await Promise.all([get("pipelines", { signal }), get("sinks", { signal })]);
    if (found.length === 0) {
      fill(list, empty("No pipeline has reported to this server", h("p", null, "Pipelines of ", h("code", null, "courser pipeline run"), " and Spark queries with the option ", h("code", null, "consumer"), " appear here by themselves.")));
    } else if (!list.contains(pipelines.element)) fill(list, pipelines.element);
    pipelines.update(found);
    sinks.update(foundSinks);
  }, INTERVAL);
}

/** @param {Pipeline} row */
function showPipeline(row) {
  return dialog(row.name, () => [
    facts([
      ["State", badge(stateOf(row), KINDS[stateOf(row)])], ["From", row.source], ["To", row.sink], ["User", row.username], ["Host", row.host || "unknown"],
      ["Consumer", row.consumer || "none"], ["Started", row.started_at === 0 ? "unknown" : moment(row.started_at)], ["Reported", moment(row.reported_at)],
      ["Rows", count(row.rows)], ["Lag", `${count(row.lag)} messages`], ["Lost", `${count(row.lost)} messages were gone before they were read`],
      ["Bad rows", count(row.bad_rows)], ["Restarts", count(row.restarts)], ["Last error", row.error || "none"],
    ]),
    row.definition !== "" && [h("h3", null, "Definition in effect"), h("div", { class: "snippet" }, h("pre", { tabindex: "0", "aria-label": "Definition" }, h("code", null, row.definition)))],
  ], { wide: true });
}

/** @param {Sink} sink @param {AbortSignal} signal */
async function showParts(sink, signal) {
  /** @type {Part[]} */
  const parts = await get(path`sinks/${sink.name}/parts`, { signal });
  /** @type {Table<Part>} */
  const table = new Table({
    label: "Staged parts", key: (row) => `${row.batch} ${row.part} ${row.attempt}`, empty: "No part is staged.",
    columns: [
      { title: "Batch", value: (row) => row.batch, isNumber: true }, { title: "Part", value: (row) => row.part, isNumber: true },
      { title: "Messages", value: (row) => row.message_count, render: (row) => count(row.message_count), isNumber: true },
      { title: "Size", value: (row) => row.size, render: (row) => bytes(row.size), isNumber: true },
      { title: "State", value: (row) => row.is_finished, render: (row) => row.is_finished ? badge("finished", "good") : badge("being written", "warn") },
      { title: "Last change", value: (row) => row.touched_at, render: (row) => moment(row.touched_at) },
    ],
  });
  table.update(parts);
  await dialog(`Parts of ${sink.name}`, () => table.element, { wide: true });
}
