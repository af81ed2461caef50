// One message as the views have it, from each form in which the server sends it, and as text to copy or keep.

import { get, path, urlOf } from "./api.js";
import { stringify } from "./json.js";
import { detect, fromBase64, textOf, toBase64 } from "./payload.js";
import { quote } from "./widgets.js";

/** @typedef {number | bigint} Integer */
/** @typedef {{ key: { kind: string, value: string }, value: { kind: string, value: string } }} RawHeader with values in base64 */

/**
 * @typedef {object} Message
 * @property {string} stream
 * @property {string} topic
 * @property {number} partition
 * @property {bigint} offset
 * @property {Integer} timestamp
 * @property {Integer} originTimestamp
 * @property {string} id a decimal number of up to 128 bits
 * @property {Uint8Array} payload
 * @property {number} size of the whole payload
 * @property {string | null} key
 * @property {{ name: string, kind: string, text: string }[]} headers
 * @property {RawHeader[]} rawHeaders
 */

const KEY_HEADER = "courser.key";
const INTEGERS = /^(u?)int(8|16|32|64|128)$/;

/** @param {Uint8Array} bytes */
const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");

/** The value of a header as text. @param {string} kind @param {Uint8Array} bytes */
export function headerText(kind, bytes) {
  if (kind === "bool") return String(bytes[0] !== 0);
  const integer = INTEGERS.exec(kind);
  if (integer !== null && bytes.length > 0) {
    const value = BigInt(`0x${hex(bytes.slice().reverse())}`);
    return String(integer[1] === "u" ? value : BigInt.asIntN(8 * bytes.length, value));
  }
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (kind === "float32" && bytes.length === 4) return String(view.getFloat32(0, true));
  if (kind === "float64" && bytes.length === 8) return String(view.getFloat64(0, true));
  return textOf(bytes) ?? `0x${hex(bytes)}`;
}

/** A message of a search, of events, or of a poll. @param {string} stream @param {string} topic @param {any} data @returns {Message} */
export function messageOf(stream, topic, data) {
  const head = data.header ?? data;
  const payload = data.encoding === undefined || data.encoding === "base64" ? fromBase64(data.payload ?? "") : new TextEncoder().encode(data.payload);
  /** @type {RawHeader[]} */
  const rawHeaders = Array.isArray(data.user_headers) ? data.user_headers : [];
  let key = null;
  const headers = [];
  for (const header of rawHeaders) {
    const name = headerText(header.key.kind, fromBase64(header.key.value));
    const text = headerText(header.value.kind, fromBase64(header.value.value));
    if (name === KEY_HEADER) key = text;
    else headers.push({ name, kind: header.value.kind, text });
  }
  if (typeof data.user_headers === "string") headers.push({ name: "(encrypted)", kind: "raw", text: data.user_headers });
  return {
    stream, topic, partition: data.partition_id, offset: BigInt(head.offset), timestamp: bigOrNumber(head.timestamp),
    originTimestamp: bigOrNumber(head.origin_timestamp), id: String(head.id), payload, size: Number(data.payload_size ?? payload.length), key, headers, rawHeaders,
  };
}

/** Large numbers come as texts. @param {number | bigint | string} value */
const bigOrNumber = (value) => (typeof value === "string" ? BigInt(value) : value);

/** Whether the payload here is not all of it. @param {Message} message */
export const isCut = (message) => message.payload.length < message.size;

/** The address of a message within its topic: 0.1234. @param {Message} message */
export const placeOf = (message) => `${message.partition}.${message.offset}`;

/** @param {string} stream @param {string} topic @param {number | string} partition @param {bigint | string} offset */
export const pollPath = (stream, topic, partition, offset) =>
  `${path`streams/${stream}/topics/${topic}/messages`}?partition_id=${partition}&kind=offset&value=${offset}&count=1`;

/** The message at an offset, whole; null if there is none. @param {string} stream @param {string} topic @param {number} partition @param {bigint} offset @param {AbortSignal} [signal] */
export async function fetchMessage(stream, topic, partition, offset, signal) {
  const reply = await get(pollPath(stream, topic, partition, offset), { signal });
  const found = reply.messages[0];
  if (found === undefined || BigInt(found.header.offset) !== offset) return null;
  return messageOf(stream, topic, { ...found, partition_id: partition });
}

/** An id as a UUID. @param {string} id */
export function uuidOf(id) {
  const digits = BigInt(id).toString(16).padStart(32, "0");
  return [digits.slice(0, 8), digits.slice(8, 12), digits.slice(12, 16), digits.slice(16, 20), digits.slice(20)].join("-");
}

// --- as text ---

/** One line of JSON: what `courser tail -o jsonl` prints, so `courser send -i jsonl` takes it. @param {Message} message */
export function jsonLine(message) {
  const form = detect(message.payload, isCut(message));
  const text = form === "json" || form === "text" ? textOf(message.payload, isCut(message)) : null;
  const fields = {
    partition: message.partition, offset: message.offset, timestamp: message.timestamp, id: message.id,
    ...(message.key === null ? {} : { key: message.key }),
    ...(message.headers.length === 0 ? {} : { headers: Object.fromEntries(message.headers.map((header) => [header.name, header.text])) }),
    ...(isCut(message) ? { payload_size: message.size } : {}),
  };
  const head = stringify(fields).slice(0, -1);
  if (text !== null && form === "json" && !isCut(message)) return `${head},"payload":${text.replace(/[\r\n]+/g, " ")}}`;
  return `${head},${text === null ? `"payload_base64":${stringify(toBase64(message.payload))}` : `"payload":${stringify(text)}`}}`;
}

/** How to read this message, and how to send it again, on a command line and in Python. @param {Message} message */
export function readingCommands(message) {
  const { stream, topic, partition, offset } = message;
  const place = `${stream}/${topic}`;
  return {
    curl: `curl -s -H "authorization: Bearer $TOKEN" ${quote(urlOf(pollPath(stream, topic, partition, offset)).href)}`,
    CLI: `courser message poll ${quote(place)} ${partition} --offset ${offset} --show-headers`,
    Python: [
      "import asyncio", "import courser", "", "async def main():",
      "    async with await courser.connect() as client:",
      `        strategy = courser.PollingStrategy.Offset(${offset})`,
      `        for message in await client.poll_messages(${JSON.stringify(place)}, partition_id=${partition}, polling_strategy=strategy, count=1, auto_commit=False):`,
      "            print(message.offset, message.payload)", "", "asyncio.run(main())",
    ].join("\n"),
    "Send again": sendCommand(message),
    JSON: jsonLine(message),
  };
}

/** @param {Message} message */
function sendCommand(message) {
  const text = isCut(message) ? null : textOf(message.payload);
  const options = [message.key === null ? `--partition ${message.partition}` : `--key ${quote(message.key)}`,
    ...message.headers.map((header) => `--header ${quote(`${header.name}=${header.text}`)}`)];
  const payload = text !== null ? quote(text) : `--as hex ${isCut(message) ? "…" : hex(message.payload)}`;
  return `courser send ${quote(`${message.stream}/${message.topic}`)} ${options.join(" ")} -- ${payload}`.replace("-- --as", "--as");
}

/** Lets the browser keep a file. @param {string} name @param {BlobPart} data @param {string} type */
export function download(name, data, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([data], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
