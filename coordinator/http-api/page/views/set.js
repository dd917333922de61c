// The streams of a set: those without an owner first, then all, by stream or by worker.

import { moveList } from "../changeline.js";
import { el, keyed, setAttribute, setText } from "../dom.js";
import { count, counted, naturalOrder } from "../format.js";
import { emptyPanel, heading, searchField } from "../parts.js";
import { address, withQuery } from "../router.js";
import { StreamList } from "../streamlist.js";

/** Workers that are listed at once. */
const WORKERS = 300;

/** @type {(app: import("../app.js").App, route: import("../router.js").Route)
 *   => import("../app.js").View} */
export function setView(app, first) {
  const { name } = first;
  let route = first;
  let lists = [];
  let key = "";
  const byWorker = new Map();
  const cluster = el("a", { class: "button" });
  const head = heading(name, null, cluster);
  const go = (values) => app.go(withQuery(route, values), { replace: true });
  const choice = (label, values) => el("button", {
    class: "chip", onclick: () => go(values),
  }, label);
  const streamsChoice = choice("By stream", { by: null });
  const workersChoice = choice("By worker", { by: "worker" });
  const unownedChoice = el("button", {
    class: "chip",
    onclick: () => go({ unowned: route.query.unowned ? null : "true" }),
  }, "Only without an owner");
  const ofWorker = el("button", { class: "chip", onclick: () => go({
    worker: null,
  }) });
  const search = searchField("Search", route.query.search ?? "", (text) => go({ search: text }));
  const moves = moveList(app, name, 30);
  const content = el("div");
  const both = el("div", { class: "beside" },
    el("div", {},
      el("div", { class: "toolbar" },
        el("div", { class: "chips", role: "group", "aria-label": "Order" },
          streamsChoice, workersChoice),
        unownedChoice, ofWorker, search),
      content),
    moves.node);
  const unknown = emptyPanel(`No stream set ${name}`,
    el("p", {}, "No manifest defines a stream set of this name. ",
      el("a", { href: "#/streams" }, "All stream sets")));
  const node = el("div", {}, head.node, both, unknown);

  const leaveLists = () => {
    for (const list of lists) list.leave();
    lists = [];
    byWorker.clear();
  };

  const listStreams = () => {
    const { search: text = "", worker = "", unowned } = route.query;
    const without = section("Without an owner", new StreamList(app, {
      set: name,
      query: { unowned: true, search: text, worker },
      label: "Streams without an owner",
      none: text || worker ? "None of those that match." : "Every stream has an owner.",
    }));
    lists.push(without.list);
    content.replaceChildren(without.node);
    if (unowned) return;
    const owned = section("Owned", new StreamList(app, {
      set: name,
      query: { search: text, worker },
      ownedOnly: true,
      label: "Owned streams",
      none: "None.",
    }));
    lists.push(owned.list);
    content.append(owned.node);
  };

  const drawWorkers = () => {
    const clusterName = app.fleet.sets.get(name)?.cluster ?? "";
    const workers = app.fleet.workersOf(clusterName);
    const text = (route.query.search ?? "").toLowerCase();
    const names = naturalOrder(workers.keys()).filter((worker) => (
      worker.toLowerCase().includes(text)));
    const box = content.firstElementChild;
    keyed(box, names.slice(0, WORKERS), (worker) => worker, (worker) => {
      const inside = el("div");
      const details = el("details", { "data-owner-worker": worker },
        el("summary", {}, el("span"), el("span", { class: "muted" })), inside);
      details.addEventListener("toggle", () => {
        byWorker.get(worker)?.leave();
        byWorker.delete(worker);
        lists = lists.filter((list) => list.options.query.worker !== worker);
        inside.replaceChildren();
        if (!details.open) return;
        const list = new StreamList(app, {
          set: name,
          query: { worker },
          label: `Streams of ${worker}`,
          none: "It has no stream of this set.",
        });
        byWorker.set(worker, list);
        lists.push(list);
        inside.append(list.node);
      });
      return details;
    }, (details, worker) => {
      const [title, note] = details.firstChild.children;
      setText(title, worker);
      setText(note, counted(workers.get(worker)?.streams ?? 0, "stream"));
    });
    const left = names.length - WORKERS;
    setText(content.lastElementChild, left > 0
      ? `${count(left)} more workers: search for theirs.` : names.length === 0
        ? "No worker." : "");
  };

  const build = () => {
    const { by = "", search: text = "", worker = "", unowned = "" } = route.query;
    const next = JSON.stringify(by === "worker" ? [by] : ["", text, worker, unowned]);
    if (next !== key) {
      key = next;
      leaveLists();
      if (by === "worker") {
        content.replaceChildren(el("div", { class: "owners" }), el("p", { class: "muted" }));
      } else {
        listStreams();
      }
    }
    if (by === "worker") drawWorkers();
    setAttribute(streamsChoice, "aria-pressed", String(by !== "worker"));
    setAttribute(workersChoice, "aria-pressed", String(by === "worker"));
    setAttribute(unownedChoice, "aria-pressed", String(Boolean(unowned)));
    unownedChoice.hidden = by === "worker";
    ofWorker.hidden = worker === "" || by === "worker";
    setText(ofWorker, `Only of ${worker} ✕`);
  };

  const drawSet = () => {
    const set = app.fleet.sets.get(name);
    unknown.hidden = Boolean(set);
    both.hidden = !set;
    if (!set) return;
    const missing = (set.streams ?? 0) - (set.streamsOwned ?? 0);
    head.say(`${counted(set.streams ?? 0, "stream")}, ${count(set.streamsOwned)} owned, `
      + `${count(missing)} without an owner`);
    setText(cluster, `Cluster ${set.cluster ?? ""}`);
    setAttribute(cluster, "href", address("fleet", set.cluster ?? ""));
  };

  build();
  return {
    node,
    title: name,
    reroute(next) {
      route = next;
      build();
    },
    update(dirty) {
      const own = dirty.changes.filter((change) => change.set === name);
      if (dirty.all || dirty.sets.has(name)) {
        drawSet();
        for (const list of lists) list.refresh();
      }
      if (dirty.all || own.length > 0) moves.draw();
      const live = own.filter(({ kind, replayed }) => (
        !replayed && kind.startsWith("CHANGE_KIND_STREAM_")));
      if (live.length > 0) for (const list of lists) list.apply(live);
      const clusterName = app.fleet.sets.get(name)?.cluster ?? "";
      const workers = dirty.all || dirty.workers.has(clusterName);
      if (workers && route.query.by === "worker") drawWorkers();
    },
    leave: leaveLists,
  };
}

function section(title, list) {
  return { list, node: el("section", {}, el("h2", {}, title), list.node) };
}
