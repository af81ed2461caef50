// What a payload is, found out from its bytes, and how it is shown: always as text.

import { avroFingerprint, decodeAvro, isAvroContainer, isAvroSingleObject } from "./avro.js";
import { stringify } from "./json.js";
import { decodeMessagePack } from "./msgpack.js";

/** @typedef {"json" | "text" | "msgpack" | "avro" | "hex"} Form */

/** @type {[Form, string][]} */
export const FORMS = [["json", "JSON"], ["text", "Text"], ["msgpack", "MessagePack"], ["avro", "Avro"], ["hex", "Hex"]];

const HEX_ROW = 16;
const SHOWN_MAX = 256 * 1024;
const LOOKED_AT_MAX = 64 * 1024;
const TOKEN = /"[^"\\]*(?:\\.[^"\\]*)*"|[{}[\],:]|[^\s{}[\],:"]+/g;

/** @param {string} text @returns {Uint8Array} */
export function fromBase64(text) {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let index = 0; index < raw.length; index += 1) bytes[index] = raw.charCodeAt(index);
  return bytes;
}

/** @param {Uint8Array} bytes */
export function toBase64(bytes) {
  let raw = "";
  for (let start = 0; start < bytes.length; start += 0x8000) raw += String.fromCharCode(...bytes.subarray(start, start + 0x8000));
  return btoa(raw);
}

/** The text of bytes; null if they are none. A character that is cut off at the end does not count. @param {Uint8Array} bytes */
export function textOf(bytes, isCut = false) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes, { stream: isCut });
  } catch {
    return null;
  }
}

/** Whether a text is for people: no control characters but line breaks and tabs. @param {string} text */
const isReadable = (text) => !/[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f]/.test(text.slice(0, LOOKED_AT_MAX));

/**
 * JSON with indentation. Numbers and texts stay as they are written: nothing is parsed and written again.
 *
 * @param {string} text valid JSON
 */
export function indentJson(text) {
  const parts = [];
  let depth = 0;
  let before = "";
  const line = () => `\n${"  ".repeat(depth)}`;
  for (const [token] of text.matchAll(TOKEN)) {
    if (token === "}" || token === "]") {
      depth -= 1;
      parts.push(before === "{" || before === "[" ? token : line() + token);
    } else {
      if (before === "{" || before === "[" || before === ",") parts.push(line());
      parts.push(token === ":" ? ": " : token);
      if (token === "{" || token === "[") depth += 1;
    }
    before = token;
  }
  return parts.join("");
}

/** @param {string} text */
function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/**
 * What bytes most likely are.
 *
 * @param {Uint8Array} bytes
 * @param {boolean} [isCut] whether more bytes would follow
 * @returns {Form}
 */
export function detect(bytes, isCut = false) {
  if (isAvroContainer(bytes) || isAvroSingleObject(bytes)) return "avro";
  const text = textOf(bytes, isCut);
  if (text !== null && isReadable(text)) {
    const first = text.trimStart()[0];
    const looksLikeJson = first === "{" || first === "[" || (bytes.length < 64 && first !== undefined);
    return looksLikeJson && (isCut ? first === "{" || first === "[" : isJson(text)) ? "json" : "text";
  }
  if (!isCut && isMessagePack(bytes)) return "msgpack";
  return "hex";
}

/** A single small number is no sign of MessagePack: only a map or a list counts. @param {Uint8Array} bytes */
function isMessagePack(bytes) {
  const kind = bytes[0];
  if (!((kind >= 0x80 && kind < 0xa0) || (kind >= 0xdc && kind <= 0xdf))) return false;
  try {
    decodeMessagePack(bytes);
    return true;
  } catch {
    return false;
  }
}

/**
 * Bytes as text, in a form. Throws an Error that says why it cannot be.
 *
 * @param {Uint8Array} bytes
 * @param {Form} form
 * @param {boolean} [isCut]
 * @returns {Promise<string>}
 */
export async function present(bytes, form, isCut = false) {
  switch (form) {
    case "json": {
      const text = textOf(bytes, isCut);
      if (text === null) throw new Error("These bytes are not UTF-8, so they are not JSON.");
      if (isCut) return text;
      if (!isJson(text)) throw new Error("This is no JSON.");
      return limited(indentJson(text));
    }
    case "text": return limited(textOf(bytes, isCut) ?? new TextDecoder("utf-8").decode(bytes));
    case "msgpack": return limited(stringify(decodeMessagePack(bytes), 2));
    case "avro":
      if (isAvroSingleObject(bytes)) {
        throw new Error(`One Avro object whose schema has the fingerprint ${avroFingerprint(bytes)}. It carries no schema, so it cannot be read here.`);
      }
      return limited((await decodeAvro(bytes)).map((value) => stringify(value, 2)).join("\n"));
    default: return hexDump(bytes.subarray(0, SHOWN_MAX / 4));
  }
}

/** @param {string} text */
const limited = (text) => (text.length <= SHOWN_MAX ? text : `${text.slice(0, SHOWN_MAX)}\n… ${text.length - SHOWN_MAX} more characters: download them`);

/** Offsets, bytes and characters, as hexdump writes them. @param {Uint8Array} bytes */
export function hexDump(bytes) {
  const rows = [];
  for (let start = 0; start < bytes.length; start += HEX_ROW) {
    const row = Array.from(bytes.subarray(start, start + HEX_ROW));
    const digits = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(3 * HEX_ROW - 1);
    const letters = row.map((byte) => (byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : ".")).join("");
    rows.push(`${start.toString(16).padStart(8, "0")}  ${digits}  ${letters}`);
  }
  return rows.join("\n");
}

/** One line about a payload, for a list. @param {Uint8Array} bytes @param {boolean} isCut @param {number} [length] */
export function preview(bytes, isCut, length = 200) {
  if (bytes.length === 0) return "(empty)";
  const form = detect(bytes, isCut);
  if (form === "json" || form === "text") return (textOf(bytes.subarray(0, 4 * length), true) ?? "").replace(/\s+/g, " ").slice(0, length);
  if (form === "msgpack") return stringify(decodeMessagePack(bytes)).slice(0, length);
  return `${form === "avro" ? "Avro, " : ""}${Array.from(bytes.subarray(0, 32), (byte) => byte.toString(16).padStart(2, "0")).join(" ")}${bytes.length > 32 ? " …" : ""}`;
}
