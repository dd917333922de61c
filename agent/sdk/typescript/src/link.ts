/**
 * The link to the agent: it watches the lease, and connects again when the connection breaks.
 *
 * Invariant: a worker sees a lease, or asks for a job, only after the agent's present process knows
 * this start and the running jobs. One process of the agent is one *era*.
 */

import { startOf, type Agent } from "./agent.js";
import type { Changes } from "./changes.js";
import { clock } from "./clock.js";
import type { Connection, LeaseKind } from "./connection.js";
import { NoAnswer, isCallFailure } from "./errors.js";
import { wordsOf, type Log } from "./log.js";
import type { Lease } from "./messages.js";
import { Pause } from "./pause.js";

// After this long without an agent the log says so.
const WARN_AFTER_MS = 3_000;

/** What the link needs to know of its worker, and tells it. */
export interface LinkedWorker {
  /** The ids of the jobs that run. */
  running(): ReadonlySet<string>;
  /** The kinds of leases that this process consumes. */
  consumed(): ReadonlySet<LeaseKind>;
  /** Takes the newest lease, which was requested at `askedMs`. */
  apply(askedMs: number, lease: Lease): void;
}

/** What the link is made of. */
export interface LinkParts {
  readonly agent: Agent;
  readonly changes: Changes;
  readonly log: Log;
  /** Undefined where another process of this worker announces the start. */
  readonly startId: string | undefined;
  readonly worker: LinkedWorker;
}

/** Follows the lease. */
export class Link {
  /** Counts the agent's processes, as far as this worker has met them. */
  era = 0;
  /** Whether this era's process knows this start and its jobs. */
  up = false;
  readonly #parts: LinkParts;
  #started: boolean;
  // The kinds that the watch lists. The agent takes what it lists for what the worker may work on:
  // only the kinds that this process consumes are requested.
  #shown: ReadonlySet<LeaseKind> = new Set();
  #watch: Connection | undefined;
  #control: Connection | undefined;
  // Jobs that ran when this era began: an agent without a journal knows only their number.
  #unnamed = new Set<string>();
  #closed = false;
  // Why the last attempt to reach the agent has failed.
  #failure: unknown;

  constructor(parts: LinkParts) {
    this.#parts = parts;
    this.#started = parts.startId === undefined;
  }

  /** Follows the lease until the link is closed. */
  async run(): Promise<void> {
    const { agent, changes, log } = this.#parts;
    const pause = new Pause();
    // When to warn; undefined once the log has said that there is no agent.
    let warnAtMs: number | undefined = clock.nowMs() + WARN_AFTER_MS;
    while (!this.#closed) {
      try {
        await this.#follow();
        pause.reset();
      } catch (error) {
        this.#failure = error;
        if (this.up) {
          warnAtMs = clock.nowMs() + WARN_AFTER_MS;
          pause.reset();
        }
        if (!isCallFailure(error)) {
          // The link goes on all the same: without it no lease would be renewed or withdrawn.
          log.error(`the connection to the agent at ${agent.address} failed`, error);
        } else if (warnAtMs !== undefined && clock.nowMs() >= warnAtMs) {
          log.warn(`${this.outage()}; still trying`);
          warnAtMs = undefined;
        } else {
          log.debug(`cannot connect to the agent at ${agent.address}: ${wordsOf(error)}`);
        }
      } finally {
        this.#down();
      }
      await changes.until(() => this.#closed, clock.nowMs() + pause.nextMs());
    }
  }

  /** Why the agent does not answer, and what to do. */
  outage(failure: unknown = this.#failure): string {
    const { agent } = this.#parts;
    const why = failure === undefined ? "it has not answered yet" : wordsOf(failure);
    return `cannot reach the agent at ${agent.address}: ${why} (${agent.advice()})`;
  }

  /** Ends the link, for good. */
  close(): void {
    this.#closed = true;
    this.cut();
    this.#parts.changes.notify();
  }

  /** Ends this era: the link is made again. */
  cut(): void {
    this.#watch?.close();
    this.#control?.close();
  }

  /**
   * Records that the process of `era` has confirmed a job's end. False if a later process has taken
   * over, which must confirm it as well. A process without ids gets the lower number.
   */
  async confirmEnd(jobId: string, era: number): Promise<boolean> {
    if (this.era !== era) {
      return false;
    }
    if (!this.#unnamed.delete(jobId)) {
      return true;
    }
    const control = this.#control;
    try {
      if (control !== undefined) {
        // No new connection: it might reach a process that knows less than this one.
        await this.#announceStart(control, this.#unnamed.size);
      }
    } catch (error) {
      this.#parts.log.debug(`cannot report that fewer jobs run: ${wordsOf(error)}`);
      if (this.#control === control) {
        this.cut();
      }
    }
    return true;
  }

  async #follow(): Promise<void> {
    const { agent, changes, log, startId, worker } = this.#parts;
    if (!this.#started && startId !== undefined) {
      // Before the first lease: what the previous process owned is not taken for this one's.
      await agent.start(startId, 0);
      this.#started = true;
    }
    const watch = this.#opened(await agent.connect());
    this.#watch = watch;
    const shown = (this.#shown = worker.consumed());
    const askedMs = clock.nowMs();
    const leases = await watch.watch(shown);
    const control = this.#opened(await agent.connect());
    this.#control = control;
    this.era += 1;
    this.#unnamed = new Set(worker.running());
    // It may be another process than before, with or without a journal: this is right for both.
    await this.#announceStart(control, this.#unnamed.size);
    const controlAskedMs = clock.nowMs();
    const first = await control.readLease(shown);
    this.up = true;
    log.info(`connected to the agent at ${agent.address} (era ${this.era})`);
    worker.apply(controlAskedMs, first);
    changes.notify();
    for await (const lease of leases) {
      // An older lease was sent before the start was announced, and is that of another start.
      if (lease.version >= first.version) {
        worker.apply(askedMs, lease);
      }
      if (this.#closed) {
        return;
      }
    }
  }

  /** The connection, unless the link was closed while it was opened. */
  #opened(connection: Connection): Connection {
    if (this.#closed) {
      connection.close();
      throw new NoAnswer("the worker was closed");
    }
    return connection;
  }

  async #announceStart(control: Connection, running: number): Promise<void> {
    const { startId } = this.#parts;
    if (startId !== undefined) {
      await control.call("POST", "/v1/start", { body: startOf(startId, running) });
    }
  }

  #down(): void {
    const { agent, changes, log, worker } = this.#parts;
    const consumed = worker.consumed();
    const consumesMore = [...consumed].some((kind) => !this.#shown.has(kind));
    if (this.up && !this.#closed && !consumesMore) {
      log.warn(`the connection to the agent at ${agent.address} is lost`);
    }
    this.cut();
    this.#watch = this.#control = undefined;
    this.up = false;
    changes.notify();
  }
}
