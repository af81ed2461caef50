// The dialogs that create, change, purge and delete streams and topics. Every option is explained where it is set.

import { ask, change, path, post, remove } from "./api.js";
import { h } from "./dom.js";
import { bytes, count, duration, NEVER, parseBytes, parseDuration, plural } from "./format.js";
import { TOPIC_OPTIONS } from "./topic_options.js";
import { confirmByName, field, formDialog, select, toast } from "./widgets.js";

/**
 * @typedef {{ id: number, name: string, size: string, messages_count: number | bigint, topics_count: number }} Stream
 * @typedef {object} Topic as GET /streams/{stream}/topics/{topic} describes it
 * @property {number} id
 * @property {string} name
 * @property {number | bigint} created_at
 * @property {string} size
 * @property {number | bigint} messages_count
 * @property {number} partitions_count
 * @property {number | bigint | null} message_expiry
 * @property {number | bigint | null} max_topic_size
 * @property {Record<string, { value: string, explicit: boolean }>} options
 */

/** @typedef {import("./topic_options.js").TopicOption} TopicOption */
/** @typedef {TopicOption["kind"]} OptionKind */

/** Shown in the form at once; the others on demand. */
const BASIC = ["message_expiry", "max_topic_size", "durability"];

/** An option as a person reads it. @param {OptionKind} kind @param {string} value */
export function optionText(kind, value) {
  if (kind === "duration") return BigInt(value) === NEVER || value === "0" ? "forever" : duration(BigInt(value));
  if (kind === "size") return BigInt(value) === NEVER ? "unlimited" : bytes(BigInt(value));
  if (kind === "count") return count(BigInt(value));
  if (kind === "flag") return value === "true" ? "yes" : "no";
  // Iggy's words for what this server does.
  if (value === "replicated") return "as the server is configured";
  if (value === "persisted") return "synced";
  return value;
}

/** The same to be typed: it is read back without loss. @param {OptionKind} kind @param {string} value */
function typedText(kind, value) {
  if (kind === "size") return BigInt(value) === NEVER ? "unlimited" : exact(Number(value), [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 1024]], "B");
  if (kind === "duration") return BigInt(value) === NEVER ? "forever" : exact(Number(value), [["days", 864e8], ["h", 36e8], ["min", 6e7], ["s", 1e6], ["ms", 1e3]], "us");
  return value;
}

/** @param {number} value @param {[string, number][]} units @param {string} smallest */
function exact(value, units, smallest) {
  const found = units.find(([, size]) => value % size === 0);
  return found === undefined ? `${value} ${smallest}` : `${value / found[1]} ${found[0]}`;
}

/** What the API takes. @param {OptionKind} kind @param {string} text */
function valueOf(kind, text) {
  if (kind === "duration") return /^(never|none|forever)$/i.test(text) ? "none" : `${parseDuration(text)} us`;
  if (kind === "size") return /^(unlimited|none)$/i.test(text) ? "unlimited" : `${parseBytes(text)} B`;
  return text;
}

/**
 * The fields of the options, and how to read them: only what differs from how it was.
 *
 * @param {Record<string, { value: string, explicit: boolean }>} present
 * @param {boolean} isUpdate
 */
function optionFields(present, isUpdate) {
  const shown = TOPIC_OPTIONS.filter((option) => option.isChangeable || !isUpdate);
  const controls = shown.map((option) => {
    const now = present[option.name];
    const before = now?.explicit ? (option.kind === "choice" || option.kind === "flag" ? now.value : typedText(option.kind, now.value)) : "";
    /** @type {[string, string][]} */
    const choices = [["", "default of the server"], ...option.words.map((word) => /** @type {[string, string]} */ ([word, optionText(option.kind, word)]))];
    const control = option.kind === "choice" || option.kind === "flag" ? select(choices, before)
      : h("input", { value: before, autocomplete: "off", placeholder: now === undefined ? "default of the server" : `default: ${optionText(option.kind, now.value)}` });
    return { option, before, control };
  });
  /** @param {boolean} isBasic */
  const fields = (isBasic) => controls
    .filter(({ option }) => BASIC.includes(option.name) === isBasic)
    .map(({ option, control }) => field(option.title, control, option.help));
  const read = () => {
    /** @type {Record<string, string>} */
    const changed = {};
    for (const { option, before, control } of controls) {
      const text = control.value.trim();
      if (text !== before && text !== "") changed[option.name] = valueOf(option.kind, text);
    }
    return changed;
  };
  return { element: [fields(true), h("details", null, h("summary", null, "Further options"), h("div", { class: "further" }, fields(false)))], read };
}

const nameInput = (value = "") => h("input", { value, required: true, maxlength: "255", autocomplete: "off", spellcheck: "false" });
const NAME_HELP = "1 to 255 bytes. Programs use it, so a change has to be made there too.";

/** @returns {Promise<boolean>} */
export function createStream() {
  const name = nameInput();
  return formDialog("Create a stream", {
    fields: field("Name", name, "A stream groups topics that belong together, such as those of one application."),
    button: "Create", isReady: () => name.value !== "",
    submit: async () => {
      await post("streams", { name: name.value });
      toast(`Stream ${name.value} is created.`);
    },
  });
}

/** @param {Stream} stream @returns {Promise<boolean>} */
export function renameStream(stream) {
  const name = nameInput(stream.name);
  return formDialog(`Rename stream ${stream.name}`, {
    fields: field("Name", name, NAME_HELP), button: "Rename", isReady: () => name.value !== "" && name.value !== stream.name,
    submit: async () => {
      await change(path`streams/${stream.id}`, { name: name.value });
      toast(`Stream ${stream.name} is now ${name.value}.`);
    },
  });
}

/** @param {Stream} stream @returns {Promise<boolean>} */
export const deleteStream = (stream) => confirmByName({
  title: "Delete a stream", name: stream.name, button: "Delete the stream",
  text: [h("p", null, `The stream ${stream.name}, its ${plural(stream.topics_count, "topic")} and ${plural(stream.messages_count, "message")} (${stream.size}) will be deleted. This cannot be undone.`)],
  submit: async () => {
    await remove(path`streams/${stream.id}`);
    toast(`Stream ${stream.name} is deleted.`);
  },
});

/** @param {Stream} stream @returns {Promise<boolean>} */
export const purgeStream = (stream) => confirmByName({
  title: "Purge a stream", name: stream.name, button: "Delete all messages",
  text: [h("p", null, `All ${plural(stream.messages_count, "message")} of all topics of ${stream.name} will be deleted. Topics, groups and settings stay. This cannot be undone.`)],
  submit: async () => {
    await remove(path`streams/${stream.id}/purge`);
    toast(`Stream ${stream.name} is purged.`);
  },
});

/** @param {string[]} streams names @param {string} [chosen] @returns {Promise<boolean>} */
export function createTopic(streams, chosen) {
  const stream = select(streams.map((name) => [name, name]), chosen ?? streams[0] ?? "");
  const name = nameInput();
  const partitions = h("input", { type: "number", min: "0", max: "1000", value: "1", required: true });
  const options = optionFields({}, false);
  return formDialog("Create a topic", {
    fields: [field("Stream", stream), field("Name", name), field("Partitions", partitions,
      "Each partition keeps its messages in order, and one member of a consumer group reads it at a time: more partitions, more readers in parallel. Messages with the same key go to the same partition. Partitions can be added later."),
    options.element],
    button: "Create", isReady: () => name.value !== "",
    submit: async () => {
      await post(path`streams/${stream.value}/topics`, {
        name: name.value, partitions_count: Number(partitions.value), compression_algorithm: "none", message_expiry: 0, max_topic_size: 0,
        options: options.read(),
      });
      toast(`Topic ${stream.value}/${name.value} is created.`);
    },
  });
}

/** @param {string} stream @param {Topic} topic @returns {Promise<boolean>} */
export function updateTopic(stream, topic) {
  const name = nameInput(topic.name);
  const options = optionFields(topic.options, true);
  return formDialog(`Change ${stream}/${topic.name}`, {
    fields: [field("Name", name, NAME_HELP), options.element], button: "Change", isReady: () => name.value !== "",
    submit: async () => {
      await change(path`streams/${stream}/topics/${topic.id}`, { name: name.value, options: options.read() });
      toast(`Topic ${stream}/${name.value} is changed.`);
    },
  });
}

/** @param {string} stream @param {Topic} topic @returns {Promise<boolean>} */
export const purgeTopic = (stream, topic) => confirmByName({
  title: "Purge a topic", name: topic.name, button: "Delete all messages",
  text: [h("p", null, `All ${plural(topic.messages_count, "message")} (${topic.size}) of ${stream}/${topic.name} will be deleted. The topic, its groups and settings stay. This cannot be undone.`)],
  submit: async () => {
    await remove(path`streams/${stream}/topics/${topic.id}/purge`);
    toast(`Topic ${stream}/${topic.name} is purged.`);
  },
});

/** @param {string} stream @param {Topic} topic @returns {Promise<boolean>} */
export const deleteTopic = (stream, topic) => confirmByName({
  title: "Delete a topic", name: topic.name, button: "Delete the topic",
  text: [h("p", null, `The topic ${stream}/${topic.name} with ${plural(topic.messages_count, "message")} (${topic.size}) and its consumer groups will be deleted. This cannot be undone.`)],
  submit: async () => {
    await remove(path`streams/${stream}/topics/${topic.id}`);
    toast(`Topic ${stream}/${topic.name} is deleted.`);
  },
});

/** @param {string} stream @param {Topic} topic @returns {Promise<boolean>} */
export function changePartitions(stream, topic) {
  const kind = select([["add", "add"], ["remove", "remove the last ones, with their messages"]], "add");
  const number = h("input", { type: "number", min: "1", max: "1000", value: "1", required: true });
  const typed = h("input", { autocomplete: "off", spellcheck: "false" });
  const confirmation = field(`To remove partitions, type ${topic.name}`, typed);
  return formDialog(`Partitions of ${stream}/${topic.name}`, {
    fields: [h("p", { class: "help" }, `The topic has ${plural(topic.partitions_count, "partition")}. Keys are distributed over all partitions: after a change, new messages of a key may go to another one.`),
      field("What", kind), field("How many", number), confirmation],
    button: "Change", isReady: () => kind.value === "add" || typed.value === topic.name,
    submit: async () => {
      const count = Number(number.value);
      const place = path`streams/${stream}/topics/${topic.id}/partitions`;
      if (kind.value === "add") await post(place, { partitions_count: count });
      else await ask("DELETE", `${place}?partitions_count=${count}`);
      toast(`Topic ${stream}/${topic.name} has ${kind.value === "add" ? "more" : "fewer"} partitions.`);
    },
  });
}
