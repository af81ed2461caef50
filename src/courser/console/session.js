// Who is logged in. The session is a cookie that scripts cannot read; this is what the server says about it.

import { ApiError, ask, get, remove } from "./api.js";

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
    return await get("ui/session");
  } catch (error) {
    if (error instanceof ApiError && (error.status === 401 || error.status === 403)) return null;
    throw error;
  }
}

/** @param {{ username: string, password: string } | { token: string }} login @returns {Promise<Session>} */
export const logIn = (login) => ask("POST", "ui/session", login);

/** @returns {Promise<void>} */
export const logOut = () => remove("ui/session");
