// All streams and topics, with sizes, rates and lag; a search; create, rename, purge and delete.

import { get } from "./api.js";
import { fill, h } from "./dom.js";
import { bytes, count, expiry, limit, plural, shortCount } from "./format.js";
import { Table } from "./table.js";
import { createStream, createTopic, deleteStream, purgeStream, renameStream } from "./topic_forms.js";
import { topicHref } from "./views.js";
import { badge, button, empty, heading } from "./widgets.js";

/** @typedef {import("./topic_forms.js").Stream} Stream */
/**
 * @typedef {object} Row as GET /topics has it
 * @property {number} stream_id
 * @property {string} stream
 * @property {number} topic_id
 * @property {string} topic
 * @property {number} partition_count
 * @property {number | bigint} message_count
 * @property {number | bigint} size
 * @property {number | bigint} appended_count
 * @property {number | bigint} message_expiry
 * @property {number | bigint} max_topic_size
 * @property {string} durability
 * @property {number} group_count
 * @property {number | bigint | null} lag
 */

const INTERVAL = 3_000;
const LAG_MANY = 10_000;

/** @param {import("./views.js").Context} context */
export function show({ root, live, signal, query, setQuery, setTitle, session }) {
  setTitle("Streams and topics");
  /** @type {Stream[]} */
  let streams = [];
  /** @type {Row[]} */
  let topics = [];
  const rates = new Rates();
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
    label: "Topics", key: keyOf, sortColumn: 0, empty: "No topic fits.",
    columns: [
      { title: "Topic", value: (row) => `${row.stream}/${row.topic}`, render: (row) => h("a", { href: topicHref(row.stream, row.topic) },
        h("span", { class: "crumbs" }, `${row.stream}/`), row.topic) },
      { title: "Messages", value: (row) => row.message_count, render: (row) => count(row.message_count), isNumber: true },
      { title: "Size", value: (row) => row.size, render: (row) => bytes(row.size), isNumber: true },
      { title: "Rate", value: (row) => rates.of(row), render: (row) => `${shortCount(rates.of(row))}/s`, isNumber: true },
      { title: "Lag", value: (row) => row.lag, isNumber: true, render: (row) => row.lag === null ? "–"
        : h("a", { href: topicHref(row.stream, row.topic, "groups"), title: "Show the groups of this topic" }, badge(shortCount(row.lag), Number(row.lag) === 0 ? "good" : Number(row.lag) > LAG_MANY ? "bad" : "warn")) },
      { title: "Groups", value: (row) => row.group_count, isNumber: true },
      { title: "Partitions", value: (row) => row.partition_count, isNumber: true },
      { title: "Keeps messages for", value: (row) => row.message_expiry, render: (row) => expiry(row.message_expiry) },
      { title: "Largest size", value: (row) => row.max_topic_size, render: (row) => limit(row.max_topic_size) },
      { title: "Durability", value: (row) => row.durability },
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
      && words.every((word) => `${row.stream}/${row.topic}`.toLowerCase().includes(word)));
    table.update(shown);
    summary.textContent = `${plural(shown.length, "topic")} in ${plural(chosen.value === "" ? streams.length : 1, "stream")}`;
    const stream = streams.find((one) => one.name === chosen.value);
    const mark = stream === undefined ? "" : `${stream.id} ${stream.messages_count} ${stream.topics_count}`;
    if (streamActions.dataset.stream === mark) return;
    streamActions.dataset.stream = mark;
    if (stream === undefined) {
      fill(streamActions);
      return;
    }
    const options = { disabled: session.read_only };
    fill(streamActions, button("Rename stream", () => afterwards(renameStream(stream)), options),
      button("Purge stream", () => afterwards(purgeStream(stream)), { ...options, kind: "danger" }),
      button("Delete stream", () => afterwards(deleteStream(stream)), { ...options, kind: "danger" }));
  };
  const drawStreams = () => {
    const names = ["", ...streams.map((stream) => stream.name)];
    if ([...chosen.options].map((option) => option.value).join("\n") === names.join("\n") && chosen.childElementCount > 0) return;
    const now = chosen.childElementCount === 0 ? (query.get("stream") ?? "") : chosen.value;
    fill(chosen, names.map((name) => h("option", { value: name, selected: name === now }, name === "" ? "all streams" : name)));
  };
  const refresh = async () => {
    [streams, topics] = await Promise.all([get("streams", { signal }), get("topics", { signal })]);
    rates.note(topics);
    drawStreams();
    if (streams.length === 0) {
      fill(content, empty("This server has no streams yet", h("p", null, "A stream groups topics, and a topic holds messages."),
        h("a", { href: "#/first-message" }, "How to send the first message")));
    } else if (!content.contains(table.element)) fill(content, table.element);
    draw();
  };
  live(refresh, INTERVAL);
}

/** @param {Row} row */
const keyOf = (row) => `${row.stream_id} ${row.topic_id}`;

/** How fast each topic grows, from one look to the next. */
class Rates {
  constructor() {
    /** @type {Map<string, number>} */
    this._counts = new Map();
    /** @type {Map<string, number>} */
    this._rates = new Map();
    this._time = 0;
  }

  /** @param {Row[]} topics */
  note(topics) {
    const now = performance.now();
    const seconds = (now - this._time) / 1_000;
    for (const row of topics) {
      const key = keyOf(row);
      const before = this._counts.get(key);
      const after = Number(row.appended_count);
      if (before !== undefined && seconds > 0.2) this._rates.set(key, Math.max(0, Number(((after - before) / seconds).toFixed(1))));
      this._counts.set(key, after);
    }
    this._time = now;
  }

  /** @param {Row} row */
  of(row) {
    return this._rates.get(keyOf(row)) ?? 0;
  }
}
