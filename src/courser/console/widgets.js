// The parts that views are made of: buttons, fields, dialogs, toasts, snippets, and what is shown instead of data.

import { ApiError, ConnectionLost } from "./api.js";
import { byId, fill, h, icon } from "./dom.js";

/** @typedef {import("./dom.js").Child} Child */
/** @typedef {import("./dom.js").IconName} IconName */

/**
 * @param {string} text
 * @param {(event: MouseEvent) => unknown} onclick
 * @param {{ kind?: "primary" | "danger" | "plain", icon?: IconName, disabled?: boolean, title?: string }} [options]
 */
export function button(text, onclick, options = {}) {
  return h("button", {
    type: "button", class: `button ${options.kind ?? ""}`, onclick, disabled: options.disabled ?? false, title: options.title,
  }, options.icon && icon(options.icon), h("span", null, text));
}

/**
 * A button that shows an icon only; the text is its name for screen readers.
 *
 * @param {string} label
 * @param {IconName} name
 * @param {(event: MouseEvent) => unknown} onclick
 */
export const iconButton = (label, name, onclick) =>
  h("button", { type: "button", class: "button icon-only", "aria-label": label, title: label, onclick }, icon(name));

/** A heading of a view, with buttons beside it. @param {Child} title @param {...Child} actions */
export const heading = (title, ...actions) =>
  h("div", { class: "heading" }, h("h1", { tabindex: "-1" }, title), h("div", { class: "actions" }, actions));

/** @param {string | null} title @param {...Child} children */
export const card = (title, ...children) =>
  h("section", { class: "card" }, title !== null && h("h2", null, title), children);

/** A figure with its name. @param {string} name @param {Child} value @param {Child} [note] */
export const figure = (name, value, note) =>
  h("div", { class: "figure" }, h("dt", null, name), h("dd", null, h("strong", null, value), note !== undefined && h("small", null, note)));

/** A word in a coloured box. @param {string} text @param {"good" | "bad" | "warn" | "plain"} [kind] */
export const badge = (text, kind = "plain") => h("span", { class: `badge ${kind}` }, text);

/** Names and values. @param {[string, Child][]} rows */
export const facts = (rows) => h("dl", { class: "facts" }, rows.map(([name, value]) => [h("dt", null, name), h("dd", null, value)]));

// --- instead of data ---

/** While something is loaded. */
export const loading = () => h("p", { class: "state", role: "status" }, "Loading …");

/** There is nothing, and what to do about it. @param {string} title @param {...Child} text */
export const empty = (title, ...text) => h("div", { class: "state" }, h("h2", null, title), text);

/**
 * What went wrong. A missing permission is named, as the server names it.
 *
 * @param {unknown} error
 */
export function failure(error) {
  if (error instanceof ApiError && error.isForbidden) {
    const [what, names] = error.message.split("; one of these is enough: ");
    return h("div", { class: "state forbidden", role: "alert" }, icon("lock"), h("h2", null, "Missing permission"),
      h("p", null, `${what}.`.replace(/\.\.$/, ".")),
      names !== undefined && h("p", null, "One of these is enough: ", names.split(", ").map((name, index) => [index > 0 && ", ", h("code", null, name)]),
        ". Ask somebody who may manage users."));
  }
  const text = error instanceof Error ? error.message : String(error);
  const title = error instanceof ConnectionLost ? "No connection"
    : error instanceof ApiError && error.isMissing ? "Not found" : "That did not work";
  return h("div", { class: "state failed", role: "alert" }, icon("warning"), h("h2", null, title), h("p", null, text));
}

/** The text of an error, for toasts and forms. @param {unknown} error */
export const reasonOf = (error) => (error instanceof Error ? error.message : String(error));

// --- toasts ---

const TOAST_TIME = 6_000;

/** A short note. Bad ones stay until they are closed. @param {string} text @param {"good" | "bad"} [kind] */
export function toast(text, kind = "good") {
  /** @type {HTMLElement} */
  const element = h("div", { class: `toast ${kind}`, role: kind === "bad" ? "alert" : "status" },
    icon(kind === "bad" ? "warning" : "check"), h("span", null, text),
    iconButton("Close this note", "close", () => element.remove()));
  byId("toasts").append(element);
  if (kind === "good") setTimeout(() => element.remove(), TOAST_TIME);
}

/** Tells screen readers something that others can see. @param {string} text */
export function announce(text) {
  byId("announcer").textContent = text;
}

// --- dialogs ---

/**
 * Opens a dialog, and gives what it ends with; null if it is closed without.
 *
 * @template Result
 * @param {string} title
 * @param {(close: (result: Result | null) => void) => Child} make
 * @param {{ wide?: boolean }} [options]
 * @returns {Promise<Result | null>}
 */
export function dialog(title, make, options = {}) {
  return new Promise((resolve) => {
    const before = document.activeElement;
    /** @type {Result | null} */
    let outcome = null;
    /** @param {Result | null} result */
    const close = (result) => {
      outcome = result;
      element.close();
    };
    const element = h("dialog", { class: options.wide ? "wide" : "", "aria-label": title, onclose: () => {
      element.remove();
      if (before instanceof HTMLElement) before.focus();
      resolve(outcome);
    } }, h("header", null, h("h2", null, title), iconButton("Close", "close", () => close(null))));
    const content = h("div", { class: "content" });
    fill(content, make(close));
    element.append(content);
    document.body.append(element);
    element.showModal();
    /** @type {HTMLElement | null} */ (content.querySelector("input, select, textarea"))?.focus();
  });
}

/**
 * A form in a dialog. It stays open, with the reason, if `submit` fails.
 *
 * @param {string} title
 * @param {{ fields: Child, button: string, submit: () => Promise<void>, danger?: boolean, isReady?: () => boolean, wide?: boolean }} options
 * @returns {Promise<boolean>} whether it was done
 */
export async function formDialog(title, options) {
  const done = await dialog(title, (/** @type {(result: true | null) => void} */ close) => {
    const problem = h("p", { class: "problem", role: "alert" });
    const go = h("button", { type: "submit", class: `button ${options.danger ? "danger" : "primary"}` }, options.button);
    const check = () => {
      go.disabled = options.isReady !== undefined && !options.isReady();
    };
    const form = h("form", { oninput: check, onsubmit: async (/** @type {Event} */ event) => {
      event.preventDefault();
      if (go.disabled) return;
      go.disabled = true;
      problem.textContent = "";
      try {
        await options.submit();
        close(true);
      } catch (error) {
        problem.textContent = reasonOf(error);
        check();
      }
    } }, options.fields, problem, h("div", { class: "buttons" }, button("Cancel", () => close(null)), go));
    check();
    return form;
  }, { wide: options.wide });
  return done === true;
}

/**
 * Asks before something that cannot be undone. The name must be typed.
 *
 * @param {{ title: string, text: Child, name: string, button: string, submit: () => Promise<void> }} options
 */
export function confirmByName(options) {
  const input = h("input", { autocomplete: "off", spellcheck: "false", required: true });
  return formDialog(options.title, {
    fields: [h("div", { class: "warning-text" }, options.text),
      field(`Type ${options.name} to confirm`, input)],
    button: options.button, danger: true, submit: options.submit, isReady: () => input.value === options.name,
  });
}

// --- fields ---

let fieldCount = 0;

/**
 * A field of a form with its label, and an explanation where it is set.
 *
 * @param {Child} label
 * @param {HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement} control
 * @param {Child} [help]
 */
export function field(label, control, help) {
  fieldCount += 1;
  const id = control.id || `field-${fieldCount}`;
  control.id = id;
  if (help !== undefined) control.setAttribute("aria-describedby", `${id}-help`);
  const isBox = control instanceof HTMLInputElement && control.type === "checkbox";
  const text = h("label", { for: id }, label);
  return h("div", { class: isBox ? "field box" : "field" }, isBox ? [control, text] : [text, control],
    help !== undefined && h("p", { class: "help", id: `${id}-help` }, help));
}

/**
 * @param {[value: string, text: string][]} options
 * @param {string} value
 * @param {(value: string) => void} [onchange]
 */
export function select(options, value, onchange) {
  const element = h("select", { onchange: () => onchange?.(element.value) },
    options.map(([key, text]) => h("option", { value: key, selected: key === value }, text)));
  return element;
}

// --- copying ---

/** @param {string} text @param {string} [what] */
export async function copy(text, what = "Copied to the clipboard.") {
  try {
    await navigator.clipboard.writeText(text);
    toast(what);
  } catch {
    toast("The browser does not allow copying here: select the text and copy it yourself.", "bad");
  }
}

/** Commands to copy, in one tab each. @param {Record<string, string>} texts by the name of the tab */
export function snippets(texts) {
  const names = Object.keys(texts);
  const code = h("code", null, texts[names[0]]);
  const text = h("pre", { tabindex: "0", "aria-label": "Command" }, code);
  const tabs = names.map((name, index) => h("button", {
    type: "button", role: "tab", "aria-selected": String(index === 0), tabindex: index === 0 ? "0" : "-1",
    onclick: () => choose(index),
    onkeydown: (/** @type {KeyboardEvent} */ event) => {
      const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
      if (step !== 0) choose((index + step + names.length) % names.length, true);
    },
  }, name));
  /** @param {number} chosen @param {boolean} [hasFocus] */
  const choose = (chosen, hasFocus) => {
    tabs.forEach((tab, index) => {
      tab.setAttribute("aria-selected", String(index === chosen));
      tab.tabIndex = index === chosen ? 0 : -1;
    });
    code.textContent = texts[names[chosen]];
    if (hasFocus) tabs[chosen].focus();
  };
  return h("div", { class: "snippet" },
    h("div", { class: "snippet-head" }, h("div", { class: "tabs", role: "tablist", "aria-label": "Way to do it" }, tabs),
      iconButton("Copy", "copy", () => copy(code.textContent ?? ""))),
    text);
}

/** A text as a shell reads it as one word. @param {string} text */
export const quote = (text) => (/^[\w./:=@-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/**
 * Links to views of the same thing, such as a topic.
 *
 * @param {[text: string, href: string][]} links
 * @param {string} current
 */
export const tabLinks = (links, current) => h("nav", { class: "tabs links", "aria-label": "Views" },
  links.map(([text, href]) => h("a", { href, "aria-current": href === current ? "page" : null }, text)));
