// The one door to the server: every request of every view goes through `ask`. It keeps numbers exact (json.js), turns
// failures into `ApiError`, notices a lost connection and its return, and a session that has ended.

import { parse, stringify } from "./json.js";

/** The root of the API, relative to the page: a proxy may have put something before the path. */
const ROOT = new URL("../", document.baseURI);
const HEADERS = { "x-courser-console": "1" };
const PROBE_INTERVAL = 1_000;

/** A request that the server refused. */
export class ApiError extends Error {
  /**
   * @param {number} status
   * @param {string} reason
   * @param {string} code the name of the error
   */
  constructor(status, reason, code) {
    super(reason);
    this.name = "ApiError";
    this.status = status;
    this.code = code;
  }

  /** Whether the user may not do this. The reason names the permissions of which one is enough. */
  get isForbidden() {
    return this.status === 403;
  }

  get isMissing() {
    return this.status === 404;
  }
}

/** The server cannot be reached. The banner says so; views keep what they show. */
export class ConnectionLost extends Error {
  constructor() {
    super("The server cannot be reached.");
    this.name = "ConnectionLost";
  }
}

/** Fires "lost" and "back" for the connection, and "ended" when the session is not valid any more. */
export const connection = new EventTarget();
let isLost = false;

/** @param {string} path @returns {URL} */
export const urlOf = (path) => new URL(path.replace(/^\//, ""), ROOT);

/**
 * A path of the API. Values are escaped: path`streams/${name}/topics`.
 *
 * @param {TemplateStringsArray} texts
 * @param {...(string | number | bigint)} values
 */
export const path = (texts, ...values) => String.raw({ raw: texts }, ...values.map((value) => encodeURIComponent(String(value))));

/**
 * Sends a request, and gives the reply: JSON with exact numbers, a text, or null if it has no body.
 *
 * @param {string} method
 * @param {string} path
 * @param {unknown} [body] becomes JSON
 * @param {{ signal?: AbortSignal }} [options]
 * @returns {Promise<any>}
 */
export async function ask(method, path, body, options = {}) {
  const reply = await send(method, path, body, options);
  const text = await readText(reply);
  if (!reply.ok) throw refusal(reply.status, text);
  if (text === "") return null;
  return reply.headers.get("content-type")?.startsWith("application/json") ? parse(text) : text;
}

/** @param {string} path @param {{ signal?: AbortSignal }} [options] @returns {Promise<any>} */
export const get = (path, options) => ask("GET", path, undefined, options);
/** @param {string} path @param {unknown} [body] @returns {Promise<any>} */
export const post = (path, body = {}) => ask("POST", path, body);
/** @param {string} path @param {unknown} [body] @returns {Promise<any>} */
export const change = (path, body = {}) => ask("PUT", path, body);
/** @param {string} path @returns {Promise<any>} */
export const remove = (path) => ask("DELETE", path);

/**
 * The raw reply, for streams and downloads. The caller looks at its status.
 *
 * @param {string} method
 * @param {string} path
 * @param {unknown} [body]
 * @param {{ signal?: AbortSignal }} [options]
 */
export async function send(method, path, body, options = {}) {
  /** @type {Record<string, string>} */
  const headers = { ...HEADERS };
  if (body !== undefined) headers["content-type"] = "application/json";
  try {
    const reply = await (takeEarly(method, path) ?? fetch(urlOf(path), {
      method, headers, body: body === undefined ? undefined : stringify(body), signal: options.signal ?? null,
      credentials: "same-origin", cache: "no-store", redirect: "error",
    }));
    if (reply.status === 401 && path !== "ui/session") connection.dispatchEvent(new Event("ended"));
    return reply;
  } catch (error) {
    if (options.signal?.aborted) throw error;
    noteLost();
    throw new ConnectionLost();
  }
}

/** The reply to a request that early.js has sent, once. @param {string} method @param {string} path @returns {Promise<Response> | undefined} */
function takeEarly(method, path) {
  const replies = /** @type {{ earlyReplies?: Map<string, Promise<Response>> }} */ (globalThis).earlyReplies;
  const reply = method === "GET" ? replies?.get(path) : undefined;
  replies?.delete(path);
  return reply;
}

/** @param {Response} reply */
async function readText(reply) {
  try {
    return await reply.text();
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    noteLost();
    throw new ConnectionLost();
  }
}

/** @param {number} status @param {string} text */
export function refusal(status, text) {
  try {
    const body = parse(text);
    return new ApiError(status, body.reason, body.code);
  } catch {
    return new ApiError(status, text || `The server replied with status ${status}.`, `status_${status}`);
  }
}

function noteLost() {
  if (isLost) return;
  isLost = true;
  connection.dispatchEvent(new Event("lost"));
  void probe();
}

async function probe() {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, PROBE_INTERVAL));
    try {
      const reply = await fetch(urlOf("health/live"), { cache: "no-store" });
      if (reply.ok) break;
    } catch {
      // Not yet.
    }
  }
  isLost = false;
  connection.dispatchEvent(new Event("back"));
}

/** Whether the server could not be reached the last time. */
export const isConnectionLost = () => isLost;
