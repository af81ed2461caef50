// Users: who may do what, and why. Create, change, delete; and one's own tokens.

import { change, get, path, post, remove } from "./api.js";
import { fill, h } from "./dom.js";
import { moment, parseDuration } from "./format.js";
import { permissionEditor } from "./permissions.js";
import { Table } from "./table.js";
import { badge, button, card, confirmByName, copy, dialog, failure, field, formDialog, heading, select, toast } from "./widgets.js";

/** @typedef {import("./permissions.js").UserAccess} User */
/** @typedef {import("./permissions.js").AccessReport} AccessReport */
/** @typedef {{ name: string, expiry_at: number | null }} Token */

/** The columns of the matrix, by the names of actions. @type {[action: string, title: string][]} */
const COLUMNS = [["send_messages", "Send"], ["poll_messages", "Read"], ["read_topic", "See topics"], ["manage_topic", "Change topics"],
  ["manage_users", "Manage users"], ["read_server", "See the server"]];

/** @param {import("./views.js").Context} context */
export async function show({ root, signal, setTitle, session, query, setQuery }) {
  setTitle("Users and tokens");
  const isFixed = session.read_only;
  const users = h("div");
  const tokens = h("div");
  fill(root, heading("Users and tokens"), users, tokens);
  await Promise.all([showUsers(users, { signal, isFixed, query, setQuery }).catch((error) => fill(users, card("Users", failure(error)))), showTokens(tokens, { signal, isFixed })]);
}

// --- users ---

/** @param {HTMLElement} root @param {{ signal: AbortSignal, isFixed: boolean, query: URLSearchParams, setQuery: import("./views.js").Context["setQuery"] }} options */
async function showUsers(root, { signal, isFixed, query, setQuery }) {
  /** @type {AccessReport} */
  let report = { actions: [], permissions: [], users: [] };
  /** @type {{ stream: string, stream_id: number, topic: string, topic_id: number }[]} */
  let topics = [];
  const place = h("select", { "aria-label": "Where", onchange: async () => {
    setQuery({ at: place.value, stream: null, topic: null });
    await readAccess();
  } });
  /** @param {User} user @param {string} action */
  const verdict = (user, action) => user.verdicts.find((one) => one.action === action);
  /** @param {string} action */
  const deed = (action) => report.actions.find(({ name }) => name === action)?.deed ?? action;
  /** Why a user may do something; empty if it may not. @param {User} user @param {string} action */
  const grounds = (user, action) => {
    const found = verdict(user, action);
    if (!found?.is_allowed) return "";
    return user.is_root ? "root user" : found.granted_by.map(({ level, name }) => (level === "everywhere" ? name : `${name} in the ${level}`)).join(", ");
  };
  /** @type {Table<User>} */
  const table = new Table({
    label: "Users", key: (row) => row.user_id, sortColumn: 0,
    columns: [
      { title: "User", value: (row) => `${row.username} ${row.is_active}`, render: (row) => [h("strong", null, row.username), " ", !row.is_active && badge("inactive", "warn"), row.is_root && badge("root")] },
      ...COLUMNS.map(([action, title]) => ({
        title, value: (/** @type {User} */ row) => grounds(row, action) || (verdict(row, action)?.reason ?? ""),
        render: (/** @type {User} */ row) => {
          const why = grounds(row, action);
          return why === "" ? h("span", { class: "soft", title: `may not ${deed(action)}: ${verdict(row, action)?.reason ?? ""}` }, "–")
            : h("span", { class: "granted", title: `may ${deed(action)}: ${why}` }, "✓", h("small", null, ` ${why}`));
        },
      })),
      { title: "", value: (row) => `${row.user_id} ${row.is_active}`, isPlain: true, render: (row) => button("Edit", () => edit(row), { disabled: isFixed }) },
    ],
  });
  /** What the server says about the place that is chosen. */
  const readAccess = async () => {
    const [stream, topic] = place.value.split(" ");
    const where = new URLSearchParams(stream === "" ? {} : topic === undefined ? { stream_id: stream } : { stream_id: stream, topic_id: topic });
    report = await get(`permissions?${where}`, { signal });
    table.update(report.users);
  };
  /** The topic that a link names. Links from other views know names only. */
  const named = () => {
    const found = topics.find((one) => one.stream === query.get("stream") && one.topic === query.get("topic"));
    return found === undefined ? "" : `${found.stream_id} ${found.topic_id}`;
  };
  const refresh = async () => {
    try {
      topics = await get("topics", { signal });
    } catch {
      // Without the permission to list topics, permissions are shown for everything only.
      topics = [];
    }
    const streams = [...new Map(topics.map((one) => [one.stream_id, one.stream])).entries()];
    const wanted = place.childElementCount === 0 ? (query.get("at") ?? named()) : place.value;
    /** @param {string} value @param {string} text */
    const option = (value, text) => h("option", { value, selected: value === wanted }, text);
    fill(place, option("", "everywhere"), streams.map(([id, name]) => option(`${id}`, `in the stream ${name}`)),
      topics.map((one) => option(`${one.stream_id} ${one.topic_id}`, `in ${one.stream}/${one.topic}`)));
    await readAccess();
  };

  const createUser = async () => {
    const name = h("input", { required: true, autocomplete: "off", spellcheck: "false" });
    const password = h("input", { type: "password", required: true, autocomplete: "new-password" });
    const editor = permissionEditor(report.permissions, null, topics);
    if (await formDialog("Create a user", { wide: true, button: "Create", fields: [field("Name", name, "3 to 50 bytes."), field("Password", password, "3 to 100 bytes."), editor.element],
      submit: async () => {
        await post("users", { username: name.value, password: password.value, status: "active", permissions: editor.read() });
        toast(`User ${name.value} is created.`);
      } })) await refresh();
  };
  /** @param {User} user */
  const edit = async (user) => {
    const action = await dialog(`User ${user.username}`, (/** @type {(action: (() => Promise<unknown>) | null) => void} */ close) => h("div", { class: "choices" },
      button("Permissions", () => close(() => editPermissions(user)), { disabled: user.is_root, icon: "lock" }),
      button("Name and status", () => close(() => editUser(user)), { icon: "users" }),
      button("Password", () => close(() => changePassword(user)), { icon: "configuration" }),
      button("Delete", () => close(() => deleteUser(user)), { kind: "danger", disabled: user.is_root, icon: "trash" })));
    await action?.();
  };
  /** @param {User} user */
  const editPermissions = async (user) => {
    const { permissions } = await get(path`users/${user.user_id}`, { signal });
    const editor = permissionEditor(report.permissions, permissions, topics);
    if (await formDialog(`Permissions of ${user.username}`, { wide: true, button: "Save", fields: [h("p", { class: "help" }, "They take effect at once, also for open connections. What is not granted is denied."), editor.element],
      submit: async () => {
        await change(path`users/${user.user_id}/permissions`, { permissions: editor.read() });
        toast(`The permissions of ${user.username} are changed.`);
      } })) await refresh();
  };
  /** @param {User} user */
  const editUser = async (user) => {
    const name = h("input", { value: user.username, required: true, autocomplete: "off" });
    const status = select([["active", "active"], ["inactive", "inactive: cannot log in"]], user.is_active ? "active" : "inactive");
    if (await formDialog(`Change ${user.username}`, { button: "Save", fields: [field("Name", name), field("Status", status)],
      submit: async () => {
        await change(path`users/${user.user_id}`, { username: name.value, status: status.value });
        toast(`User ${name.value} is changed.`);
      } })) await refresh();
  };
  /** @param {User} user */
  const changePassword = (user) => {
    const current = h("input", { type: "password", required: true, autocomplete: "current-password" });
    const next = h("input", { type: "password", required: true, autocomplete: "new-password" });
    return formDialog(`Password of ${user.username}`, { button: "Change",
      fields: [field("Current password", current), field("New password", next, "3 to 100 bytes. All other sessions that logged in with the old one end.")],
      submit: async () => {
        await change(path`users/${user.user_id}/password`, { current_password: current.value, new_password: next.value });
        toast(`The password of ${user.username} is changed.`);
      } });
  };
  /** @param {User} user */
  const deleteUser = async (user) => {
    if (await confirmByName({ title: "Delete a user", name: user.username, button: "Delete the user", text: h("p", null, `The user ${user.username} and all tokens of the user will be deleted, and open sessions end.`),
      submit: async () => {
        await remove(path`users/${user.user_id}`);
        toast(`User ${user.username} is deleted.`);
      } })) await refresh();
  };
  await refresh();
  fill(root, card("Who may do what", h("div", { class: "filters" }, h("label", { class: "row" }, "Where ", place), button("Create a user", createUser, { kind: "primary", icon: "plus", disabled: isFixed })),
    h("p", { class: "help" }, "A tick says that the user may do it there, and which permission allows it. What is missing for a dash appears when the pointer rests on it."), table.element));
}

// --- tokens ---

/** @param {HTMLElement} root @param {{ signal: AbortSignal, isFixed: boolean }} options */
async function showTokens(root, { signal, isFixed }) {
  /** @type {Table<Token>} */
  const table = new Table({
    label: "Your tokens", key: (row) => row.name, sortColumn: 0, empty: "You have no tokens. Programs should log in with one, not with your password.",
    columns: [
      { title: "Name", value: (row) => row.name },
      { title: "Expires", value: (row) => row.expiry_at, render: (row) => row.expiry_at === null ? "never" : moment(row.expiry_at) },
      { title: "", value: (row) => row.name, isPlain: true, render: (row) => button("Delete", () => deleteToken(row), { kind: "danger", disabled: isFixed }) },
    ],
  });
  const refresh = async () => table.update(await get("personal-access-tokens", { signal }));
  const createToken = async () => {
    const name = h("input", { required: true, autocomplete: "off", spellcheck: "false" });
    const life = h("input", { value: "90 days", autocomplete: "off" });
    let secret = "";
    const isDone = await formDialog("Create a token", { button: "Create", fields: [field("Name", name, "1 to 255 bytes: what it is for, such as the name of a program."), field("Valid for", life, "Such as 90 days; empty: it does not expire.")],
      submit: async () => {
        const text = life.value.trim();
        secret = (await post("personal-access-tokens", { name: name.value, expiry: text === "" ? 0 : parseDuration(text) })).token;
      } });
    if (!isDone) return;
    await refresh();
    await dialog(`Token ${name.value}`, () => [h("p", null, "This is the only time that it is shown. Keep it where the program finds it."),
      h("p", { class: "secret" }, h("code", null, secret)), h("div", { class: "buttons" }, button("Copy", () => copy(secret, "The token is in the clipboard."), { icon: "copy", kind: "primary" }))]);
  };
  /** @param {Token} token */
  const deleteToken = async (token) => {
    if (await formDialog("Delete a token", { button: "Delete the token", danger: true, fields: h("p", null, `Programs that use the token ${token.name} cannot log in any more, and their sessions end.`),
      submit: async () => {
        await remove(path`personal-access-tokens/${token.name}`);
        toast(`Token ${token.name} is deleted.`);
      } })) await refresh();
  };
  fill(root, card("Your personal access tokens", h("div", { class: "row" }, button("Create a token", createToken, { icon: "plus", disabled: isFixed })), table.element));
  await refresh();
}
