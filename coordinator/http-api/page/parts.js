// Pieces that several views are made of.

import { el, keyed, setAttribute, setText } from "./dom.js";
import { count } from "./format.js";
import { swatch } from "./grid.js";
import { STATES } from "./workers.js";

/**
 * The heading of a view, with a line beneath that sums it up.
 * @param {string} title
 * @param {Node|null} [state] right after the title
 * @param {...Node} beside
 */
export function heading(title, state = null, ...beside) {
  const line = el("p", { class: "lead" });
  const node = el("div", { class: "view-heading" },
    el("div", {}, el("h1", {}, title, state), line), ...beside);
  return { node, say: (text) => setText(line, text) };
}

/**
 * A panel where nothing is to be shown: why, and what to do.
 * @param {string} title
 * @param {...(Node|string)} body
 * @returns {HTMLElement}
 */
export function emptyPanel(title, ...body) {
  return el("section", { class: "empty" }, el("h2", {}, title), ...body);
}

/**
 * A text to type into a file.
 * @param {string} text
 * @returns {HTMLElement}
 */
export function sample(text) {
  return el("pre", { tabindex: "0", role: "region", "aria-label": "Example" }, text);
}

/**
 * Figures with their names; `set` changes one.
 * @param {[string, string, string?][]} names what a figure is called in data-figure, its label,
 *     and its explanation
 */
export function figures(names) {
  const values = new Map();
  const node = el("dl", { class: "figures" }, names.map(([name, label, says]) => {
    const value = el("dd", { "data-figure": name }, "0");
    values.set(name, value);
    return el("div", { title: says, "data-series": name }, el("dt", {}, label), value);
  }));
  return { node, set: (name, value) => setText(values.get(name), value) };
}

/** The figures of a cluster's budget, as its card and its view have them. */
export const BUDGET_FIGURES = [
  ["maxJobs", "budget", "The most jobs that may run at once"],
  ["committed", "committed", "Upper bound of the slots that workers are using"],
  ["granted", "granted", "Slots granted to workers that take jobs"],
  ["running", "running", "Jobs that run, as reported"],
];

/**
 * Draws a cluster's budget figures.
 * @param {{set: (name: string, value: string) => void}} shown
 * @param {object} cluster
 */
export function drawBudget(shown, cluster) {
  for (const [name] of BUDGET_FIGURES) shown.set(name, count(cluster[name]));
}

/**
 * Says why a cluster plans nothing at present.
 * @param {HTMLElement} node hidden where it plans
 * @param {object} cluster
 */
export function drawHeld(node, { held = "" }) {
  node.hidden = held === "";
  setAttribute(node, "data-held", held !== "");
  setText(node, held === "" ? "" : `On hold: ${held}`);
}

/**
 * How many workers are in each state.
 * @returns {{node: HTMLElement, draw: (states: Map<string, number>) => void}}
 */
export function stateSummary() {
  const node = el("ul", { class: "states", "aria-label": "Workers by state" });
  const draw = (states) => keyed(node, states, ([name]) => name,
    ([name]) => el("li", {}, swatch(name), el("span")),
    (item, [name, number]) => setText(item.lastChild, `${count(number)} ${name}`));
  return { node, draw };
}

/**
 * What the cells' letters and patterns mean.
 * @returns {HTMLElement}
 */
export function legend() {
  return el("details", { class: "legend" },
    el("summary", {}, "What the cells mean"),
    el("ul", {}, STATES.map(({ name, says }) => (
      el("li", {}, swatch(name), el("span", {}, el("strong", {}, name), ` ${says}`))
    ))));
}

/**
 * A field to search with; `onInput` hears of a text once the reader pauses.
 * @param {string} label
 * @param {string} value
 * @param {(text: string) => void} onInput
 * @returns {HTMLElement}
 */
export function searchField(label, value, onInput) {
  let timer = 0;
  const field = el("input", {
    type: "search", "aria-label": label, placeholder: label, autocomplete: "off",
    spellcheck: "false", name: "search",
  });
  field.value = value;
  field.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => onInput(field.value.trim()), 200);
  });
  return field;
}

/**
 * A bar of how much of something is used.
 * @returns {{node: HTMLElement, draw: (part: number, whole: number) => void}}
 */
export function meter() {
  const bar = el("span", { class: "meter-fill" });
  const node = el("span", { class: "meter", "aria-hidden": "true" }, bar);
  const draw = (part, whole) => {
    const share = whole > 0 ? Math.min(1, part / whole) : 0;
    bar.style.width = `${(share * 100).toFixed(1)}%`;
  };
  return { node, draw };
}
