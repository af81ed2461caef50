// Server-sent events over fetch, which sends the session and can be stopped; EventSource can do neither well.

import { ConnectionLost, refusal, send } from "./api.js";
import { parse } from "./json.js";

/** @typedef {{ kind: string, text: string }} RawEvent an event before its JSON is parsed */

/**
 * The events of a reply, as they come. The next part is read when the caller asks for it, so a slow page slows the server.
 *
 * @param {string} path
 * @param {AbortSignal} signal
 * @returns {AsyncGenerator<RawEvent[], void>} those that arrived together
 */
export async function* rawEvents(path, signal) {
  const reply = await send("GET", path, undefined, { signal });
  if (!reply.ok || reply.body === null) throw refusal(reply.status, await reply.text());
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = /** @type {string} */ (blocks.pop());
      const events = blocks.map(eventOf).filter((event) => event !== null);
      if (events.length > 0) yield events;
    }
  } catch (error) {
    if (signal.aborted) throw error;
    throw new ConnectionLost();
  } finally {
    reader.cancel().catch(() => undefined);
  }
}

/** @param {string} block @returns {RawEvent | null} */
function eventOf(block) {
  let kind = "";
  let text = null;
  for (const line of block.split("\n")) {
    if (line.startsWith("event: ")) kind = line.slice(7);
    else if (line.startsWith("data: ")) text = line.slice(6);
  }
  return text === null ? null : { kind, text };
}

/**
 * @param {string} path
 * @param {AbortSignal} signal
 * @returns {AsyncGenerator<{ kind: string, data: any }, void>}
 */
export async function* events(path, signal) {
  for await (const batch of rawEvents(path, signal)) {
    for (const { kind, text } of batch) yield { kind, data: parse(text) };
  }
}
