// The graph of a pipeline's nodes, laid out by layers.

import { el, setAttribute, setText, svg } from "./dom.js";
import { counted, load } from "./format.js";
import { meter } from "./parts.js";
import { bindingPhaseOf, phaseText } from "./phases.js";
import dagre from "./vendor/dagre.esm.js";

const WIDTH = 196;
const HEIGHT = 116;
/** In a narrower place the graph goes from top to bottom. */
const NARROW = 640;

/** A graph of bindings. */
export class PipelineGraph {
  /**
   * @param {object} options
   * @param {(node: string, box: HTMLElement) => void} options.onPick
   * @param {(name: string) => object|undefined} options.classOf
   */
  constructor(options) {
    this.options = options;
    this.shape = "";
    this.boxes = new Map();
    this.edges = svg("svg", { class: "edges", "aria-hidden": "true" });
    this.canvas = el("div", { class: "graph-canvas" }, this.edges);
    this.node = el("div", {
      class: "graph", tabindex: "0", role: "group", "aria-label": "Graph of nodes",
    }, this.canvas);
    this.bindings = [];
    this.resize = new ResizeObserver(() => this.draw(this.bindings));
    this.resize.observe(this.node);
  }

  /**
   * Draws the bindings. Boxes stay where they are unless the graph itself has changed.
   * @param {object[]} bindings
   */
  draw(bindings) {
    this.bindings = bindings;
    this.node.hidden = bindings.length === 0;
    if (bindings.length === 0) return;
    const narrow = this.node.clientWidth > 0 && this.node.clientWidth < NARROW;
    const shape = JSON.stringify([narrow, bindings.map(({ node, next }) => [node, next])]);
    if (shape !== this.shape) {
      this.shape = shape;
      this.#layOut(bindings, narrow);
    }
    for (const binding of bindings) this.#fill(this.boxes.get(binding.node), binding);
  }

  /** Ends it. */
  leave() {
    this.resize.disconnect();
  }

  #layOut(bindings, narrow) {
    const graph = new dagre.graphlib.Graph();
    graph.setGraph({
      rankdir: narrow ? "TB" : "LR", nodesep: 24, ranksep: narrow ? 40 : 64, marginx: 8, marginy: 8,
    });
    graph.setDefaultEdgeLabel(() => ({}));
    const names = new Set(bindings.map(({ node }) => node));
    for (const name of names) graph.setNode(name, { width: WIDTH, height: HEIGHT });
    for (const { node, next = [] } of bindings) {
      for (const other of next) if (names.has(other)) graph.setEdge(node, other);
    }
    dagre.layout(graph);
    const { width = 0, height = 0 } = graph.graph();
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    setAttribute(this.edges, "width", width);
    setAttribute(this.edges, "height", height);
    this.edges.replaceChildren(arrowHead(), ...graph.edges().map((edge) => svg("path", {
      class: "edge", d: pathOf(graph.edge(edge).points), "marker-end": "url(#arrow)",
    })));
    for (const box of this.boxes.values()) box.node.remove();
    this.boxes.clear();
    for (const { node, next = [] } of bindings) {
      const { x, y } = graph.node(node);
      const box = this.#box(node, next);
      box.node.style.left = `${x - WIDTH / 2}px`;
      box.node.style.top = `${y - HEIGHT / 2}px`;
      this.boxes.set(node, box);
      this.canvas.append(box.node);
    }
  }

  #box(name, next) {
    const phase = el("span", { class: "phase" });
    const kind = el("span", { class: "muted" });
    const use = el("span", { class: "figure" });
    const shares = el("span", { class: "muted" });
    const bar = meter();
    const goes = next.length > 0 ? `, sends to ${next.join(", ")}` : "";
    const node = el("button", {
      class: "graph-node",
      "data-node": name,
      onclick: (event) => this.options.onPick(name, event.currentTarget),
    },
    el("span", { class: "row" }, el("strong", {}, name), phase), kind, use, bar.node, shares,
    el("span", { class: "visually-hidden" }, goes));
    return { node, phase, kind, use, shares, bar };
  }

  #fill(box, binding) {
    const phase = bindingPhaseOf(binding);
    const shares = binding.shares ?? [];
    const taken = shares.reduce((sum, share) => sum + (share.documentsPerSecond ?? 0), 0);
    const workers = new Set(shares.map(({ worker }) => worker)).size;
    const room = (this.options.classOf(binding.class)?.capacity ?? 0) * workers;
    const applied = shares.filter((share) => share.applied).length;
    setAttribute(box.node, "data-phase", phase);
    setText(box.phase, phaseText(phase));
    setText(box.kind, `class ${binding.class ?? ""}`);
    setText(box.use, shares.length === 0 ? "no worker chosen"
      : `${load(taken)} of ${load(room)} docs/s`);
    box.bar.draw(taken, room);
    setText(box.shares, shares.length === 0 ? ""
      : `${counted(shares.length, "share")}, ${applied} of ${shares.length} applied`);
  }
}

function arrowHead() {
  return svg("defs", {}, svg("marker", {
    id: "arrow", viewBox: "0 0 8 8", refX: "7", refY: "4", markerWidth: "7", markerHeight: "7",
    orient: "auto-start-reverse",
  }, svg("path", { class: "arrow", d: "M0,0 L8,4 L0,8 z" })));
}

function pathOf(points) {
  const [first, ...others] = points;
  return `M${first.x},${first.y} ${others.map(({ x, y }) => `L${x},${y}`).join(" ")}`;
}
