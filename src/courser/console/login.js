// The login: a name and a password, or a personal access token.

import { h, fill } from "./dom.js";
import { logIn } from "./session.js";
import { field, reasonOf } from "./widgets.js";

/**
 * @param {HTMLElement} root
 * @param {string | undefined} note why to log in again
 * @param {(session: import("./session.js").Session) => void} onDone
 */
export function showLogin(root, note, onDone) {
  const username = h("input", { name: "username", autocomplete: "username", required: true, spellcheck: "false" });
  const password = h("input", { name: "password", type: "password", autocomplete: "current-password", required: true });
  const token = h("input", { name: "token", type: "password", autocomplete: "off" });
  const problem = h("p", { class: "problem", role: "alert" }, note ?? "");
  const go = h("button", { type: "submit", class: "button primary" }, "Log in");
  const byPassword = h("div", null, field("User", username), field("Password", password));
  const byToken = h("div", { hidden: true }, field("Personal access token", token, "Made with courser token create, or in the console."));
  const other = h("button", { type: "button", class: "link", onclick: () => {
    byToken.hidden = !byToken.hidden;
    byPassword.hidden = !byPassword.hidden;
    username.required = password.required = !byPassword.hidden;
    token.required = !byToken.hidden;
    other.textContent = byToken.hidden ? "Log in with a token" : "Log in with a password";
    (byToken.hidden ? username : token).focus();
  } }, "Log in with a token");
  const form = h("form", { class: "login", onsubmit: async (/** @type {Event} */ event) => {
    event.preventDefault();
    go.disabled = true;
    problem.textContent = "";
    try {
      onDone(await logIn(byToken.hidden ? { username: username.value, password: password.value } : { token: token.value }));
    } catch (error) {
      problem.textContent = reasonOf(error);
      go.disabled = false;
      password.value = "";
      (byToken.hidden ? password : token).focus();
    }
  } }, h("img", { src: new URL("icon.svg", import.meta.url), alt: "", width: "40", height: "40" }), h("h1", null, "Courser"),
  h("p", { class: "soft" }, "Log in with the user and password of this server."), byPassword, byToken, problem, go, other);
  fill(root, h("main", { class: "login-page", id: "main", tabindex: "-1" }, form));
  username.focus();
}
