// The consumer groups of one topic.

import { get, path } from "./api.js";
import { fill } from "./dom.js";
import { createGroup } from "./group_forms.js";
import { fetchLag } from "./group_lag.js";
import { groupTable } from "./group_table.js";
import { topicTabs } from "./topic_head.js";
import { button } from "./widgets.js";

const INTERVAL = 2_000;

/** @param {import("./views.js").Context} context */
export function show({ root, params, live, signal, setTitle, session }) {
  const { stream, topic } = params;
  setTitle(`Consumer groups of ${stream}/${topic}`);
  const table = groupTable(false, "No consumer group reads this topic. A consumer creates one when it joins, or you do.");
  fill(root, topicTabs(stream, topic, "groups", button("Create a group", async () => {
    if (await createGroup(stream, topic)) await refresh();
  }, { icon: "plus", disabled: session.read_only })), table.element);
  const refresh = async () => {
    const groups = await get(path`streams/${stream}/topics/${topic}/consumer-groups`, { signal });
    const lags = await Promise.all(groups.map((/** @type {any} */ group) => fetchLag(stream, topic, group.name, signal)));
    table.update(groups.map((/** @type {any} */ group, /** @type {number} */ index) => ({ stream, topic, name: group.name, members: group.members_count, lag: lags[index] })));
  };
  live(refresh, INTERVAL);
}
