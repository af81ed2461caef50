// The search over everything that has a name: views, streams, topics. Opened with the key /.

import { ApiError, get, path } from "./api.js";
import { fill, h, icon } from "./dom.js";
import { topicHref, VIEWS } from "./views.js";
import { dialog } from "./widgets.js";

/** @typedef {{ text: string, note: string, href: string, icon: import("./dom.js").IconName }} Hit */

const SHOWN_COUNT_MAX = 12;

export function openSearch() {
  // One that was just closed stays in the page until its close event.
  if (document.querySelector("dialog[open]") !== null) return Promise.resolve(null);
  return dialog("Search", (/** @type {(result: true | null) => void} */ close) => {
    /** @type {Hit[]} */
    const all = VIEWS.filter((view) => view.title !== undefined)
      .map((view) => ({ text: view.title ?? "", note: "view", href: `#${view.pattern}`, icon: view.icon ?? "logs" }));
    let chosen = 0;
    /** @type {Hit[]} */
    let hits = [];
    const list = h("ul", { id: "search-hits", role: "listbox", "aria-label": "Hits" });
    const note = h("p", { class: "soft", role: "status" }, "Loading names …");
    const input = h("input", { type: "search", role: "combobox", "aria-expanded": "true", "aria-controls": "search-hits",
      "aria-label": "Search streams, topics and views", placeholder: "Stream, topic or view", autocomplete: "off", spellcheck: "false",
      oninput: () => draw(0), onkeydown: (/** @type {KeyboardEvent} */ event) => {
        const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
        if (step !== 0 && hits.length > 0) {
          event.preventDefault();
          draw((chosen + step + hits.length) % hits.length);
        } else if (event.key === "Enter" && hits[chosen] !== undefined) {
          event.preventDefault();
          open(hits[chosen]);
        }
      } });
    /** @param {Hit} hit */
    const open = (hit) => {
      close(true);
      location.hash = hit.href.slice(1);
    };
    /** @param {number} index */
    const draw = (index) => {
      const words = input.value.toLowerCase().split(/[\s/]+/).filter((word) => word !== "");
      const found = all.filter((hit) => words.every((word) => hit.text.toLowerCase().includes(word)));
      hits = found.slice(0, SHOWN_COUNT_MAX);
      chosen = Math.min(index, Math.max(0, hits.length - 1));
      fill(list, hits.map((hit, at) => h("li", { role: "option", id: `hit-${at}`, "aria-selected": String(at === chosen), onclick: () => open(hit) },
        icon(hit.icon), h("span", null, hit.text), h("small", null, hit.note))));
      input.setAttribute("aria-activedescendant", hits.length > 0 ? `hit-${chosen}` : "");
      if (isLoaded) note.textContent = found.length === 0 ? "Nothing has this name." : found.length > hits.length ? `${found.length} hits; type more to see fewer.` : "";
    };
    let isLoaded = false;
    void names().then((hitsOfServer) => {
      all.push(...hitsOfServer);
      isLoaded = true;
      draw(chosen);
    }, (/** @type {unknown} */ error) => {
      note.textContent = error instanceof ApiError ? error.message : "The names cannot be loaded.";
    });
    draw(0);
    return h("div", { class: "search" }, input, list, note);
  });
}

/** @returns {Promise<Hit[]>} */
async function names() {
  /** @type {{ id: number, name: string }[]} */
  const streams = await get("streams");
  const lists = await Promise.all(streams.map((stream) => get(path`streams/${stream.id}/topics`)));
  return streams.flatMap((stream, index) => [
    /** @type {Hit} */ ({ text: stream.name, note: "stream", href: `#/streams?stream=${encodeURIComponent(stream.name)}`, icon: "streams" }),
    ...lists[index].map((/** @type {{ name: string }} */ topic) => /** @type {Hit} */ ({
      text: `${stream.name}/${topic.name}`, note: "topic", href: topicHref(stream.name, topic.name), icon: "streams",
    })),
  ]);
}
