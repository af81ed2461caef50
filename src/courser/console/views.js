// Every view: its address, its place in the navigation, and the module that shows it. A module is loaded when its view is
// opened first.
//
// To add a view: write a module that exports `show`, and add a row here. Order matters: the first pattern that fits wins.

/**
 * @typedef {object} Context what a view gets
 * @property {HTMLElement} root put elements here
 * @property {Record<string, string>} params what the address says, by the names in the pattern
 * @property {URLSearchParams} query
 * @property {AbortSignal} signal aborts when the view is left: pass it to requests and listeners
 * @property {(title: string) => void} setTitle
 * @property {(step: () => Promise<void>, interval?: number) => void} live runs a step now and again and again; shows its first failure
 * @property {(changes: Record<string, string | null>) => void} setQuery changes the address without opening the view again
 * @property {import("./session.js").Session} session who is logged in
 */
/**
 * @typedef {object} View
 * @property {string} pattern with names behind colons: /streams/:stream
 * @property {string} [title] in the navigation and in the search; without one it is not listed
 * @property {import("./dom.js").IconName} [icon]
 * @property {string} [key] the letter after g
 * @property {string} [section] the pattern of the view that is marked in the navigation
 * @property {() => Promise<{ show: (context: Context) => void | Promise<void> }>} load
 */

/** @type {View[]} */
export const VIEWS = [
  { pattern: "/", title: "Overview", icon: "overview", key: "o", load: () => import("./view_overview.js") },
  { pattern: "/streams", title: "Streams and topics", icon: "streams", key: "t", load: () => import("./view_streams.js") },
  { pattern: "/groups", title: "Consumer groups", icon: "groups", key: "g", load: () => import("./view_groups.js") },
  { pattern: "/storage", title: "Storage", icon: "storage", key: "s", load: () => import("./view_storage.js") },
  { pattern: "/streams/:stream/topics/:topic", section: "/streams", load: () => import("./view_topic.js") },
  { pattern: "/streams/:stream/topics/:topic/messages", section: "/streams", load: () => import("./view_messages.js") },
  { pattern: "/streams/:stream/topics/:topic/groups", section: "/streams", load: () => import("./view_topic_groups.js") },
  { pattern: "/streams/:stream/topics/:topic/groups/:group", section: "/groups", load: () => import("./view_group.js") },
  { pattern: "/streams/:stream/topics/:topic/storage", section: "/streams", load: () => import("./view_topic_storage.js") },
  { pattern: "/first-message", section: "/", load: () => import("./view_first_minute.js") },
  { pattern: "/pipelines", title: "Pipelines", icon: "pipelines", key: "p", load: () => import("./view_pipelines.js") },
  { pattern: "/users", title: "Users and tokens", icon: "users", key: "u", load: () => import("./view_users.js") },
  { pattern: "/sessions", title: "Sessions", icon: "sessions", key: "c", load: () => import("./view_sessions.js") },
  { pattern: "/logs", title: "Logs", icon: "logs", key: "l", load: () => import("./view_logs.js") },
  { pattern: "/configuration", title: "Configuration", icon: "configuration", key: "k", load: () => import("./view_configuration.js") },
];

/** The address of a topic, or of one of its views. @param {string | number} stream @param {string | number} topic @param {string} [view] */
export const topicHref = (stream, topic, view) =>
  `#/streams/${encodeURIComponent(stream)}/topics/${encodeURIComponent(topic)}${view === undefined ? "" : `/${view}`}`;

/**
 * The views of a topic, as tabs: the text, and what follows the address of the topic.
 *
 * @type {[text: string, view: string | undefined][]}
 */
export const TOPIC_TABS = [["Messages", "messages"], ["Consumer groups", "groups"], ["Storage", "storage"], ["Settings", undefined]];
