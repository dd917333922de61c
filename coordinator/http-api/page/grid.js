// The workers of a cluster as a grid of cells. It touches the cells of workers that have changed,
// and no others, and builds large grids over several frames.

import { el, setAttribute, setText } from "./dom.js";
import { FillCanvas } from "./fills.js";
import { compareNumerals, count, counted, naturalKey } from "./format.js";
import { describe, fillOf, letterOf, stateOf, usageOf } from "./workers.js";

/** Up to these numbers of workers cells are large, and then medium. */
const LARGE = 48;
const MEDIUM = 240;
/** Cells that were larger stay so a little longer: a rollout does not change them to and fro. */
const LONGER = 1.3;
/** A cell that the browser styles and paints counts as this many that change on a canvas only. */
const STYLED = 5;

/**
 * @typedef {object} GridOptions
 * @property {(cluster: string, worker: string, cell: HTMLElement) => void} onPick
 * @property {boolean} [compact] as a part of an overview: cells are smaller
 */

/** A grid of workers. */
export class WorkerGrid {
  /**
   * @param {string} cluster
   * @param {GridOptions} options
   */
  constructor(cluster, options) {
    this.cluster = cluster;
    this.options = options;
    this.capacity = 0;
    this.workers = new Map();
    this.cells = new Map();
    this.groups = [];
    this.pending = new Set();
    this.filter = null;
    this.shown = 0;
    this.density = "";
    this.current = null;
    this.tip = el("div", { class: "tip", "aria-hidden": "true", hidden: true });
    this.body = el("div");
    this.node = el("div", {
      class: options.compact ? "grid compact" : "grid",
      role: "group",
      "aria-label": `Workers of ${cluster}. Arrow keys move, Enter explains.`,
    }, this.body, this.tip);
    this.#listen();
  }

  /**
   * Takes all workers of the cluster anew.
   * @param {Map<string, object>} workers
   * @param {number} capacity of the class, or 0
   */
  setWorkers(workers, capacity) {
    this.workers = workers;
    this.capacity = capacity;
    const density = this.#wantedDensity();
    if (density !== this.density) this.#clear(density);
    for (const { fills } of this.groups) if (fills) fills.stale = true;
    const names = [...new Set([...workers.keys(), ...this.cells.keys()])]
      .map((name) => [naturalKey(name), name])
      .sort((a, b) => (a[0] < b[0] ? -1 : 1));
    // In order: each new cell is then the last of its group, which is found at once.
    for (const [, name] of names) this.pending.add(name);
  }

  /**
   * Notes that workers have changed, come or gone.
   * @param {Iterable<string>} names
   */
  change(names) {
    for (const name of names) this.pending.add(name);
    if (this.#wantedDensity() !== this.density) this.setWorkers(this.workers, this.capacity);
  }

  /**
   * Shows only some workers.
   * @param {((worker: object, state: string) => boolean)|null} filter
   */
  setFilter(filter) {
    this.filter = filter;
    for (const name of this.cells.keys()) this.pending.add(name);
  }

  /**
   * Draws what is due, as far as a frame has room for it.
   * @param {import("./app.js").Turn} turn
   * @returns {boolean} whether there is more to draw
   */
  draw(turn) {
    if (this.pending.size === 0) return false;
    for (const name of this.pending) {
      if (turn.cells <= 0) break;
      this.pending.delete(name);
      turn.cells -= this.#drawWorker(name) ? STYLED : 1;
    }
    for (const group of this.groups) if (group.stale) this.#drawHeading(group);
    this.#dropEmptyGroups();
    for (const { fills } of this.groups) fills?.draw();
    if (this.current && !this.current.shown) {
      const first = this.groups.flatMap((group) => group.cells).find(({ shown }) => shown);
      if (first) this.#makeCurrent(first);
    }
    return this.pending.size > 0;
  }

  #wantedDensity() {
    const factor = this.options.compact ? 0.5 : 1;
    const limit = (number, density) => (
      number * factor * (this.density === density ? LONGER : 1));
    if (this.workers.size <= limit(LARGE, "large")) return "large";
    return this.workers.size <= limit(MEDIUM, "medium") ? "medium" : "small";
  }

  #clear(density) {
    this.density = density;
    this.node.dataset.density = density;
    this.cells.clear();
    this.groups = [];
    this.body.replaceChildren();
    this.shown = 0;
    this.current = null;
  }

  // Returns whether the browser has to style its cell.
  #drawWorker(name) {
    const worker = this.workers.get(name);
    let cell = this.cells.get(name);
    const generation = worker?.generation ?? "0";
    if (cell && (!worker || cell.group.generation !== generation)) {
      this.#remove(cell);
      cell = undefined;
    }
    if (!worker) return true;
    if (!cell) cell = this.#add(name, this.#groupOf(generation));
    return this.#fillCell(cell, worker);
  }

  #fillCell(cell, worker) {
    const state = stateOf(worker);
    const { name, node, group: { fills } } = cell;
    const running = worker.running ?? 0;
    const usage = usageOf(worker, this.capacity);
    cell.group.running += running - cell.running;
    if (state !== cell.state) {
      node.dataset.state = state;
      setText(cell.mark, letterOf(state));
    }
    if (running !== cell.running || cell.state === "") node.dataset.running = running;
    const size = worker.granted ?? 0;
    if (size !== cell.size) node.dataset.size = size;
    if (usage !== cell.usage && cell.text) setText(cell.text, usage);
    const fill = Math.round(fillOf(worker, this.capacity) * 100);
    const filled = fill !== cell.fill;
    if (filled && !fills) node.style.setProperty("--fill", `${fill}%`);
    const label = describe(worker, this.capacity);
    if (label !== cell.label || usage !== cell.usage || state !== cell.state) {
      // What is seen comes first, so that who speaks to the page can name a cell.
      const seen = [name, usage, letterOf(state)].filter(Boolean).join(" ");
      node.setAttribute("aria-label", `${seen}: ${label}`);
    }
    const shown = this.filter === null || this.filter(worker, state);
    if (shown !== cell.shown) {
      node.hidden = !shown;
      this.shown += shown ? 1 : -1;
      cell.group.shown += shown ? 1 : -1;
      if (fills) fills.stale = true;
    }
    const styled = !fills || state !== cell.state || shown !== cell.shown;
    Object.assign(cell, { state, running, size, usage, fill, label, shown });
    if (filled) fills?.fill(cell);
    cell.group.stale = true;
    if (!this.current) this.#makeCurrent(cell);
    return styled;
  }

  #add(name, group) {
    const node = el("button", {
      class: "cell",
      tabindex: "-1",
      "data-worker": `${this.cluster}/${name}`,
      "data-generation": group.generation,
    });
    let text = null;
    // The spaces keep name, use and letter apart for who hears them.
    if (this.density === "large") {
      node.append(el("span", { class: "name" }, el("bdi", {}, name)), " ");
    }
    if (this.density !== "small") node.append(text = el("span", { class: "usage" }), " ");
    // A small cell is its letter, and has no parts.
    const mark = this.density === "small" ? node : el("span", { class: "mark" });
    if (mark !== node) node.append(mark);
    const cell = {
      name, node, mark, text, group, key: naturalKey(name),
      state: "", running: 0, size: -1, usage: "", fill: -1, label: "", shown: true,
    };
    cellOf.set(node, cell);
    const place = placeOf(group.cells, cell.key);
    group.box.insertBefore(node, group.cells[place]?.node ?? null);
    group.cells.splice(place, 0, cell);
    if (group.fills) group.fills.stale = true;
    group.shown += 1;
    this.shown += 1;
    this.cells.set(name, cell);
    return cell;
  }

  #remove(cell) {
    const { group } = cell;
    const place = group.cells.indexOf(cell);
    const neighbour = group.cells[place + 1] ?? group.cells[place - 1];
    const focused = document.activeElement === cell.node;
    group.cells.splice(place, 1);
    if (group.fills) group.fills.stale = true;
    group.running -= cell.running;
    if (cell.shown) {
      group.shown -= 1;
      this.shown -= 1;
    }
    group.stale = true;
    cell.node.remove();
    this.cells.delete(cell.name);
    if (this.current === cell) {
      this.current = null;
      if (neighbour) this.#makeCurrent(neighbour);
      // The reader stays where they were.
      if (focused) neighbour?.node.focus();
    }
  }

  // Newer generations come first, as they do when slots are given.
  #groupOf(generation) {
    let index = 0;
    for (; index < this.groups.length; index += 1) {
      const order = compareNumerals(this.groups[index].generation, generation);
      if (order === 0) return this.groups[index];
      if (order < 0) break;
    }
    const heading = el("h3", { class: "generation-heading", hidden: true });
    const box = el("div", { class: "cells" });
    const node = el("div", { class: "generation" }, heading, box);
    const cells = [];
    const fills = this.density === "small" ? new FillCanvas(cells, box) : null;
    const group = {
      generation, heading, box, node, cells, fills, running: 0, shown: 0, stale: true,
    };
    this.body.insertBefore(node, this.groups[index]?.node ?? null);
    this.groups.splice(index, 0, group);
    for (const other of this.groups) other.stale = true;
    return group;
  }

  #dropEmptyGroups() {
    const empty = this.groups.filter((group) => group.cells.length === 0);
    if (empty.length === 0) return;
    for (const group of empty) group.node.remove();
    this.groups = this.groups.filter((group) => group.cells.length > 0);
    for (const group of this.groups) this.#drawHeading(group);
  }

  #drawHeading(group) {
    group.stale = false;
    const several = this.groups.length > 1;
    group.heading.hidden = !several;
    group.node.classList.toggle("older", several && group !== this.groups[0]);
    if (!several) return;
    const age = group === this.groups[0] ? "newest" : "older";
    const jobs = this.capacity > 0 ? "" : `, ${counted(group.running, "job runs", "jobs run")}`;
    const workers = counted(group.cells.length, "worker");
    setText(group.heading, `Generation ${count(group.generation)} (${age}): ${workers}${jobs}`);
  }

  #makeCurrent(cell) {
    if (this.current) this.current.node.tabIndex = -1;
    this.current = cell;
    cell.node.tabIndex = 0;
  }

  #listen() {
    const cellAt = (event) => cellOf.get(event.target.closest?.(".cell"));
    this.body.addEventListener("click", (event) => {
      const cell = cellAt(event);
      if (!cell) return;
      this.#makeCurrent(cell);
      this.options.onPick(this.cluster, cell.name, cell.node);
    });
    this.body.addEventListener("keydown", (event) => {
      const cell = cellAt(event);
      const next = cell && this.#neighbour(cell, event.key);
      if (!next) return;
      event.preventDefault();
      this.#makeCurrent(next);
      next.node.focus();
    });
    this.body.addEventListener("focusin", (event) => this.#showTip(cellAt(event)));
    this.body.addEventListener("pointerover", (event) => this.#showTip(cellAt(event)));
    for (const end of ["focusout", "pointerleave"]) {
      this.body.addEventListener(end, () => { this.tip.hidden = true; });
    }
  }

  #showTip(cell) {
    if (!cell) {
      this.tip.hidden = true;
      return;
    }
    setText(this.tip, `${cell.name}: ${cell.label}`);
    this.tip.hidden = false;
    const grid = this.node.getBoundingClientRect();
    const box = cell.node.getBoundingClientRect();
    const left = Math.min(box.left - grid.left, grid.width - this.tip.offsetWidth);
    this.tip.style.left = `${Math.max(0, left)}px`;
    this.tip.style.top = `${box.bottom - grid.top + 4}px`;
  }

  #neighbour(cell, key) {
    const cells = this.groups.flatMap((group) => group.cells).filter(({ shown }) => shown);
    const index = cells.indexOf(cell);
    switch (key) {
      case "ArrowRight": return cells[index + 1];
      case "ArrowLeft": return cells[index - 1];
      case "Home": return cells[0];
      case "End": return cells.at(-1);
      case "ArrowDown": return nearest(cells.slice(index + 1), cell, 1);
      case "ArrowUp": return nearest(cells.slice(0, index).reverse(), cell, -1);
      default: return undefined;
    }
  }
}

const cellOf = new WeakMap();

// The first row above or below has the cell to go to: the one whose left edge is the nearest.
function nearest(cells, from, direction) {
  const start = from.node.getBoundingClientRect();
  let best;
  let row = null;
  for (const cell of cells) {
    const box = cell.node.getBoundingClientRect();
    if ((box.top - start.top) * direction <= 1) continue;
    row ??= box.top;
    if (Math.abs(box.top - row) > 1) break;
    const distance = Math.abs(box.left - start.left);
    if (!best || distance < best.distance) best = { cell, distance };
  }
  return best?.cell;
}

function placeOf(cells, key) {
  if (cells.length === 0 || cells.at(-1).key <= key) return cells.length;
  let low = 0;
  let high = cells.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (cells[middle].key <= key) low = middle + 1;
    else high = middle;
  }
  return low;
}

/**
 * A small picture of a state, as its cells look.
 * @param {string} state
 * @returns {HTMLElement}
 */
export function swatch(state) {
  const node = el("span", { class: "swatch", "data-state": state, "aria-hidden": "true" });
  setAttribute(node, "data-letter", letterOf(state));
  return node;
}
