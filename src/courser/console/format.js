// Numbers, sizes, durations and times as text. All of them take numbers and BigInt.

import { isUtc } from "./preferences.js";

/** @typedef {number | bigint} Integer */

/** The value that stands for "never" or "unlimited" in the API: 2^64 - 1. */
export const NEVER = 18446744073709551615n;
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
const SIZE = /^([\d.]+) ([KMGTPE]?)(iB|B)$/;

/** With separators: 1,234,567. @param {Integer} value */
export const count = (value) => value.toLocaleString("en-US");

/** Short, for figures that change: 1.2k, 3.4M. @param {Integer} value */
export function shortCount(value) {
  const number = Number(value);
  if (Math.abs(number) < 10_000) return count(Number.isInteger(number) ? value : Number(number.toFixed(1)));
  return Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 }).format(number);
}

/** Bytes with a unit: 1.5 MiB. @param {Integer} value */
export function bytes(value) {
  let number = Number(value);
  let unit = 0;
  while (Math.abs(number) >= 1024 && unit < UNITS.length - 1) {
    number /= 1024;
    unit += 1;
  }
  return `${number.toFixed(unit === 0 || number >= 100 ? 0 : 1)} ${UNITS[unit]}`;
}

/** The bytes that a size of the API stands for: "1.5 KiB" is 1536. @param {string} text */
export function sizeOf(text) {
  const match = SIZE.exec(text);
  if (match === null) return 0;
  const base = match[3] === "iB" ? 1024 : 1000;
  return Math.round(Number(match[1]) * base ** " KMGTPE".indexOf(match[2] || " "));
}

const STEPS = /** @type {const} */ ([["d", 86_400], ["h", 3_600], ["min", 60], ["s", 1]]);

/** A duration in words: 3 d 4 h, 12 s, 250 ms, 40 µs. @param {Integer} microseconds */
export function duration(microseconds) {
  const total = Number(microseconds);
  if (total < 1_000) return `${Math.round(total)} µs`;
  if (total < 1_000_000) return `${trim(total / 1_000)} ms`;
  if (total < 10_000_000) return `${trim(total / 1_000_000)} s`;
  let rest = Math.round(total / 1_000_000);
  const parts = [];
  for (const [unit, seconds] of STEPS) {
    const whole = Math.floor(rest / seconds);
    if (whole > 0 && parts.length < 2) parts.push(`${whole} ${unit}`);
    else if (parts.length > 0) break;
    rest -= whole * seconds;
  }
  return parts.join(" ");
}

/** @param {number} value */
const trim = (value) => String(Number(value.toFixed(value < 10 ? 1 : 0)));

/** @param {Integer} microseconds since 1970 */
const dateOf = (microseconds) => new Date(Number(BigInt(microseconds) / 1_000n));

/** @type {Map<string, Intl.DateTimeFormat>} */
const formats = new Map();

/** @param {"time" | "full"} kind */
function formatOf(kind) {
  const zone = isUtc() ? "UTC" : undefined;
  const key = `${kind} ${zone ?? "local"}`;
  let format = formats.get(key);
  if (format === undefined) {
    /** @type {Intl.DateTimeFormatOptions} */
    const clock = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23", timeZone: zone };
    /** @type {Intl.DateTimeFormatOptions} */
    const day = { year: "numeric", month: "2-digit", day: "2-digit" };
    format = new Intl.DateTimeFormat("sv-SE", kind === "time" ? clock : { ...day, ...clock });
    formats.set(key, format);
  }
  return format;
}

/** A time of day: 14:05:09.123. @param {Integer} microseconds since 1970 */
export function time(microseconds) {
  const date = dateOf(microseconds);
  return `${formatOf("time").format(date)}.${String(date.getUTCMilliseconds()).padStart(3, "0")}`;
}

/** A date and a time, in the chosen zone: 2026-11-18 14:05:09. @param {Integer} microseconds since 1970 */
export const moment = (microseconds) => `${formatOf("full").format(dateOf(microseconds))}${isUtc() ? " UTC" : ""}`;

/** How long ago, in words. @param {Integer} microseconds since 1970 */
export function ago(microseconds) {
  const passed = Date.now() * 1_000 - Number(microseconds);
  if (passed < 1_000_000) return passed < -1_000_000 ? `in ${duration(-passed)}` : "now";
  return `${duration(passed)} ago`;
}

/** How long messages are kept: a duration, or "forever". @param {Integer | null} microseconds */
export const expiry = (microseconds) =>
  microseconds === null || BigInt(microseconds) === NEVER ? "forever" : duration(microseconds);

/** The limit of a topic: bytes, or "unlimited". @param {Integer | null} size */
export const limit = (size) => (size === null || BigInt(size) === NEVER ? "unlimited" : bytes(size));

/** "1 topic", "2 topics". @param {Integer} number @param {string} noun */
export const plural = (number, noun) => `${count(number)} ${noun}${Number(number) === 1 ? "" : "s"}`;

// --- reading what a user types ---

/** @type {Record<string, number>} */
const SECONDS = { us: 1e-6, ms: 1e-3, s: 1, sec: 1, second: 1, m: 60, min: 60, minute: 60, h: 3_600, hour: 3_600, d: 86_400, day: 86_400, w: 604_800, week: 604_800 };

/**
 * Microseconds of a text such as "7 days" or "1 h 30 min". Throws an Error that says what is expected.
 *
 * @param {string} text
 */
export function parseDuration(text) {
  let total = 0;
  const rest = text.trim().toLowerCase().replace(/(\d+(?:\.\d+)?)\s*([a-zµ]+)/g, (_, number, unit) => {
    const seconds = SECONDS[unit.replace("µ", "u")] ?? SECONDS[unit.replace(/s$/, "")];
    total += seconds === undefined ? NaN : Number(number) * seconds;
    return "";
  });
  if (rest.trim() !== "" || !(total > 0)) throw new Error(`"${text}" is not a duration: write 7 days, 12 hours or 30 min`);
  return Math.round(total * 1_000_000);
}

/**
 * Bytes of a text such as "10 GiB" or "500 MB". Throws an Error that says what is expected.
 *
 * @param {string} text
 */
export function parseBytes(text) {
  const match = /^(\d+(?:\.\d+)?)\s*([KMGTPE]?)(I?B)?$/.exec(text.trim().toUpperCase());
  if (match === null) throw new Error(`"${text}" is not a size: write 10 GiB or 500 MB`);
  const base = match[3] === "B" && match[2] !== "" ? 1000 : 1024;
  return Math.round(Number(match[1]) * base ** " KMGTPE".indexOf(match[2] || " "));
}
