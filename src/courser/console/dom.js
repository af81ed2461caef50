// Makes elements. Text is always text: nothing here, or in any view, interprets a string as HTML.

/** @typedef {Node | string | number | bigint | boolean | null | undefined | { [index: number]: Child, length: number }} Child */
/** @typedef {Record<string, unknown>} Properties */

const SVG = "http://www.w3.org/2000/svg";

/**
 * An HTML element.
 *
 * `class` is the class; `style` an object of CSS properties; functions named `onclick` and so on are listeners; true and
 * false set and leave out an attribute; `value`, `checked` and `disabled` are set as properties. Children that are null,
 * undefined or booleans are left out.
 *
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Properties | null} [properties]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function h(tag, properties, ...children) {
  const element = document.createElement(tag);
  put(element, properties ?? {});
  append(element, children);
  return element;
}

/**
 * An SVG element.
 *
 * @param {string} tag
 * @param {Properties | null} [properties]
 * @param {...Child} children
 * @returns {SVGElement}
 */
export function s(tag, properties, ...children) {
  const element = /** @type {SVGElement} */ (document.createElementNS(SVG, tag));
  put(element, properties ?? {});
  append(element, children);
  return element;
}

/** @param {HTMLElement | SVGElement} element @param {Properties} properties */
export function put(element, properties) {
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on") && typeof value === "function") {
      element.addEventListener(name.slice(2), /** @type {EventListener} */ (value));
    } else if (name === "style") {
      for (const [key, text] of Object.entries(/** @type {Record<string, string>} */ (value))) {
        element.style.setProperty(key, text);
      }
    } else if (name === "value" || name === "checked" || name === "disabled" || name === "indeterminate") {
      Object.assign(element, { [name]: value ?? "" });
    } else if (value === true) {
      element.setAttribute(name, "");
    } else if (value !== false && value !== null && value !== undefined) {
      element.setAttribute(name, String(value));
    }
  }
}

/** @param {Node} parent @param {Child[]} children */
export function append(parent, children) {
  for (const child of children) {
    if (Array.isArray(child)) append(parent, /** @type {Child[]} */ (child));
    else if (child instanceof Node) parent.appendChild(child);
    else if (child !== null && child !== undefined && typeof child !== "boolean") {
      parent.appendChild(document.createTextNode(String(child)));
    }
  }
}

/**
 * Replaces what is in an element.
 *
 * @param {Element} element
 * @param {...Child} children
 */
export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

/**
 * Sets a text, and touches the page only if it is another one: a selection stays.
 *
 * @param {Element} element
 * @param {string} text
 */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** @param {string} id @returns {HTMLElement} */
export function byId(id) {
  const element = document.getElementById(id);
  if (element === null) throw new Error(`the page has no element ${id}`);
  return element;
}

/** Paths of the icons, drawn on a grid of 24. */
const ICONS = {
  overview: "M4 13h6V4H4zM14 20h6v-9h-6zM14 8h6V4h-6zM4 20h6v-4H4z",
  streams: "M4 6h16M4 12h16M4 18h10",
  groups: "M9 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM3 20c0-3.5 2.5-6 6-6s6 2.5 6 6M16 5a3 3 0 0 1 0 6M17 14c2.5.5 4 2.800 4 6",
  storage: "M4 6c0-1.700 3.600-3 8-3s8 1.300 8 3-3.600 3-8 3-8-1.300-8-3zM4 6v12c0 1.700 3.600 3 8 3s8-1.300 8-3V6M4 12c0 1.700 3.600 3 8 3s8-1.300 8-3",
  pipelines: "M5 5h5v5H5zM14 14h5v5h-5zM10 7.500h3.500a3 3 0 0 1 3 3V14",
  users: "M12 12a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM4 21c0-4 3.500-7 8-7s8 3 8 7",
  logs: "M5 4h14v16H5zM9 9h6M9 13h6M9 17h3",
  configuration: "M4 7h10M18 7h2M4 17h2M10 17h10M14 5v4M6 15v4",
  sessions: "M4 5h16v11H4zM9 20h6M12 16v4",
  search: "M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14zM16 16l5 5",
  pause: "M8 5v14M16 5v14",
  play: "M7 5l12 7-12 7z",
  sun: "M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM12 2v2M12 20v2M4 12H2M22 12h-2M5 5l1.500 1.500M17.500 17.500L19 19M19 5l-1.500 1.500M6.500 17.500L5 19",
  moon: "M20 14.500A8 8 0 0 1 9.500 4 8 8 0 1 0 20 14.500z",
  menu: "M4 7h16M4 12h16M4 17h16",
  close: "M6 6l12 12M18 6L6 18",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  warning: "M12 4L2.500 20h19zM12 10v5M12 17.500v.5",
  lock: "M6 11h12v9H6zM8.500 11V8a3.500 3.500 0 0 1 7 0v3",
  check: "M5 12.500l4.500 4.500L19 7.500",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  plus: "M12 5v14M5 12h14",
  help: "M9 9a3 3 0 1 1 4 3c-.7.400-1 .900-1 2M12 17.500v.5M12 22a10 10 0 1 0 0-20 10 10 0 0 0 0 20z",
  logout: "M10 4H5v16h5M14 8l4 4-4 4M18 12H9",
  clock: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18zM12 7v5l3 2",
};

/**
 * An icon. It says nothing to screen readers: what it stands for is in the text beside it or in a label.
 *
 * @param {keyof typeof ICONS} name
 */
export function icon(name) {
  return s("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true", focusable: "false" },
    s("path", { d: ICONS[name] }));
}

/** @typedef {keyof typeof ICONS} IconName */
