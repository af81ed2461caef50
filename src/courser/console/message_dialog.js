// One message in a dialog: what it is, its payload in any form, and what can be done with it.

import { fill, h } from "./dom.js";
import { ago, bytes, moment, time } from "./format.js";
import { download, fetchMessage, isCut, placeOf, readingCommands, uuidOf } from "./message.js";
import { FORMS, detect, present } from "./payload.js";
import { sendMessage } from "./send_form.js";
import { topicHref } from "./views.js";
import { badge, button, copy, dialog, facts, field, reasonOf, select, snippets, toast } from "./widgets.js";

/** @typedef {import("./message.js").Message} Message */
/** @typedef {import("./payload.js").Form} Form */

const WHOLE_SIZE_MAX = 1024 * 1024;

/**
 * @param {Message} first
 * @param {{ canSend: boolean, onShow: (message: Message) => void }} options
 */
export function showMessage(first, options) {
  return dialog("Message", () => {
    const box = h("div", { class: "message" });
    /** @param {Message} message */
    const show = async (message) => {
      options.onShow(message);
      fill(box, contents(message, options.canSend, show));
      if (isCut(message) && message.size <= WHOLE_SIZE_MAX) {
        const whole = await fetchMessage(message.stream, message.topic, message.partition, message.offset).catch(() => null);
        if (whole !== null && box.isConnected) fill(box, contents(whole, options.canSend, show));
      }
    };
    void show(first);
    return box;
  }, { wide: true });
}

/** @param {Message} message @param {boolean} canSend @param {(message: Message) => Promise<void>} show */
function contents(message, canSend, show) {
  const { stream, topic, partition, offset } = message;
  /** @param {bigint} step */
  const move = async (step) => {
    if (offset + step < 0n) return;
    try {
      const next = await fetchMessage(stream, topic, partition, offset + step);
      if (next === null) toast(`Partition ${partition} has no message at offset ${offset + step}.`, "bad");
      else await show(next);
    } catch (error) {
      toast(reasonOf(error), "bad");
    }
  };
  return [
    h("div", { class: "actions" },
      button("Previous", () => move(-1n), { kind: "plain" }), button("Next", () => move(1n), { kind: "plain" }),
      button("Copy link", () => copy(linkTo(message), "The address of this message is copied."), { kind: "plain", icon: "copy" }),
      button("Download payload", () => downloadPayload(message), { kind: "plain" }),
      button("Send again", () => sendMessage(stream, topic, message), { kind: "plain", disabled: !canSend })),
    facts([
      ["Topic", `${stream}/${topic}`], ["Partition", String(partition)], ["Offset", h("span", { class: "offset" }, String(offset))],
      ["Stored", [moment(message.timestamp), ".", time(message.timestamp).slice(-3), " ", h("small", null, ago(message.timestamp))]],
      ["Created by its producer", moment(message.originTimestamp)],
      ["Id", [h("span", { class: "id" }, message.id), " ", h("small", null, uuidOf(message.id))]],
      ["Key", message.key === null ? h("small", null, "none") : h("code", null, message.key)],
      ["Size", bytes(message.size)],
    ]),
    message.headers.length > 0 && h("div", null, h("h3", null, "Headers"),
      h("dl", { class: "facts headers" }, message.headers.map((header) => [h("dt", null, header.name), h("dd", null, h("code", null, header.text), " ", badge(header.kind))]))),
    payloadBox(message),
    h("h3", null, "Get this message"),
    snippets(readingCommands(message)),
  ];
}

/** @param {Message} message */
function payloadBox(message) {
  const cut = isCut(message);
  const text = h("pre", { class: "payload", tabindex: "0", "aria-label": "Payload" });
  const problem = h("p", { class: "problem", role: "alert" });
  /** @param {Form} form */
  const draw = async (form) => {
    problem.textContent = "";
    try {
      text.textContent = message.size === 0 ? "(empty)" : await present(message.payload, form, cut);
    } catch (error) {
      text.textContent = "";
      problem.textContent = `It cannot be shown in this form. ${reasonOf(error)}`;
    }
  };
  const detected = detect(message.payload, cut);
  const chosen = select(FORMS.map(([form, name]) => [form, form === detected ? `${name} (detected)` : name]), detected, (form) => void draw(/** @type {Form} */ (form)));
  void draw(detected);
  return h("div", null,
    h("div", { class: "payload-head" }, h("h3", null, "Payload"), field("Show as", chosen),
      button("Copy", () => copy(text.textContent ?? ""), { kind: "plain", icon: "copy" })),
    cut && h("p", { class: "notice cut" }, `Only the first ${bytes(message.payload.length)} of ${bytes(message.size)} are shown. Download the payload to see all of it.`),
    problem, text);
}

/** @param {Message} message */
async function downloadPayload(message) {
  try {
    const whole = isCut(message) ? await fetchMessage(message.stream, message.topic, message.partition, message.offset) : message;
    if (whole === null) throw new Error("The message does not exist any more.");
    const ending = { json: "json", text: "txt", msgpack: "msgpack", avro: "avro", hex: "bin" }[detect(whole.payload)];
    download(`${message.topic}-${message.partition}-${message.offset}.${ending}`, new Uint8Array(whole.payload), "application/octet-stream");
  } catch (error) {
    toast(reasonOf(error), "bad");
  }
}

/** @param {Message} message */
export const linkTo = (message) => {
  const { origin, pathname } = location;
  return `${origin}${pathname}${topicHref(message.stream, message.topic, "messages")}?open=${placeOf(message)}`;
};
