// A list of streams, page by page, that follows what changes of them.

import { atMostEvery, el, keyed, setAttribute, setText } from "./dom.js";
import { count } from "./format.js";
import { explained } from "./prose.js";

const PAGE = 100;
/** Pages that are asked for at once in search of matches, which may be far between. */
const ROUNDS = 10;
/** A row that has moved stands out for this long. */
const FRESH = 4000;

const PHASES = {
  CLAIM_PHASE_HELD: "owned",
  CLAIM_PHASE_REVOKING: "revoked",
  CLAIM_PHASE_LAPSING: "ends with its time",
};

/** A list of the streams of a set that a query selects. */
export class StreamList {
  /**
   * @param {import("./app.js").App} app
   * @param {object} options
   * @param {string} options.set
   * @param {Object<string, any>} options.query worker, search, unowned
   * @param {boolean} [options.ownedOnly] the others are listed elsewhere
   * @param {string} options.label for screen readers
   * @param {string} options.none what is said if there are none
   * @param {() => void} [options.onDrawn]
   */
  constructor(app, options) {
    this.app = app;
    this.options = options;
    this.streams = new Map();
    this.owners = new Map();
    this.token = "";
    this.wanted = PAGE;
    this.request = null;
    this.rows = el("tbody");
    this.status = el("p", { class: "muted", role: "status" }, "Asking …");
    this.trouble = el("p", { class: "notice bad", role: "alert", hidden: true });
    this.moreButton = el("button", {
      hidden: true, onclick: () => this.#loadMore(),
    }, "Load more");
    this.table = el("table", { hidden: true, "aria-label": options.label },
      el("thead", {}, el("tr", {},
        ["Stream", "Owner", "Lease", "Planned on"].map((name) => (
          el("th", { scope: "col" }, name))))),
      this.rows);
    this.node = el("div", { class: "stream-list" },
      this.trouble, this.table, this.status, this.moreButton);
    this.refreshSoon = atMostEvery(1000, () => this.#load(this.wanted));
    this.refreshLong = atMostEvery(5000, () => this.#load(this.wanted));
    this.#load(PAGE);
  }

  /** Asks again for what is shown, but not too often. */
  refresh() {
    // A long list costs the leader more.
    if (this.wanted > 500) this.refreshLong();
    else this.refreshSoon();
  }

  /**
   * Shows changes at once; what the leader says of the streams follows.
   * @param {object[]} changes of this set
   */
  apply(changes) {
    let shown = false;
    for (const change of changes) {
      const stream = this.streams.get(change.stream);
      if (!stream) continue;
      shown = true;
      this.streams.set(change.stream, { ...stream, claims: claimsAfter(stream, change) });
    }
    if (shown) this.#draw();
    this.refresh();
  }

  /** Ends it. */
  leave() {
    this.request?.abort();
    this.refreshSoon.cancel();
    this.refreshLong.cancel();
  }

  #loadMore() {
    this.wanted = this.streams.size + PAGE;
    this.#load(this.wanted, this.token);
  }

  async #load(wanted, from = "") {
    this.request?.abort();
    const request = new AbortController();
    this.request = request;
    const { set, query } = this.options;
    const found = new Map(from === "" ? [] : this.streams);
    let token = from;
    try {
      for (let round = 0; round < ROUNDS; round += 1) {
        const pageSize = Math.max(PAGE, Math.min(1000, wanted - found.size));
        const page = await this.app.api.streams(
          { set, ...query, pageSize, pageToken: token }, request.signal);
        for (const stream of page.streams ?? []) {
          if (this.#belongs(stream)) found.set(stream.name, stream);
        }
        token = page.nextPageToken ?? "";
        if (token === "" || found.size >= wanted) break;
      }
      this.trouble.hidden = true;
    } catch (error) {
      if (request.signal.aborted) return;
      this.trouble.hidden = false;
      setText(this.trouble, error.message);
      // During a failover nobody answers. It asks again by itself.
      this.refresh();
      return;
    }
    if (request.signal.aborted) return;
    this.streams = found;
    this.token = token;
    this.#draw();
  }

  #belongs(stream) {
    return !this.options.ownedOnly || (stream.claims ?? []).length > 0;
  }

  #draw() {
    const streams = [...this.streams.values()].filter((stream) => this.#belongs(stream));
    keyed(this.rows, streams, ({ name }) => name,
      (stream) => this.#row(stream), (row, stream) => this.#fill(row, stream));
    this.table.hidden = streams.length === 0;
    this.moreButton.hidden = this.token === "";
    const more = this.token === "" ? "" : ", there may be more";
    setText(this.status, streams.length === 0 && this.token === ""
      ? this.options.none : `${count(streams.length)} shown${more}`);
    this.options.onDrawn?.();
  }

  #row({ name }) {
    const { set } = this.options;
    return el("tr", { "data-stream": `${set}/${name}` },
      el("td", { "data-label": "Stream" },
        explained(this.app, { kind: "stream", names: [set, name] }, name),
        el("span", { class: "muted note" }), el("p", { class: "reason" })),
      el("td", { "data-label": "Owner" }),
      el("td", { "data-label": "Lease", class: "figure" }),
      el("td", { "data-label": "Planned on" }));
  }

  #fill(row, stream) {
    const claims = stream.claims ?? [];
    const claim = claims.find(({ phase }) => phase === "CLAIM_PHASE_HELD") ?? claims[0];
    const owner = claim?.worker ?? "";
    const [first, ownerCell, lease, planned] = row.children;
    this.#drawWorker(ownerCell, stream.cluster, owner, "nobody");
    this.#drawWorker(planned, stream.cluster, stream.planned ?? "", "nowhere");
    setText(lease, claims.map(({ token, phase, timeless }) => (
      `${token ?? ""} ${PHASES[phase] ?? ""}${timeless ? ", has no end" : ""}`)).join("; "));
    setText(first.children[1], notesOf(stream));
    setText(first.children[2], stream.reason ?? "");
    const before = this.owners.get(stream.name);
    setAttribute(row, "data-owner", owner);
    row.classList.toggle("unowned", owner === "");
    if (before !== undefined && before !== owner) {
      row.classList.add("moved");
      setTimeout(() => row.classList.remove("moved"), FRESH);
    }
    this.owners.set(stream.name, owner);
  }

  #drawWorker(cell, cluster, worker, none) {
    if (cell.dataset.name !== worker) {
      cell.dataset.name = worker;
      cell.replaceChildren(worker === "" ? el("span", { class: "muted" }, none)
        : explained(this.app, { kind: "worker", names: [cluster ?? "", worker] }, worker));
    }
  }
}

function claimsAfter({ claims = [] }, { kind, worker = "", token }) {
  const others = claims.filter((claim) => claim.worker !== worker);
  switch (kind) {
    case "CHANGE_KIND_STREAM_GRANTED":
      return [...others, { worker, token, phase: "CLAIM_PHASE_HELD" }];
    case "CHANGE_KIND_STREAM_REVOKED":
      return [...others, { worker, token, phase: "CLAIM_PHASE_REVOKING" }];
    default:
      return others;
  }
}

function notesOf({ weight = 1, dedicated }) {
  const notes = [];
  if (weight > 1) notes.push(`weight ${weight}`);
  if (dedicated) notes.push("wants a worker of its own");
  return notes.join(", ");
}
