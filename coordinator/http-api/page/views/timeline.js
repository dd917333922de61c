// What has happened in the last hour, newest first, filtered by kind, cluster and text.

import { changeLine } from "../changeline.js";
import { el, keyed, setAttribute, setText, svg } from "../dom.js";
import { clock, count, counted, naturalOrder } from "../format.js";
import { GROUPS, isBad } from "../kinds.js";
import { emptyPanel, heading, searchField } from "../parts.js";
import { withQuery } from "../router.js";

/** Lines that are drawn at first, and by which more are. */
const PAGE = 200;
const MINUTES = 60;

/** @type {(app: import("../app.js").App, route: import("../router.js").Route)
 *   => import("../app.js").View} */
export function timelineView(app, first) {
  let route = first;
  let most = PAGE;
  let scrolledTo = "";
  const go = (values) => app.go(withQuery(route, values), { replace: true });
  const head = heading("Timeline");
  const groups = el("div", { class: "chips", role: "group", "aria-label": "Filter by kind" });
  const cluster = el("select", { "aria-label": "Cluster", name: "cluster",
    onchange: () => go({ cluster: cluster.value, at: null }) });
  const search = searchField("Search changes", route.query.text ?? "", (text) => go({ text }));
  const strip = minuteStrip((time) => go({ at: time }));
  const moment = el("p", { class: "notice", hidden: true }, el("span"), " ",
    el("button", { onclick: () => go({ at: null }) }, "Back to now"));
  const list = el("ol", { class: "changes" });
  const older = el("button", {
    hidden: true,
    onclick: () => {
      most += PAGE;
      draw();
    },
  }, "Show more");
  const status = el("p", { class: "muted", role: "status" });
  const empty = emptyPanel("Nothing to show",
    el("p", {}, "No change of the last hour matches. Take a filter back, or wait: what happens "
      + "is shown here at once."),
    el("p", {}, el("a", { href: "#/timeline" }, "Without filters")));
  const node = el("div", {}, head.node,
    el("div", { class: "toolbar" }, groups, cluster, search),
    strip.node, moment, list, older, status, empty);

  const chosen = () => new Set((route.query.kind ?? "").split(",").filter(Boolean));

  const drawFilters = () => {
    const kinds = chosen();
    keyed(groups, GROUPS, ({ name }) => name, (group) => el("button", {
      class: "chip",
      "data-filter": group.name,
      onclick: () => {
        const next = chosen();
        const whole = group.kinds.every((kind) => next.has(kind));
        for (const kind of group.kinds) {
          if (whole) next.delete(kind);
          else next.add(kind);
        }
        go({ kind: [...next].join(","), at: null });
      },
    }, el("span", { class: "letter", "aria-hidden": "true" }, group.letter), group.name),
    (chip, group) => {
      const there = group.kinds.filter((kind) => kinds.has(kind)).length;
      setAttribute(chip, "aria-pressed",
        there === 0 ? "false" : there === group.kinds.length ? "true" : "mixed");
    });
    const names = ["", ...naturalOrder(app.fleet.clusters.keys())];
    const wanted = route.query.cluster ?? "";
    if (wanted !== "" && !names.includes(wanted)) names.push(wanted);
    keyed(cluster, names, (name) => name, (name) => (
      el("option", { value: name }, name === "" ? "All clusters" : name)));
    cluster.value = wanted;
  };

  const matching = () => {
    const kinds = chosen();
    const { cluster: of = "", text = "" } = route.query;
    const words = text.toLowerCase();
    return app.log.entries.filter(({ kind, change, text: said }) => (
      (kinds.size === 0 || kinds.has(kind))
      && (of === "" || change.cluster === of)
      && (words === "" || said.includes(words))));
  };

  function draw() {
    const found = matching();
    const at = Date.parse(route.query.at ?? "");
    let begin = Math.max(0, found.length - most);
    let end = found.length;
    if (!Number.isNaN(at)) {
      const index = found.findIndex((entry) => entry.at >= at);
      const middle = index < 0 ? found.length : index;
      begin = Math.max(0, middle - most / 2);
      end = Math.min(found.length, middle + most / 2);
    }
    const shown = found.slice(begin, end).reverse();
    const { at: moved, ...query } = route.query;
    keyed(list, shown, ({ key }) => key,
      (entry) => changeLine(app, entry, query),
      (line, { change }) => {
        setAttribute(line, "aria-current", moved === change.time ? "true" : null);
      });
    drawProblems(shown);
    older.hidden = begin === 0;
    moment.hidden = Number.isNaN(at);
    setText(moment.firstChild, Number.isNaN(at) ? "" : `Around ${clock(at)}`);
    empty.hidden = shown.length > 0;
    setText(status, shown.length === 0 ? ""
      : `${count(shown.length)} of ${counted(found.length, "change")} shown`);
    head.say(`${counted(app.log.entries.length, "change")} of the last hour`
      + (app.log.dropped ? "; older grants were dropped" : ""));
    strip.draw(found);
    if (moved && moved !== scrolledTo) {
      const line = list.querySelector("[aria-current]");
      if (line) {
        scrolledTo = moved;
        line.scrollIntoView({ block: "center" });
      }
    }
  }

  // The last change of the manifests left the problems that there are now.
  function drawProblems(shown) {
    const { problems = [] } = app.fleet.status;
    const newest = shown.find(({ kind }) => kind === "manifests");
    for (const old of list.querySelectorAll(".now")) {
      if (old.dataset.key !== newest?.key) old.remove();
    }
    if (!newest) return;
    const line = list.children[shown.indexOf(newest)];
    let now = line.querySelector(".now");
    if (!now) {
      now = el("ul", { class: "now" });
      now.dataset.key = newest.key;
      line.append(now);
    }
    const words = problems.map(({ file = "", line: row = 0, column = 0, field = "", message }) => (
      `${[file, row || null, row ? column || null : null].filter(Boolean).join(":")} ${field}: `
      + `${message ?? ""}`));
    keyed(now, words.length > 0 ? words : ["All manifests are in force."], (text) => text,
      (text) => el("li", {}, text));
  }

  return {
    node,
    title: "Timeline",
    reroute(next) {
      route = next;
      most = PAGE;
      if (!route.query.at) scrolledTo = "";
      if (search.value.trim() !== (route.query.text ?? "")
        && document.activeElement !== search) search.value = route.query.text ?? "";
      drawFilters();
      draw();
    },
    update(dirty) {
      if (dirty.all || dirty.clusters.size > 0) drawFilters();
      if (dirty.all || dirty.status || dirty.changes.length > 0) draw();
    },
  };
}

// How many changes there were in each minute of the last hour: a shortcut for the pointer. The
// list has the same for everyone.
function minuteStrip(onPick) {
  const bars = [];
  const picture = svg("svg", {
    viewBox: `0 0 ${MINUTES * 10} 40`, preserveAspectRatio: "none", "aria-hidden": "true",
  });
  for (let index = 0; index < MINUTES; index += 1) {
    const common = { x: index * 10 + 1, width: 8 };
    const bar = svg("rect", { ...common, class: "bar" });
    const bad = svg("rect", { ...common, class: "bad" });
    const target = svg("rect", { x: index * 10, y: 0, width: 10, height: 40, class: "target" });
    target.addEventListener("click", () => onPick(new Date(
      Date.now() - (MINUTES - 1 - index) * 60_000).toISOString()));
    picture.append(bar, bad, target);
    bars.push([bar, bad]);
  }
  const node = el("div", { class: "strip" }, picture,
    el("div", { class: "strip-ends", "aria-hidden": "true" },
      el("span", {}, "1 h ago"), el("span", {}, "changes a minute"), el("span", {}, "now")));
  const draw = (entries) => {
    const now = Date.now();
    const all = new Array(MINUTES).fill(0);
    const bad = new Array(MINUTES).fill(0);
    for (const { at, change } of entries) {
      const index = MINUTES - 1 - Math.floor((now - at) / 60_000);
      if (index < 0 || index >= MINUTES) continue;
      all[index] += 1;
      if (isBad(change)) bad[index] += 1;
    }
    const top = Math.max(1, ...all);
    // The root keeps a minute with one election visible beside one with a thousand grants.
    const height = (number) => (number === 0 ? 0 : Math.max(3, Math.sqrt(number / top) * 38));
    bars.forEach(([bar, mark], index) => {
      setBar(bar, height(all[index]));
      setBar(mark, bad[index] === 0 ? 0 : Math.max(6, height(bad[index])));
    });
  };
  return { node, draw };
}

function setBar(bar, height) {
  setAttribute(bar, "height", height.toFixed(1));
  setAttribute(bar, "y", (40 - height).toFixed(1));
}
