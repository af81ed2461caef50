// Repeats what a view asks for, as long as the view is shown: `live` of the view's context. It waits while the page is
// hidden, while the user pauses, and while the server cannot be reached; then it continues by itself.

import { ConnectionLost, connection } from "./api.js";

let isPaused = false;
/** @type {Set<() => void>} */
const listeners = new Set();

export const isLivePaused = () => isPaused;

/** @param {boolean} paused */
export function pauseLive(paused) {
  isPaused = paused;
  for (const listener of [...listeners]) listener();
}

/** Calls back when live views pause or continue. @param {() => void} listener @param {AbortSignal} signal */
export function onLivePause(listener, signal) {
  listeners.add(listener);
  signal.addEventListener("abort", () => listeners.delete(listener));
}

/**
 * Runs `step` now and then again each `interval` milliseconds after it has finished.
 *
 * @param {() => Promise<void>} step
 * @param {number} interval
 * @param {AbortSignal} signal ends it
 * @param {(error: unknown) => void} onError for everything but a lost connection, which the banner shows
 */
export async function repeat(step, interval, signal, onError) {
  let isFirst = true;
  while (!signal.aborted) {
    if (isFirst || !(isPaused || document.hidden)) {
      try {
        await step();
        isFirst = false;
      } catch (error) {
        if (signal.aborted) return;
        if (error instanceof ConnectionLost) await event(connection, "back", signal);
        else {
          onError(error);
          return;
        }
        continue;
      }
    }
    await rest(interval, signal);
  }
}

/** Until the interval is over, or the page is shown again or continued. @param {number} interval @param {AbortSignal} signal */
function rest(interval, signal) {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      listeners.delete(done);
      document.removeEventListener("visibilitychange", done);
      resolve(undefined);
    };
    const timer = setTimeout(done, interval);
    listeners.add(done);
    document.addEventListener("visibilitychange", done);
    signal.addEventListener("abort", done, { once: true });
  });
}

/** @param {EventTarget} target @param {string} name @param {AbortSignal} signal */
function event(target, name, signal) {
  return new Promise((resolve) => {
    target.addEventListener(name, resolve, { once: true, signal });
    signal.addEventListener("abort", resolve, { once: true });
  });
}
