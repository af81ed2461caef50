// All streams and topics, with a search; create, change, purge and delete.

import { get, path } from "./api.js";
import { fill, h } from "./dom.js";
import { bytes, count, expiry, plural, sizeOf } from "./format.js";
import { Table } from "./table.js";
import { createStream, createTopic, deleteStream, purgeStream, renameStream } from "./topic_forms.js";
import { topicHref } from "./views.js";
import { button, empty, heading } from "./widgets.js";

/** @typedef {import("./topic_forms.js").Stream} Stream */
/** @typedef {import("./topic_forms.js").Topic & { stream: string }} Row */

const INTERVAL = 3_000;

/** @param {import("./views.js").Context} context */
export function show({ root, live, signal, query, setQuery, setTitle, session }) {
  setTitle("Streams and topics");
  /** @type {Stream[]} */
  let streams = [];
  /** @type {Row[]} */
  let topics = [];
  let refresh = async () => {};
  /** @param {Promise<boolean>} done */
  const afterwards = async (done) => {
    if (await done) await refresh();
  };
  const search = h("input", { type: "search", value: query.get("search") ?? "", placeholder: "Filter by name", "aria-label": "Filter by name",
    oninput: () => {
      setQuery({ search: search.value });
      draw();
    } });
  const chosen = h("select", { "aria-label": "Stream", onchange: () => {
    setQuery({ stream: chosen.value });
    draw();
  } });
  const summary = h("span", { class: "soft", role: "status" });
  const streamActions = h("div", { class: "row" });
  /** @type {Table<Row>} */
  const table = new Table({
    label: "Topics", key: (row) => `${row.stream} ${row.id}`, sortColumn: 0, empty: "No topic fits.",
    columns: [
      { title: "Topic", value: (row) => `${row.stream}/${row.name}`, render: (row) => h("a", { href: topicHref(row.stream, row.name) },
        h("span", { class: "crumbs" }, `${row.stream}/`), row.name) },
      { title: "Partitions", value: (row) => row.partitions_count, isNumber: true },
      { title: "Messages", value: (row) => row.messages_count, render: (row) => count(row.messages_count), isNumber: true },
      { title: "Size", value: (row) => sizeOf(row.size), render: (row) => bytes(sizeOf(row.size)), isNumber: true },
      { title: "Keeps messages", value: (row) => row.message_expiry, render: (row) => expiry(row.message_expiry) },
    ],
  });
  const content = h("div", null, table.element);
  fill(root, heading("Streams and topics",
    button("Create a stream", () => afterwards(createStream()), { icon: "plus", disabled: session.read_only }),
    button("Create a topic", () => afterwards(createTopic(streams.map((stream) => stream.name), chosen.value || undefined)), { icon: "plus", kind: "primary", disabled: session.read_only })),
  h("div", { class: "filters" }, search, chosen, summary, streamActions), content);

  const draw = () => {
    const words = search.value.toLowerCase().split(/[\s/]+/).filter((word) => word !== "");
    const shown = topics.filter((row) => (chosen.value === "" || row.stream === chosen.value)
      && words.every((word) => `${row.stream}/${row.name}`.toLowerCase().includes(word)));
    table.update(shown);
    summary.textContent = `${plural(shown.length, "topic")} in ${plural(streams.length, "stream")}`;
    const stream = streams.find((one) => one.name === chosen.value);
    if (stream === undefined) fill(streamActions);
    else if (streamActions.childElementCount === 0 || streamActions.dataset.stream !== String(stream.id)) {
      streamActions.dataset.stream = String(stream.id);
      const options = { disabled: session.read_only };
      fill(streamActions, button("Rename stream", () => afterwards(renameStream(stream)), options),
        button("Purge stream", () => afterwards(purgeStream(stream)), { ...options, kind: "danger" }),
        button("Delete stream", () => afterwards(deleteStream(stream)), { ...options, kind: "danger" }));
    }
  };
  const drawStreams = () => {
    const wanted = query.get("stream") ?? "";
    const now = chosen.childElementCount === 0 ? wanted : chosen.value;
    const names = ["", ...streams.map((stream) => stream.name)];
    if ([...chosen.options].map((option) => option.value).join("\n") === names.join("\n") && chosen.childElementCount > 0) return;
    fill(chosen, names.map((name) => h("option", { value: name, selected: name === now }, name === "" ? "all streams" : name)));
  };
  refresh = async () => {
    streams = await get("streams", { signal });
    const lists = await Promise.all(streams.map((stream) => get(path`streams/${stream.id}/topics`, { signal })));
    topics = streams.flatMap((stream, index) => lists[index].map((/** @type {Row} */ topic) => ({ ...topic, stream: stream.name })));
    drawStreams();
    if (streams.length === 0) {
      fill(content, empty("This server has no streams yet", h("p", null, "A stream groups topics, and a topic holds messages. "),
        h("a", { href: "#/first-message" }, "How to send the first message")));
    } else if (!content.contains(table.element)) fill(content, table.element);
    draw();
  };
  live(refresh, INTERVAL);
}
