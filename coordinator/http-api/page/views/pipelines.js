// Worker classes with their headroom, and all pipelines: what waits or is broken comes first.

import { atMostEvery, el, keyed, setAttribute, setText } from "../dom.js";
import { ONLY } from "../feed.js";
import { count, counted, load, naturalOrder } from "../format.js";
import { emptyPanel, heading, meter, sample, searchField } from "../parts.js";
import { PHASES, phaseOf, phaseText } from "../phases.js";
import { explained } from "../prose.js";
import { address, withQuery } from "../router.js";

const PAGE = 200;
/** More pipelines than these are sorted once a second only. */
const MANY = 1000;

/** @type {(app: import("../app.js").App, route: import("../router.js").Route)
 *   => import("../app.js").View} */
export function pipelinesView(app, first) {
  let route = first;
  let most = PAGE;
  const head = heading("Pipelines");
  const classes = el("div", { class: "cards small" });
  const classesBox = el("section", {}, el("h2", {}, "Worker classes"), classes);
  const filters = el("div", { class: "chips", role: "group", "aria-label": "Filter by state" });
  const search = searchField("Search pipelines", route.query.search ?? "", (text) => (
    app.go(withQuery(route, { search: text }), { replace: true })));
  const list = el("ul", { class: "pipelines" });
  const status = el("p", { class: "muted", role: "status" });
  const more = el("button", {
    hidden: true,
    onclick: () => {
      most += PAGE;
      drawPipelines();
    },
  }, "Show more");
  const listBox = el("section", {},
    el("div", { class: "toolbar" }, el("h2", {}, "All pipelines"), filters, search),
    list, status, more);
  const empty = noPipelines();
  const node = el("div", {}, head.node, classesBox, empty, listBox);

  const chosen = () => new Set((route.query.phase ?? "").split(",").filter(Boolean));

  function drawPipelines() {
    const { pipelines } = app.fleet;
    const counts = new Map(PHASES.map((phase) => [phase, 0]));
    const text = (route.query.search ?? "").toLowerCase();
    const phases = chosen();
    const found = [];
    for (const pipeline of pipelines.values()) {
      const phase = phaseOf(pipeline);
      counts.set(phase, (counts.get(phase) ?? 0) + 1);
      const wanted = (phases.size === 0 || phases.has(phase))
        && pipeline.name.toLowerCase().includes(text);
      // Ready, with a change that waits: it wants attention, too.
      if (wanted) found.push([PHASES.indexOf(phase) - (pipeline.reason ? 0.5 : 0), pipeline.name]);
    }
    found.sort((a, b) => a[0] - b[0] || (a[1] < b[1] ? -1 : 1));
    keyed(list, found.slice(0, most).map(([, name]) => pipelines.get(name)), ({ name }) => name,
      (pipeline) => pipelineRow(app, pipeline), fillPipeline);
    keyed(filters, counts, ([phase]) => phase, ([phase]) => el("button", {
      class: "chip",
      "data-filter": phase,
      onclick: () => {
        const next = chosen();
        if (!next.delete(phase)) next.add(phase);
        app.go(withQuery(route, { phase: [...next].join(",") }), { replace: true });
      },
    }), (chip, [phase, number]) => {
      setText(chip, `${phaseText(phase)} ${count(number)}`);
      setAttribute(chip, "aria-pressed", String(phases.has(phase)));
    });
    more.hidden = found.length <= most;
    const shown = Math.min(most, found.length);
    setText(status, shown < pipelines.size
      ? `${count(shown)} of ${counted(pipelines.size, "pipeline")} shown` : "");
    empty.hidden = pipelines.size > 0;
    listBox.hidden = pipelines.size === 0;
    const waiting = counts.get("pending");
    const broken = counts.get("broken");
    head.say(`${counted(pipelines.size, "pipeline")}, ${count(waiting)} waiting, `
      + `${count(broken)} broken, on ${counted(app.fleet.classes.size, "class", "classes")}`);
  }

  function drawClasses() {
    const all = naturalOrder(app.fleet.classes.keys()).map((name) => app.fleet.classes.get(name));
    keyed(classes, all, ({ name }) => name, (item) => classCard(app, item), fillClass);
    classesBox.hidden = all.length === 0;
  }

  // There may be a hundred thousand, and sorting them takes longer than a frame.
  const drawSoon = atMostEvery(1000, drawPipelines);
  return {
    node,
    title: "Pipelines",
    reroute(next) {
      route = next;
      drawPipelines();
    },
    update(dirty) {
      if (dirty.all || dirty.classes.size > 0) drawClasses();
      const changed = dirty.pipelines.size > 0 || dirty.classes.size > 0;
      if (dirty.all || (changed && app.fleet.pipelines.size <= MANY)) drawPipelines();
      else if (changed) drawSoon();
    },
    leave: drawSoon.cancel,
  };
}

const meters = new WeakMap();

function classCard(app, { name }) {
  const bar = meter();
  const text = () => el("dd", { class: "figure" });
  const line = (label, value) => el("div", {}, el("dt", {}, label), value);
  const parts = { bar, headroom: text(), placed: text(), request: text(), workers: text(),
    waiting: text() };
  const card = el("article", { class: "card", "data-class": name },
    el("header", { class: "card-heading" },
      el("h3", {}, el("a", { href: address("fleet", name) }, name)),
      el("button", {
        class: "quiet",
        "aria-label": `Explain ${name}`,
        onclick: (event) => app.explain({ kind: "cluster", names: [name] }, event.currentTarget),
      }, "Explain"),
      el("a", { class: "button quiet", href: address("plan", name) }, "What if …")),
    bar.node,
    el("dl", { class: "pairs" },
      line("Headroom", parts.headroom), line("Placed", parts.placed),
      line("Request", parts.request), line("Workers", parts.workers),
      line("Waiting", parts.waiting)));
  meters.set(card, parts);
  return card;
}

function fillClass(card, item) {
  const { capacity = 0, workers = 0, placed = 0, request = 0 } = item;
  const parts = meters.get(card);
  const whole = capacity * workers;
  parts.bar.draw(placed, whole);
  setText(parts.headroom, `${load(Math.max(0, whole - placed))} docs/s free`);
  setText(parts.placed, `${load(placed)} of ${load(whole)} docs/s`);
  setText(parts.request, `${load(request)} docs/s`);
  const limits = `${count(item.workersMin)} to ${count(item.workersMax)}`;
  setText(parts.workers, `${count(workers)} now, ${count(item.workersWanted)} wanted, `
    + `${count(item.workersNeeded)} needed (${limits})`);
  const waiting = item.pipelinesWaiting ?? 0;
  setText(parts.waiting, waiting === 0 ? "no pipeline" : `▲ ${counted(waiting, "pipeline")}`);
  card.classList.toggle("short", waiting > 0);
}

function pipelineRow(app, { name }) {
  return el("li", { class: "pipeline", "data-pipeline": name },
    el("span", { class: "phase" }),
    el("span", {}, el("a", { href: address("pipelines", name) }, name)),
    el("span", { class: "muted figure" }),
    el("span", { class: "reason" }),
    explained(app, { kind: "pipeline", names: [name] }, "Explain"));
}

function fillPipeline(row, pipeline) {
  const phase = phaseOf(pipeline);
  const [sign, , figures, reason, button] = row.children;
  setAttribute(row, "data-phase", phase);
  setText(sign, phaseText(phase));
  setText(figures, `${load(pipeline.documentsPerSecond)} docs/s, `
    + counted((pipeline.bindings ?? []).length, "node"));
  setText(reason, pipeline.reason ?? "");
  setAttribute(button, "aria-label", `Explain ${pipeline.name}`);
}

function noPipelines() {
  if (ONLY) {
    return emptyPanel("No pipelines are shown", el("p", {},
      `Only ${ONLY} is shown. To show pipelines needs the right to read everything.`));
  }
  return emptyPanel("No pipeline is defined",
    el("p", {}, "A pipeline is a graph of nodes; each node is served by workers of a class. "
      + "Define a class and a pipeline by manifests:"),
    sample("apiVersion: leasehold.dev/v1alpha1\nkind: WorkerClass\nmetadata: {name: blue}\n"
      + "spec: {capacity: 30}\n---\napiVersion: leasehold.dev/v1alpha1\nkind: Pipeline\n"
      + "metadata: {name: first}\nspec:\n  documentsPerSecond: 10\n  workers:\n"
      + "    parse: {class: blue}"));
}
