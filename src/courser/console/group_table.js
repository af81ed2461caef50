// The table of consumer groups with their lag, for one topic and for all.

import { sparkline } from "./charts.js";
import { count, duration } from "./format.js";
import { groupLink } from "./group_forms.js";
import { Trends, directionText, oldestOf, totalOf } from "./group_lag.js";
import { Table } from "./table.js";
import { badge } from "./widgets.js";

/**
 * @typedef {object} GroupRow
 * @property {string} stream
 * @property {string} topic
 * @property {string} name
 * @property {number} members
 * @property {import("./group_lag.js").PartitionLag[] | null} lag
 */

/** @param {boolean} hasTopic whether groups of several topics are listed @param {import("./dom.js").Child} empty */
export function groupTable(hasTopic, empty) {
  const trends = new Trends();
  /** @param {GroupRow} row */
  const keyOf = (row) => `${row.stream}/${row.topic}/${row.name}`;
  /** @type {import("./table.js").Column<GroupRow>[]} */
  const columns = [
    { title: "Group", value: (row) => row.name, render: (row) => groupLink(row.stream, row.topic, row.name) },
    { title: "Members", value: (row) => row.members, render: (row) => (row.members === 0 ? badge("none", "warn") : count(row.members)), isNumber: true },
    { title: "Lag", value: (row) => (row.lag === null ? null : totalOf(row.lag)), render: (row) => (row.lag === null ? "…" : count(totalOf(row.lag))), isNumber: true },
    { title: "Oldest unread", value: (row) => (row.lag === null ? null : Math.round(oldestOf(row.lag) / 1e6)), render: (row) => (row.lag === null ? "…" : totalOf(row.lag) === 0 ? "–" : duration(oldestOf(row.lag))), isNumber: true },
    { title: "Trend", value: (row) => `${trends.direction(keyOf(row))} ${trends.of(keyOf(row)).join()}`, isPlain: true,
      render: (row) => [sparkline(trends.of(keyOf(row)), "Lag over the last minutes"), " ", directionText(trends.direction(keyOf(row)))] },
  ];
  if (hasTopic) columns.splice(1, 0, { title: "Topic", value: (row) => `${row.stream}/${row.topic}` });
  /** @type {Table<GroupRow>} */
  const table = new Table({ label: "Consumer groups", key: keyOf, columns, sortColumn: hasTopic ? 3 : 2, isDescending: true, empty });
  return {
    element: table.element,
    /** @param {GroupRow[]} rows */
    update(rows) {
      for (const row of rows) if (row.lag !== null) trends.add(keyOf(row), totalOf(row.lag));
      table.update(rows);
    },
  };
}
