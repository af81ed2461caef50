// The storage of one topic: partitions, segments on a timeline, what was and will be deleted, damage, and verification.

import { get, path, post } from "./api.js";
import { fill, h } from "./dom.js";
import { bytes, count, moment, plural } from "./format.js";
import { HORIZONS, LOOKS, PLAN_COLUMNS, REASONS, fetchPlan, lookOf, planText, timeline } from "./storage_parts.js";
import { Table } from "./table.js";
import { topicTabs } from "./topic_head.js";
import { badge, button, card, field, figure, reasonOf, select, toast } from "./widgets.js";

/** @typedef {import("./storage_parts.js").Segment} Segment */
/** @typedef {{ state: "running" | "good" | "damaged" | "repaired" | "failed", text: string }} Verdict */

const INTERVAL = 5_000;
const ROW_COUNT_MAX = 16;
const KINDS = /** @type {const} */ ({ active: "good", local: "plain", both: "good", archived: "plain", expired: "warn", damaged: "bad" });
const VERDICTS = /** @type {const} */ ({ running: "plain", good: "good", damaged: "bad", repaired: "warn", failed: "bad" });

/** @param {import("./views.js").Context} context */
export function show({ root, params, live, query, setQuery, signal, setTitle, session }) {
  const { stream, topic: name } = params;
  setTitle(`Storage of ${stream}/${name}`);
  /** @type {any} */
  let topic = null;
  /** @type {Map<number, Segment[]>} */
  let partitions = new Map();
  /** @type {Set<string>} */
  let damaged = new Set();
  /** @type {Map<string, Verdict>} */
  const verdicts = new Map();
  let isVerifying = false;
  const figures = h("dl", { class: "figures" });
  const picture = h("div");
  const directory = h("p", { class: "help" });
  const partition = h("select", { "aria-label": "Partition", onchange: () => {
    setQuery({ partition: partition.value });
    void refresh();
  } });
  const horizon = select(HORIZONS, query.get("until") ?? "tonight", (value) => {
    setQuery({ until: value === "tonight" ? null : value });
    void refresh();
  });
  const sum = h("p", { class: "plan", role: "status" });
  const progress = h("p", { role: "status" });
  /** @param {Segment} row */
  const keyOf = (row) => `${row.partition_id}.${row.first_offset}`;
  /** @type {Table<Segment>} */
  const table = new Table({
    label: "Segments", key: keyOf, sortColumn: 0, empty: "This partition has no segments yet.",
    rowClass: (row) => (keyOf(row) === picked ? "picked" : ""),
    columns: [
      { title: "First offset", value: (row) => row.first_offset, render: (row) => count(row.first_offset), isNumber: true },
      { title: "Messages", value: (row) => row.message_count, render: (row) => count(row.message_count), isNumber: true },
      { title: "Size", value: (row) => Number(row.size), render: (row) => bytes(row.size), isNumber: true },
      { title: "From", value: (row) => Number(row.first_timestamp), render: (row) => (Number(row.message_count) === 0 ? "–" : moment(row.first_timestamp)) },
      { title: "To", value: (row) => Number(row.last_timestamp), render: (row) => (Number(row.message_count) === 0 ? "–" : moment(row.last_timestamp)) },
      { title: "Where", value: (row) => lookOf(row, damaged), render: (row) => badge(LOOKS[lookOf(row, damaged)], KINDS[lookOf(row, damaged)]) },
      { title: "Verification", value: (row) => verdicts.get(keyOf(row))?.text ?? "", isPlain: true, render: (row) => {
        const verdict = verdicts.get(keyOf(row));
        if (verdict !== undefined) return badge(verdict.text, VERDICTS[verdict.state]);
        return row.is_sealed && row.location === "local" ? button("Verify", () => verify([row]), { kind: "plain", disabled: session.read_only }) : "";
      } },
    ],
  });
  let picked = "";
  /** @type {Table<any>} */
  const planTable = new Table({ label: "What will be deleted", key: (row) => `${row.partition_id}.${row.reason}`, empty: "Nothing.", columns: PLAN_COLUMNS() });
  /** @type {Table<any>} */
  const deletionTable = new Table({
    label: "What was deleted", key: (row) => `${row.deleted_at}.${row.partition_id}.${row.first_offset}`, sortColumn: 0, isDescending: true, empty: "Nothing since the server was started.",
    columns: [
      { title: "When", value: (row) => Number(row.deleted_at), render: (row) => moment(row.deleted_at) },
      { title: "Partition", value: (row) => row.partition_id, isNumber: true },
      { title: "Segments", value: (row) => row.segment_count, isNumber: true },
      { title: "Messages", value: (row) => row.message_count, render: (row) => count(row.message_count), isNumber: true },
      { title: "Size", value: (row) => Number(row.size), render: (row) => bytes(row.size), isNumber: true },
      { title: "Why", value: (row) => row.reason, render: (row) => REASONS[row.reason] ?? row.reason, class: "wrap" },
    ],
  });
  const damages = h("div", { class: "notices" });

  /** @param {Segment[]} segments */
  const verify = async (segments) => {
    if (isVerifying) return;
    isVerifying = true;
    let badCount = 0;
    try {
      for (const [index, segment] of segments.entries()) {
        if (signal.aborted) return;
        progress.textContent = `Verifying ${index + 1} of ${plural(segments.length, "segment")} …`;
        verdicts.set(keyOf(segment), { state: "running", text: "reading …" });
        drawSegments();
        const verdict = await check(segment);
        badCount += verdict.state === "good" ? 0 : 1;
        verdicts.set(keyOf(segment), verdict);
        drawSegments();
      }
      progress.textContent = badCount === 0 ? `Verified ${plural(segments.length, "segment")}: all are good.` : `Verified ${plural(segments.length, "segment")}: ${badCount} with problems.`;
    } catch (error) {
      progress.textContent = "";
      for (const [key, verdict] of verdicts) if (verdict.state === "running") verdicts.delete(key);
      toast(reasonOf(error), "bad");
    } finally {
      isVerifying = false;
      if (!signal.aborted) await refresh();
    }
  };
  /** @param {Segment} segment @returns {Promise<Verdict>} */
  const check = async (segment) => {
    const result = await post(path`streams/${stream}/topics/${name}/partitions/${segment.partition_id}/segments/${segment.first_offset}/verification`);
    if (result.is_repaired) return { state: "repaired", text: "was damaged, repaired" };
    return result.damages.length === 0 ? { state: "good", text: "good" } : { state: "damaged", text: `${plural(result.damages.length, "damaged range")}` };
  };
  const shown = () => partitions.get(Number(partition.value)) ?? [];
  const drawSegments = () => table.update([...shown()]);

  fill(root, topicTabs(stream, name, "storage"), figures, damages,
    card("Segments over time", picture),
    card("Segments", h("div", { class: "filters" }, partition,
      button("Verify all", () => verify(shown().filter((segment) => segment.is_sealed && segment.location === "local" && verdicts.get(keyOf(segment)) === undefined)), { disabled: session.read_only }), progress),
    directory, table.element),
    card("What will be deleted", h("div", { class: "filters" }, field("When", horizon), sum), planTable.element),
    card("What was deleted", deletionTable.element));

  const refresh = async () => {
    const [found, maintenance, plan] = await Promise.all([
      get(path`streams/${stream}/topics/${name}`, { signal }), get(path`streams/${stream}/topics/${name}/maintenance`, { signal }), fetchPlan(horizon.value, signal)]);
    if (topic === null || topic.partitions.length !== found.partitions.length) {
      const before = partition.value || query.get("partition") || "0";
      fill(partition, found.partitions.map((/** @type {any} */ row) => h("option", { value: String(row.id), selected: String(row.id) === before }, `Partition ${row.id}`)));
    }
    topic = found;
    const ids = found.partitions.map((/** @type {any} */ row) => row.id).slice(0, ROW_COUNT_MAX);
    const chosen = Number(partition.value || 0);
    if (found.partitions.length > 0 && !ids.includes(chosen)) ids.push(chosen);
    const lists = await Promise.all(ids.map((/** @type {number} */ id) => get(path`streams/${stream}/topics/${name}/partitions/${id}/segments`, { signal })));
    partitions = new Map(lists.map((list) => [list.partition_id, list.segments.map((/** @type {any} */ segment) => ({ ...segment, partition_id: list.partition_id }))]));
    damaged = new Set(maintenance.damages.map((/** @type {any} */ row) => `${row.partition_id}.${row.segment_offset}`));
    const all = [...partitions.values()].flat();
    const local = all.filter((segment) => segment.location === "local");
    fill(figures, figure("Segments", count(all.length), ids.length < found.partitions.length ? `of ${ids.length} partitions` : undefined),
      figure("On this disk", bytes(local.reduce((total, segment) => total + Number(segment.size), 0))),
      figure("Only in the archive", bytes(all.reduce((total, segment) => total + (segment.location === "remote" ? Number(segment.size) : 0), 0))),
      figure("Damaged", count(maintenance.damages.length), maintenance.damages.length === 0 ? "nothing known" : "ranges"));
    fill(damages, maintenance.damages.map((/** @type {any} */ row) => h("div", { class: "notice bad" }, h("span", null,
      `Partition ${row.partition_id}: messages ${row.first_offset} to ${BigInt(row.next_offset) - 1n} are damaged on disk (${bytes(row.size)} at byte ${count(row.position)} of segment ${row.segment_offset}). Everything around them can be read.`))));
    fill(picture, timeline(partitions, damaged, (segment) => {
      partition.value = String(segment.partition_id);
      picked = keyOf(segment);
      drawSegments();
    }));
    directory.textContent = `Files are in ${lists.find((list) => list.partition_id === chosen)?.directory ?? "the data directory"}.`;
    drawSegments();
    const planned = plan.deletions.filter((row) => row.topic_id === found.id && row.stream_id === streamId);
    sum.textContent = planText(horizon.value, { ...plan, deletions: planned });
    planTable.update(planned);
    deletionTable.update(maintenance.deletions);
  };
  let streamId = -1;
  live(async () => {
    if (streamId < 0) streamId = (await get(path`streams/${stream}/topics/${name}/bounds`, { signal })).stream_id;
    await refresh();
  }, INTERVAL);
}
