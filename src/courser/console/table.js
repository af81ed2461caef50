// A table that is updated in place: a row keeps its element, its focus and its selection as long as its key exists, and a
// cell is drawn again only if its value changes. Of long tables only the rows in sight exist, so 10,000 rows scroll well.

import { fill, h } from "./dom.js";
import { announce } from "./widgets.js";

/** @typedef {import("./dom.js").Child} Child */

/**
 * @template Row
 * @typedef {object} Column
 * @property {string} title
 * @property {(row: Row) => string | number | bigint | boolean | null} value what it sorts by, and what decides whether to draw again
 * @property {(row: Row) => Child} [render] what is shown; otherwise the value
 * @property {boolean} [isNumber] aligned right
 * @property {boolean} [isPlain] cannot be sorted by it
 * @property {string} [class]
 */

const ROW_HEIGHT = 37;
const WHOLE_COUNT_MAX = 150;
const SPARE_COUNT = 15;

/**
 * @template Row
 */
export class Table {
  /**
   * @param {object} options
   * @param {string} options.label what the table lists, for screen readers
   * @param {Column<Row>[]} options.columns
   * @param {(row: Row) => string | number | bigint} options.key
   * @param {Child} [options.empty] shown instead of rows
   * @param {number} [options.sortColumn]
   * @param {boolean} [options.isDescending]
   * @param {(row: Row) => string | null} [options.href] where Enter or a click on the row leads
   * @param {(row: Row) => string} [options.rowClass]
   */
  constructor(options) {
    this._options = options;
    /** @type {Row[]} */
    this._rows = [];
    /** @type {Map<string | number | bigint, { element: HTMLTableRowElement, values: unknown[] }>} */
    this._drawn = new Map();
    this._sortColumn = options.sortColumn ?? -1;
    this._isDescending = options.isDescending ?? false;
    this._heads = options.columns.map((column, index) => this._head(column, index));
    this._body = h("tbody");
    this._table = h("table", { "aria-label": options.label }, h("thead", null, h("tr", null, this._heads)), this._body);
    this._empty = h("div", { class: "table-empty", hidden: true }, options.empty ?? "Nothing here.");
    this._scroller = h("div", { class: "table-scroll", role: "region", tabindex: "0", "aria-label": options.label,
      onscroll: () => this._isLong && this._draw() }, this._table);
    /** What to put into the page. */
    this.element = h("div", { class: "table" }, this._scroller, this._empty);
  }

  get _isLong() {
    return this._rows.length > WHOLE_COUNT_MAX;
  }

  /** Shows these rows. @param {Row[]} rows */
  update(rows) {
    this._rows = this._sorted(rows);
    this._empty.hidden = rows.length > 0;
    this._table.setAttribute("aria-rowcount", String(rows.length + 1));
    this._scroller.classList.toggle("long", this._isLong);
    this._draw();
  }

  /** @param {Column<Row>} column @param {number} index */
  _head(column, index) {
    const kind = column.isNumber ? "number" : "";
    if (column.isPlain) return h("th", { scope: "col", class: kind }, column.title || h("span", { class: "unseen" }, "Actions"));
    return h("th", { scope: "col", class: kind, "aria-sort": this._sortWord(index) },
      h("button", { type: "button", class: "sort", onclick: () => this._sortBy(index) }, column.title));
  }

  /** @param {number} index */
  _sortWord(index) {
    return index !== this._sortColumn ? "none" : this._isDescending ? "descending" : "ascending";
  }

  /** @param {number} index */
  _sortBy(index) {
    this._isDescending = index === this._sortColumn ? !this._isDescending : this._options.columns[index].isNumber === true;
    this._sortColumn = index;
    this._heads.forEach((head, at) => !this._options.columns[at].isPlain && head.setAttribute("aria-sort", this._sortWord(at)));
    announce(`Sorted by ${this._options.columns[index].title}, ${this._isDescending ? "descending" : "ascending"}`);
    this._rows = this._sorted(this._rows);
    this._draw();
  }

  /** @param {Row[]} rows */
  _sorted(rows) {
    if (this._sortColumn < 0) return rows;
    const value = this._options.columns[this._sortColumn].value;
    const sign = this._isDescending ? -1 : 1;
    return [...rows].sort((one, other) => sign * compare(value(one), value(other)));
  }

  _draw() {
    let first = 0;
    let end = this._rows.length;
    if (this._isLong) {
      const height = this._scroller.clientHeight || 600;
      first = Math.max(0, Math.floor(this._scroller.scrollTop / ROW_HEIGHT) - SPARE_COUNT);
      end = Math.min(end, first + Math.ceil(height / ROW_HEIGHT) + 2 * SPARE_COUNT);
    }
    const before = this._drawn;
    this._drawn = new Map();
    /** @type {HTMLTableRowElement[]} */
    const elements = [];
    for (let index = first; index < end; index += 1) {
      const row = this._rows[index];
      const key = this._options.key(row);
      const drawn = before.get(key) ?? this._newRow();
      this._fillRow(drawn, row);
      drawn.element.setAttribute("aria-rowindex", String(index + 2));
      this._drawn.set(key, drawn);
      elements.push(drawn.element);
    }
    const focused = document.activeElement;
    const width = this._options.columns.length;
    place(this._body, [...spacer(first, width), ...elements, ...spacer(this._rows.length - end, width)]);
    if (focused instanceof HTMLElement && focused !== document.activeElement && this._body.contains(focused)) focused.focus();
  }

  _newRow() {
    const element = h("tr", null, this._options.columns.map((column) => h("td", {
      class: [column.isNumber && "number", column.class].filter(Boolean).join(" "), "data-title": column.title,
    })));
    return { element, values: new Array(this._options.columns.length).fill(undefined) };
  }

  /** @param {{ element: HTMLTableRowElement, values: unknown[] }} drawn @param {Row} row */
  _fillRow(drawn, row) {
    if (this._options.rowClass !== undefined) drawn.element.className = this._options.rowClass(row);
    this._options.columns.forEach((column, index) => {
      const value = column.value(row);
      if (drawn.values[index] === value) return;
      drawn.values[index] = value;
      const content = column.render === undefined ? value : column.render(row);
      fill(drawn.element.cells[index], content);
    });
  }
}

/**
 * Brings children into this order, and moves as few as possible: an element that is moved loses its focus.
 *
 * @param {Element} parent
 * @param {Element[]} children
 */
function place(parent, children) {
  const wanted = new Set(children);
  for (const child of [...parent.children]) if (!wanted.has(child)) child.remove();
  let next = parent.firstElementChild;
  for (const child of children) {
    if (child === next) next = next.nextElementSibling;
    else parent.insertBefore(child, next);
  }
}

/** @param {number} count @param {number} width */
function spacer(count, width) {
  if (count <= 0) return [];
  return [h("tr", { class: "spacer", "aria-hidden": "true" }, h("td", { colspan: width, style: { height: `${count * ROW_HEIGHT}px` } }))];
}

/** @param {string | number | bigint | boolean | null} one @param {string | number | bigint | boolean | null} other */
function compare(one, other) {
  if (typeof one === "string" && typeof other === "string") return one.localeCompare(other, "en", { numeric: true });
  if (one === other) return 0;
  if (one === null) return -1;
  if (other === null) return 1;
  return one < other ? -1 : 1;
}
