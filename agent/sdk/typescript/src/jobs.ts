/**
 * Jobs: the slots that run, and the ends that the agent has not confirmed yet.
 *
 * Invariant: a job runs only after the agent's present process has admitted it, or learnt of it
 * when its era began. An end is repeated until the agent confirms it. While the agent may still
 * handle a request for a job, neither the job's end nor a second request is sent: they travel on
 * connections of their own, and a request that the agent handles last would admit a job that has
 * ended.
 */

import { randomBytes } from "node:crypto";
import { inspect } from "node:util";

import type { Agent } from "./agent.js";
import type { Changes } from "./changes.js";
import { clock } from "./clock.js";
import { Closed, Draining, NoAnswer, Refused, Unreachable } from "./errors.js";
import type { Link } from "./link.js";
import { PAUSE_MAX_MS, Pause } from "./pause.js";
import { Token } from "./token.js";

// How long the agent may hold one request for a slot.
const WAIT_MS_MAX = 10_000;
// At most this many requests for a slot are in flight; more wait here. The agent accepts 1024
// connections, and the end of a job must not wait behind requests for slots.
const SLOT_REQUESTS_MAX = 256;

/** How to wait for a slot. */
export interface JobOptions {
  /** How long to wait at most, in milliseconds; without it, for ever. */
  readonly waitMs?: number | undefined;
  /** Ends the wait: the call rejects with the signal's reason, and takes no slot. */
  readonly signal?: AbortSignal | undefined;
}

/** A job that may run, until its end. `using job = await worker.job()` ends it with its block. */
export class Job {
  /** Its id. */
  readonly id: string;
  /** The pool lease's token. */
  readonly token: Token;
  readonly #jobs: Jobs;

  /** @internal */
  constructor(jobs: Jobs, id: string, token: Token) {
    this.#jobs = jobs;
    this.id = id;
    this.token = token;
  }

  /**
   * Ends the job, at once. The promise resolves when the agent has confirmed that, or when the
   * worker is closed; it need not be awaited, and never rejects.
   */
  end(): Promise<void> {
    return this.#jobs.end(this);
  }

  [Symbol.dispose](): void {
    void this.end();
  }

  toString(): string {
    return `job ${this.id} under ${this.token}`;
  }
}

/** An id that no other job has. */
export function newId(): string {
  return randomBytes(16).toString("hex");
}

/** All jobs of this worker. */
export class Jobs {
  draining = false;
  closed = false;
  /** Ended, and not yet confirmed: never more than ran at once when the agent went away. */
  readonly unconfirmed = new Set<string>();
  readonly #agent: Agent;
  readonly #changes: Changes;
  readonly #running = new Map<string, Job>();
  readonly #pending = new Set<string>();
  /** The requests for slots that the agent may still handle, by the id of the job. */
  readonly #requests = new Map<string, AbortController>();

  constructor(agent: Agent, changes: Changes) {
    this.#agent = agent;
    this.#changes = changes;
  }

  /** The ids of jobs that run. */
  running(): ReadonlySet<string> {
    return new Set(this.#running.keys());
  }

  /** Whether a job waits to run, or has ended and the agent has not confirmed it. */
  isUnsettled(): boolean {
    return this.#pending.size > 0 || this.unconfirmed.size > 0;
  }

  /** Whether the agent may still handle a request for this job. */
  isRequested(id: string): boolean {
    return this.#requests.has(id);
  }

  /** The jobs whose unconfirmed ends may be sent now. */
  reportable(): readonly string[] {
    return [...this.unconfirmed].filter((id) => !this.isRequested(id));
  }

  /** See `Worker.job`. */
  async begin(link: Link, id: string, options: JobOptions): Promise<Job> {
    check(id, options);
    if (this.#running.has(id) || this.#pending.has(id)) {
      throw new RangeError(`the job "${id}" already runs or waits to run: use another id`);
    }
    this.#pending.add(id);
    const pending = new PendingJob(this, this.#changes, link, id, options);
    try {
      const token = await pending.admit();
      const job = new Job(this, id, token);
      this.#running.set(id, job);
      return job;
    } catch (error) {
      if (pending.unsure) {
        this.unconfirmed.add(id);
      }
      throw error;
    } finally {
      this.#pending.delete(id);
      this.#changes.notify();
    }
  }

  /** Ends the job and frees its slot. Idempotent. */
  async end(job: Job): Promise<void> {
    if (this.#running.get(job.id) === job) {
      this.#running.delete(job.id);
      this.unconfirmed.add(job.id);
      this.#changes.notify();
    }
    await this.#changes.until(() => this.closed || !this.unconfirmed.has(job.id));
  }

  /** Asks the agent once, and lets it wait for as long as `waitMs` says. */
  async ask(id: string, waitMs: () => number, caller: AbortSignal | undefined): Promise<Token> {
    while (this.#requests.size >= SLOT_REQUESTS_MAX && !this.closed && !caller?.aborted) {
      const leftMs = waitMs();
      if (leftMs === 0) {
        throw new Refused("no_slot", `${SLOT_REQUESTS_MAX} jobs wait before this one`);
      }
      await this.#changes.wait(leftMs, caller);
    }
    const request = new AbortController();
    const abort = (): void => request.abort();
    if (this.closed || caller?.aborted) {
      abort();
    }
    caller?.addEventListener("abort", abort);
    this.#requests.set(id, request);
    const over = (): void => {
      this.#requests.delete(id);
      this.#changes.notify();
    };
    try {
      return await this.#agent.beginJob(id, waitMs(), request.signal, over);
    } finally {
      caller?.removeEventListener("abort", abort);
    }
  }

  /** No job begins any more. */
  close(): void {
    this.closed = true;
    for (const request of this.#requests.values()) {
      request.abort();
    }
  }
}

function check(id: string, { waitMs }: JobOptions): void {
  if (typeof id !== "string" || !isWellFormed(id)) {
    throw new TypeError(`invalid job id ${inspect(id)}: use a text, or leave it out`);
  }
  if (waitMs !== undefined && !(typeof waitMs === "number" && Number.isFinite(waitMs))) {
    throw new TypeError(`invalid waitMs ${inspect(waitMs)}: use milliseconds, or leave it out`);
  }
}

/** Whether the text has no half of a pair of surrogates, which no path can contain. */
function isWellFormed(id: string): boolean {
  try {
    return encodeURIComponent(id).length >= 0;
  } catch {
    return false;
  }
}

/** One job on its way to its slot. */
class PendingJob {
  /** Whether the agent may have admitted it without our knowing. */
  unsure = false;
  readonly #jobs: Jobs;
  readonly #changes: Changes;
  readonly #link: Link;
  readonly #id: string;
  readonly #untilMs: number | undefined;
  readonly #signal: AbortSignal | undefined;
  readonly #pause = new Pause();

  constructor(jobs: Jobs, changes: Changes, link: Link, id: string, options: JobOptions) {
    this.#jobs = jobs;
    this.#changes = changes;
    this.#link = link;
    this.#id = id;
    this.#untilMs = options.waitMs === undefined ? undefined : clock.nowMs() + options.waitMs;
    this.#signal = options.signal;
  }

  /** Asks until the agent admits the job. Throws if it refuses for good, or if the time is over. */
  async admit(): Promise<Token> {
    for (;;) {
      const era = await this.#linkedEra();
      try {
        this.unsure = true;
        const waitMs = (): number => Math.floor(this.#leftMs(WAIT_MS_MAX));
        const token = await this.#jobs.ask(this.#id, waitMs, this.#signal);
        // A process that took over meanwhile was not told of this job: ask it.
        if (this.#link.era === era && !this.#jobs.closed) {
          return token;
        }
      } catch (error) {
        await this.#consider(error);
      }
    }
  }

  /** Waits until the agent may be asked; the era in which it is. */
  async #linkedEra(): Promise<number> {
    for (;;) {
      this.#signal?.throwIfAborted();
      if (this.#jobs.closed) {
        throw new Closed();
      }
      if (this.#jobs.draining) {
        throw new Draining();
      }
      // An unconfirmed end of an earlier job of the same id would end this one.
      const isEnding = this.#jobs.unconfirmed.has(this.#id);
      if (this.#link.up && !isEnding && !this.#jobs.isRequested(this.#id)) {
        return this.#link.era;
      }
      if (this.#isOver()) {
        throw new Unreachable(this.#link.outage());
      }
      await this.#changes.wait(this.#leftMs(PAUSE_MAX_MS), this.#signal);
    }
  }

  /** Throws what ends the wait for a slot; else the agent may be asked again. */
  async #consider(error: unknown): Promise<void> {
    if (error instanceof NoAnswer) {
      this.#signal?.throwIfAborted();
      if (this.#isOver()) {
        throw new Unreachable(this.#link.outage(error), { cause: error });
      }
      await this.#waitBeforeRetry();
      return;
    }
    if (!(error instanceof Refused)) {
      throw error;
    }
    this.unsure = false;
    if (["draining", "invalid"].includes(error.reason) || this.#isOver()) {
      throw error;
    }
    // For these reasons the agent has let the request wait; after others the pause is here.
    if (!["no_slot", "no_lease", "failing"].includes(error.reason)) {
      await this.#waitBeforeRetry();
    }
  }

  /** Waits for the whole pause: the requests of other jobs are changes, too. */
  async #waitBeforeRetry(): Promise<void> {
    const isEnding = (): boolean => this.#jobs.closed || this.#jobs.draining;
    const untilMs = clock.nowMs() + this.#leftMs(this.#pause.nextMs());
    await this.#changes.until(isEnding, untilMs, this.#signal);
  }

  #isOver(): boolean {
    return this.#untilMs !== undefined && clock.nowMs() >= this.#untilMs;
  }

  #leftMs(mostMs: number): number {
    if (this.#untilMs === undefined) {
      return mostMs;
    }
    return Math.max(0, Math.min(mostMs, this.#untilMs - clock.nowMs()));
  }
}
