// The form that sends a message, a new one or one that is there already.

import { path, post } from "./api.js";
import { h } from "./dom.js";
import { detect, fromBase64, textOf, toBase64 } from "./payload.js";
import { field, formDialog, select, toast } from "./widgets.js";

/** @typedef {import("./message.js").Message} Message */

const KEY_NAME = toBase64(new TextEncoder().encode("courser.key"));

/** @param {string} text */
const encode = (text) => toBase64(new TextEncoder().encode(text));

/** @param {number} number */
function partitionValue(number) {
  const bytes = new Uint8Array(4);
  new DataView(bytes.buffer).setUint32(0, number, true);
  return toBase64(bytes);
}

/** Headers of lines such as "source: shop". @param {string} text */
export function parseHeaders(text) {
  return text.split("\n").filter((line) => line.trim() !== "").map((line) => {
    const at = line.indexOf(":");
    if (at < 1 || line.slice(at + 1).trim() === "") throw new Error(`"${line}" is not a header: write name: value`);
    return { key: { kind: "string", value: encode(line.slice(0, at).trim()) }, value: { kind: "string", value: encode(line.slice(at + 1).trim()) } };
  });
}

/**
 * The bytes that a user means.
 *
 * @param {string} text
 * @param {string} form text, json, base64 or hex
 */
export function payloadOf(text, form) {
  if (form === "json") JSON.parse(text);
  if (form === "base64") return fromBase64(text.replace(/\s+/g, ""));
  if (form === "hex") {
    const digits = text.replace(/\s+/g, "");
    if (!/^([0-9a-fA-F]{2})*$/.test(digits)) throw new Error("The payload is not a row of hexadecimal digits, two for each byte.");
    return Uint8Array.from(digits.match(/../g) ?? [], (pair) => parseInt(pair, 16));
  }
  return new TextEncoder().encode(text);
}

/** @param {string} stream @param {string} topic @param {Message} [like] a message to send again @returns {Promise<boolean>} whether it was sent */
export function sendMessage(stream, topic, like) {
  const detected = like === undefined ? "text" : detect(like.payload);
  const isText = detected === "text" || detected === "json";
  const payload = h("textarea", { rows: "8", spellcheck: "false", required: true });
  payload.value = like === undefined ? "" : isText ? (textOf(like.payload) ?? "") : toBase64(like.payload);
  const form = select([["text", "Text"], ["json", "JSON, which is checked"], ["base64", "Base64"], ["hex", "Hexadecimal digits"]], isText ? "text" : "base64");
  const key = h("input", { autocomplete: "off" });
  key.value = like?.key ?? "";
  const partition = h("input", { type: "number", min: "0", placeholder: "chosen by the server" });
  partition.value = like !== undefined && like.key === null ? String(like.partition) : "";
  const headers = h("textarea", { rows: "2", spellcheck: "false" });
  headers.value = (like?.headers ?? []).map((header) => `${header.name}: ${header.text}`).join("\n");
  const before = headers.value;
  const id = h("input", { autocomplete: "off", placeholder: "chosen by the server" });

  const submit = async () => {
    const bytes = payloadOf(payload.value, form.value);
    if (bytes.length === 0) throw new Error("A message needs a payload.");
    const partitioning = key.value !== "" ? { kind: "messages_key", value: encode(key.value) }
      : partition.value !== "" ? { kind: "partition_id", value: partitionValue(Number(partition.value)) } : { kind: "balanced", value: "" };
    // Headers that nobody touched keep their kinds. The server adds the key itself.
    const userHeaders = like !== undefined && headers.value === before
      ? like.rawHeaders.filter((header) => header.key.value !== KEY_NAME) : parseHeaders(headers.value);
    const message = { payload: toBase64(bytes), user_headers: userHeaders, ...(id.value.trim() === "" ? {} : { id: id.value.trim() }) };
    const reply = await post(path`streams/${stream}/topics/${topic}/messages`, { partitioning, messages: [message] });
    const place = reply?.confirmations?.[0];
    toast(place === undefined ? "Sent." : `Sent to partition ${place.partition_id} at offset ${place.base_offset}.`);
  };
  return formDialog(like === undefined ? `Send to ${stream}/${topic}` : "Send again", {
    wide: true, button: "Send", submit, isReady: () => payload.value !== "",
    fields: [
      field("Payload", payload), field("The payload is", form),
      field("Key", key, "Messages with the same key go to the same partition, in their order. The key is stored."),
      field("Partition", partition, "Used if there is no key."),
      field("Headers", headers, "One on each line: name: value"),
      field("Id", id, "A number below 2^128, or a UUID. If the server removes duplicates, it knows them by their id."),
    ],
  });
}
