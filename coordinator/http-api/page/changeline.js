// A line that says what has changed.

import { el, keyed } from "./dom.js";
import { exactClock } from "./format.js";
import { groupOf, isBad } from "./kinds.js";
import { changeProse } from "./prose.js";
import { address } from "./router.js";

/**
 * A line of the timeline.
 * @param {import("./app.js").App} app
 * @param {import("./changes.js").Entry} entry
 * @param {Object<string, string>} [query] of the timeline, which the link to the moment keeps
 * @returns {HTMLElement}
 */
export function changeLine(app, { change, kind }, query = {}) {
  const group = groupOf(kind);
  return el("li", {
    class: `change ${isBad(change) ? "bad" : ""} ${change.replayed ? "" : "fresh"}`,
    "data-change": kind,
    "data-group": group.name,
    "data-time": change.time,
  },
  el("a", {
    class: "time",
    href: address("timeline", "", { ...query, at: change.time }),
    title: `Link to this moment: ${change.time}`,
  }, exactClock(change.time)),
  el("span", {},
    el("span", { class: "letter", "aria-hidden": "true" }, group.letter),
    kind.replaceAll("_", " ")),
  el("span", { class: "what" }, changeProse(app, change)));
}

/**
 * A short list of the newest stream changes of a set, or of all.
 * @param {import("./app.js").App} app
 * @param {string} set empty for all
 * @param {number} most
 */
export function moveList(app, set, most) {
  const list = el("ol", { class: "changes short" });
  const none = el("p", { class: "muted" }, "No stream has moved in the last hour.");
  const node = el("section", { class: "moves" }, el("h2", {}, "Moves"), none, list);
  const concerns = ({ kind, change }) => (
    kind.startsWith("stream_") && (set === "" || change.set === set));
  const draw = () => {
    const newest = [];
    const { entries } = app.log;
    for (let index = entries.length - 1; index >= 0 && newest.length < most; index -= 1) {
      if (concerns(entries[index])) newest.push(entries[index]);
    }
    none.hidden = newest.length > 0;
    keyed(list, newest, ({ key }) => key, (entry) => changeLine(app, entry));
  };
  return { node, draw };
}
