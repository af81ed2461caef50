// What is stored, what will be deleted, and what the last start found.

import { ApiError, get } from "./api.js";
import { fill, h, icon } from "./dom.js";
import { bytes, count, moment, plural, sizeOf } from "./format.js";
import { HORIZONS, PLAN_COLUMNS, fetchPlan, planText } from "./storage_parts.js";
import { Table } from "./table.js";
import { allTopics } from "./view_groups.js";
import { topicHref } from "./views.js";
import { badge, card, failure, field, heading, select } from "./widgets.js";

/** @typedef {import("./storage_parts.js").PlannedDeletion} PlannedDeletion */

const INTERVAL = 10_000;
/** @type {Record<string, string>} */
const STOPS = { clean: "It was stopped in order.", killed: "It was killed; the machine went on.", crashed: "The machine went down, or the server was never started here." };

/** @param {import("./views.js").Context} context */
export function show({ root, live, query, setQuery, signal, setTitle }) {
  setTitle("Storage");
  const horizon = select(HORIZONS, query.get("until") ?? "tonight", (value) => {
    setQuery({ until: value === "tonight" ? null : value });
    void drawPlan();
  });
  const sum = h("p", { class: "plan", role: "status" });
  /** @type {{ stream: string, topic: any, streamId: number }[]} */
  let topics = [];
  /** @param {PlannedDeletion} row */
  const topicOf = (row) => topics.find((one) => one.streamId === row.stream_id && one.topic.id === row.topic_id);
  /** @type {Table<PlannedDeletion>} */
  const planTable = new Table({
    label: "What will be deleted", key: (row) => `${row.stream_id}.${row.topic_id}.${row.partition_id}.${row.reason}`, empty: "Nothing.",
    columns: [{ title: "Topic", value: (row) => `${row.stream_id}.${row.topic_id} ${topicOf(row)?.topic.name ?? ""}`, render: (row) => {
      const found = topicOf(row);
      return found === undefined ? `${row.stream_id}/${row.topic_id}` : h("a", { href: topicHref(found.stream, found.topic.name, "storage") }, `${found.stream}/${found.topic.name}`);
    } }, ...PLAN_COLUMNS()],
  });
  /** @type {Table<{ stream: string, topic: any }>} */
  const topicTable = new Table({
    label: "Topics by size", key: (row) => `${row.stream}/${row.topic.name}`, sortColumn: 1, isDescending: true, empty: "There are no topics yet.",
    columns: [
      { title: "Topic", value: (row) => `${row.stream}/${row.topic.name}`, render: (row) => h("a", { href: topicHref(row.stream, row.topic.name, "storage") }, `${row.stream}/${row.topic.name}`) },
      { title: "Size", value: (row) => sizeOf(row.topic.size), render: (row) => bytes(sizeOf(row.topic.size)), isNumber: true },
      { title: "Messages", value: (row) => row.topic.messages_count, render: (row) => count(row.topic.messages_count), isNumber: true },
      { title: "Partitions", value: (row) => row.topic.partitions_count, isNumber: true },
    ],
  });
  const report = h("div");
  fill(root, heading("Storage"),
    card("What will be deleted", h("div", { class: "filters" }, field("When", horizon), sum),
      h("p", { class: "help" }, "If nothing is sent meanwhile. Whole segments are deleted, oldest first, even if a group has not read them. New messages can push older ones out of a topic with a limited size."),
      planTable.element),
    card("Topics by size", topicTable.element), card("The last start", report));

  const drawPlan = async () => {
    const plan = await fetchPlan(horizon.value, signal);
    sum.textContent = planText(horizon.value, plan);
    planTable.update(plan.deletions);
  };
  const drawReport = async () => {
    try {
      const found = await get("start-report", { signal });
      fill(report, h("p", null, `The server was started ${moment(found.started_at)}. Before that: ${STOPS[found.last_stop] ?? found.last_stop}`),
        found.findings.length === 0 ? h("p", { class: "good" }, icon("check"), " The start found nothing to report.")
          : h("div", null, h("p", null, `${plural(found.finding_count, "finding")}:`), h("ul", { class: "findings" }, found.findings.map((/** @type {any} */ finding) =>
            h("li", null, badge(finding.level, finding.level === "error" ? "bad" : finding.level === "warning" ? "warn" : "plain"), " ", h("span", null, finding.text))))));
    } catch (error) {
      // Whoever may not see the server can still see topics.
      if (!(error instanceof ApiError && error.isForbidden)) throw error;
      fill(report, failure(error));
    }
  };
  let isFirst = true;
  live(async () => {
    const streams = await get("streams", { signal });
    const ids = new Map(streams.map((/** @type {any} */ stream) => [stream.name, stream.id]));
    topics = (await allTopics(signal)).map((row) => ({ ...row, streamId: Number(ids.get(row.stream)) }));
    topicTable.update(topics);
    await drawPlan();
    if (isFirst) await drawReport();
    isFirst = false;
  }, INTERVAL);
}
