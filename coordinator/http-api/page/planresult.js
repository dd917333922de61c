// The answer to a plan: pools and moves, or pipelines and classes, beside today's.

import { el } from "./dom.js";
import { count, counted, enumWord, load, naturalKey, span } from "./format.js";
import { explained } from "./prose.js";

/**
 * Draws a plan.
 * @param {import("./app.js").App} app
 * @param {object} request the PlanRequest
 * @param {object} plan the PlanResponse
 * @returns {{summary: string, node: HTMLElement}}
 */
export function drawPlan(app, request, plan) {
  if (plan.isClass) return drawClassPlan(app, plan);
  const workers = app.fleet.workersOf(request.cluster);
  const pools = [...plan.pools ?? []]
    .map((pool) => [naturalKey(pool.worker ?? ""), pool])
    .sort((a, b) => (a[0] < b[0] ? -1 : 1))
    .map(([, pool]) => ({ ...pool, today: workers.get(pool.worker)?.granted ?? 0 }));
  const total = (field) => pools.reduce((sum, pool) => sum + (pool[field] ?? 0), 0);
  const moves = plan.moves ?? [];
  const unplaced = plan.unplaced ?? [];
  const lost = pools.filter((pool) => pool.lost);
  const summary = `Pools: ${count(total("size"))} slots instead of ${count(total("today"))}. `
    + `${counted(moves.length, "stream")} would move, `
    + `${count(unplaced.length)} would have no worker.`;
  const node = el("div", { class: "plan-result" },
    el("p", { class: "summary" }, summary),
    lost.length > 0 && el("p", { class: "notice warn" },
      `The slots of ${lost.map(({ worker }) => worker).join(", ")} come back once it reports or `
      + "is declared gone: its jobs may never end by themselves."),
    unplaced.length > 0 && unplacedTable(app, unplaced),
    poolTable(app, request, pools),
    el("section", {}, el("h2", {}, "Moves"),
      moves.length === 0 ? el("p", { class: "muted" }, "No stream would move.")
        : moveTable(app, request, moves)));
  return { summary, node };
}

function poolTable(app, { cluster, addWorkers, removeWorkers }, pools) {
  const joins = new Set(addWorkers);
  const leaves = new Set(removeWorkers);
  const note = (worker) => (joins.has(worker) ? "joins" : leaves.has(worker) ? "leaves" : "");
  const rows = pools.map(({ worker = "", size = 0, committed, reason, wait, today }) => (
    el("tr", { "data-planned-worker": worker, "data-change-of-size": Math.sign(size - today) },
      cell("Worker", joins.has(worker) ? worker
        : explained(app, { kind: "worker", names: [cluster, worker] }, worker),
      note(worker) && el("span", { class: "badge" }, note(worker))),
      figure("Today", joins.has(worker) ? "–" : count(today)),
      figure("Planned", count(size)),
      figure("Change", changeOf(size - today)),
      figure("May be in use", count(committed)),
      cell("Wait", waitOf(wait)),
      cell("Why no more", reason ?? ""))));
  return el("section", {}, el("h2", {}, "Pools"), table("Pools",
    ["Worker", "Today", "Planned", "Change", "May be in use", "Wait", "Why no more"], rows));
}

function moveTable(app, { cluster }, moves) {
  const place = (worker, none) => (worker
    ? explained(app, { kind: "worker", names: [cluster, worker] }, worker)
    : el("span", { class: "muted" }, none));
  const rows = moves.map(({ set = "", stream = "", from, to }) => (
    el("tr", { "data-planned-move": `${set}/${stream}` },
      cell("Stream", explained(app, { kind: "stream", names: [set, stream] })),
      cell("From", place(from, "nobody")),
      cell("To", place(to, "nobody")))));
  return table("Moves", ["Stream", "From", "To"], rows);
}

function unplacedTable(app, unplaced) {
  const rows = unplaced.map(({ set = "", stream = "", reason = "" }) => (
    el("tr", { class: "unowned", "data-unplaced": `${set}/${stream}` },
      cell("Stream", explained(app, { kind: "stream", names: [set, stream] })),
      cell("Why", reason))));
  return el("section", {}, el("h2", {}, "Without a worker"),
    table("Streams without a worker", ["Stream", "Why"], rows));
}

function drawClassPlan(app, { pipelines = [], classes = [] }) {
  const summary = `${counted(pipelines.length, "pipeline")} would change.`;
  const node = el("div", { class: "plan-result" },
    el("p", { class: "summary" }, summary),
    el("section", {}, el("h2", {}, "Classes"),
      classes.length === 0 ? el("p", { class: "muted" }, "No class would have other figures.")
        : table("Classes", ["Class", "Workers", "Placed", "Request", "Waiting"],
          classes.map(classRow))),
    el("section", {}, el("h2", {}, "Pipelines"),
      pipelines.length === 0 ? el("p", { class: "muted" }, "No pipeline would change.")
        : table("Pipelines", ["Pipeline", "State", "Shares", "Why"],
          pipelines.map((pipeline) => pipelineRow(app, pipeline)))));
  return { summary, node };
}

function classRow({ before, after }) {
  const both = (show) => `${before ? show(before) : "–"} → ${after ? show(after) : "–"}`;
  const name = (before ?? after)?.name ?? "";
  return el("tr", { "data-planned-class": name },
    cell("Class", name),
    figure("Workers", both(({ workers }) => count(workers))),
    figure("Placed", both(({ placed }) => load(placed))),
    figure("Request", both(({ request }) => load(request))),
    figure("Waiting", both(({ pipelinesWaiting }) => count(pipelinesWaiting))));
}

function pipelineRow(app, { name = "", before, after, reason = "", moves = [] }) {
  const phase = (value, none) => (value ? enumWord(value, "PIPELINE_PHASE_") : none);
  const place = (share, none) => (share
    ? `${share.class ?? ""}/${share.worker ?? ""} (${load(share.documentsPerSecond)})` : none);
  return el("tr", { "data-planned-pipeline": name },
    cell("Pipeline", explained(app, { kind: "pipeline", names: [name] })),
    cell("State", `${phase(before, "new")} → ${phase(after, "gone")}`),
    cell("Shares", el("ul", {}, moves.map(({ node = "", index = 0, from, to }) => (
      el("li", {}, `${node}/${index}: ${place(from, "new")} → ${place(to, "gone")}`))))),
    cell("Why", reason));
}

function table(label, heads, rows) {
  return el("table", { "aria-label": label },
    el("thead", {}, el("tr", {}, heads.map((head) => el("th", { scope: "col" }, head)))),
    el("tbody", {}, rows));
}

function cell(label, ...content) {
  return el("td", { "data-label": label }, content);
}

function figure(label, text) {
  return el("td", { "data-label": label, class: "figure" }, text);
}

function changeOf(difference) {
  if (difference === 0) return "=";
  return difference > 0 ? `▲ +${count(difference)}` : `▼ −${count(-difference)}`;
}

function waitOf(wait) {
  if (!wait) return "";
  const jobs = counted(wait.jobs ?? 0, "job");
  if (wait.halfSeconds === undefined) return jobs;
  const half = span(wait.halfSeconds * 1000);
  return `${jobs}: ${half} to ${span((wait.mostSeconds ?? wait.halfSeconds) * 1000)}`;
}
