// Permissions: what they allow, and a form to grant them. The rules are those of the server; a test compares both.

import { fill, h } from "./dom.js";
import { button, field, select } from "./widgets.js";

/**
 * @typedef {Record<string, boolean>} Flags
 * @typedef {Record<string, boolean | Record<string, Flags> | null>} StreamFlags
 * @typedef {{ global: Flags, streams: Record<string, StreamFlags> | null }} Permissions
 */

const EVERYWHERE = ["manage_servers", "read_servers", "manage_users", "read_users", "manage_streams", "read_streams", "manage_topics", "read_topics", "poll_messages", "send_messages"];
const STREAM = ["manage_stream", "read_stream", "manage_topics", "read_topics", "poll_messages", "send_messages"];
const TOPIC = ["manage_topic", "read_topic", "poll_messages", "send_messages"];

const MANAGE_EVERYWHERE = ["manage_streams", "manage_topics"];
const MANAGE_STREAM = ["manage_stream", "manage_topics"];
const READ_EVERYWHERE = [...MANAGE_EVERYWHERE, "read_streams", "read_topics"];
const READ_STREAM = [...MANAGE_STREAM, "read_stream", "read_topics"];

/**
 * What users do, and the permissions of which one is enough, at each level.
 *
 * @type {{ name: string, title: string, deed: string, everywhere: string[], stream?: string[], topic?: string[] }[]}
 */
export const ACTIONS = [
  { name: "SEND_MESSAGES", title: "Send", deed: "send messages", everywhere: [...MANAGE_EVERYWHERE, "send_messages"], stream: [...MANAGE_STREAM, "send_messages"], topic: ["manage_topic", "send_messages"] },
  { name: "POLL_MESSAGES", title: "Read", deed: "read messages", everywhere: [...READ_EVERYWHERE, "poll_messages"], stream: [...READ_STREAM, "poll_messages"], topic: ["manage_topic", "read_topic", "poll_messages"] },
  { name: "READ_TOPIC", title: "See topics", deed: "see topics and their consumer groups", everywhere: READ_EVERYWHERE, stream: READ_STREAM, topic: ["manage_topic", "read_topic"] },
  { name: "MANAGE_TOPIC", title: "Change topics", deed: "change, purge and delete topics", everywhere: MANAGE_EVERYWHERE, stream: MANAGE_STREAM, topic: ["manage_topic"] },
  { name: "MANAGE_USERS", title: "Manage users", deed: "manage users", everywhere: ["manage_users"] },
  { name: "READ_SERVER", title: "See the server", deed: "see statistics, sessions and configuration", everywhere: ["manage_servers", "read_servers"] },
];

/** What each permission allows, for the form. */
/** @type {Record<string, string>} */
const MEANINGS = {
  manage_servers: "see the log and end sessions, and all of read_servers",
  read_servers: "see statistics, sessions, configuration and diagnosis",
  manage_users: "create, change and delete users",
  read_users: "see other users",
  manage_streams: "create, change and delete streams, and everything in them",
  read_streams: "see all streams and topics, and read their messages",
  manage_stream: "change and delete the stream, and everything in it",
  read_stream: "see the stream and its topics, and read their messages",
  manage_topics: "create, change and delete topics, send and read messages",
  read_topics: "see topics and groups, and read messages",
  manage_topic: "change and delete the topic, send and read messages",
  read_topic: "see the topic and its groups, and read messages",
  poll_messages: "read messages",
  send_messages: "send messages",
};

/** @param {string[]} names @returns {Flags} */
const none = (names) => Object.fromEntries(names.map((name) => [name, false]));

/** @returns {Permissions} */
export const noPermissions = () => ({ global: none(EVERYWHERE), streams: null });

/**
 * The actions that permissions allow, each with the reason. "root" may do everything.
 *
 * @param {Permissions | "root" | null} permissions
 * @param {number | null} stream
 * @param {number | null} topic
 * @returns {Map<string, string>}
 */
export function allowedActions(permissions, stream, topic) {
  /** @type {Map<string, string>} */
  const found = new Map();
  if (permissions === null) return found;
  for (const action of ACTIONS) {
    const why = permissions === "root" ? "root user" : reasonFor(action, permissions, stream, topic);
    if (why !== undefined) found.set(action.name, why);
  }
  return found;
}

/** @param {(typeof ACTIONS)[number]} action @param {Permissions} permissions @param {number | null} stream @param {number | null} topic */
function reasonFor(action, permissions, stream, topic) {
  const everywhere = action.everywhere.find((name) => permissions.global[name]);
  if (everywhere !== undefined) return `${everywhere} everywhere`;
  const ofStream = stream === null ? undefined : permissions.streams?.[String(stream)];
  if (!ofStream) return undefined;
  const inStream = action.stream?.find((name) => ofStream[name] === true);
  if (inStream !== undefined) return `${inStream} in the stream`;
  const ofTopic = topic === null ? undefined : /** @type {Record<string, Flags> | null} */ (ofStream.topics)?.[String(topic)];
  const inTopic = action.topic?.find((name) => ofTopic?.[name]);
  return inTopic === undefined ? undefined : `${inTopic} in the topic`;
}

/**
 * A form for permissions, and how to read it.
 *
 * @param {Permissions} before
 * @param {{ stream: string, stream_id: number, topic: string, topic_id: number }[]} topics
 */
export function permissionEditor(before, topics) {
  /** @type {Permissions} */
  const now = { global: { ...none(EVERYWHERE), ...before.global }, streams: structuredClone(before.streams) };
  const places = h("div", { class: "places" });
  const streams = [...new Map(topics.map((one) => [one.stream_id, one.stream])).entries()];
  /** @type {[string, string][]} */
  const options = [...streams.map(([id, name]) => /** @type {[string, string]} */ ([`${id}`, `stream ${name}`])),
    ...topics.map((one) => /** @type {[string, string]} */ ([`${one.stream_id} ${one.topic_id}`, `topic ${one.stream}/${one.topic}`]))];
  const choice = select(options, "");
  const add = () => {
    if (choice.value === "") return;
    const [stream, topic] = choice.value.split(" ");
    now.streams ??= {};
    now.streams[stream] ??= { ...none(STREAM), topics: null };
    if (topic !== undefined) {
      const known = /** @type {Record<string, Flags>} */ (now.streams[stream].topics ?? {});
      known[topic] ??= none(TOPIC);
      now.streams[stream].topics = known;
    }
    draw();
  };
  const draw = () => fill(places, Object.entries(now.streams ?? {}).map(([stream, flags]) => [
    boxes(`In the stream ${streams.find(([id]) => String(id) === stream)?.[1] ?? stream}`, STREAM, /** @type {Flags} */ (/** @type {unknown} */ (flags))),
    Object.entries(/** @type {Record<string, Flags>} */ (flags.topics ?? {})).map(([topic, ofTopic]) => {
      const names = topics.find((one) => String(one.stream_id) === stream && String(one.topic_id) === topic);
      return boxes(`In the topic ${names === undefined ? `${stream}/${topic}` : `${names.stream}/${names.topic}`}`, TOPIC, ofTopic);
    }),
  ]));
  draw();
  const element = h("div", { class: "permissions" }, boxes("Everywhere", EVERYWHERE, now.global), places,
    options.length > 0 && h("div", { class: "row" }, field("Permissions for one stream or topic", choice), button("Add", add, { icon: "plus" })));
  return { element, read: () => now };
}

/** @param {string} title @param {string[]} names @param {Flags} flags */
function boxes(title, names, flags) {
  return h("fieldset", null, h("legend", null, title), h("div", { class: "boxes" }, names.map((name) => {
    const box = h("input", { type: "checkbox", checked: flags[name] === true, onchange: () => {
      flags[name] = box.checked;
    } });
    return field(h("code", null, name), box, MEANINGS[name]);
  })));
}
