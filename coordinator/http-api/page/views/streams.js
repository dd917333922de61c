// All stream sets in figures, those with unowned streams first, and what moves.

import { moveList } from "../changeline.js";
import { el, keyed, setAttribute, setText } from "../dom.js";
import { count, counted, naturalOrder } from "../format.js";
import { emptyPanel, heading, meter, sample, searchField } from "../parts.js";
import { address, withQuery } from "../router.js";

const PAGE = 200;

/** @type {(app: import("../app.js").App, route: import("../router.js").Route)
 *   => import("../app.js").View} */
export function streamsView(app, first) {
  let route = first;
  let most = PAGE;
  const head = heading("Streams");
  const search = searchField("Search stream sets", route.query.search ?? "", (text) => (
    app.go(withQuery(route, { search: text }), { replace: true })));
  const rows = el("tbody");
  const table = el("table", { "aria-label": "Stream sets" },
    el("thead", {}, el("tr", {},
      ["Set", "Cluster", "Owned", "Without an owner"].map((name) => (
        el("th", { scope: "col" }, name))))), rows);
  const more = el("button", {
    hidden: true,
    onclick: () => {
      most += PAGE;
      drawSets();
    },
  }, "Show more");
  const empty = emptyPanel("No stream set is defined",
    el("p", {}, "A stream set lists streams that are each owned by at most one worker of a "
      + "cluster. Define one by a manifest:"),
    sample("apiVersion: leasehold.dev/v1alpha1\nkind: StreamSet\nmetadata: {name: cars}\nspec:\n"
      + "  cluster: builds\n  streams: [{name: \"cars:new\"}, {name: \"cars:sold\"}]"));
  const moves = moveList(app, "", 40);
  const list = el("div", {},
    el("div", { class: "toolbar" }, search), table, more);
  const both = el("div", { class: "beside" }, list, moves.node);
  const node = el("div", {}, head.node, empty, both);

  function drawSets() {
    const { sets } = app.fleet;
    const text = (route.query.search ?? "").toLowerCase();
    const all = naturalOrder(sets.keys()).map((name) => sets.get(name));
    const found = all.filter(({ name }) => name.toLowerCase().includes(text));
    found.sort((a, b) => Number(unownedOf(b) > 0) - Number(unownedOf(a) > 0));
    keyed(rows, found.slice(0, most), ({ name }) => name, setRow, fillRow);
    more.hidden = found.length <= most;
    empty.hidden = all.length > 0;
    both.hidden = all.length === 0;
    const streams = all.reduce((sum, set) => sum + (set.streams ?? 0), 0);
    const unowned = all.reduce((sum, set) => sum + unownedOf(set), 0);
    head.say(`${counted(all.length, "set")}, ${counted(streams, "stream")}, `
      + `${count(unowned)} without an owner`);
  }

  return {
    node,
    title: "Streams",
    reroute(next) {
      route = next;
      drawSets();
    },
    update(dirty) {
      if (dirty.all || dirty.sets.size > 0) drawSets();
      if (dirty.all || dirty.changes.length > 0) moves.draw();
    },
  };
}

function unownedOf({ streams = 0, streamsOwned = 0 }) {
  return Math.max(0, streams - streamsOwned);
}

function setRow({ name }) {
  const share = meter();
  const row = el("tr", { "data-set": name },
    el("td", { "data-label": "Set" }, el("a", { href: address("streams", name) }, name)),
    el("td", { "data-label": "Cluster" }, el("a")),
    el("td", { "data-label": "Owned", class: "figure" }, el("span"), share.node),
    el("td", { "data-label": "Without an owner", class: "figure" }));
  meters.set(row, share);
  return row;
}

const meters = new WeakMap();

function fillRow(row, set) {
  const [, cluster, owned, unowned] = row.children;
  const missing = unownedOf(set);
  setText(cluster.firstChild, set.cluster ?? "");
  setAttribute(cluster.firstChild, "href", address("fleet", set.cluster ?? ""));
  setText(owned.firstChild, `${count(set.streamsOwned)} of ${count(set.streams)}`);
  meters.get(row).draw(set.streamsOwned ?? 0, set.streams ?? 0);
  setText(unowned, missing === 0 ? "none" : `▲ ${count(missing)}`);
  row.classList.toggle("unowned", missing > 0);
}
