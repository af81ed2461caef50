// The head of every view of a topic: its name, its tabs, and buttons.

import { h } from "./dom.js";
import { TOPIC_TABS, topicHref } from "./views.js";
import { heading, tabLinks } from "./widgets.js";

/**
 * @param {string} stream
 * @param {string} topic
 * @param {string | undefined} current which tab, as in TOPIC_TABS
 * @param {...import("./dom.js").Child} actions
 */
export function topicTabs(stream, topic, current, ...actions) {
  return h("div", null,
    heading([h("a", { class: "crumbs", href: `#/streams?stream=${encodeURIComponent(stream)}` }, stream), h("span", { class: "crumbs" }, " / "), topic], ...actions),
    TOPIC_TABS.length > 1 && tabLinks(TOPIC_TABS.map(([text, view]) => [text, topicHref(stream, topic, view)]), topicHref(stream, topic, current)));
}
