// One topic: its settings and partitions. Its messages, groups and segments are views of their own, as tabs.

import { get, path } from "./api.js";
import { fill, h } from "./dom.js";
import { bytes, count, moment, sizeOf } from "./format.js";
import { Table } from "./table.js";
import { changePartitions, deleteTopic, optionText, purgeTopic, updateTopic } from "./topic_forms.js";
import { topicTabs } from "./topic_head.js";
import { TOPIC_OPTIONS } from "./topic_options.js";
import { badge, button, card, facts, figure } from "./widgets.js";

/** @typedef {{ id: number, current_offset: number | bigint, messages_count: number | bigint, size: string, segments_count: number }} Partition */

const INTERVAL = 3_000;

/** @param {import("./views.js").Context} context */
export function show({ root, params, live, signal, setTitle, session }) {
  const { stream, topic: name } = params;
  setTitle(`${stream}/${name}`);
  /** @type {import("./topic_forms.js").Topic & { partitions: Partition[] } | null} */
  let topic = null;
  /** @param {(stream: string, topic: import("./topic_forms.js").Topic) => Promise<boolean>} action @param {string} [next] */
  const act = async (action, next) => {
    if (topic !== null && (await action(stream, topic))) {
      if (next !== undefined) location.hash = next;
      else await refresh();
    }
  };
  const isFixed = session.read_only;
  const figures = h("dl", { class: "figures" });
  const settings = h("div");
  /** @type {Table<Partition>} */
  const table = new Table({
    label: "Partitions", key: (row) => row.id, sortColumn: 0, empty: "This topic has no partitions: nobody can send to it.",
    columns: [
      { title: "Partition", value: (row) => row.id, isNumber: true },
      { title: "Messages", value: (row) => row.messages_count, render: (row) => count(row.messages_count), isNumber: true },
      { title: "Newest offset", value: (row) => row.current_offset, render: (row) => (Number(row.messages_count) === 0 ? "–" : count(row.current_offset)), isNumber: true },
      { title: "Size", value: (row) => sizeOf(row.size), render: (row) => bytes(sizeOf(row.size)), isNumber: true },
      { title: "Segments", value: (row) => row.segments_count, isNumber: true },
    ],
  });
  const who = `#/users?stream=${encodeURIComponent(stream)}&topic=${encodeURIComponent(name)}`;
  fill(root, topicTabs(stream, name, undefined, h("a", { class: "button", href: who }, "Who may send and read"),
    button("Change", () => act(updateTopic), { disabled: isFixed }), button("Partitions", () => act(changePartitions), { disabled: isFixed }),
    button("Purge", () => act(purgeTopic), { kind: "danger", disabled: isFixed }),
    button("Delete", () => act(deleteTopic, "#/streams"), { kind: "danger", icon: "trash", disabled: isFixed })),
  figures, h("div", { class: "columns" }, card("Settings", settings), card("Partitions", table.element)));

  const refresh = async () => {
    const found = await get(path`streams/${stream}/topics/${name}`, { signal });
    topic = found;
    fill(figures, figure("Messages", count(found.messages_count)), figure("Size", bytes(sizeOf(found.size))),
      figure("Partitions", count(found.partitions_count)), figure("Created", moment(found.created_at).slice(0, 10), moment(found.created_at).slice(11)));
    fill(settings, facts(TOPIC_OPTIONS.filter((option) => found.options[option.name] !== undefined).map((option) => {
      const { value, explicit } = found.options[option.name];
      return [option.title, [h("span", { title: option.help }, optionText(option.kind, value)), " ", explicit ? badge("set here", "good") : badge("default")]];
    })));
    table.update(found.partitions);
  };
  live(refresh, INTERVAL);
}
