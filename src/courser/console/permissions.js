// A form to grant permissions. Which there are, what they allow, and who may do what, says the server: GET /permissions.

import { fill, h } from "./dom.js";
import { button, field, select } from "./widgets.js";

/**
 * @typedef {Record<string, boolean>} Flags
 * @typedef {Record<string, boolean | Record<string, Flags> | null>} StreamFlags
 * @typedef {{ global: Flags, streams: Record<string, StreamFlags> | null }} Permissions
 * @typedef {"everywhere" | "stream" | "topic"} Level
 * @typedef {{ level: Level, name: string }} Grant
 * @typedef {{ level: Level, name: string, meaning: string }} PermissionInfo
 * @typedef {{ action: string, is_allowed: boolean, reason: string, granted_by: Grant[] }} Verdict
 * @typedef {{ user_id: number, username: string, is_active: boolean, is_root: boolean, verdicts: Verdict[] }} UserAccess
 * @typedef {{ actions: { name: string, deed: string, sufficient: Grant[] }[], permissions: PermissionInfo[], users: UserAccess[] }} AccessReport
 */

/** @param {PermissionInfo[]} known @returns {Flags} */
const none = (known) => Object.fromEntries(known.map(({ name }) => [name, false]));

/**
 * A form for permissions, and how to read it.
 *
 * @param {PermissionInfo[]} known all that can be granted
 * @param {Permissions | null} before
 * @param {{ stream: string, stream_id: number, topic: string, topic_id: number }[]} topics
 */
export function permissionEditor(known, before, topics) {
  const everywhere = known.filter(({ level }) => level === "everywhere");
  const ofStreams = known.filter(({ level }) => level === "stream");
  const ofTopics = known.filter(({ level }) => level === "topic");
  /** @type {Permissions} */
  const now = { global: { ...none(everywhere), ...before?.global }, streams: structuredClone(before?.streams ?? null) };
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
    now.streams[stream] ??= { ...none(ofStreams), topics: null };
    if (topic !== undefined) {
      const flags = /** @type {Record<string, Flags>} */ (now.streams[stream].topics ?? {});
      flags[topic] ??= none(ofTopics);
      now.streams[stream].topics = flags;
    }
    draw();
  };
  const draw = () => fill(places, Object.entries(now.streams ?? {}).map(([stream, flags]) => [
    boxes(`In the stream ${streams.find(([id]) => String(id) === stream)?.[1] ?? stream}`, ofStreams, /** @type {Flags} */ (/** @type {unknown} */ (flags))),
    Object.entries(/** @type {Record<string, Flags>} */ (flags.topics ?? {})).map(([topic, ofTopic]) => {
      const names = topics.find((one) => String(one.stream_id) === stream && String(one.topic_id) === topic);
      return boxes(`In the topic ${names === undefined ? `${stream}/${topic}` : `${names.stream}/${names.topic}`}`, ofTopics, ofTopic);
    }),
  ]));
  draw();
  const element = h("div", { class: "permissions" }, boxes("Everywhere", everywhere, now.global), places,
    options.length > 0 && h("div", { class: "row" }, field("Permissions for one stream or topic", choice), button("Add", add, { icon: "plus" })));
  return { element, read: () => now };
}

/** @param {string} title @param {PermissionInfo[]} known @param {Flags} flags */
function boxes(title, known, flags) {
  return h("fieldset", null, h("legend", null, title), h("div", { class: "boxes" }, known.map(({ name, meaning }) => {
    const box = h("input", { type: "checkbox", checked: flags[name] === true, onchange: () => {
      flags[name] = box.checked;
    } });
    return field(h("code", null, name), box, meaning);
  })));
}
