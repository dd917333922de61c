// One cluster: its budget, and its workers by generation, filtered by state and searched.

import { BudgetChart } from "../chart.js";
import { el, keyed, setAttribute, setText } from "../dom.js";
import { count, counted } from "../format.js";
import { swatch, WorkerGrid } from "../grid.js";
import {
  BUDGET_FIGURES, drawBudget, drawHeld, emptyPanel, figures, heading, legend, searchField,
} from "../parts.js";
import { command } from "../prose.js";
import { address, withQuery } from "../router.js";
import { sumUp } from "../workers.js";

/** @type {(app: import("../app.js").App, route: import("../router.js").Route)
 *   => import("../app.js").View} */
export function clusterView(app, first) {
  const { name } = first;
  let route = first;
  const { fleet } = app;
  const isClass = Boolean(fleet.clusters.get(name)?.isClass);
  const explain = el("button", {
    onclick: (event) => app.explain({ kind: "cluster", names: [name] }, event.currentTarget),
  }, "Explain");
  const head = heading(name, null, el("p", { class: "links" },
    explain,
    el("a", { class: "button", href: address("plan", name) }, "What if …"),
    el("a", { class: "button", href: address("timeline", "", { cluster: name }) }, "Timeline")));
  const held = el("p", { class: "notice warn", hidden: true });
  const shown = isClass ? null : figures(BUDGET_FIGURES);
  const chart = isClass ? null : new BudgetChart(() => fleet.samples.get(name) ?? []);
  const filters = el("div", { class: "chips", role: "group", "aria-label": "Filter by state" });
  const search = searchField("Search workers", route.query.search ?? "", (text) => (
    app.go(withQuery(route, { search: text }), { replace: true })));
  const matching = el("p", { class: "muted", role: "status" });
  const grid = new WorkerGrid(name, {
    onPick: (cluster, worker, cell) => (
      app.explain({ kind: "worker", names: [cluster, worker] }, cell)),
  });
  const none = el("p", { hidden: true }, "It has no worker yet. Start one: ",
    command(`leasehold-agent run --cluster ${name} --worker NAME`));
  const body = el("div", { "data-cluster": name },
    held,
    el("div", { class: "budget-row" }, shown?.node ?? null, chart?.node ?? null),
    el("div", { class: "toolbar" }, el("h2", {}, "Workers"), filters, search, legend()),
    matching, none, grid.node);
  const unknown = emptyPanel(`No cluster ${name}`,
    el("p", {}, "No manifest defines a cluster or class of this name. ",
      el("a", { href: "#/fleet" }, "All clusters"), " or ", command("leasehold clusters")));
  const node = el("div", {}, head.node, body, unknown);

  const chosen = () => new Set((route.query.state ?? "").split(",").filter(Boolean));

  const drawFilters = ({ states: counts }) => {
    const states = chosen();
    // A chosen state stays there to be taken back when no worker is in it any more.
    for (const state of states) if (!counts.has(state)) counts.set(state, 0);
    keyed(filters, counts, ([state]) => state, ([state]) => el("button", {
      class: "chip",
      "data-filter": state,
      onclick: () => {
        const next = chosen();
        if (!next.delete(state)) next.add(state);
        app.go(withQuery(route, { state: [...next].join(",") }), { replace: true });
      },
    }, swatch(state), el("span")), (chip, [state, number]) => {
      setText(chip.lastChild, `${state} ${count(number)}`);
      setAttribute(chip, "aria-pressed", states.has(state) ? "true" : "false");
    });
  };

  const setFilter = () => {
    const states = chosen();
    const text = (route.query.search ?? "").toLowerCase();
    const all = states.size === 0 && text === "";
    grid.setFilter(all ? null : (worker, state) => (
      (states.size === 0 || states.has(state))
      && (text === "" || worker.name.toLowerCase().includes(text)
        || (worker.address ?? "").toLowerCase().includes(text))));
  };

  const drawCluster = (sum) => {
    const cluster = fleet.clusters.get(name);
    unknown.hidden = Boolean(cluster);
    body.hidden = !cluster;
    if (!cluster) return;
    drawHeld(held, cluster);
    if (shown) drawBudget(shown, cluster);
    head.say(inWords(cluster, fleet.workersOf(name).size, sum));
  };

  setFilter();
  return {
    node,
    title: name,
    reroute(next) {
      route = next;
      setFilter();
      drawFilters(sumUp(fleet.workersOf(name).values()));
    },
    update(dirty) {
      const changed = dirty.workers.get(name);
      const workers = fleet.workersOf(name);
      const { capacity = 0 } = fleet.classes.get(name) ?? {};
      if (dirty.all || workers !== grid.workers || capacity !== grid.capacity) {
        grid.setWorkers(workers, capacity);
      } else if (changed) {
        grid.change(changed);
      }
      if (dirty.all || changed || dirty.clusters.has(name)) {
        const sum = sumUp(workers.values());
        drawCluster(sum);
        drawFilters(sum);
        none.hidden = workers.size > 0;
      }
      if (dirty.all || dirty.samples) chart?.draw();
    },
    draw(turn) {
      const more = grid.draw(turn);
      const text = grid.filter === null ? ""
        : `${count(grid.shown)} of ${counted(grid.cells.size, "worker")} shown`;
      setText(matching, text);
      return more;
    },
    leave: () => chart?.leave(),
  };
}

function inWords(cluster, workers, { newest, current, working }) {
  const parts = [counted(workers, "worker")];
  if (cluster.isClass) parts.unshift("worker class");
  else parts.push(`at most ${counted(cluster.maxJobsPerWorker ?? 0, "job")} on each`);
  if (cluster.streams) {
    const what = cluster.isClass ? "shares" : "streams";
    parts.push(`${count(cluster.streamsOwned)} of ${count(cluster.streams)} ${what} owned`);
  }
  if (current < workers) {
    parts.push(`rollout: ${count(working)} work at generation ${newest}, `
      + `${count(workers - current)} are older`);
  }
  return parts.join(", ");
}
