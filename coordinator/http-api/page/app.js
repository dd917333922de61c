// The page as a whole: what is known, what is shown, and when it is drawn.

import { Api } from "./api.js";
import { ChangeLog } from "./changes.js";
import { Explanation } from "./explanation.js";
import { Feed } from "./feed.js";
import { parse, withTarget } from "./router.js";
import { Shell } from "./shell.js";
import { Dirty, Fleet } from "./state.js";
import { clusterView } from "./views/cluster.js";
import { fleetView } from "./views/fleet.js";
import { pipelineView } from "./views/pipeline.js";
import { pipelinesView } from "./views/pipelines.js";
import { planView } from "./views/plan.js";
import { setView } from "./views/set.js";
import { streamsView } from "./views/streams.js";
import { timelineView } from "./views/timeline.js";
import { waitingView } from "./views/waiting.js";

/**
 * Cells that a frame draws, where one that is styled counts as several; what is left is drawn in
 * the next ones. The browser's own work for a changed cell takes longer than the script's, so that
 * a count bounds a frame, and no clock does.
 */
const CELLS = 160;
/** The same while a view is filled for the first time: its reader waits for it. */
const CELLS_AT_FIRST = 800;

/**
 * @typedef {object} Turn what one frame may draw
 * @property {number} cells that are left
 */

/**
 * @typedef {object} View
 * @property {HTMLElement} node
 * @property {string} title
 * @property {(dirty: Dirty) => void} update
 * @property {(turn: Turn) => boolean} [draw] draws a part; true if more is left
 * @property {(route: import("./router.js").Route) => void} [reroute] only the query has changed
 * @property {() => void} [leave]
 */

/** @type {Object<string, (app: App, route: import("./router.js").Route) => View>} */
const VIEWS = {
  fleet: fleetView,
  cluster: clusterView,
  streams: streamsView,
  set: setView,
  pipelines: pipelinesView,
  pipeline: pipelineView,
  timeline: timelineView,
  plan: planView,
};

/** What everything on the page has to do with. */
export class App {
  constructor() {
    this.fleet = new Fleet();
    this.log = new ChangeLog();
    this.dirty = new Dirty();
    this.feed = new Feed({
      onFleet: (message, first) => this.#onFleet(message, first),
      onChange: (change) => this.#onChange(change),
      onState: (state) => this.#onState(state),
    });
    this.api = new Api(() => this.feed.base);
    this.connection = { state: "connecting", base: "", refusal: null };
    this.main = document.getElementById("main");
    this.shell = new Shell(this);
    this.explanation = new Explanation(this);
    this.route = parse(location.hash);
    this.view = null;
    this.viewKey = "";
    this.frame = 0;
    this.applying = 0;
    this.drawsUpdate = false;
    this.filling = false;
    this.forgetStats();
  }

  /** Connects, and shows what the address says. */
  start() {
    // Of links, edited addresses and steps back.
    addEventListener("popstate", () => this.#arrive());
    // What is drawn on a canvas has the colours of its moment.
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
    // The part after # is the view, and no place within the page.
    document.getElementById("skip").addEventListener("click", (event) => {
      event.preventDefault();
      this.main.focus();
    });
    this.#arrive();
    this.feed.start();
  }

  /**
   * Goes to an address of the page.
   * @param {string} hash
   * @param {{replace?: boolean}} [options] replace: without a step to go back to
   */
  go(hash, { replace = false } = {}) {
    if (replace) history.replaceState(null, "", hash);
    else history.pushState(null, "", hash);
    this.#arrive();
  }

  /**
   * Asks for an explanation, and shows it beside the view.
   * @param {import("./router.js").Target|null} target null closes it
   * @param {HTMLElement} [opener] where the focus returns to
   */
  explain(target, opener) {
    if (target) this.explanation.openedBy(opener);
    this.go(withTarget(this.route, target), { replace: target === null });
  }

  /**
   * What drawing has cost, in milliseconds: the last update, applied and drawn, and the longest
   * frame. The first picture of a view is drawn over several frames; the longest of these is
   * counted apart.
   */
  stats() {
    const { updates, lastUpdateMs, longestUpdateMs, paints, firstMs } = this.counts;
    return { updates, lastUpdateMs, longestUpdateMs, paints, firstMs };
  }

  /** Begins the record of costs anew. */
  forgetStats() {
    this.counts = { updates: 0, lastUpdateMs: 0, longestUpdateMs: 0, paints: 0, firstMs: 0 };
  }

  #arrive() {
    if (location.hash === "") history.replaceState(null, "", "#/fleet");
    this.route = parse(location.hash);
    this.#showView();
    this.explanation.show(this.route.target);
    this.shell.navigated(this.route);
    this.requestFrame();
  }

  #showView() {
    const { view, name } = this.route;
    const ready = this.fleet.known;
    const key = JSON.stringify([ready, view, name]);
    if (key === this.viewKey) {
      this.view.reroute?.(this.route);
      return;
    }
    const navigated = this.viewKey !== "" && ready && !this.viewKey.startsWith("[false");
    this.view?.leave?.();
    this.viewKey = key;
    this.view = (ready ? VIEWS[view] : waitingView)(this, this.route);
    this.main.dataset.view = view;
    this.main.replaceChildren(this.view.node);
    document.title = `${this.view.title} · Leasehold`;
    const all = new Dirty();
    all.all = true;
    this.view.update(all);
    this.filling = true;
    if (navigated) {
      scrollTo(0, 0);
      // Screen readers then begin with the new view.
      this.main.focus({ preventScroll: true });
    }
  }

  #onFleet(message, first) {
    const begin = performance.now();
    const whole = this.fleet.apply(message, first, this.dirty);
    this.applying += performance.now() - begin;
    if (!whole) return;
    this.counts.updates += 1;
    this.drawsUpdate = true;
    if (this.dirty.status) this.feed.learn(this.fleet.status.replicas ?? []);
    this.requestFrame();
  }

  #onChange(change) {
    if (!this.log.add(change)) return;
    this.dirty.changes.push(change);
    this.requestFrame();
  }

  #onState(state) {
    this.connection = state;
    this.shell.connectionChanged();
    if (!this.fleet.known) this.view?.update(this.dirty);
  }

  /** Draws everything in the next frame. */
  redraw() {
    this.dirty.all = true;
    this.requestFrame();
  }

  /** Draws what has changed in the next frame. */
  requestFrame() {
    if (!this.frame) this.frame = requestAnimationFrame(() => this.#draw());
  }

  #draw() {
    this.frame = 0;
    const begin = performance.now();
    const { dirty } = this;
    this.dirty = new Dirty();
    if (this.fleet.known && this.viewKey.startsWith("[false")) this.#showView();
    this.shell.update(dirty);
    this.view.update(dirty);
    this.explanation.update(dirty);
    // What has just come is work enough for one frame: its cells are for the next ones.
    const cells = this.filling ? CELLS_AT_FIRST : this.drawsUpdate ? 0 : CELLS;
    const more = this.view.draw?.({ cells }) ?? false;
    const replay = dirty.changes.some(({ replayed }) => replayed);
    this.#measure(performance.now() - begin, dirty.all || replay, more);
    if (more) this.requestFrame();
  }

  #measure(drawing, everything, more) {
    const spent = drawing + this.applying;
    this.counts.paints += 1;
    if (everything) this.filling = true;
    if (this.filling) {
      this.counts.firstMs = Math.max(this.counts.firstMs, spent);
    } else {
      if (this.drawsUpdate) this.counts.lastUpdateMs = spent;
      this.counts.longestUpdateMs = Math.max(this.counts.longestUpdateMs, spent);
    }
    this.filling = this.filling && more;
    this.drawsUpdate = false;
    this.applying = 0;
  }
}
