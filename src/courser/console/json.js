// JSON without loss: message ids have 128 bits and offsets 64, and a number of JavaScript is exact up to 2^53 only.
// Integers that a number cannot hold become BigInt; all others stay numbers.

const LONG_INTEGER = /"[^"\\]*(?:\\.[^"\\]*)*"|(?<![\d.])-?\d{16,}(?![\d.eE])/g;
// No text that comes from outside can know it, so none is taken for a number.
const MARK = `\u0001${crypto.getRandomValues(new Uint32Array(4)).join("-")}:`;
const MARKED = new RegExp(`"\\\\u0001${MARK.slice(1)}(-?\\d+)"`, "g");

/**
 * @param {string} text
 * @returns {any}
 */
export function parse(text) {
  let hasBig = false;
  const marked = text.replace(LONG_INTEGER, (part) => {
    if (part[0] === '"' || Number.isSafeInteger(Number(part))) return part;
    hasBig = true;
    return `"\\u0001${MARK.slice(1)}${part}"`;
  });
  return hasBig ? JSON.parse(marked, restore) : JSON.parse(text);
}

/** @param {string} _ @param {unknown} value */
function restore(_, value) {
  return typeof value === "string" && value.startsWith(MARK) ? BigInt(value.slice(MARK.length)) : value;
}

/**
 * @param {unknown} value
 * @param {number} [indent]
 * @returns {string}
 */
export function stringify(value, indent) {
  const text = JSON.stringify(value, (_, part) => (typeof part === "bigint" ? MARK + part : part), indent);
  return text.replace(MARKED, "$1");
}
