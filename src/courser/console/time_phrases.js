// Times as people write them: "14:05", "20 minutes ago", "yesterday 9:30", "2026-11-18 14:05:09.5", "now".

import { parseDuration } from "./format.js";

const AGO = /^(.+?)\s+ago$/i;
const CLOCK = /^(?:(today|yesterday)(?:\s+(?:at\s+)?|$))?(?:(\d{1,2}):(\d{2})(?::(\d{2})(?:\.(\d{1,6}))?)?)?$/i;
const DATE = /^(\d{4})-(\d{2})-(\d{2})(?:[T\s]+(\d{1,2}):(\d{2})(?::(\d{2})(?:\.(\d{1,6}))?)?)?\s*(Z|UTC|[+-]\d{2}:?\d{2})?$/i;
const DAY = 86_400_000;
const HELP = "write 14:05, 20 minutes ago, yesterday 9:30 or 2026-11-18 14:05";

/**
 * Microseconds since 1970 of a phrase. A time of day is the last one that has been, so 14:05 may be yesterday's.
 *
 * @param {string} phrase
 * @param {number} now milliseconds since 1970
 * @param {boolean} isUtc whether times without a zone are in UTC; otherwise they are local
 * @returns {bigint}
 */
export function parseTime(phrase, now, isUtc) {
  const text = phrase.trim();
  if (/^now$/i.test(text)) return BigInt(now) * 1_000n;
  const ago = AGO.exec(text);
  if (ago !== null) return BigInt(now) * 1_000n - BigInt(parseDuration(ago[1].replace(/^an?\s+/i, "1 ").replace(/^half\s+an?\s+hour$/i, "30 min")));
  const date = DATE.exec(text);
  if (date !== null) return fromDate(text, date, isUtc);
  const clock = text === "" ? null : CLOCK.exec(text);
  if (clock === null) throw new Error(`"${phrase}" is not a time: ${HELP}`);
  const [, day, hour, minute, second, fraction] = clock;
  const start = startOfDay(now - (day?.toLowerCase() === "yesterday" ? DAY : 0), isUtc);
  const found = inDay(start, check(phrase, Number(hour ?? 0), 24), check(phrase, Number(minute ?? 0), 60), check(phrase, Number(second ?? 0), 60), isUtc);
  const last = day === undefined && found > now ? inDay(startOfDay(now - DAY, isUtc), Number(hour), Number(minute), Number(second ?? 0), isUtc) : found;
  return BigInt(last) * 1_000n + micros(fraction);
}

/** @param {string} text @param {RegExpExecArray} match @param {boolean} isUtc */
function fromDate(text, match, isUtc) {
  const [, year, month, day, hour, minute, second, fraction, zone] = match;
  /** @type {[number, number, number, number, number, number]} */
  const parts = [Number(year), Number(month) - 1, Number(day), check(text, Number(hour ?? 0), 24), check(text, Number(minute ?? 0), 60), check(text, Number(second ?? 0), 60)];
  const utc = Date.UTC(...parts);
  const back = new Date(utc);
  if (back.getUTCMonth() !== parts[1] || back.getUTCDate() !== parts[2]) throw new Error(`"${text}" is not a date: ${HELP}`);
  let milliseconds = zone !== undefined || isUtc ? utc : new Date(...parts).getTime();
  const shift = zone === undefined ? null : /^([+-])(\d{2}):?(\d{2})$/.exec(zone);
  if (shift !== null) milliseconds -= (shift[1] === "-" ? -1 : 1) * (Number(shift[2]) * 60 + Number(shift[3])) * 60_000;
  return BigInt(milliseconds) * 1_000n + micros(fraction);
}

/** @param {string} phrase @param {number} value @param {number} end */
function check(phrase, value, end) {
  if (value >= end) throw new Error(`"${phrase}" is not a time: ${HELP}`);
  return value;
}

/** @param {string | undefined} fraction */
const micros = (fraction) => BigInt((fraction ?? "").padEnd(6, "0"));

/** @param {number} at @param {boolean} isUtc */
function startOfDay(at, isUtc) {
  const date = new Date(at);
  return isUtc ? Date.UTC(date.getUTCFullYear(), date.getUTCMonth(), date.getUTCDate())
    : new Date(date.getFullYear(), date.getMonth(), date.getDate()).getTime();
}

/** Not by adding hours: a day can have 23 or 25. @param {number} start @param {number} hour @param {number} minute @param {number} second @param {boolean} isUtc */
function inDay(start, hour, minute, second, isUtc) {
  const date = new Date(start);
  return isUtc ? start + ((hour * 60 + minute) * 60 + second) * 1_000
    : new Date(date.getFullYear(), date.getMonth(), date.getDate(), hour, minute, second).getTime();
}

/**
 * @typedef {{ kind: "newest" } | { kind: "oldest" } | { kind: "offset", offset: bigint } | { kind: "time", time: bigint }} Start
 */

/**
 * Where to start reading: "newest", "oldest", an offset ("1200", "offset 1200") or a time. An empty phrase is "newest".
 *
 * @param {string} phrase
 * @param {number} now
 * @param {boolean} isUtc
 * @returns {Start}
 */
export function parseStart(phrase, now, isUtc) {
  const text = phrase.trim().toLowerCase();
  if (text === "" || text === "newest" || text === "latest" || text === "end") return { kind: "newest" };
  if (text === "oldest" || text === "earliest" || text === "beginning") return { kind: "oldest" };
  const offset = /^(?:offset\s+)?(\d{1,20})$/.exec(text);
  if (offset !== null) return { kind: "offset", offset: BigInt(offset[1]) };
  return { kind: "time", time: parseTime(phrase, now, isUtc) };
}
