// The effective configuration: every key, its value, and what set it. Secrets are masked by the server.

import { get } from "./api.js";
import { fill, h } from "./dom.js";
import { plural } from "./format.js";
import { Table } from "./table.js";
import { badge, field, heading } from "./widgets.js";

/** @typedef {{ key: string, value: string, source: string, default: string, description: string }} Setting */

/** @param {import("./views.js").Context} context */
export async function show({ root, signal, query, setQuery, setTitle }) {
  setTitle("Configuration");
  /** @type {Setting[]} */
  const settings = await get("configuration", { signal });
  const search = h("input", { type: "search", value: query.get("search") ?? "", placeholder: "Filter by key, value or text", "aria-label": "Filter by key, value or text", oninput: () => draw() });
  const onlySet = h("input", { type: "checkbox", checked: query.get("set") === "1", onchange: () => draw() });
  const summary = h("span", { class: "soft", role: "status" });
  /** @type {Table<Setting>} */
  const table = new Table({
    label: "Settings", key: (row) => row.key, empty: "No key fits.",
    columns: [
      { title: "Key", value: (row) => row.key, render: (row) => h("code", null, row.key) },
      { title: "Value", value: (row) => row.value, class: "wrap", render: (row) => row.value === "" ? h("span", { class: "soft" }, "not set") : h("code", null, row.value) },
      { title: "Origin", value: (row) => row.source, class: "wrap", render: (row) => row.source === "default" ? badge("default") : badge(row.source, "good") },
      { title: "Default", value: (row) => row.default, class: "wrap", render: (row) => row.value === row.default ? "" : h("code", null, row.default) },
      { title: "Meaning", value: (row) => row.description, class: "wrap" },
    ],
  });
  const draw = () => {
    setQuery({ search: search.value, set: onlySet.checked ? "1" : null });
    const word = search.value.toLowerCase();
    const shown = settings.filter((row) => (!onlySet.checked || row.source !== "default")
      && `${row.key} ${row.value} ${row.source} ${row.description}`.toLowerCase().includes(word));
    table.update(shown);
    summary.textContent = plural(shown.length, "key");
  };
  fill(root, heading("Configuration"), h("p", { class: "soft" }, "What the server runs with. Later origins override earlier ones: default, file, IGGY_ variables, COURSER_ variables, --set. A change takes effect at the next start."),
    h("div", { class: "filters" }, search, field("Only what was set", onlySet), summary), table.element);
  draw();
}
