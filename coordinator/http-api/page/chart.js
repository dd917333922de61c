// A cluster's last ten minutes: the budget as a line, and what of it is used beneath.

import { el, setText } from "./dom.js";
import { clock, count } from "./format.js";
import { WINDOW } from "./state.js";

const HEIGHT = 132;

/** The series, in the order of the samples' fields. Each has its own line, beside its colour. */
const SERIES = [
  { field: "running", label: "running", colour: "--running", width: 2, dash: [], area: true },
  { field: "granted", label: "granted", colour: "--granted", width: 1.5, dash: [6, 3] },
  { field: "committed", label: "committed", colour: "--committed", width: 1.5, dash: [2, 3] },
  { field: "maxJobs", label: "budget", colour: "--budget", width: 2.5, dash: [] },
];

/** Charts that are on the screen and have something new to draw: one a frame. */
const waiting = new Set();
let frame = 0;

function request(chart) {
  waiting.add(chart);
  if (!frame) frame = requestAnimationFrame(drawOne);
}

function drawOne() {
  frame = 0;
  const [chart] = waiting;
  if (!chart) return;
  waiting.delete(chart);
  chart.redraw();
  if (waiting.size > 0) frame = requestAnimationFrame(drawOne);
}

const dark = matchMedia("(prefers-color-scheme: dark)");

/** A chart of one cluster. */
export class BudgetChart {
  /** @param {() => import("./state.js").Sample[]} samples */
  constructor(samples) {
    this.samples = samples;
    this.plot = null;
    this.visible = false;
    this.said = 0;
    this.canvas = el("div", { class: "plot", "aria-hidden": "true" });
    this.words = el("p", { class: "visually-hidden" });
    this.node = el("figure", {
      class: "chart", "data-chart": true, "aria-label": "Budget, last ten minutes",
    },
    el("figcaption", { class: "chart-legend" }, SERIES.toReversed().map(({ field, label }) => (
      el("span", { class: "key", "data-series": field }, label)
    ))), this.canvas, this.words);
    this.resize = new ResizeObserver(() => this.draw());
    this.resize.observe(this.canvas);
    this.sight = new IntersectionObserver(([entry]) => {
      this.visible = entry.isIntersecting;
      this.draw();
    }, { rootMargin: "200px" });
    this.sight.observe(this.canvas);
  }

  /** Draws it, unless nobody sees it. */
  draw() {
    if (this.visible) request(this);
  }

  /** Ends it. */
  leave() {
    waiting.delete(this);
    this.resize.disconnect();
    this.sight.disconnect();
    this.#forget();
  }

  #forget() {
    this.plot?.destroy();
    this.plot = null;
  }

  /** Draws it now. */
  redraw() {
    const samples = this.samples();
    const width = this.canvas.clientWidth;
    if (width === 0 || samples.length === 0) return;
    const data = [samples.map(({ at }) => at / 1000)];
    for (const { field } of SERIES) data.push(samples.map((sample) => sample[field]));
    if (this.isDark !== dark.matches) this.#forget();
    this.isDark = dark.matches;
    if (!this.plot) {
      this.plot = new window.uPlot(options(width, this.canvas), data, this.canvas);
      // It is an element of the chart's picture, which the words beside it describe.
      this.plot.root.setAttribute("aria-hidden", "true");
    } else {
      if (this.plot.width !== width) this.plot.setSize({ width, height: HEIGHT });
      this.plot.setData(data);
    }
    // Screen readers need no news of it twice a second.
    if (Date.now() - this.said > 10_000) this.#say(samples);
  }

  #say(samples) {
    this.said = Date.now();
    const last = samples.at(-1);
    const running = samples.map((sample) => sample.running);
    const text = `From ${clock(samples[0].at)} to ${clock(last.at)}: running between `
      + `${count(Math.min(...running))} and ${count(Math.max(...running))}. `
      + `Last: budget ${count(last.maxJobs)}, committed ${count(last.committed)}, `
      + `granted ${count(last.granted)}, running ${count(last.running)}.`;
    setText(this.words, text);
  }
}

function options(width, node) {
  const style = getComputedStyle(node);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = {
    stroke: colour("--muted"),
    font: `11px ${style.fontFamily}`,
    grid: { stroke: colour("--line"), width: 1 },
    ticks: { show: false },
  };
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    cursor: { show: false },
    padding: [8, 14, 0, 0],
    scales: {
      x: { time: true, range: () => [(Date.now() - WINDOW) / 1000, Date.now() / 1000] },
      // A little room above the budget, or its line would be cut.
      y: { range: (plot, low, high) => [0, Math.max(1, high) * 1.08] },
    },
    axes: [
      { ...axis, size: 22, space: 70, values: (plot, ticks) => ticks.map(minute) },
      { ...axis, size: 40, space: 28, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3] },
    ],
    series: [
      {},
      ...SERIES.map(({ label, colour: name, width: line, dash, area }) => ({
        label,
        stroke: colour(name),
        fill: area ? colour(`${name}-area`) : undefined,
        width: line,
        dash,
        points: { show: false },
        paths: window.uPlot.paths.stepped({ align: 1 }),
      })),
    ],
  };
}

function minute(tick) {
  return clock(tick * 1000).slice(0, 5);
}
