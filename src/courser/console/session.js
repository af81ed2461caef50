// Who is logged in. The session is a cookie that scripts cannot read; this is what the server says about it.

import { ApiError, ask, get, remove } from "./api.js";
import { prefer } from "./preferences.js";

/**
 * @typedef {object} Session
 * @property {number} user_id
 * @property {string} username
 * @property {any} permissions
 * @property {number} expires_at seconds since 1970
 * @property {boolean} read_only whether the console may change nothing
 * @property {string} version of the server
 */

const LINK = /^#login=([0-9a-f]+)$/;

/** Whether the address is a one-time link. */
export const isLoginLink = () => LINK.test(location.hash);

/** The session of the cookie, or of a one-time link in the address; null if there is none. @returns {Promise<Session | null>} */
export async function findSession() {
  const link = LINK.exec(location.hash);
  if (link !== null) {
    // Gone from the address and the history at once: it is valid once, but it is nobody's business.
    history.replaceState(null, "", "#/");
    return logIn({ token: link[1] });
  }
  try {
    return noted(await get("ui/session"));
  } catch (error) {
    if (error instanceof ApiError && (error.status === 401 || error.status === 403)) return noted(null);
    throw error;
  }
}

/** @param {{ username: string, password: string } | { token: string }} login @returns {Promise<Session>} */
export const logIn = async (login) => noted(await ask("POST", "ui/session", login));

/** @returns {Promise<void>} */
export const logOut = async () => {
  await remove("ui/session");
  noted(null);
};

/** Lets the next start of the page know whether somebody is logged in: see early.js. @template {Session | null} Found @param {Found} session @returns {Found} */
function noted(session) {
  prefer("session", session === null ? "no" : "yes");
  return session;
}
