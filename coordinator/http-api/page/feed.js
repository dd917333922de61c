// Keeps a stream of the fleet and one of its changes open, and goes on with another replica when
// one ends.

import { Refusal, refusalOf } from "./api.js";
import { readEvents } from "./sse.js";

/** The leader sends at least a message a second: silence for this long is a dead connection. */
const SILENCE = 3000;
/** How often another replica is tried while none answers. */
const TRY_EVERY = 250;
/** Once nothing has answered for this long, a try a second is enough. */
const LONG = 30_000;
/** A page that nobody sees gives its connections back after this time: browsers allow few. */
const HIDDEN = 60_000;

/** The only cluster to show, as in ?cluster=team/builds; empty for all. */
export const ONLY = new URLSearchParams(location.search).get("cluster") ?? "";
const CLUSTER = new URLSearchParams(ONLY && { cluster: ONLY });

/**
 * @typedef {object} FeedState
 * @property {"connecting"|"live"|"reconnecting"} state
 * @property {string} base where it is connected; empty for the page's own origin
 * @property {Refusal|null} refusal why the last try failed, if a coordinator said so
 */

/** The connection to the coordinators. */
export class Feed {
  /**
   * @param {object} handlers
   * @param {(message: object, first: boolean) => void} handlers.onFleet `first` with the first
   *     message of a connection, which begins from everything
   * @param {(change: object) => void} handlers.onChange
   * @param {(state: FeedState) => void} handlers.onState
   */
  constructor(handlers) {
    this.handlers = handlers;
    this.candidates = [""];
    this.attempts = new Map();
    this.notBefore = new Map();
    this.live = null;
    this.wasLive = false;
    this.refusal = null;
    this.next = 0;
    this.lostAt = 0;
    this.lastTry = 0;
    this.lastMessage = 0;
    this.lastChangeAlive = 0;
    this.changes = null;
    this.timer = 0;
    this.hiddenTimer = 0;
  }

  /** Connects, and stays connected. */
  start() {
    document.addEventListener("visibilitychange", () => this.#visibility());
    // A browser may keep a page that was left, with its connections: a third one would get none.
    addEventListener("pagehide", () => this.#stop());
    addEventListener("pageshow", () => this.#run());
    this.#run();
  }

  /** Where questions go: the replica that answers at present. */
  get base() {
    return this.live?.base ?? "";
  }

  /** When the last message came, as performance.now() has it; 0 before the first. */
  get heardAt() {
    return this.lastMessage;
  }

  /**
   * Learns where the replicas' HTTP ports are.
   * @param {{httpAddress?: string}[]} replicas
   */
  learn(replicas) {
    const others = replicas.map(({ httpAddress }) => httpAddress ?? "")
      .filter((address) => address !== "")
      .map(originOf)
      .filter((origin) => origin !== location.origin);
    this.candidates = [...new Set(["", ...others])];
  }

  #run() {
    if (this.timer) return;
    this.lostAt = performance.now();
    this.timer = setInterval(() => this.#tick(), TRY_EVERY);
    this.#report();
    this.#tryNext();
  }

  #stop() {
    clearInterval(this.timer);
    this.timer = 0;
    for (const attempt of this.attempts.values()) attempt.controller.abort();
    this.attempts.clear();
    this.live?.controller.abort();
    this.live = null;
    this.changes?.abort();
    this.changes = null;
    this.#report();
  }

  #visibility() {
    clearTimeout(this.hiddenTimer);
    if (document.hidden) this.hiddenTimer = setTimeout(() => this.#stop(), HIDDEN);
    else this.#run();
  }

  #tick() {
    const now = performance.now();
    if (this.live) {
      if (now - this.lastMessage > SILENCE) this.live.controller.abort();
      return;
    }
    // One that hangs does not keep the others from being tried, but its place is needed again.
    for (const attempt of this.attempts.values()) {
      if (now - attempt.since > SILENCE) attempt.controller.abort();
    }
    const interval = now - this.lostAt > LONG ? 1000 : 0;
    if (now - this.lastTry >= interval) this.#tryNext();
  }

  #tryNext() {
    for (let tried = 0; tried < this.candidates.length; tried += 1) {
      const base = this.candidates[this.next % this.candidates.length];
      this.next += 1;
      if (this.#mayTry(base)) {
        this.#attempt(base);
        return;
      }
    }
  }

  #mayTry(base) {
    return !this.attempts.has(base) && performance.now() >= (this.notBefore.get(base) ?? 0);
  }

  async #attempt(base) {
    const attempt = { base, controller: new AbortController(), since: performance.now() };
    this.attempts.set(base, attempt);
    this.lastTry = attempt.since;
    let failure = null;
    try {
      const response = await fetch(`${base}/api/v1/fleet?${CLUSTER}`, {
        cache: "no-store",
        signal: attempt.controller.signal,
      });
      if (!response.ok) throw await refusalOf(response);
      await readEvents(response.body, (event) => this.#message(attempt, event));
    } catch (error) {
      failure = error;
    }
    // What is still to come of this connection is not wanted any more.
    attempt.controller.abort();
    if (this.attempts.get(base) === attempt) this.attempts.delete(base);
    this.#ended(attempt, failure);
  }

  #message(attempt, event) {
    if (attempt.controller.signal.aborted) return;
    const content = JSON.parse(event.data);
    if (event.name === "error") throw new Refusal(0, content.code ?? "", content.message ?? "");
    const first = this.live !== attempt;
    if (first) this.#won(attempt);
    this.lastMessage = performance.now();
    this.handlers.onFleet(content, first);
  }

  // The first replica that sends a message is the one to go on with.
  #won(attempt) {
    for (const other of this.attempts.values()) {
      if (other !== attempt) other.controller.abort();
    }
    this.attempts.clear();
    this.live = attempt;
    this.wasLive = true;
    this.refusal = null;
    this.notBefore.clear();
    this.#report();
    this.#watchChanges(attempt);
  }

  #ended(attempt, failure) {
    const wasLive = this.live === attempt;
    if (!wasLive && this.live) return;
    if (failure instanceof Refusal) {
      this.refusal = failure;
      const pause = failure.denied ? 5000 : failure.status === 503 ? 250 : 1000;
      if (!wasLive) this.notBefore.set(attempt.base, performance.now() + pause);
    }
    if (wasLive) {
      this.live = null;
      this.lostAt = performance.now();
    }
    this.#report();
    if (!wasLive || !this.timer) return;
    // The others at once, then all of them in turn.
    this.next = 0;
    const others = this.candidates.filter((base) => base !== attempt.base);
    for (const base of others.length > 0 ? others : this.candidates) {
      if (this.#mayTry(base)) this.#attempt(base);
    }
  }

  async #watchChanges(attempt) {
    this.changes?.abort();
    const controller = new AbortController();
    this.changes = controller;
    while (this.live === attempt && !controller.signal.aborted) {
      try {
        await this.#readChanges(attempt.base, controller.signal);
      } catch {
        // The stream of the fleet says what is wrong; this one only comes back.
      }
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }

  async #readChanges(base, signal) {
    const gap = (performance.now() - this.lastChangeAlive) / 1000 + 30;
    const replay = this.lastChangeAlive === 0 ? 3600 : Math.min(3600, Math.ceil(gap));
    const response = await fetch(`${base}/api/v1/changes?replay=${replay}s&${CLUSTER}`, {
      cache: "no-store",
      signal,
    });
    if (!response.ok) return;
    await readEvents(response.body, (event) => {
      if (signal.aborted || event.name === "error") return;
      this.lastChangeAlive = performance.now();
      this.handlers.onChange(JSON.parse(event.data));
    });
  }

  #report() {
    const state = this.live ? "live" : this.wasLive ? "reconnecting" : "connecting";
    this.handlers.onState({ state, base: this.base, refusal: this.refusal });
  }
}

// The page may talk to the host that it came from only. Replicas that name a loopback address are
// on that host, whatever the browser calls it.
function originOf(address) {
  const colon = address.lastIndexOf(":");
  const host = address.slice(0, colon);
  const local = /^(127\.|0\.0\.0\.0$|localhost$|\[::1?\]$)/.test(host);
  return `http://${local ? location.hostname : host}${address.slice(colon)}`;
}
