// Forms of consumer groups: create, delete, and set where a group continues to read, with a preview of what that means.

import { change, get, path, post, remove } from "./api.js";
import { fill, h } from "./dom.js";
import { count, moment, plural } from "./format.js";
import { fetchLag } from "./group_lag.js";
import { isUtc } from "./preferences.js";
import { Table } from "./table.js";
import { parseTime } from "./time_phrases.js";
import { badge, confirmByName, field, formDialog, reasonOf, select, toast } from "./widgets.js";

/** @typedef {{ partition: number, stored: bigint | null, before: bigint, next: bigint, reread: bigint, skipped: bigint }} Step */

/** @param {string} stream @param {string} topic */
export function createGroup(stream, topic) {
  const name = h("input", { required: true, maxlength: "255", autocomplete: "off" });
  return formDialog("Create a consumer group", {
    fields: [field("Name", name, "Consumers that join under this name share the partitions of the topic. Many clients create it themselves.")],
    button: "Create", isReady: () => name.value !== "",
    submit: async () => {
      await post(path`streams/${stream}/topics/${topic}/consumer-groups`, { name: name.value });
      toast(`Created ${name.value}.`);
    },
  });
}

/** @param {string} stream @param {string} topic @param {string} group */
export const deleteGroup = (stream, topic, group) => confirmByName({
  title: "Delete a consumer group", name: group, button: "Delete",
  text: [h("p", null, "The group ", h("strong", null, group), " and its stored offsets are deleted. Its members leave. Messages stay.")],
  submit: async () => {
    await remove(path`streams/${stream}/topics/${topic}/consumer-groups/${group}`);
    toast(`Deleted ${group}.`);
  },
});

/** @param {bigint} value @param {bigint} low @param {bigint} high */
const within = (value, low, high) => (value < low ? low : value > high ? high : value);

/**
 * What a reset changes, for each partition.
 *
 * @param {any[]} bounds of the partitions
 * @param {import("./group_lag.js").PartitionLag[]} lag
 * @param {(partition: number, first: bigint, end: bigint) => bigint} target
 * @returns {Step[]}
 */
export function planReset(bounds, lag, target) {
  return bounds.map((row) => {
    const first = BigInt(row.first_offset);
    const end = BigInt(row.next_offset);
    const known = lag.find((one) => one.partition_id === row.partition_id)?.stored_offset ?? null;
    const stored = known === null ? null : BigInt(known);
    const before = stored === null ? first : within(stored + 1n, first, end);
    const next = within(target(row.partition_id, first, end), first, end);
    return { partition: row.partition_id, stored, before, next, reread: before > next ? before - next : 0n, skipped: next > before ? next - before : 0n };
  });
}

/**
 * @param {string} stream
 * @param {string} topic
 * @param {{ name: string, members_count: number, partitions_count: number }} group
 */
export function resetGroup(stream, topic, group) {
  const to = select([["latest", "The end: skip everything"], ["earliest", "The beginning: read everything again"], ["time", "A time"], ["offset", "An offset"]], "time");
  const when = h("input", { placeholder: "20 minutes ago", autocomplete: "off" });
  const offset = h("input", { inputmode: "numeric", placeholder: "0", autocomplete: "off" });
  const partition = select([["", "All partitions"], ...Array.from({ length: group.partitions_count }, (_, index) => /** @type {[string, string]} */ ([String(index), `Partition ${index}`]))], "");
  const force = h("input", { type: "checkbox" });
  const whenField = field("Time", when, "14:05, 20 minutes ago, yesterday 9:30, 2026-11-18 14:05");
  const offsetField = field("Offset", offset, "The next message that the group reads.");
  const note = h("p", { role: "status" });
  /** @type {Step[]} */
  let steps = [];
  let turn = 0;
  /** @type {Table<Step>} */
  const table = new Table({
    label: "What changes", key: (row) => row.partition, empty: "Nothing changes.",
    columns: [
      { title: "Partition", value: (row) => row.partition, isNumber: true },
      { title: "Reads next", value: (row) => row.before, render: (row) => [count(row.before), " ", row.stored === null && badge("nothing stored")], isNumber: true },
      { title: "Will read next", value: (row) => row.next, render: (row) => count(row.next), isNumber: true },
      { title: "Read again", value: (row) => row.reread, render: (row) => count(row.reread), isNumber: true },
      { title: "Skipped", value: (row) => row.skipped, render: (row) => count(row.skipped), isNumber: true },
    ],
  });

  const targetOf = async () => {
    if (to.value === "earliest") return (/** @type {number} */ _, /** @type {bigint} */ first) => first;
    if (to.value === "latest") return (/** @type {number} */ _, /** @type {bigint} */ _first, /** @type {bigint} */ end) => end;
    if (to.value === "offset") {
      if (!/^\d{1,20}$/.test(offset.value.trim())) throw new Error("Write an offset: a number.");
      return () => BigInt(offset.value.trim());
    }
    if (when.value.trim() === "") throw new Error("Write a time.");
    const time = parseTime(when.value, Date.now(), isUtc());
    note.textContent = `That is ${moment(time)}.`;
    const found = await get(`${path`streams/${stream}/topics/${topic}/offsets`}?timestamp=${time}`);
    const offsets = new Map(found.partitions.map((/** @type {any} */ row) => [row.partition_id, BigInt(row.offset)]));
    return (/** @type {number} */ number, /** @type {bigint} */ _first, /** @type {bigint} */ end) => offsets.get(number) ?? end;
  };
  const preview = async () => {
    turn += 1;
    const mine = turn;
    whenField.hidden = to.value !== "time";
    offsetField.hidden = to.value !== "offset";
    note.textContent = "";
    steps = [];
    try {
      const target = await targetOf();
      const [bounds, lag] = await Promise.all([get(path`streams/${stream}/topics/${topic}/bounds`), fetchLag(stream, topic, group.name)]);
      if (mine !== turn) return;
      const wanted = bounds.partitions.filter((/** @type {any} */ row) => partition.value === "" || String(row.partition_id) === partition.value);
      steps = planReset(wanted, lag, target);
      const reread = steps.reduce((sum, row) => sum + row.reread, 0n);
      const skipped = steps.reduce((sum, row) => sum + row.skipped, 0n);
      note.textContent = `${note.textContent ?? ""} ${plural(reread, "message")} would be read again, ${plural(skipped, "message")} would be skipped.`.trim();
    } catch (error) {
      if (mine !== turn) return;
      note.textContent = reasonOf(error);
    }
    table.update(steps);
    // The form looks again whether it is ready.
    when.form?.dispatchEvent(new Event("input"));
  };
  for (const control of [to, partition]) control.addEventListener("change", () => void preview());
  for (const control of [when, offset]) control.addEventListener("change", () => void preview());
  void preview();
  const hasMembers = group.members_count > 0;
  return formDialog(`Set where ${group.name} continues`, {
    wide: true, button: "Set offsets", danger: true, isReady: () => steps.length > 0 && (!hasMembers || force.checked),
    fields: [
      field("Continue at", to), whenField, offsetField, field("Partition", partition),
      hasMembers && field(`Remove ${plural(group.members_count, "member")} first`, force, "Members keep positions of their own. They have to join again, and those of other SDKs may have to be restarted."),
      h("h3", null, "Preview"), note, table.element,
    ],
    submit: async () => {
      await change(path`streams/${stream}/topics/${topic}/consumer-groups/${group.name}/offsets`, {
        force: force.checked, offsets: steps.map((row) => ({ partition_id: row.partition, offset: row.next })),
      });
      toast(`${group.name} continues where you said.`);
    },
  });
}

/** A cell with a link to a group. @param {string} stream @param {string} topic @param {string} name */
export const groupLink = (stream, topic, name) =>
  h("a", { href: `#/streams/${encodeURIComponent(stream)}/topics/${encodeURIComponent(topic)}/groups/${encodeURIComponent(name)}` }, name);

/** Fills an element with sentences, or hides it. @param {HTMLElement} element @param {string[]} sentences */
export function drawNotices(element, sentences) {
  fill(element, sentences.map((text) => h("div", { class: "notice" }, h("span", null, text))));
}
