// The server at a glance: what goes through it, what lags, how long the disk lasts, and what needs attention.

import { ApiError, get } from "./api.js";
import { LineChart } from "./charts.js";
import { fill, h, icon } from "./dom.js";
import { bytes, count, duration, plural, shortCount, sizeOf } from "./format.js";
import { figure, heading } from "./widgets.js";

/** @typedef {{ interval: number, times: number[], series: { name: string, is_counter: boolean, values: number[] }[] }} Reply of GET /history */

const INTERVAL = 2_000;
const HOUR = 3_600_000_000;
const GROWTH_SPAN_MIN = 60_000_000;
const DAY = 86_400_000_000;
const SOON = 7 * DAY;
const RATE_COUNT = 3;

/** What the server reported, for each time: filled up with what is new. */
class History {
  constructor() {
    /** @type {number[]} */
    this.times = [];
    /** @type {Map<string, number[]>} */
    this.values = new Map();
    this._isLastKept = true;
  }

  /** @param {Reply} reply */
  add(reply) {
    // The last sample of the reply before was one of that moment; the ring has its own.
    if (!this._isLastKept) this._drop(this.times.length - 1, 1);
    const newest = this.times.at(-1) ?? 0;
    const from = reply.times.findIndex((time) => time > newest);
    if (from < 0) return;
    this.times.push(...reply.times.slice(from));
    for (const { name, values } of reply.series) {
      const known = this.values.get(name) ?? [];
      known.push(...values.slice(from).map(Number));
      this.values.set(name, known);
    }
    this._isLastKept = this.times.length < 2 || this.times[this.times.length - 1] - this.times[this.times.length - 2] >= reply.interval;
    const old = this.times.findIndex((time) => time >= this.times[this.times.length - 1] - HOUR);
    if (old > 0) this._drop(0, old);
  }

  /** @param {number} start @param {number} length */
  _drop(start, length) {
    this.times.splice(start, length);
    for (const values of this.values.values()) values.splice(start, length);
  }

  /** The time after which the server is asked for more. */
  get since() {
    return this.times.at(this._isLastKept ? -1 : -2) ?? 0;
  }

  /** @param {string} name @returns {number[]} */
  of(name) {
    return this.values.get(name) ?? [];
  }

  /** @param {string} name */
  now(name) {
    return this.of(name).at(-1) ?? 0;
  }

  /** By how much a counter increased in each second. @param {string} name @returns {(number | null)[]} */
  rates(name) {
    return this.of(name).map((value, at, all) => (at === 0 ? null : Math.max(0, (value - all[at - 1]) / ((this.times[at] - this.times[at - 1]) / 1e6))));
  }

  /** The rate of the last samples: the last one alone is too short to be steady. @param {string} name */
  rate(name) {
    const values = this.of(name);
    const from = Math.max(0, values.length - 1 - RATE_COUNT);
    const last = values.length - 1;
    return last <= from ? 0 : Math.max(0, (values[last] - values[from]) / ((this.times[last] - this.times[from]) / 1e6));
  }

  /** A sum by a count, between samples: the mean. @param {string} sum @param {string} number @returns {(number | null)[]} */
  means(sum, number) {
    const counts = this.of(number);
    return this.of(sum).map((value, at, all) => {
      if (at === 0 || counts[at] <= counts[at - 1]) return at === 0 ? null : 0;
      return (value - all[at - 1]) / (counts[at] - counts[at - 1]);
    });
  }

  /** Microseconds until a figure reaches 0 at the rate of the last hour; null if it does not fall. @param {string} name */
  timeLeft(name) {
    const values = this.of(name);
    const span = (this.times.at(-1) ?? 0) - (this.times[0] ?? 0);
    const fall = (values[0] ?? 0) - (values.at(-1) ?? 0);
    return span < GROWTH_SPAN_MIN || fall <= 0 ? null : ((values.at(-1) ?? 0) * span) / fall;
  }
}

/** @param {number} value */
const perSecond = (value) => `${shortCount(Number(value.toFixed(value < 10 ? 1 : 0)))}/s`;
/** @param {number} value */
const bytesPerSecond = (value) => `${bytes(value)}/s`;

/** @param {import("./views.js").Context} context */
export async function show({ root, live, signal, setTitle }) {
  setTitle("Overview");
  const history = new History();
  const figures = h("dl", { class: "figures many", "aria-label": "Figures" });
  const notices = h("div", { class: "notices", role: "status" });
  const messages = new LineChart({ title: "Messages", format: perSecond });
  const traffic = new LineChart({ title: "Bytes", format: bytesPerSecond, base: 1024 });
  const lag = new LineChart({ title: "Lag of consumer groups", format: shortCount });
  const syncs = new LineChart({ title: "Sync latency", format: duration });
  const requests = new LineChart({ title: "Requests", format: perSecond });
  const stored = new LineChart({ title: "Stored", format: bytes, base: 1024 });
  const charts = [messages, traffic, lag, syncs, requests, stored];
  fill(root, heading("Overview"), notices, figures, h("div", { class: "charts" }, charts.map((chart) => chart.element)));

  live(async () => {
    const [reply, stats, problems] = await Promise.all([get(`history?since=${history.since}`, { signal }), get("stats", { signal }), readProblems(signal)]);
    if (Number(stats.messages_count) === 0 && Number(stats.topics_count) === 0 && location.hash.length <= 2) {
      location.replace("#/first-message");
      return;
    }
    history.add(reply);
    drawFigures(figures, history, stats);
    fill(notices, warnings(history, problems).map(([text, advice, kind]) => h("div", { class: `notice ${kind}` }, icon("warning"),
      h("div", null, h("strong", null, text), h("div", null, advice)))));
    const { times } = history;
    messages.update(times, [{ name: "in", values: history.rates("appended_messages") }, { name: "out", values: history.rates("polled_messages") }]);
    traffic.update(times, [{ name: "in", values: history.rates("appended_bytes") }, { name: "out", values: history.rates("polled_bytes") }]);
    lag.update(times, [{ name: "messages", values: history.of("lag_messages") }]);
    syncs.update(times, [{ name: "mean", values: history.means("sync_time", "sync_count") }]);
    requests.update(times, [{ name: "requests", values: history.rates("request_count") }, { name: "failed", values: history.rates("failed_requests") }]);
    stored.update(times, [{ name: "messages on disk", values: history.of("stored_bytes") }]);
  }, INTERVAL);
}

/** @param {HTMLElement} element @param {History} history @param {any} stats */
function drawFigures(element, history, stats) {
  const size = history.now("disk_size") || sizeOf(stats.total_disk_space);
  const free = history.now("disk_free");
  const left = history.timeLeft("disk_free");
  const lagTime = history.now("lag_time");
  fill(element,
    figure("Messages in", perSecond(history.rate("appended_messages")), bytesPerSecond(history.rate("appended_bytes"))),
    figure("Messages out", perSecond(history.rate("polled_messages")), bytesPerSecond(history.rate("polled_bytes"))),
    figure("Lag", shortCount(history.now("lag_messages")), h("a", { href: "#/groups" }, lagTime > 0 ? `oldest ${duration(lagTime)}: which groups?` : "no group is behind")),
    figure("Connections", count(history.now("connections")), plural(stats.consumer_groups_count, "consumer group")),
    figure("Stored", bytes(history.now("stored_bytes")), `${shortCount(history.now("stored_messages"))} messages, ${count(stats.topics_count)} topics`),
    figure("Disk", size === 0 ? "–" : `${Math.round((100 * (size - free)) / size)} %`,
      left !== null && left < 365 * DAY ? `full in ${duration(left)}` : `${bytes(free)} free`),
    figure("Processor", `${Math.round(history.rate("cpu_time") / 1e4)} %`, `${bytes(history.now("memory"))} memory`),
    figure("Running for", duration(stats.run_time), `Courser ${stats.iggy_server_version}`));
}

/** What keeps the server from taking writes. @param {AbortSignal} signal @returns {Promise<string[]>} */
async function readProblems(signal) {
  try {
    await get("health/ready", { signal });
    return [];
  } catch (error) {
    if (error instanceof ApiError && error.status === 503) return error.message.split("\n");
    throw error;
  }
}

/**
 * What needs attention, what to do about it, and how bad it is.
 *
 * @param {History} history
 * @param {string[]} problems
 * @returns {[text: string, advice: string, kind: "" | "bad"][]}
 */
function warnings(history, problems) {
  /** @type {[string, string, "" | "bad"][]} */
  const found = problems.map((problem) => [`Not ready: ${problem}`, "Sends to what is named here are refused. Free disk space, or look into the log, and start the server again if a partition is read-only.", "bad"]);
  const left = history.timeLeft("disk_free");
  if (left !== null && left < SOON) {
    found.push([`The disk is full in ${duration(left)} if it fills at this rate`,
      "Lower the expiry or the size limit of the largest topics (Streams and topics, by size), switch on the archive, or add space.", left < DAY ? "bad" : ""]);
  }
  const lag = history.of("lag_messages");
  if (lag.length > 30 && lag[lag.length - 1] > 1_000 && lag[lag.length - 1] > 1.2 * lag[Math.floor(lag.length / 2)]) {
    found.push(["Consumer groups fall further behind", "Consumer groups lists them, and each says why: a member may be missing, stuck or too slow. More partitions allow more members.", ""]);
  }
  const damaged = history.of("damaged_polls");
  if (damaged.length > 1 && damaged[damaged.length - 1] > damaged[0]) {
    found.push(["Clients met damaged messages in the last hour", "See which in the storage view. With an archive, the scrubber repairs them.", "bad"]);
  }
  const means = history.means("sync_time", "sync_count");
  if ((means.at(-1) ?? 0) > 500_000) found.push([`A sync takes ${duration(means.at(-1) ?? 0)}`, "The disk is slow: every send to a synced topic waits for it. Look for other programs that write.", ""]);
  return found;
}
