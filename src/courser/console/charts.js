// Line charts of our own, in SVG. The newest value is in the text beside the chart; a pointer shows the others.

import { fill, h, s } from "./dom.js";
import { time } from "./format.js";

/**
 * @typedef {object} Series
 * @property {string} name
 * @property {(number | null)[]} values
 */

const WIDTH = 600;
const HEIGHT = 150;
const LEFT = 84;
const BOTTOM = 18;
const TOP = 6;
const LINE_COUNT = 3;

/** A chart that is drawn again with `update`. */
export class LineChart {
  /**
   * @param {object} options
   * @param {string} options.title
   * @param {(value: number) => string} options.format of values
   * @param {number} [options.base] of the units: 1024 for bytes
   */
  constructor(options) {
    this._options = options;
    /** @type {number[]} */
    this._times = [];
    /** @type {Series[]} */
    this._series = [];
    this._svg = s("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", preserveAspectRatio: "none",
      onpointermove: (/** @type {PointerEvent} */ event) => this._point(event), onpointerleave: () => this._leave() });
    this._labels = h("div", { class: "chart-labels", "aria-hidden": "true" });
    this._legend = h("div", { class: "legend" });
    this._note = h("div", { class: "chart-note", hidden: true, "aria-hidden": "true" });
    this._cursor = s("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
    this.element = h("figure", { class: "chart-box" }, h("figcaption", null, h("h2", null, options.title), this._legend),
      h("div", { class: "chart-area" }, this._svg, this._labels, this._note));
  }

  /** @param {number[]} times microseconds since 1970 @param {Series[]} series */
  update(times, series) {
    this._times = times;
    this._series = series;
    const { format, title } = this._options;
    const all = series.flatMap((one) => one.values).filter((value) => value !== null);
    const top = niceTop(Math.max(...all, 0), this._options.base ?? 1000);
    const newest = series.map((one) => [one.name, lastOf(one.values)]);
    const words = newest.map(([name, value]) => `${name} ${value === null ? "unknown" : format(Number(value))}`).join(", ");
    this._svg.setAttribute("aria-label", `${title}, last hour. Now: ${words}`);
    const grid = [];
    const labels = [];
    for (let line = 0; line <= LINE_COUNT; line += 1) {
      const y = this._y((top * line) / LINE_COUNT, top);
      grid.push(s("line", { class: "grid", x1: LEFT, x2: WIDTH, y1: y, y2: y }));
      labels.push(h("span", { class: "y", style: { top: `${(100 * y) / HEIGHT}%` } }, format((top * line) / LINE_COUNT)));
    }
    if (times.length > 1) {
      labels.push(h("span", { class: "x first" }, time(times[0]).slice(0, 5)), h("span", { class: "x last" }, time(times[times.length - 1]).slice(0, 5)));
    }
    fill(this._svg, grid, series.map((one, index) => this._path(one.values, top, index)), this._cursor);
    fill(this._labels, labels);
    fill(this._legend, newest.map(([name, value], index) => h("span", { class: `key series-${index}` },
      h("span", { class: "swatch" }), `${name} `, h("strong", null, value === null ? "–" : format(Number(value))))));
  }

  /** @param {(number | null)[]} values @param {number} top @param {number} index */
  _path(values, top, index) {
    let line = "";
    let area = "";
    let start = "";
    let isOpen = false;
    values.forEach((value, at) => {
      if (value === null) {
        isOpen = false;
        return;
      }
      const x = this._x(at).toFixed(1);
      const y = this._y(value, top).toFixed(1);
      if (start === "") start = x;
      line += `${isOpen ? "L" : "M"}${x} ${y}`;
      area += `${area === "" ? "M" : "L"}${x} ${y}`;
      isOpen = true;
    });
    const last = this._x(values.length - 1).toFixed(1);
    const base = HEIGHT - BOTTOM;
    return [index === 0 && area !== "" && s("path", { class: `area series-${index}`, d: `${area}L${last} ${base}L${start} ${base}Z` }),
      s("path", { class: `line series-${index}`, d: line, "vector-effect": "non-scaling-stroke" })];
  }

  /** @param {number} at */
  _x(at) {
    return LEFT + ((WIDTH - LEFT) * at) / Math.max(1, this._times.length - 1);
  }

  /** @param {number} value @param {number} top */
  _y(value, top) {
    return HEIGHT - BOTTOM - ((HEIGHT - BOTTOM - TOP) * Math.min(value, top)) / top;
  }

  /** @param {PointerEvent} event */
  _point(event) {
    const box = this._svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * WIDTH;
    const at = Math.round(((x - LEFT) / (WIDTH - LEFT)) * (this._times.length - 1));
    if (at < 0 || at >= this._times.length) return this._leave();
    this._cursor.setAttribute("x1", String(this._x(at)));
    this._cursor.setAttribute("x2", String(this._x(at)));
    this._cursor.setAttribute("visibility", "visible");
    const lines = this._series.map((one, index) => {
      const value = one.values[at];
      return h("div", { class: `key series-${index}` }, h("span", { class: "swatch" }), `${one.name} `,
        h("strong", null, value === null ? "–" : this._options.format(value)));
    });
    fill(this._note, h("div", null, time(this._times[at]).slice(0, 8)), lines);
    this._note.hidden = false;
    this._note.style.setProperty("left", `${(100 * this._x(at)) / WIDTH}%`);
    this._note.classList.toggle("left", at > this._times.length / 2);
  }

  _leave() {
    this._note.hidden = true;
    this._cursor.setAttribute("visibility", "hidden");
  }
}

/** A small line without axes. @param {number[]} values @param {string} label */
export function sparkline(values, label) {
  const top = Math.max(1, ...values);
  const step = 100 / Math.max(1, values.length - 1);
  const points = values.map((value, index) => `${(index * step).toFixed(1)},${(28 - (26 * value) / top).toFixed(1)}`).join(" ");
  return s("svg", { class: "sparkline", viewBox: "0 0 100 30", role: "img", "aria-label": label, preserveAspectRatio: "none" },
    s("polyline", { points, "vector-effect": "non-scaling-stroke" }));
}

/** @param {(number | null)[]} values */
const lastOf = (values) => values.at(-1) ?? null;

/** A round value at or above this one, whose thirds are round as well. @param {number} value @param {number} base */
function niceTop(value, base) {
  if (value <= 0) return 3;
  const unit = base ** Math.max(0, Math.floor(Math.log(value) / Math.log(base)));
  const power = unit * 10 ** Math.floor(Math.log10(value / unit));
  const factor = [1.5, 3, 6, 9, 15].find((candidate) => candidate * power >= value) ?? 15;
  return factor * power;
}
