// All clusters: each with its budget over the last ten minutes, and its workers as cells.

import { BudgetChart } from "../chart.js";
import { el, keyed, setText } from "../dom.js";
import { counted, load, naturalOrder } from "../format.js";
import { WorkerGrid } from "../grid.js";
import {
  BUDGET_FIGURES, drawBudget, drawHeld, emptyPanel, figures, heading, legend, sample, searchField,
  stateSummary,
} from "../parts.js";
import { command } from "../prose.js";
import { address, withQuery } from "../router.js";
import { sumUp } from "../workers.js";

/** Cells that the overview draws in all; a cluster beyond them is a link and its figures. */
const CELLS = 6000;
/** The same on a phone: more would be a long way to the next cluster. */
const CELLS_NARROW = 600;
/** A cluster of more workers takes the whole width. */
const WIDE = 120;

/** Clusters and classes that are shown at first; there may be a thousand. */
const PAGE = 40;
/** With fewer of them nobody needs to search. */
const FEW = 8;

/** @type {(app: import("../app.js").App, route: import("../router.js").Route)
 *   => import("../app.js").View} */
export function fleetView(app, first) {
  let route = first;
  let most = PAGE;
  const search = searchField("Search clusters", route.query.search ?? "", (text) => (
    app.go(withQuery(route, { search: text }), { replace: true })));
  const more = el("button", {
    hidden: true,
    onclick: () => {
      most += PAGE;
      app.redraw();
    },
  }, "Show more");
  const head = heading("Fleet", null, search, legend());
  const clusters = el("div", { class: "cards" });
  const classes = el("div", { class: "cards" });
  const classesHeading = el("h2", {}, "Worker classes");
  const empty = noClusters();
  const node = el("div", {}, head.node, empty, clusters, classesHeading, classes, more);
  const cards = new Map();
  let turn = 0;
  let number = 0;

  const cardOf = (cluster) => {
    const card = new ClusterCard(app, cluster);
    cards.set(cluster.name, card);
    return card.node;
  };

  const drawCards = () => {
    const { fleet } = app;
    const text = (route.query.search ?? "").toLowerCase();
    const found = naturalOrder(fleet.clusters.keys())
      .filter((name) => name.toLowerCase().includes(text))
      .map((name) => fleet.clusters.get(name))
      .sort((a, b) => Number(Boolean(a.isClass)) - Number(Boolean(b.isClass)));
    const all = found.slice(0, most);
    for (const [name, card] of cards) {
      const cluster = all.find((other) => other.name === name);
      if (cluster && Boolean(cluster.isClass) === card.isClass) continue;
      card.leave();
      cards.delete(name);
    }
    keyed(clusters, all.filter(({ isClass }) => !isClass), ({ name }) => name, cardOf);
    keyed(classes, all.filter(({ isClass }) => isClass), ({ name }) => name, cardOf);
    classesHeading.hidden = classes.childElementCount === 0;
    search.hidden = fleet.clusters.size < FEW && text === "";
    empty.hidden = fleet.clusters.size > 0;
    more.hidden = found.length <= most;
    setText(more, `Show more of ${counted(found.length, "cluster")}`);
    let left = innerWidth < 600 ? CELLS_NARROW : CELLS;
    for (const { name } of all) {
      const { size } = fleet.workersOf(name);
      cards.get(name).showCells(size <= left);
      if (size <= left) left -= size;
    }
  };

  const sayWhole = () => {
    let workers = 0;
    let away = 0;
    const classCount = app.fleet.classes.size;
    for (const cluster of app.fleet.clusters.values()) {
      workers += cluster.workers ?? 0;
      away += (cluster.workers ?? 0) - (cluster.connected ?? 0);
    }
    const missing = away > 0 ? `, ${counted(away, "worker")} not connected` : "";
    const withClasses = classCount > 0 ? `, ${counted(classCount, "class", "classes")}` : "";
    head.say(`${counted(app.fleet.clusters.size - classCount, "cluster")}${withClasses}, `
      + `${counted(workers, "worker")}${missing}`);
  };

  function update(dirty) {
    const { clusters: known } = app.fleet;
    const other = (name) => {
      const cluster = known.get(name);
      const card = cards.get(name);
      return !cluster || (card && card.isClass !== Boolean(cluster.isClass));
    };
    if (dirty.all || known.size !== number || [...dirty.clusters].some(other)) drawCards();
    number = known.size;
    for (const [name, card] of cards) card.update(dirty, name);
    if (dirty.all || dirty.clusters.size > 0) sayWhole();
  }

  return {
    node,
    title: "Fleet",
    reroute(next) {
      const same = (next.query.search ?? "") === (route.query.search ?? "");
      route = next;
      if (!same) app.redraw();
    },
    update,
    draw(left) {
      // Each frame begins with another card: one that changes all the time holds none up.
      const all = [...cards.values()];
      turn += 1;
      for (let index = 0; index < all.length; index += 1) {
        all[(turn + index) % all.length].grid.draw(left);
      }
      return all.some(({ grid }) => grid.pending.size > 0);
    },
    leave() {
      for (const card of cards.values()) card.leave();
    },
  };
}

class ClusterCard {
  constructor(app, cluster) {
    this.app = app;
    this.name = cluster.name;
    this.isClass = Boolean(cluster.isClass);
    const link = el("a", { href: address("fleet", this.name) }, this.name);
    this.held = el("p", { class: "notice warn", hidden: true });
    this.states = stateSummary();
    this.figures = this.isClass ? null : figures(BUDGET_FIGURES);
    this.classLine = el("p", { class: "muted" });
    this.chart = this.isClass ? null
      : new BudgetChart(() => app.fleet.samples.get(this.name) ?? []);
    this.grid = new WorkerGrid(this.name, {
      compact: true,
      onPick: (name, worker, cell) => app.explain({ kind: "worker", names: [name, worker] }, cell),
    });
    this.tooMany = el("p", { class: "muted", hidden: true },
      el("a", { href: address("fleet", this.name) }, "Show its workers"));
    this.noWorkers = el("p", { class: "muted", hidden: true });
    const why = el("button", {
      class: "quiet",
      "aria-label": `Explain ${this.name}`,
      onclick: (event) => (
        app.explain({ kind: "cluster", names: [this.name] }, event.currentTarget)),
    }, "Explain");
    this.node = el("article", { class: "card", "data-cluster": this.name },
      el("header", { class: "card-heading" },
        el("h2", {}, link), this.isClass && el("span", { class: "badge" }, "class"), why),
      this.held,
      el("div", { class: "card-body" },
        el("div", {}, this.figures?.node ?? this.classLine,
          this.chart?.node ?? null),
        el("div", { class: "card-workers" }, this.states.node, this.noWorkers, this.tooMany,
          this.grid.node)));
    this.cells = true;
    this.drawn = false;
  }

  showCells(cells) {
    this.cells = cells;
    this.tooMany.hidden = cells;
    this.grid.node.hidden = !cells;
  }

  update(dirty, name) {
    const { fleet } = this.app;
    const cluster = fleet.clusters.get(name);
    const workers = fleet.workersOf(name);
    const changed = dirty.workers.get(name);
    const all = dirty.all || !this.drawn;
    this.drawn = true;
    if (all || dirty.clusters.has(name) || dirty.classes.has(name)) this.#drawFigures(cluster);
    if (all || changed) {
      this.states.draw(sumUp(workers.values()).states);
      this.node.classList.toggle("wide", workers.size > WIDE);
      this.noWorkers.hidden = workers.size > 0;
      this.#drawWorkers(all, workers, changed);
    }
    if (all || dirty.samples) this.chart?.draw();
  }

  #drawWorkers(all, workers, changed) {
    if (!this.cells) return;
    const { capacity = 0 } = this.app.fleet.classes.get(this.name) ?? {};
    if (all || workers !== this.grid.workers || capacity !== this.grid.capacity) {
      this.grid.setWorkers(workers, capacity);
    } else {
      this.grid.change(changed);
    }
  }

  #drawFigures(cluster) {
    drawHeld(this.held, cluster);
    if (this.noWorkers.childNodes.length === 0) {
      this.noWorkers.append("No worker yet. Start one: ",
        command(`leasehold-agent run --cluster ${this.name} --worker NAME`));
    }
    if (this.figures) {
      drawBudget(this.figures, cluster);
      return;
    }
    const { capacity, placed, workers } = this.app.fleet.classes.get(this.name) ?? {};
    setText(this.classLine, `${load(placed)} of ${load((capacity ?? 0) * (workers ?? 0))} `
      + `documents per second placed; ${load(capacity)} on each worker`);
  }

  leave() {
    this.chart?.leave();
  }
}

function noClusters() {
  return emptyPanel("No cluster is defined",
    el("p", {}, "A cluster is defined by a manifest. Write this into a file in the folder of "
      + "--manifests, or apply it with kubectl, and it is shown here at once:"),
    sample("apiVersion: leasehold.dev/v1alpha1\nkind: WorkerCluster\nmetadata: {name: builds}\n"
      + "spec: {maxJobs: 8, maxJobsPerWorker: 3}"),
    el("p", {}, "Then start an agent beside each worker: ",
      command("leasehold-agent run --cluster builds --worker worker-0")));
}
