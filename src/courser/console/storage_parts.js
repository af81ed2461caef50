// Parts of the views of storage: what will be deleted, and segments on a timeline.

import { get } from "./api.js";
import { h, s } from "./dom.js";
import { ago, bytes, count, moment, plural } from "./format.js";
import { isUtc } from "./preferences.js";

/** @typedef {number | bigint} Integer */
/**
 * @typedef {object} PlannedDeletion
 * @property {number} stream_id
 * @property {number} topic_id
 * @property {number} partition_id
 * @property {string} reason
 * @property {Integer} first_offset
 * @property {Integer} next_offset
 * @property {number} segment_count
 * @property {Integer} message_count
 * @property {Integer} size
 * @property {Integer} due_at
 * @property {boolean} is_archived
 */
/**
 * @typedef {object} Segment
 * @property {number} partition_id
 * @property {Integer} first_offset
 * @property {Integer} next_offset
 * @property {Integer} size
 * @property {Integer} message_count
 * @property {Integer} first_timestamp
 * @property {Integer} last_timestamp
 * @property {boolean} is_sealed
 * @property {string} state
 * @property {string} location
 */
/** @typedef {"active" | "local" | "archived" | "both" | "expired" | "damaged"} Look */

/** @type {[string, string][]} */
export const HORIZONS = [["hour", "In the next hour"], ["tonight", "Tonight, until midnight"], ["day", "In the next 24 hours"], ["week", "In the next 7 days"], ["month", "In the next 30 days"]];
/** @type {Record<string, number>} */
const HOURS = { hour: 1, day: 24, week: 168, month: 720 };

/** @type {Record<string, string>} */
export const REASONS = {
  expired: "older than the topic keeps messages", size: "the topic is larger than its limit", local: "the archive has them, and the topic keeps enough here",
  requested: "somebody deleted them", purged: "the topic was purged", pressure: "the disk had too little free space",
};

/** The end of a horizon, in microseconds. @param {string} horizon */
export function endOf(horizon) {
  const now = new Date();
  if (horizon !== "tonight") return Date.now() * 1_000 + HOURS[horizon] * 3_600_000_000;
  return (isUtc() ? Date.UTC(now.getUTCFullYear(), now.getUTCMonth(), now.getUTCDate() + 1)
    : new Date(now.getFullYear(), now.getMonth(), now.getDate() + 1).getTime()) * 1_000;
}

/** @param {string} horizon @param {AbortSignal} signal @returns {Promise<{ is_enabled: boolean, deletions: PlannedDeletion[] }>} */
export const fetchPlan = (horizon, signal) => get(`retention?until=${endOf(horizon)}`, { signal });

/** "Tonight: 3 segments, 2.1 GB". @param {string} horizon @param {{ is_enabled: boolean, deletions: PlannedDeletion[] }} plan */
export function planText(horizon, plan) {
  const when = { hour: "In the next hour", tonight: "Tonight", day: "In the next 24 hours", week: "In the next 7 days", month: "In the next 30 days" }[horizon];
  if (!plan.is_enabled) return "The cleaner is switched off: nothing is deleted by itself.";
  if (plan.deletions.length === 0) return `${when}: nothing will be deleted.`;
  const segments = plan.deletions.reduce((sum, row) => sum + row.segment_count, 0);
  const messages = plan.deletions.reduce((sum, row) => sum + Number(row.message_count), 0);
  const size = plan.deletions.reduce((sum, row) => sum + Number(row.size), 0);
  return `${when}: ${plural(segments, "segment")}, ${bytes(size)}, ${plural(messages, "message")}.`;
}

/** The columns of planned deletions. @returns {import("./table.js").Column<PlannedDeletion>[]} */
export const PLAN_COLUMNS = () => [
  { title: "Partition", value: (row) => row.partition_id, isNumber: true },
  { title: "Segments", value: (row) => row.segment_count, isNumber: true },
  { title: "Messages", value: (row) => row.message_count, render: (row) => count(row.message_count), isNumber: true },
  { title: "Size", value: (row) => Number(row.size), render: (row) => bytes(row.size), isNumber: true },
  { title: "Offsets", value: (row) => row.first_offset, render: (row) => `${count(row.first_offset)} to ${count(BigInt(row.next_offset) - 1n)}` },
  { title: "First deletion", value: (row) => Number(row.due_at), render: (row) => h("span", { title: moment(row.due_at) }, ago(row.due_at)) },
  { title: "Why", value: (row) => row.reason, render: (row) => `${REASONS[row.reason] ?? row.reason}${row.is_archived ? "; the archive keeps them" : ""}`, class: "wrap" },
];

/** How a segment is shown. @param {Segment} segment @param {Set<string>} damaged partitions and first offsets */
export function lookOf(segment, damaged) {
  if (damaged.has(`${segment.partition_id}.${segment.first_offset}`)) return /** @type {Look} */ ("damaged");
  if (segment.location === "remote") return /** @type {Look} */ ("archived");
  if (segment.state === "archived") return /** @type {Look} */ ("both");
  if (segment.state === "expired") return /** @type {Look} */ ("expired");
  return /** @type {Look} */ (segment.is_sealed ? "local" : "active");
}

/** @type {Record<Look, string>} */
export const LOOKS = {
  active: "here, takes new messages", local: "here", both: "here and in the archive", archived: "in the archive only", expired: "here, will be deleted next", damaged: "damaged",
};
const WIDTH = 1000;
const ROW = 22;
const GAP = 6;

/**
 * Segments by time, one row for each partition.
 *
 * @param {Map<number, Segment[]>} partitions
 * @param {Set<string>} damaged
 * @param {(segment: Segment) => void} onPick
 */
export function timeline(partitions, damaged, onPick) {
  const all = [...partitions.values()].flat().filter((segment) => Number(segment.message_count) > 0);
  if (all.length === 0) return h("p", { class: "table-empty" }, "There are no segments with messages.");
  const first = Math.min(...all.map((segment) => Number(segment.first_timestamp)));
  const last = Math.max(...all.map((segment) => Number(segment.last_timestamp)), first + 1);
  /** @param {Integer} at */
  const x = (at) => ((Number(at) - first) / (last - first)) * WIDTH;
  const rows = [...partitions].map(([partition, segments], index) => segments.filter((segment) => Number(segment.message_count) > 0).map((segment) => {
    const look = lookOf(segment, damaged);
    const text = `Partition ${partition}, offsets ${segment.first_offset} to ${BigInt(segment.next_offset) - 1n}: ${bytes(segment.size)}, ${count(segment.message_count)} messages, ${moment(segment.first_timestamp)} to ${moment(segment.last_timestamp)}, ${LOOKS[look]}`;
    const begin = x(segment.first_timestamp);
    return s("rect", { class: `segment ${look}`, x: begin, y: index * (ROW + GAP), width: Math.max(x(segment.last_timestamp) - begin - 1, 4), height: ROW, rx: 3,
      onclick: () => onPick(segment) }, s("title", null, text));
  }));
  const labels = [...partitions.keys()].map((partition) => h("li", null, `Partition ${partition}`));
  return h("div", { class: "timeline" },
    h("ul", { class: "timeline-names", "aria-hidden": "true" }, labels),
    h("div", { class: "timeline-box" },
      s("svg", { viewBox: `0 0 ${WIDTH} ${partitions.size * (ROW + GAP)}`, role: "img", preserveAspectRatio: "none", style: { height: `${partitions.size * (ROW + GAP)}px` },
        "aria-label": `${plural(all.length, "segment")} from ${moment(first)} to ${moment(last)}. The table below lists them.` }, rows),
      h("div", { class: "timeline-ends" }, h("span", null, moment(first)), h("span", null, moment(last)))),
    h("ul", { class: "timeline-keys" }, Object.entries(LOOKS).map(([look, text]) => h("li", null, h("span", { class: `swatch-box ${look}` }), text))));
}
