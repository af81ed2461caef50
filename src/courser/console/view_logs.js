// The newest lines of the log, live, by level and text.

import { get } from "./api.js";
import { fill, h } from "./dom.js";
import { moment, plural, time } from "./format.js";
import { Table } from "./table.js";
import { badge, heading, select } from "./widgets.js";

/** @typedef {{ number: number, time: number, level: string, logger: string, message: string }} Line */

const INTERVAL = 1_500;
const LINE_COUNT_MAX = 5_000;
const LEVELS = ["debug", "info", "warning", "error", "critical"];
/** @type {Record<string, "plain" | "warn" | "bad">} */
const KINDS = { warning: "warn", error: "bad", critical: "bad" };

/** @param {import("./views.js").Context} context */
export function show({ root, live, signal, query, setQuery, setTitle }) {
  setTitle("Logs");
  /** @type {Line[]} */
  let lines = [];
  const search = h("input", { type: "search", value: query.get("search") ?? "", placeholder: "Filter by text", "aria-label": "Filter by text", oninput: () => draw() });
  const level = select(LEVELS.slice(0, 4).map((name) => [name, `${name} and above`]), query.get("level") ?? "info", () => draw());
  level.setAttribute("aria-label", "Level");
  const summary = h("span", { class: "soft", role: "status" });
  /** @type {Table<Line>} */
  const table = new Table({
    label: "Lines of the log, newest first", key: (row) => row.number, empty: "No line fits. The server keeps the newest 2,000 lines in memory; its files have more.",
    rowClass: (row) => `level-${row.level}`,
    columns: [
      { title: "Time", value: (row) => row.number, render: (row) => h("span", { class: "mono", title: moment(row.time) }, time(row.time)) },
      { title: "Level", value: (row) => row.level, render: (row) => badge(row.level, KINDS[row.level] ?? "plain") },
      { title: "Part", value: (row) => row.logger.replace(/^courser\./, "") },
      { title: "Message", value: (row) => row.message, class: "log-message", render: (row) => h("span", { class: "mono", title: row.message }, row.message) },
    ],
  });
  const draw = () => {
    setQuery({ search: search.value, level: level.value === "info" ? null : level.value });
    const word = search.value.toLowerCase();
    const least = LEVELS.indexOf(level.value);
    const shown = lines.filter((line) => LEVELS.indexOf(line.level) >= least && `${line.logger} ${line.message}`.toLowerCase().includes(word));
    table.update(shown);
    summary.textContent = plural(shown.length, "line");
  };
  fill(root, heading("Logs"), h("div", { class: "filters" }, search, level, summary), table.element);
  live(async () => {
    /** @type {Line[]} */
    const added = await get(`logs?after=${lines[0]?.number ?? 0}`, { signal });
    // Numbers begin anew when the server does.
    if (added.length > 0 && lines.length > 0 && added[0].number <= lines[0].number) lines = [];
    lines = [...added.reverse(), ...lines].slice(0, LINE_COUNT_MAX);
    draw();
  }, INTERVAL);
}
