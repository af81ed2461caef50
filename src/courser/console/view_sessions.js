// The connections: who, from where, with which library, how busy; and a button to end each.

import { get, remove } from "./api.js";
import { fill, h } from "./dom.js";
import { ago, count, moment, plural, shortCount } from "./format.js";
import { Table } from "./table.js";
import { badge, button, formDialog, heading, toast } from "./widgets.js";

/**
 * @typedef {object} Row as GET /sessions has it
 * @property {number} client_id
 * @property {number | null} user_id
 * @property {string} username
 * @property {string} transport
 * @property {string} address
 * @property {string} sdk
 * @property {number} connected_at
 * @property {number} last_seen_at
 * @property {number} request_count
 * @property {number} group_count
 */

const INTERVAL = 2_000;

/** @param {import("./views.js").Context} context */
export function show({ root, live, signal, query, setQuery, setTitle, session }) {
  setTitle("Sessions");
  /** @type {Row[]} */
  let rows = [];
  /** @type {Map<number, { count: number, time: number, rate: number }>} */
  const rates = new Map();
  const search = h("input", { type: "search", value: query.get("search") ?? "", placeholder: "Filter by user, address or library", "aria-label": "Filter by user, address or library",
    oninput: () => {
      setQuery({ search: search.value });
      draw();
    } });
  const summary = h("span", { class: "soft", role: "status" });
  /** @param {Row} row */
  const rateOf = (row) => rates.get(row.client_id)?.rate ?? 0;
  /** @type {Table<Row>} */
  const table = new Table({
    label: "Sessions", key: (row) => row.client_id, sortColumn: 0, empty: "Nobody is connected, except by HTTP: its requests have no sessions.",
    columns: [
      { title: "User", value: (row) => row.username, render: (row) => row.username === "" ? h("span", { class: "soft" }, "not logged in") : row.username },
      { title: "Address", value: (row) => row.address, render: (row) => h("span", { class: "mono" }, row.address) },
      { title: "Library", value: (row) => row.sdk, render: (row) => badge(row.sdk) },
      { title: "Transport", value: (row) => row.transport },
      { title: "Connected", value: (row) => row.connected_at, render: (row) => h("span", null, moment(row.connected_at)) },
      { title: "Last request", value: (row) => Math.floor(row.last_seen_at / 1e6), render: (row) => ago(row.last_seen_at) },
      { title: "Requests", value: (row) => row.request_count, render: (row) => count(row.request_count), isNumber: true },
      { title: "Rate", value: rateOf, render: (row) => `${shortCount(rateOf(row))}/s`, isNumber: true },
      { title: "Groups", value: (row) => row.group_count, isNumber: true },
      { title: "", value: (row) => row.client_id, isPlain: true, render: (row) => button("End", () => end(row), { kind: "danger", disabled: session.read_only }) },
    ],
  });
  /** @param {Row} row */
  const end = async (row) => {
    const isDone = await formDialog("End a session", {
      fields: h("p", null, `The connection of ${row.username || "nobody"} from ${row.address} is closed, and leaves its consumer groups. A client that connects again by itself will be back: change its password or delete its token first, if it must not.`),
      button: "End the session", danger: true,
      submit: async () => {
        await remove(`sessions/${row.client_id}`);
        toast(`The session of ${row.username || "nobody"} from ${row.address} is ended.`);
      },
    });
    if (isDone) await refresh();
  };
  const draw = () => {
    const word = search.value.toLowerCase();
    const shown = rows.filter((row) => `${row.username} ${row.address} ${row.sdk} ${row.transport}`.toLowerCase().includes(word));
    table.update(shown);
    summary.textContent = plural(shown.length, "session");
  };
  const refresh = async () => {
    rows = await get("sessions", { signal });
    const now = performance.now();
    for (const row of rows) {
      const before = rates.get(row.client_id);
      const rate = before === undefined ? 0 : Number((((row.request_count - before.count) * 1_000) / (now - before.time)).toFixed(1));
      rates.set(row.client_id, { count: row.request_count, time: now, rate });
    }
    draw();
  };
  fill(root, heading("Sessions"), h("div", { class: "filters" }, search, summary), table.element);
  live(refresh, INTERVAL);
}
