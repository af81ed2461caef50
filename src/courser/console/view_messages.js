// The messages of a topic: by offset or time, newest or oldest first, with conditions, or as they arrive.

import { ConnectionLost, get, path } from "./api.js";
import { fill, h } from "./dom.js";
import { events } from "./event_stream.js";
import { bytes, count, moment, plural, time } from "./format.js";
import { ROW_COUNT_MAX, follow, searchQuery } from "./live_tail.js";
import { download, fetchMessage, isCut, jsonLine, messageOf, placeOf } from "./message.js";
import { showMessage } from "./message_dialog.js";
import { preview } from "./payload.js";
import { isUtc } from "./preferences.js";
import { sendMessage } from "./send_form.js";
import { Table } from "./table.js";
import { parseStart } from "./time_phrases.js";
import { topicTabs } from "./topic_head.js";
import { button, empty, failure, field, reasonOf, select, toast } from "./widgets.js";

/** @typedef {import("./message.js").Message} Message */

const PAGE_COUNT = 100;
const EXAMPLES = [
  ["paid", "the payload contains this text"], ["key=customer-7", "the key is this"], ["header.source=shop", "a header is this"],
  [".order.id=A-17", "a value in the JSON is this"], [".total > 99", "… is larger"], [".customer.name ~ Ann", "… contains this"], ["text !~ test", "… does not contain this"],
];

/** @param {import("./views.js").Context} context */
export async function show({ root, params, query, setQuery, signal, setTitle, session }) {
  const { stream, topic } = params;
  setTitle(`Messages of ${stream}/${topic}`);
  const details = await get(path`streams/${stream}/topics/${topic}`, { signal });

  // --- what is asked for ---
  const from = h("input", { class: "from", placeholder: "newest", autocomplete: "off", value: query.get("from") ?? "" });
  const order = select([["newest", "Newest first"], ["oldest", "Oldest first"]], query.get("order") ?? "newest");
  const partition = select([["", "All partitions"], ...details.partitions.map((/** @type {any} */ row) => /** @type {[string, string]} */ ([String(row.id), `Partition ${row.id}`]))],
    query.get("partition") ?? "");
  const filter = h("input", { class: "filter", type: "search", placeholder: "text, key=…, header.name=…, .json.path=…", autocomplete: "off", spellcheck: "false", value: query.get("filter") ?? "" });
  const more = h("textarea", { rows: "2", spellcheck: "false" });
  more.value = query.get("and") ?? "";
  const problem = h("p", { class: "problem", role: "alert" });
  const status = h("p", { class: "status", role: "status" });
  const bar = h("progress", { hidden: true, "aria-label": "Progress of the search" });
  const unread = query.get("unread");

  // --- what is shown ---
  /** @type {Message[]} */
  let rows = [];
  let positions = "";
  let droppedCount = 0;
  /** @type {AbortController | null} */
  let running = null;
  let isLive = false;

  /** @param {Message} message */
  const open = (message) => showMessage(message, { canSend: !session.read_only, onShow: (shown) => setQuery({ open: placeOf(shown) }) })
    .then(() => signal.aborted || setQuery({ open: null }));
  /** @type {Table<Message>} */
  const table = new Table({
    label: "Messages", key: placeOf, empty: h("div", null, "No messages here."),
    columns: [
      { title: "Time", value: (row) => row.timestamp, render: (row) => h("span", { title: moment(row.timestamp) }, `${moment(row.timestamp).slice(5, 10)} ${time(row.timestamp)}`), isPlain: true },
      { title: "Partition", value: (row) => row.partition, isNumber: true, isPlain: true },
      { title: "Offset", value: (row) => row.offset, render: (row) => String(row.offset), isNumber: true, isPlain: true },
      { title: "Key", value: (row) => row.key, render: (row) => row.key ?? "", isPlain: true },
      { title: "Message", value: placeOf, class: "preview", isPlain: true,
        render: (row) => h("button", { type: "button", class: "link", onclick: () => void open(row), title: "Show this message" }, preview(row.payload, isCut(row)) || "(empty)") },
      { title: "Headers", value: (row) => row.headers.length, render: (row) => (row.headers.length === 0 ? "" : String(row.headers.length)), isNumber: true, isPlain: true },
      { title: "Size", value: (row) => row.size, render: (row) => bytes(row.size), isNumber: true, isPlain: true },
    ],
  });
  const next = button("Show more", () => void search(true), { kind: "plain" });
  const nothing = h("div");
  const go = h("button", { type: "submit", class: "button primary" }, "Search");
  const stop = button("Stop", () => running?.abort(), { icon: "close" });
  const liveButton = button("Live", () => void (isLive ? running?.abort() : goLive()), { icon: "play" });
  const save = button("Download", () => download(`${topic}.jsonl`, rows.map((row) => `${jsonLine(row)}\n`).join(""), "application/x-ndjson"), { kind: "plain", title: "Keep these messages as JSON lines" });
  next.hidden = true;
  stop.hidden = true;

  const draw = () => {
    table.update(rows);
    table.element.hidden = rows.length === 0;
    save.disabled = rows.length === 0;
  };
  const conditions = () => [filter.value, ...more.value.split("\n")].map((text) => text.trim()).filter((text) => text !== "");
  const chosen = () => (partition.value === "" ? null : [Number(partition.value)]);
  const remember = () => setQuery({
    from: from.value, order: order.value === "newest" ? null : order.value, partition: partition.value, filter: filter.value, and: more.value.trim(),
  });

  /** What a start means for a search: bounds of offsets and times. @returns {Record<string, string>} */
  const bounds = () => {
    const start = parseStart(from.value, Date.now(), isUtc());
    const isNewest = order.value === "newest";
    // A phrase that only says the order decides it.
    if (start.kind === "newest" || start.kind === "oldest") {
      if (from.value.trim() !== "") order.value = start.kind;
      return {};
    }
    if (start.kind === "offset") return isNewest ? { end_offset: String(start.offset + 1n) } : { first_offset: String(start.offset) };
    return isNewest ? { end_time: String(start.time) } : { first_time: String(start.time) };
  };

  /** Where a group has got. @param {string} group */
  const unreadPositions = async (group) => {
    const lag = await get(path`streams/${stream}/topics/${topic}/consumer-groups/${group}/lag`, { signal });
    return lag.partitions.map((/** @type {any} */ row) => `${row.partition_id}.${row.stored_offset === null ? 0 : BigInt(row.stored_offset) + 1n}`).join("~");
  };

  /** @param {boolean} wasLive @param {AbortController} control */
  const begin = (wasLive, control) => {
    running?.abort();
    running = control;
    isLive = wasLive;
    problem.textContent = "";
    stop.hidden = wasLive;
    liveButton.setAttribute("aria-pressed", String(wasLive));
    fill(liveButton, h("span", null, wasLive ? "Stop live" : "Live"));
    next.hidden = true;
    fill(nothing);
  };
  /** @param {AbortController} control */
  const end = (control) => {
    if (running !== control) return;
    running = null;
    isLive = false;
    stop.hidden = true;
    bar.hidden = true;
    liveButton.setAttribute("aria-pressed", "false");
    fill(liveButton, h("span", null, "Live"));
  };

  /** @param {boolean} [isContinued] */
  const search = async (isContinued = false) => {
    const control = new AbortController();
    signal.addEventListener("abort", () => control.abort());
    begin(false, control);
    setQuery({ live: null });
    try {
      const limits = bounds();
      if (!isContinued) {
        rows = [];
        positions = unread === null ? "" : await unreadPositions(unread);
        if (unread !== null) order.value = "oldest";
        remember();
        draw();
      }
      const wanted = searchQuery({ filters: conditions(), partitions: chosen(), order: order.value, positions, count: PAGE_COUNT, bounds: limits });
      await read(control, `${path`streams/${stream}/topics/${topic}/search`}?${wanted}`);
    } catch (error) {
      if (control.signal.aborted) status.textContent = signal.aborted ? "" : `Stopped. ${status.textContent}`;
      else if (error instanceof ConnectionLost || rows.length > 0 || isOfForm(error)) problem.textContent = reasonOf(error);
      else fill(nothing, failure(error));
    } finally {
      next.hidden = positions === "" || !isPartial;
      end(control);
      draw();
    }
  };
  let isPartial = false;

  /** @param {AbortController} control @param {string} target */
  const read = async (control, target) => {
    isPartial = true;
    let total = 0;
    bar.hidden = conditions().length === 0;
    bar.removeAttribute("value");
    status.textContent = "Searching …";
    let drawnAt = 0;
    for await (const { kind, data } of events(target, control.signal)) {
      if (kind === "started") total = Number(data.total_count);
      else if (kind === "message") {
        rows.push(messageOf(stream, topic, data));
        if (Date.now() - drawnAt > 100) {
          draw();
          drawnAt = Date.now();
        }
      } else if (kind === "gap") toast(`Messages ${data.first_offset} to ${data.end_offset} of partition ${data.partition_id} cannot be read: ${data.reason}.`, "bad");
      else if (kind === "stopped") throw new Error(data.reason);
      else {
        positions = data.positions;
        bar.max = Math.max(total, 1);
        bar.value = Number(data.scanned_count);
        status.textContent = conditions().length === 0 ? `${count(rows.length)} of ${plural(total, "message")}.` : `${count(rows.length)} found. Looked at ${count(data.scanned_count)} of ${count(total)} messages, ${bytes(data.scanned_bytes)}.${
          Number(data.undecoded_count) > 0 ? ` ${plural(data.undecoded_count, "message")} of more than 1 MiB could not be looked into.` : ""}`;
        if (kind === "done") {
          isPartial = !data.is_complete;
          if (rows.length === 0) fill(nothing, nothingFound(conditions().length > 0 || from.value !== "" || unread !== null));
        }
      }
    }
  };

  const goLive = async () => {
    const control = new AbortController();
    signal.addEventListener("abort", () => control.abort());
    begin(true, control);
    remember();
    setQuery({ live: "1" });
    rows = [];
    droppedCount = 0;
    positions = "";
    let receivedCount = 0;
    status.textContent = "Waiting for new messages …";
    draw();
    try {
      await follow({ stream, topic, partitions: chosen(), filters: conditions(), signal: control.signal, onRows: (messages, dropped) => {
        receivedCount += messages.length + dropped;
        droppedCount += dropped;
        // The newest on top.
        rows = [...messages.reverse(), ...rows].slice(0, ROW_COUNT_MAX);
        status.textContent = `${count(receivedCount)} received, the newest ${count(rows.length)} shown.`;
        fill(droppedNote, droppedCount > 0 && `${count(droppedCount)} came too fast to be shown.`);
        draw();
      } });
    } catch (error) {
      if (!control.signal.aborted) problem.textContent = reasonOf(error);
    } finally {
      setQuery({ live: null });
      end(control);
    }
  };
  const droppedNote = h("p", { class: "dropped", role: "status" });

  // --- the page ---
  const form = h("form", { class: "filters messages-form", onsubmit: (/** @type {Event} */ event) => {
    event.preventDefault();
    void search();
  } },
  field("From", from, "newest, oldest, an offset, 14:05, 20 minutes ago, 2026-11-18 14:05"),
  field("Order", order), field("Partition", partition), field("Filter", filter, "A text in the message, such as an order number, or a condition: see the examples below."),
  h("div", { class: "form-buttons" }, go, stop, liveButton, save));
  order.addEventListener("change", () => void search());
  partition.addEventListener("change", () => void (isLive ? goLive() : search()));
  const help = h("details", { class: "filter-help", open: more.value !== "" }, h("summary", null, "More conditions, and examples"),
    field("All of these too, one on each line", more),
    h("dl", { class: "facts" }, EXAMPLES.map(([text, meaning]) => [h("dt", null, h("button", { type: "button", class: "link", onclick: () => {
      filter.value = text;
      filter.focus();
    } }, h("code", null, text))), h("dd", null, meaning)])));
  fill(root, topicTabs(stream, topic, "messages", button("Send a message", async () => {
    if ((await sendMessage(stream, topic)) && !isLive) await search();
  }, { icon: "plus", kind: "primary", disabled: session.read_only })),
  unread !== null && h("p", { class: "notice" }, h("span", null, "Messages that the group ", h("strong", null, unread), " has not read yet. "),
    h("a", { href: `#/streams/${encodeURIComponent(stream)}/topics/${encodeURIComponent(topic)}/messages` }, "Show all")),
  form, help, h("div", { class: "result-head" }, bar, status, droppedNote), problem, nothing, table.element, next);
  root.classList.add("messages");

  const wanted = /^(\d+)\.(\d+)$/.exec(query.get("open") ?? "");
  if (query.get("live") === "1") void goLive();
  else await search();
  if (wanted !== null && !signal.aborted) {
    const found = await fetchMessage(stream, topic, Number(wanted[1]), BigInt(wanted[2]), signal);
    if (found === null) toast(`Partition ${wanted[1]} has no message at offset ${wanted[2]} any more.`, "bad");
    else void open(found);
  }
}

/** Whether the user can mend it in the form: a phrase or a condition. @param {unknown} error */
const isOfForm = (error) => !(error instanceof Error && "status" in error) || /** @type {any} */ (error).status === 400;

/** @param {boolean} isNarrow whether something was asked for */
const nothingFound = (isNarrow) => (isNarrow ? empty("No message matches", h("p", null, "Everything was looked at. Change the filter, the start or the partition."))
  : empty("No messages yet", h("p", null, "Send one with the button above, or press Live and wait for the first.")));
