// What this browser remembers: theme, time zone, columns. Without storage, it is remembered until the page is closed.

const PREFIX = "courser.";
/** @type {Map<string, string>} */
const kept = new Map();
/** @type {Set<() => void>} */
const listeners = new Set();

/**
 * @param {string} name
 * @param {string} otherwise
 */
export function preference(name, otherwise) {
  try {
    return kept.get(name) ?? localStorage.getItem(PREFIX + name) ?? otherwise;
  } catch {
    return otherwise;
  }
}

/**
 * @param {string} name
 * @param {string} value
 */
export function prefer(name, value) {
  kept.set(name, value);
  try {
    localStorage.setItem(PREFIX + name, value);
  } catch {
    // Remembered until the page is closed.
  }
  for (const listener of listeners) listener();
}

/** Calls back after each change. @param {() => void} listener @returns {() => void} how to stop it */
export function onPreference(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Whether times are shown in UTC. */
export const isUtc = () => preference("zone", "local") === "utc";
