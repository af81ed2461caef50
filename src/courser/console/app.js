// The shell: finds the session, draws the frame, and shows the view that the address names.

import { connection, isConnectionLost } from "./api.js";
import { byId, fill, h, icon } from "./dom.js";
import { isLivePaused, onLivePause, pauseLive, repeat } from "./live.js";
import { isUtc, prefer, preference } from "./preferences.js";
import { findSession, isLoginLink, logOut } from "./session.js";
import { VIEWS } from "./views.js";
import { announce, button, dialog, failure, iconButton, loading, reasonOf, toast } from "./widgets.js";

/** @typedef {import("./session.js").Session} Session */
/** @typedef {import("./views.js").View} View */

const LIVE_INTERVAL = 2_000;
const CHORD_TIME = 1_500;

/** @type {Session | null} */
let session = null;
/** @type {AbortController} */
let leaving = new AbortController();
let hasShown = false;
const main = h("main", { id: "main", tabindex: "-1" });

// --- the address ---

function address() {
  const [path, query] = location.hash.replace(/^#/, "").split("?");
  return { path: path || "/", query: new URLSearchParams(query ?? "") };
}

/** @param {string} path @returns {{ view: View, params: Record<string, string> } | null} */
function find(path) {
  const parts = path.split("/");
  for (const view of VIEWS) {
    const wanted = view.pattern.split("/");
    if (wanted.length !== parts.length) continue;
    /** @type {Record<string, string>} */
    const params = {};
    const fits = wanted.every((part, index) => {
      if (!part.startsWith(":")) return part === parts[index];
      params[part.slice(1)] = decodeURIComponent(parts[index]);
      return parts[index] !== "";
    });
    if (fits) return { view, params };
  }
  return null;
}

/** Changes the query of the address, and leaves the view as it is. @param {Record<string, string | null>} changes */
function setQuery(changes) {
  const { path, query } = address();
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === "") query.delete(name);
    else query.set(name, value);
  }
  const text = query.toString();
  history.replaceState(null, "", `#${path}${text === "" ? "" : `?${text}`}`);
}

/** @param {string} title */
function setTitle(title) {
  document.title = `${title} · Courser`;
  announce(title);
}

async function showView() {
  if (session === null) return;
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  // Dialogs belong to the view that is left.
  for (const open of document.querySelectorAll("dialog")) open.close();
  const { path, query } = address();
  const found = find(path);
  document.body.classList.remove("has-menu");
  markCurrent(found?.view);
  fill(main, loading());
  // The browser would have to lay out the page at once. The first view is at the top anyway, and asks for its data first.
  if (hasShown) window.scrollTo(0, 0);
  hasShown = true;
  if (found === null) {
    fill(main, h("div", { class: "state" }, h("h1", null, "There is no such view"), h("a", { href: "#/" }, "Go to the overview")));
    return;
  }
  const root = h("div", { class: "view" });
  const who = session;
  /** @param {unknown} error */
  const fail = (error) => {
    if (!signal.aborted) fill(root, failure(error), h("div", { class: "row centre" }, button("Try again", () => void showView())));
  };
  try {
    setTitle(found.view.title ?? "Console");
    const { show } = await found.view.load();
    if (signal.aborted) return;
    fill(main, root);
    await show({
      root, params: found.params, query, signal, setTitle, setQuery, session: who,
      live: (step, interval = LIVE_INTERVAL) => void repeat(step, interval, signal, fail),
    });
  } catch (error) {
    fill(main, root);
    fail(error);
  }
}

// --- the frame ---

/** @type {Map<string, HTMLAnchorElement>} */
const links = new Map();

/** @param {View | undefined} view */
function markCurrent(view) {
  for (const [pattern, link] of links) {
    if (pattern === (view?.section ?? view?.pattern)) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

/** @param {Session} who */
function drawFrame(who) {
  links.clear();
  const items = VIEWS.filter((view) => view.title !== undefined).map((view) => {
    const link = h("a", { href: `#${view.pattern}` }, icon(view.icon ?? "logs"), h("span", null, view.title));
    links.set(view.pattern, link);
    return h("li", null, link);
  });
  const pause = h("button", { type: "button", class: "button plain", onclick: () => pauseLive(!isLivePaused()) });
  const drawPause = () => {
    fill(pause, icon(isLivePaused() ? "play" : "pause"), h("span", null, isLivePaused() ? "Continue" : "Pause"));
    pause.setAttribute("aria-pressed", String(isLivePaused()));
    pause.setAttribute("aria-label", isLivePaused() ? "Continue" : "Pause");
    pause.title = isLivePaused() ? "Live figures stand still: continue (p)" : "Let live figures stand still (p)";
  };
  onLivePause(drawPause, new AbortController().signal);
  drawPause();
  fill(byId("app"),
    h("header", { class: "top" },
      h("button", { type: "button", class: "button icon-only menu", "aria-label": "Menu", onclick: toggleMenu }, icon("menu")),
      h("a", { class: "brand", href: "#/", "aria-label": "Courser" }, brandMark(), h("span", null, "Courser")),
      h("button", { type: "button", class: "search-button", "aria-label": "Search", onclick: () => void openSearch() }, icon("search"),
        h("span", null, "Search"), h("kbd", null, "/")),
      h("div", { class: "tools" }, who.read_only && h("span", { class: "badge warn" }, "read only"), pause, zoneButton(), themeButton(),
        iconButton("Keyboard shortcuts", "help", () => void showHelp()),
        h("span", { class: "who" }, who.username), iconButton("Log out", "logout", () => void endSession()))),
    h("nav", { class: "side", "aria-label": "Main" }, h("ul", null, items), h("p", { class: "version" }, `Courser ${who.version}`)),
    main);
}

const brandMark = () => h("img", { src: new URL("icon.svg", import.meta.url), alt: "", width: "24", height: "24" });

function toggleMenu() {
  document.body.classList.toggle("has-menu");
}

function zoneButton() {
  const element = h("button", { type: "button", class: "button plain", onclick: () => {
    prefer("zone", isUtc() ? "local" : "utc");
    draw();
    void showView();
  } });
  const draw = () => {
    fill(element, icon("clock"), h("span", null, isUtc() ? "UTC" : "Local"));
    element.title = isUtc() ? "Times are in UTC: show local time" : "Times are in local time: show UTC";
    element.setAttribute("aria-label", element.title);
  };
  draw();
  return element;
}

function isDark() {
  const theme = preference("theme", "system");
  return theme === "system" ? matchMedia("(prefers-color-scheme: dark)").matches : theme === "dark";
}

function themeButton() {
  const element = h("button", { type: "button", class: "button icon-only", onclick: () => {
    prefer("theme", isDark() ? "light" : "dark");
    document.documentElement.dataset.theme = isDark() ? "dark" : "light";
    draw();
  } });
  const draw = () => {
    fill(element, icon(isDark() ? "sun" : "moon"));
    element.setAttribute("aria-label", isDark() ? "Light colours" : "Dark colours");
    element.title = isDark() ? "Light colours" : "Dark colours";
  };
  draw();
  return element;
}

// --- the session ---

async function endSession() {
  try {
    await logOut();
  } catch (error) {
    toast(reasonOf(error), "bad");
    return;
  }
  session = null;
  start(null);
}

/** @param {Session | null} found @param {string} [note] */
function start(found, note) {
  session = found;
  leaving.abort();
  if (session === null) {
    document.title = "Log in · Courser";
    void askForLogin(note);
    return;
  }
  drawFrame(session);
  void showView();
}

/** The module is loaded only here: most who open the console are logged in. @param {string} [note] */
async function askForLogin(note) {
  const { showLogin } = await import("./login.js");
  if (session === null) showLogin(byId("app"), note, (who) => start(who));
}

connection.addEventListener("ended", () => {
  if (session !== null) start(null, "The session has ended: log in again.");
});

// --- a lost connection ---

connection.addEventListener("lost", () => {
  fill(byId("banner"), h("div", { class: "banner" }, icon("warning"),
    "The connection to the server is lost. What you see may be old. Trying again …"));
});
connection.addEventListener("back", () => {
  fill(byId("banner"));
  if (session !== null) toast("The server is back.");
});

// --- the keyboard ---

const openSearch = async () => (await import("./search.js")).openSearch();

function showHelp() {
  /** @type {[string, string][]} */
  const rows = [["/", "Search streams, topics and views"], ["p", "Pause or continue live figures"], ["?", "This help"], ["Esc", "Close a dialog"],
    ...VIEWS.filter((view) => view.key !== undefined).map((view) => /** @type {[string, string]} */ ([`g ${view.key}`, view.title ?? ""]))];
  return dialog("Keyboard shortcuts", () => h("dl", { class: "facts keys" }, rows.map(([keys, text]) =>
    [h("dt", null, keys.split(" ").map((key) => h("kbd", null, key))), h("dd", null, text)])));
}

let chordStart = 0;

/** @param {KeyboardEvent} event */
function onKey(event) {
  const target = /** @type {HTMLElement} */ (event.target);
  if (session === null || event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (target.closest("input, textarea, select, dialog[open], [contenteditable]") !== null) return;
  const isChord = Date.now() - chordStart < CHORD_TIME;
  chordStart = 0;
  if (isChord) {
    const view = VIEWS.find((one) => one.key === event.key);
    if (view !== undefined) location.hash = view.pattern;
  } else if (event.key === "g") chordStart = Date.now();
  else if (event.key === "/") {
    event.preventDefault();
    void openSearch();
  } else if (event.key === "?") void showHelp();
  else if (event.key === "p") pauseLive(!isLivePaused());
}

document.addEventListener("keydown", onKey);
byId("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
window.addEventListener("hashchange", () => void (isLoginLink() ? begin() : showView()));

async function begin() {
  try {
    start(await findSession());
  } catch (error) {
    if (isConnectionLost()) {
      fill(byId("app"), failure(error));
      connection.addEventListener("back", () => location.reload(), { once: true });
    } else start(null, reasonOf(error));
  }
}

await begin();
