// Runs before the page is drawn and before any module is there: the colours, so that the page never appears in the wrong
// ones first, and the requests of the first view, which need not wait for the modules. api.js takes their replies.
(() => {
  /** @param {string} name */
  const kept = (name) => {
    try {
      return localStorage.getItem(`courser.${name}`);
    } catch {
      // Storage is switched off: the theme is that of the system, and requests wait for the modules.
      return null;
    }
  };
  const theme = kept("theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;

  // Scripts cannot see the session's cookie. Without one, requests would only be refused.
  if (kept("session") !== "yes" || location.hash.startsWith("#login=")) return;
  const overview = ["history?since=0", "stats", "health/ready"];
  const paths = ["ui/session", ...(/^#?\/?(\?|$)/.test(location.hash) ? overview : [])];
  /** @type {Map<string, Promise<Response>>} */
  const replies = new Map();
  for (const path of paths) {
    const reply = fetch(new URL(`../${path}`, document.baseURI), {
      headers: { "x-courser-console": "1" }, credentials: "same-origin", cache: "no-store", redirect: "error",
    });
    // Whoever takes it deals with its failure.
    reply.catch(() => undefined);
    replies.set(path, reply);
  }
  Object.assign(globalThis, { earlyReplies: replies });
})();
