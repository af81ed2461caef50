// One consumer group: who reads what, how far behind it is, where that goes, and why.

import { get, path } from "./api.js";
import { LineChart, sparkline } from "./charts.js";
import { fill, h } from "./dom.js";
import { count, duration, shortCount } from "./format.js";
import { deleteGroup, drawNotices, resetGroup } from "./group_forms.js";
import { Trends, directionText, explain, fetchLag, oldestOf, totalOf } from "./group_lag.js";
import { Table } from "./table.js";
import { topicHref } from "./views.js";
import { button, card, figure, heading, quote, snippets } from "./widgets.js";

/** @typedef {import("./group_lag.js").PartitionLag} PartitionLag */

const INTERVAL = 2_000;
const SAMPLE_COUNT = 300;

/** @param {import("./views.js").Context} context */
export function show({ root, params, live, signal, setTitle, session }) {
  const { stream, topic, group: name } = params;
  setTitle(`${name} of ${stream}/${topic}`);
  const trends = new Trends();
  /** @type {any} */
  let group = null;
  /** @type {{ time: number, value: number }[]} */
  let samples = [];
  /** @type {{ id: number, partitions: number[] }[]} */
  let members = [];
  /** @type {Map<number, number>} */
  let owners = new Map();
  const figures = h("dl", { class: "figures" });
  const notices = h("div", { class: "notices" });
  const chart = new LineChart({ title: "Lag in messages, since this page is open", format: shortCount });
  /** @type {Table<PartitionLag>} */
  const table = new Table({
    label: "Partitions", key: (row) => row.partition_id, sortColumn: 0,
    columns: [
      { title: "Partition", value: (row) => row.partition_id, isNumber: true },
      { title: "Member", value: (row) => owners.get(row.partition_id) ?? null, render: (row) => owners.get(row.partition_id) ?? "nobody" },
      { title: "Stored offset", value: (row) => row.stored_offset, render: (row) => (row.stored_offset === null ? "none" : count(row.stored_offset)), isNumber: true },
      { title: "End", value: (row) => row.next_offset, render: (row) => (row.next_offset === null ? "offline" : count(row.next_offset)), isNumber: true },
      { title: "Lag", value: (row) => row.message_count, render: (row) => (row.message_count === null ? "unknown" : count(row.message_count)), isNumber: true },
      { title: "Oldest unread", value: (row) => (row.age === null ? null : Math.round(Number(row.age) / 1e6)), render: (row) => (Number(row.message_count ?? 0) === 0 ? "–" : row.age === null ? "unknown" : duration(row.age)), isNumber: true },
      { title: "Trend", value: (row) => trends.of(row.partition_id).join(), isPlain: true,
        render: (row) => [sparkline(trends.of(row.partition_id), "Lag over the last minutes"), " ", directionText(trends.direction(row.partition_id))] },
    ],
  });
  /** @type {Table<{ id: number, partitions: number[] }>} */
  const memberTable = new Table({
    label: "Members", key: (row) => row.id, sortColumn: 0, empty: "The group has no members: nobody reads.",
    columns: [
      { title: "Member", value: (row) => row.id, isNumber: true },
      { title: "Partitions", value: (row) => row.partitions.join(", "), class: "wrap" },
    ],
  });
  const place = `${stream}/${topic}`;
  fill(root,
    h("div", null, heading([h("a", { class: "crumbs", href: topicHref(stream, topic, "groups") }, place), h("span", { class: "crumbs" }, " / "), name],
      h("a", { class: "button", href: `${topicHref(stream, topic, "messages")}?unread=${encodeURIComponent(name)}` }, "Unread messages"),
      button("Reset offsets", async () => {
        if (group !== null && (await resetGroup(stream, topic, group))) await refresh();
      }, { disabled: session.read_only }),
      button("Delete", async () => {
        if (await deleteGroup(stream, topic, name)) location.hash = topicHref(stream, topic, "groups");
      }, { kind: "danger", icon: "trash", disabled: session.read_only }))),
    figures, notices, card("Over time", chart.element), card("Partitions", table.element), card("Members", memberTable.element),
    card("On the command line", snippets({
      CLI: `courser group reset ${quote(place)} ${quote(name)} --to -1h --dry-run`,
      Lag: `courser lag ${quote(place)} --group ${quote(name)}`,
      Python: `plan = await client.reset_consumer_group(${JSON.stringify(place)}, consumer_group=${JSON.stringify(name)}, to=timedelta(hours=1), dry_run=True)`,
    })));

  const refresh = async () => {
    const [found, lag] = await Promise.all([
      get(path`streams/${stream}/topics/${topic}/consumer-groups/${name}`, { signal }), fetchLag(stream, topic, name, signal)]);
    group = found;
    members = found.members.map((/** @type {any} */ member) => ({ id: member.id, partitions: member.partitions }));
    owners = new Map(members.flatMap((member) => member.partitions.map((partition) => /** @type {[number, number]} */ ([partition, member.id]))));
    const total = totalOf(lag);
    trends.add("total", total);
    for (const row of lag) {
      trends.add(row.partition_id, Number(row.message_count ?? 0));
      trends.add(`stored ${row.partition_id}`, Number(row.stored_offset ?? -1));
    }
    samples = [...samples, { time: Date.now() * 1_000, value: total }].slice(-SAMPLE_COUNT);
    fill(figures,
      figure("Lag", count(total), "messages"), figure("Oldest unread", total === 0 ? "–" : duration(oldestOf(lag)), total === 0 ? "everything is read" : "old"),
      figure("Trend", directionText(trends.direction("total"))), figure("Members", count(members.length)), figure("Partitions", count(found.partitions_count)));
    drawNotices(notices, explain(lag, members, trends));
    chart.update(samples.map((sample) => sample.time), [{ name: "Lag", values: samples.map((sample) => sample.value) }]);
    table.update(lag);
    memberTable.update(members);
  };
  live(refresh, INTERVAL);
}
