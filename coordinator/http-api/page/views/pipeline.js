// One pipeline: the graph of its nodes, and the shares of each with their endpoints.

import { el, keyed, setAttribute, setText } from "../dom.js";
import { counted, load } from "../format.js";
import { PipelineGraph } from "../graph.js";
import { emptyPanel, heading } from "../parts.js";
import { bindingPhaseOf, phaseOf, phaseText } from "../phases.js";
import { command, explained } from "../prose.js";

/** @type {(app: import("../app.js").App, route: import("../router.js").Route)
 *   => import("../app.js").View} */
export function pipelineView(app, { name }) {
  const target = { kind: "pipeline", names: [name] };
  const phase = el("span", { class: "phase large" });
  const head = heading(name, phase, el("button", {
    onclick: (event) => app.explain(target, event.currentTarget),
  }, "Explain"));
  const reason = el("p", { class: "notice warn", hidden: true });
  const graph = new PipelineGraph({
    classOf: (className) => app.fleet.classes.get(className),
    onPick: (node, box) => app.explain(target, box),
  });
  const shares = el("div");
  const body = el("div", { "data-pipeline": name }, reason, graph.node,
    el("section", {}, el("h2", {}, "Shares and endpoints"), shares));
  const unknown = emptyPanel(`No pipeline ${name}`,
    el("p", {}, "No manifest defines a pipeline of this name. ",
      el("a", { href: "#/pipelines" }, "All pipelines"), " or ", command("leasehold pipelines")));
  const node = el("div", {}, head.node, body, unknown);

  return {
    node,
    title: name,
    update(dirty) {
      if (!dirty.all && !dirty.pipelines.has(name) && dirty.classes.size === 0) return;
      const pipeline = app.fleet.pipelines.get(name);
      unknown.hidden = Boolean(pipeline);
      body.hidden = !pipeline;
      phase.hidden = !pipeline;
      if (!pipeline) return;
      const state = phaseOf(pipeline);
      const bindings = pipeline.bindings ?? [];
      setAttribute(body, "data-phase", state);
      setAttribute(phase, "data-phase", state);
      setText(phase, phaseText(state));
      head.say(`${load(pipeline.documentsPerSecond)} documents per second, `
        + counted(bindings.length, "node"));
      reason.hidden = !pipeline.reason;
      setText(reason, pipeline.reason ?? "");
      graph.draw(bindings);
      keyed(shares, bindings, (binding) => binding.node, bindingTable,
        (section, binding) => fillBinding(app, section, binding));
    },
    leave: () => graph.leave(),
  };
}

function bindingTable({ node }) {
  return el("section", { class: "binding", "aria-label": `Node ${node}` },
    el("h3", {}, el("span"), " ", el("span", { class: "muted" })),
    el("p", { class: "muted", hidden: true }, "No worker is chosen for it."),
    el("table", { "aria-label": `Shares of ${node}` },
      el("thead", {}, el("tr", {},
        ["Share", "Worker", "Endpoint", "Load", "Lease", "State"].map((title) => (
          el("th", { scope: "col" }, title))))),
      el("tbody")));
}

function fillBinding(app, section, binding) {
  const [title, none, table] = section.children;
  const shares = binding.shares ?? [];
  setText(title.firstChild, binding.node);
  const next = (binding.next ?? []).length > 0 ? `, sends to ${binding.next.join(", ")}` : "";
  setText(title.lastChild,
    `class ${binding.class ?? ""}, ${phaseText(bindingPhaseOf(binding))}${next}`);
  none.hidden = shares.length > 0;
  table.hidden = shares.length === 0;
  keyed(table.lastChild, shares, ({ index = 0 }) => String(index), shareRow,
    (row, share) => fillShare(app, binding.class ?? "", row, share));
}

function shareRow() {
  const cell = (label, kind) => el("td", { "data-label": label, class: kind });
  return el("tr", {}, cell("Share", "figure"), cell("Worker"), cell("Endpoint"),
    cell("Load", "figure"), cell("Lease", "figure"), cell("State"));
}

function fillShare(app, className, row, share) {
  const [index, worker, endpoint, takes, lease, state] = row.children;
  setText(index, share.index ?? 0);
  if (worker.dataset.name !== share.worker) {
    worker.dataset.name = share.worker ?? "";
    worker.replaceChildren(
      explained(app, { kind: "worker", names: [className, share.worker ?? ""] }, share.worker));
  }
  setText(endpoint, share.address || "unknown: its agent names no address");
  endpoint.classList.toggle("muted", !share.address);
  setText(takes, `${load(share.documentsPerSecond)} docs/s`);
  setText(lease, share.token || "none yet");
  const words = [share.applied ? "✓ applied" : "… not applied yet"];
  if (share.draining) words.push("its worker drains");
  setText(state, words.join(", "));
}
