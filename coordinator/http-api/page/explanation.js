// The explanation of what was clicked: the sentence, the facts and the next step.

import { el, setChildren } from "./dom.js";
import { span } from "./format.js";
import { prose } from "./prose.js";
import { titleOf } from "./kinds.js";
import { address } from "./router.js";

/** An open explanation is asked for again this often, as the fleet changes. */
const AGAIN = 5000;
/** Sets that a worker's explanation links to. */
const SETS = 4;
/** Problems of manifests that an explanation names. */
const PROBLEMS = 3;

/** The panel beside a view. */
export class Explanation {
  /** @param {import("./app.js").App} app */
  constructor(app) {
    this.app = app;
    this.node = document.getElementById("explanation");
    this.target = null;
    this.opener = null;
    this.request = null;
    this.timer = 0;
    this.shownKey = "";
    this.askedAt = 0;
    this.kind = el("p", { class: "eyebrow" });
    this.title = el("h2", { id: "explanation-title", tabindex: "-1" });
    this.summary = el("p", { "data-part": "summary" });
    this.facts = el("ul", { "data-part": "facts" });
    this.next = el("div", { "data-part": "next-step" });
    this.nextBox = el("section", { class: "next-step" }, el("h3", {}, "Next step"), this.next);
    this.factsBox = el("section", {}, el("h3", {}, "Facts"), this.facts);
    this.trouble = el("p", { class: "notice bad", role: "alert", hidden: true });
    this.links = el("p", { class: "links" });
    this.asked = el("p", { class: "muted small" });
    const close = el("button", {
      class: "close", "aria-label": "Close the explanation",
      onclick: () => this.close(),
    }, "✕");
    this.node.append(
      el("header", {}, el("div", {}, this.kind, this.title), close),
      this.trouble, this.summary, this.factsBox, this.nextBox, this.links, this.asked);
    addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.target && !event.defaultPrevented) this.close();
    });
    setInterval(() => this.#drawAge(), 1000);
  }

  /**
   * Remembers where the focus goes back to.
   * @param {HTMLElement|undefined} opener
   */
  openedBy(opener) {
    this.opener = opener ?? null;
  }

  /** Closes it. */
  close() {
    this.app.explain(null);
    const place = this.opener?.isConnected ? this.opener : this.app.main;
    place.focus({ preventScroll: place === this.app.main });
    this.opener = null;
  }

  /**
   * Shows the explanation of a target; null hides the panel.
   * @param {import("./router.js").Target|null} target
   */
  show(target) {
    const before = this.target && JSON.stringify(this.target);
    if (before === (target && JSON.stringify(target))) return;
    this.target = target;
    this.request?.abort();
    clearTimeout(this.timer);
    this.node.hidden = target === null;
    document.body.classList.toggle("explaining", target !== null);
    if (!target) return;
    this.kind.textContent = target.kind;
    this.title.textContent = titleOf(target);
    this.shownKey = "";
    this.trouble.hidden = true;
    this.summary.textContent = "Asking …";
    this.factsBox.hidden = true;
    this.nextBox.hidden = true;
    this.askedAt = 0;
    this.#drawAge();
    this.links.replaceChildren(...this.#linksOf(target));
    this.title.focus({ preventScroll: true });
    this.#ask();
  }

  /** @param {import("./state.js").Dirty} dirty */
  update(dirty) {
    // A new leader may see it otherwise.
    if (dirty.all && this.target) this.#ask();
  }

  async #ask() {
    clearTimeout(this.timer);
    this.request?.abort();
    const request = new AbortController();
    this.request = request;
    try {
      const explanation = await this.app.api.explain(this.target, request.signal);
      if (request.signal.aborted) return;
      this.#draw(withProblems(this.target, explanation, this.app.fleet.status.problems));
      this.askedAt = performance.now();
      this.trouble.hidden = true;
    } catch (error) {
      if (request.signal.aborted) return;
      this.trouble.textContent = error.message;
      this.trouble.hidden = false;
      if (this.shownKey === "") this.summary.textContent = "";
    }
    this.#drawAge();
    this.timer = setTimeout(() => this.#ask(), AGAIN);
  }

  #draw(explanation) {
    const key = JSON.stringify(explanation);
    // A reader may be selecting a command.
    if (key === this.shownKey) return;
    this.shownKey = key;
    const { summary = "", facts = [], nextStep = "" } = explanation;
    setChildren(this.summary, ...prose(summary));
    this.facts.replaceChildren(...facts.map((fact) => el("li", {}, prose(fact))));
    this.factsBox.hidden = facts.length === 0;
    this.nextBox.hidden = nextStep === "";
    this.next.replaceChildren(...prose(nextStep));
  }

  #drawAge() {
    if (!this.target) return;
    const age = performance.now() - this.askedAt;
    this.asked.textContent = this.askedAt === 0 ? "" : `Asked ${span(age)} ago, again by itself.`;
  }

  #setsOf(cluster) {
    return [...this.app.fleet.sets.values()]
      .filter((set) => set.cluster === cluster).map((set) => set.name).slice(0, SETS);
  }

  #linksOf({ kind, names }) {
    const link = (href, text) => el("a", { href }, text);
    const [first, second] = names;
    switch (kind) {
      case "cluster": return [
        link(address("fleet", first), "Workers"),
        link(address("plan", first), "What if …"),
        link(address("timeline", "", { cluster: first }), "Timeline"),
      ];
      case "worker": return [
        link(address("fleet", first), `Cluster ${first}`),
        link(address("timeline", "", { cluster: first, text: second }), "Timeline"),
        link(address("plan", first, { remove: second }), "What if it left"),
        ...this.#setsOf(first).map((set) => (
          link(address("streams", set, { worker: second }), `Its streams of ${set}`))),
      ];
      case "stream": return [
        link(address("streams", first, { search: second }), `Set ${first}`),
        link(address("timeline", "", { text: `${first}/${second}` }), "Timeline"),
      ];
      default: return [
        link(address("pipelines", first), "Graph"),
        link(address("timeline", "", { text: first }), "Timeline"),
      ];
    }
  }
}

/**
 * Adds what is wrong with the manifests, as the command line does: an invalid edit of the
 * object's own has changed nothing.
 */
function withProblems({ kind }, explanation, problems = []) {
  if (problems.length === 0 || !["cluster", "pipeline"].includes(kind)) return explanation;
  const facts = problems.slice(0, PROBLEMS).map((problem) =>
    `a manifest is invalid, and its last good state in force: ${problemText(problem)}`);
  return {
    ...explanation,
    facts: [...(explanation.facts ?? []), ...facts],
    nextStep: explanation.nextStep || `correct ${problems[0].file}`,
  };
}

function problemText(problem) {
  const { file = "", line = 0, column = 0, field = "", message = "", dueSeconds = 0 } = problem;
  const place = line === 0 ? file : `${file}:${line}:${column}`;
  const left = dueSeconds === 0 ? "" : ` (${dueSeconds} s left)`;
  return `${place}:${field === "" ? "" : ` ${field}:`} ${message}${left}`;
}
