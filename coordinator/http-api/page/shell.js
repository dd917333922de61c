// What is around every view: navigation, connection, leader, problems, and news for screen readers.

import { el, keyed, setAttribute, setText } from "./dom.js";
import { ONLY } from "./feed.js";
import { count, span } from "./format.js";
import { kindOf, partsOf, titleOf } from "./kinds.js";

/** Problems and warnings beyond these are folded. */
const OPEN = 3;
/** Kinds of changes that are said to screen readers. */
const NEWS = new Set(["elected", "lost", "failing", "manifests", "name_refused"]);

/** The frame of the page. */
export class Shell {
  /** @param {import("./app.js").App} app */
  constructor(app) {
    this.app = app;
    this.links = [...document.querySelectorAll("nav a")];
    this.connection = document.getElementById("connection");
    this.state = el("strong");
    this.age = el("span");
    this.replica = el("span");
    this.connection.append(this.state, " ", this.age, " ", this.replica);
    this.leader = document.getElementById("leader");
    // A watch of one cluster brings neither the leader's status nor pipelines.
    if (ONLY) this.leader.textContent = `only ${ONLY} is shown`;
    this.links.find((link) => link.hash === "#/pipelines").hidden = ONLY !== "";
    this.problems = document.getElementById("problems");
    this.news = document.getElementById("news");
    this.refused = el("div", { class: "notice bad", role: "alert", hidden: true });
    this.first = el("ul", { class: "problem-list" });
    this.rest = el("ul", { class: "problem-list" });
    this.summary = el("summary");
    this.more = el("details", {}, this.summary, this.rest);
    this.problems.append(this.refused, this.first, this.more);
    this.said = [];
    this.saying = 0;
    this.lastState = "connecting";
    this.problemCount = 0;
    setInterval(() => this.#drawAge(), 500);
    this.connectionChanged();
  }

  /**
   * Marks the present view in the navigation.
   * @param {import("./router.js").Route} route
   */
  navigated(route) {
    for (const link of this.links) {
      const here = link.getAttribute("href") === `#/${route.section}`;
      // A plan is made from a cluster.
      const near = route.section === "plan" && link.getAttribute("href") === "#/fleet";
      setAttribute(link, "aria-current", here ? "page" : near ? "true" : null);
    }
  }

  /** The state of the connection is another. */
  connectionChanged() {
    const { state, base, refusal } = this.app.connection;
    this.connection.dataset.state = state;
    setText(this.state, refusal && state === "connecting" ? "refused" : state);
    this.base = base;
    this.#drawAge();
    if (state !== this.lastState) {
      if (this.lastState !== "connecting" || state !== "live") this.say(`Connection: ${state}`);
      this.lastState = state;
    }
    // Before anything is known, the view itself says why.
    this.refused.hidden = !(refusal && state === "reconnecting");
    if (refusal) setText(this.refused, `A coordinator answers: ${refusal.message}`);
    this.problems.hidden = this.refused.hidden && this.problemCount === 0;
  }

  /** @param {import("./state.js").Dirty} dirty */
  update(dirty) {
    if (dirty.all || dirty.status) {
      this.#drawLeader();
      this.#drawProblems();
    }
    for (const change of dirty.changes) {
      if (change.replayed || !NEWS.has(kindOf(change))) continue;
      const parts = partsOf(change);
      this.say(parts.map((part) => (typeof part === "string" ? part : titleOf(part))).join(""));
    }
  }

  /**
   * Says something to screen readers, politely and not too much of it.
   * @param {string} text
   */
  say(text) {
    if (this.said.length >= 3) this.said.shift();
    this.said.push(text);
    if (this.saying) return;
    const next = () => {
      const [first] = this.said;
      this.said.shift();
      this.saying = first === undefined ? 0 : setTimeout(next, 2000);
      if (first !== undefined) this.news.textContent = first;
    };
    next();
  }

  #drawAge() {
    const { feed, connection } = this.app;
    if (feed.heardAt === 0) {
      setText(this.age, "nothing is known yet");
      setText(this.replica, `from ${location.host}`);
      return;
    }
    const age = performance.now() - feed.heardAt;
    this.connection.classList.toggle("stale", age > 2000);
    setText(this.age, `${span(age)} old`);
    setText(this.replica, connection.state === "live"
      ? `from ${this.#replicaName()}` : "trying all replicas");
  }

  #replicaName() {
    const host = this.base === "" ? location.host : new URL(this.base).host;
    const port = host.split(":").at(-1);
    const replicas = this.app.fleet.status.replicas ?? [];
    const known = replicas.find(({ httpAddress }) => httpAddress?.endsWith(`:${port}`));
    return known ? known.identity || host : host;
  }

  #drawLeader() {
    const { status } = this.app.fleet;
    const replicas = status.replicas ?? [];
    const leader = replicas.find(({ leads }) => leads);
    const name = leader?.identity || leader?.address || status.leaderAddress || status.address;
    if (!name) return;
    const others = replicas.length - 1;
    const standbys = others > 0 ? `, ${count(others)} standing by` : "";
    setText(this.leader, `${name} leads, epoch ${status.epoch ?? "?"}${standbys}`);
    setAttribute(this.leader, "title", replicas
      .map((replica) => `${replica.identity ?? ""} ${replica.address ?? ""}`.trim()).join("\n"));
  }

  #drawProblems() {
    const { status } = this.app.fleet;
    const items = [
      ...(status.problems ?? []).map((problem) => ({ problem })),
      ...(status.replicas ?? []).filter(({ warning }) => warning).map(warningOfReplica),
      ...(status.otherCells ?? []).map(warningOfCell),
    ];
    const keyOf = (item) => JSON.stringify(item);
    keyed(this.first, items.slice(0, OPEN), keyOf, problemLine);
    keyed(this.rest, items.slice(OPEN), keyOf, problemLine);
    this.problemCount = items.length;
    this.more.hidden = items.length <= OPEN;
    setText(this.summary, `${count(items.length - OPEN)} more`);
    this.problems.hidden = this.refused.hidden && items.length === 0;
  }
}

function warningOfReplica({ identity, address, warning }) {
  return { warning: `Replica ${identity || address}: ${warning}` };
}

function warningOfCell({ cluster, worker, coordinator, cell }) {
  return {
    warning: `The agent of ${cluster}/${worker} also reaches the coordinator ${coordinator} of `
      + `another cell (${cell}): it may grant the same budget and streams. Keep one store of `
      + "leadership for one fleet.",
  };
}

function problemLine({ problem, warning }) {
  if (warning) return el("li", { class: "notice warn", "data-warning": true }, warning);
  const { file = "", line = 0, column = 0, field = "", message = "", dueSeconds = 0 } = problem;
  const place = [file, line || null, line ? column || null : null].filter(Boolean).join(":");
  return el("li", { class: "notice bad", "data-problem": file },
    el("span", { class: "label" }, "Manifest"),
    el("code", {}, place),
    field && el("code", { class: "field" }, field),
    el("span", {}, message),
    dueSeconds > 0 && el("span", { class: "muted" },
      `comes into force by itself in ${span(dueSeconds * 1000)}`));
}
