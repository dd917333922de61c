// What would be planned with another budget or other workers, beside today's. It changes nothing.

import { el, setText } from "../dom.js";
import { count, counted } from "../format.js";
import { heading } from "../parts.js";
import { drawPlan } from "../planresult.js";
import { command } from "../prose.js";
import { address } from "../router.js";
import { planCommand, planRequest } from "../whatif.js";

/** @type {(app: import("../app.js").App, route: import("../router.js").Route)
 *   => import("../app.js").View} */
export function planView(app, first) {
  const { name } = first;
  if (name === "") return chooseView(app);
  const { fleet } = app;
  let asked = null;
  let running = null;
  const isClass = Boolean(fleet.clusters.get(name)?.isClass);
  const head = heading(`What if: ${name}`, null,
    el("a", { class: "button", href: address("fleet", name) }, `Workers of ${name}`));
  head.say("Shows what would be planned, and changes nothing.");
  const maxJobs = el("input", {
    type: "number", name: "maxJobs", min: "0", max: "4294967295", id: "plan-max-jobs",
    inputmode: "numeric", disabled: isClass,
  });
  const add = textInput("addWorkers", "plan-add");
  const remove = textInput("removeWorkers", "plan-remove");
  const trouble = el("p", { class: "notice bad", role: "alert", hidden: true });
  const result = el("div");
  const form = el("form", { id: "plan", class: "plan-form" },
    field("Budget (maxJobs)", maxJobs, "plan-max-jobs-hint", isClass
      ? "A worker class has no budget." : "Empty: as it is."),
    field("Workers that join", add, "plan-add-hint",
      "Names, separated by commas, or a number of new workers."),
    field("Workers that leave", remove, "plan-remove-hint",
      "Names, or a number: 3 are the last three by name."),
    el("button", { type: "submit", class: "primary" }, "Plan"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const query = { maxJobs: maxJobs.value, add: add.value.trim(), remove: remove.value.trim() };
    asked = null;
    app.go(address("plan", name, query, app.route.target), { replace: true });
    run(app.route.query);
  });
  const unknown = el("p", { class: "notice warn", hidden: true },
    `No manifest defines a cluster or class ${name}. `,
    el("a", { href: "#/fleet" }, "All clusters"));
  const node = el("div", {}, head.node, unknown, form, trouble, result);

  const fill = ({ query }) => {
    maxJobs.value = query.maxJobs ?? "";
    add.value = query.add ?? "";
    remove.value = query.remove ?? "";
  };

  async function run(typed) {
    const key = JSON.stringify([typed.maxJobs, typed.add, typed.remove]);
    if (key === asked) return;
    asked = key;
    running?.abort();
    const request = new AbortController();
    running = request;
    const workers = fleet.workersOf(name);
    const question = planRequest(name, typed, workers);
    setText(result, "Planning …");
    try {
      const plan = await app.api.plan(question, request.signal);
      if (request.signal.aborted) return;
      trouble.hidden = true;
      const drawn = drawPlan(app, question, plan);
      result.replaceChildren(drawn.node, el("p", { class: "muted" },
        "The same on the command line: ", command(planCommand(question))));
      app.shell.say(drawn.summary);
    } catch (error) {
      if (request.signal.aborted) return;
      result.replaceChildren();
      trouble.hidden = false;
      setText(trouble, error.message);
    }
  }

  fill(first);
  const { maxJobs: jobs, add: joining, remove: leaving } = first.query;
  if (jobs || joining || leaving) run(first.query);
  return {
    node,
    title: `What if: ${name}`,
    reroute(route) {
      fill(route);
    },
    update(dirty) {
      if (!dirty.all && !dirty.clusters.has(name)) return;
      const cluster = fleet.clusters.get(name);
      unknown.hidden = Boolean(cluster);
      form.hidden = !cluster;
      maxJobs.placeholder = cluster && !isClass ? `today ${count(cluster.maxJobs)}` : "";
      remove.placeholder = `of ${counted(fleet.workersOf(name).size, "worker")}`;
    },
    leave: () => running?.abort(),
  };
}

function textInput(name, id) {
  return el("input", { type: "text", name, id, autocomplete: "off", spellcheck: "false" });
}

function field(label, input, hintId, hint) {
  input.setAttribute("aria-describedby", hintId);
  return el("div", { class: "form-field" },
    el("label", { for: input.id }, label), input,
    el("p", { class: "muted small", id: hintId }, hint));
}

function chooseView(app) {
  const head = heading("What if");
  head.say("Choose a cluster or class to plan for.");
  const list = el("ul");
  const node = el("div", {}, head.node, list);
  return {
    node,
    title: "What if",
    update(dirty) {
      if (!dirty.all && dirty.clusters.size === 0) return;
      list.replaceChildren(...[...app.fleet.clusters.keys()].sort().map((name) => (
        el("li", {}, el("a", { href: address("plan", name) }, name)))));
    },
  };
}
