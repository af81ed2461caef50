// How far consumer groups are behind: sums over partitions, whether that grows, and why it may.

import { get, path } from "./api.js";
import { count, duration, plural } from "./format.js";

/** @typedef {number | bigint} Integer */
/**
 * @typedef {object} PartitionLag
 * @property {number} partition_id
 * @property {Integer | null} stored_offset
 * @property {Integer | null} next_offset null: the partition is offline
 * @property {Integer | null} message_count
 * @property {Integer | null} age microseconds
 */

const SAMPLE_COUNT = 60;
const TREND_COUNT = 5;

/** @param {string} stream @param {string} topic @param {string} group @param {AbortSignal} [signal] @returns {Promise<PartitionLag[]>} */
export const fetchLag = async (stream, topic, group, signal) =>
  (await get(path`streams/${stream}/topics/${topic}/consumer-groups/${group}/lag`, { signal })).partitions;

/** Messages over all partitions. @param {PartitionLag[]} rows */
export const totalOf = (rows) => rows.reduce((sum, row) => sum + Number(row.message_count ?? 0), 0);

/** The age of the oldest message that is not read, in microseconds. @param {PartitionLag[]} rows */
export const oldestOf = (rows) => rows.reduce((most, row) => Math.max(most, Number(row.age ?? 0)), 0);

/** The last samples of several figures, and where they go. */
export class Trends {
  constructor() {
    /** @type {Map<string | number, number[]>} */
    this._samples = new Map();
  }

  /** @param {string | number} name @param {number} value */
  add(name, value) {
    this._samples.set(name, [...this.of(name), value].slice(-SAMPLE_COUNT));
  }

  /** @param {string | number} name */
  of(name) {
    return this._samples.get(name) ?? [];
  }

  /** @param {string | number} name @returns {"grows" | "shrinks" | "steady" | null} null: not known yet */
  direction(name) {
    const samples = this.of(name).slice(-TREND_COUNT);
    if (samples.length < 2) return null;
    const change = samples[samples.length - 1] - samples[0];
    return change === 0 ? "steady" : change > 0 ? "grows" : "shrinks";
  }
}

const ARROWS = { grows: "↑ grows", shrinks: "↓ shrinks", steady: "→ steady" };
/** @param {"grows" | "shrinks" | "steady" | null} direction */
export const directionText = (direction) => (direction === null ? "…" : ARROWS[direction]);

/**
 * Why a group may be behind, in sentences for people.
 *
 * @param {PartitionLag[]} rows
 * @param {{ id: number, partitions: number[] }[]} members
 * @param {Trends} trends by partition
 * @returns {string[]}
 */
export function explain(rows, members, trends) {
  const total = totalOf(rows);
  const reasons = [];
  const offline = rows.filter((row) => row.next_offset === null);
  if (offline.length > 0) reasons.push(`${plural(offline.length, "partition")} cannot be read: the server's log says why, and so does Storage.`);
  if (total === 0) return reasons;
  if (members.length === 0) {
    reasons.push(`Nobody reads: the group has no members. ${count(total)} messages wait for the next consumer that joins.`);
    return reasons;
  }
  const taken = new Set(members.flatMap((member) => member.partitions));
  const alone = rows.filter((row) => !taken.has(row.partition_id) && Number(row.message_count ?? 0) > 0);
  if (alone.length > 0) reasons.push(`Nobody is assigned to ${names(alone)}.`);
  const most = rows.reduce((one, other) => (Number(other.message_count ?? 0) > Number(one.message_count ?? 0) ? other : one));
  const share = Number(most.message_count ?? 0) / total;
  if (rows.length > 1 && share > 0.5) {
    const member = members.find((one) => one.partitions.includes(most.partition_id));
    reasons.push(`Partition ${most.partition_id} has ${Math.round(100 * share)} % of the lag${member === undefined ? "" : `; member ${member.id} reads it`}. One key or one slow member may be the cause.`);
  }
  const still = rows.filter((row) => Number(row.message_count ?? 0) > 0 && taken.has(row.partition_id) && isStill(trends.of(`stored ${row.partition_id}`)));
  if (still.length > 0) reasons.push(`No offset was stored lately in ${names(still)}. Whoever reads there is stuck, or reads without storing offsets.`);
  if (trends.direction("total") === "grows") reasons.push(`The lag grows: messages arrive faster than ${plural(members.length, "member")} can read. The oldest waits for ${duration(oldestOf(rows))}.`);
  if (trends.direction("total") === "shrinks") reasons.push("The lag shrinks: the group is catching up.");
  const idle = members.filter((member) => member.partitions.length === 0);
  if (idle.length > 0) reasons.push(`${plural(idle.length, "member")} ${idle.length === 1 ? "has" : "have"} no partition: more members than partitions do not help.`);
  return reasons;
}

/** @param {number[]} samples */
const isStill = (samples) => samples.length >= TREND_COUNT && samples.slice(-TREND_COUNT).every((value) => value === samples[samples.length - 1]);

/** @param {PartitionLag[]} rows */
const names = (rows) => (rows.length === 1 ? `partition ${rows[0].partition_id}` : `${rows.length} partitions (${rows.slice(0, 5).map((row) => row.partition_id).join(", ")}${rows.length > 5 ? ", …" : ""})`);
