/** A worker's side of its leases: jobs to run, streams and bindings to own, and the end of all. */

import { setTimeout as sleep } from "node:timers/promises";
import { inspect } from "node:util";

import { Agent } from "./agent.js";
import { bindingKind, type Binding } from "./bindings.js";
import { Changes } from "./changes.js";
import { clock } from "./clock.js";
import { ANSWER_MS, type LeaseKind } from "./connection.js";
import { Closed, Draining, NoAnswer, Refused, isCallFailure } from "./errors.js";
import { Jobs, newId, type Job, type JobOptions } from "./jobs.js";
import { Link } from "./link.js";
import { stderrLog, wordsOf, type Log } from "./log.js";
import type { Lease, ListedLease, ShareLease, StreamLease } from "./messages.js";
import { Notifier } from "./notifier.js";
import { Owning, type Owned } from "./owned.js";
import { Pause } from "./pause.js";
import { streamKind, type Stream } from "./streams.js";

// How long `close` waits for what the agent has not confirmed, in milliseconds.
const CLOSE_MS = 2_000;
// How long one whose handler has failed is kept before it is released: the next owner, this worker
// perhaps, fails no faster than this.
const FAILED_MS = 1_000;
const STOP_BEFORE_MS = 1_000;
const BEAT_WITHIN_MS = 30_000;
const BEAT_WITHIN_MS_MIN = 1_000;
// How often a worker says that it lives, within the time in which it promises to.
const BEATS_WITHIN = 3;
// How long `close` waits until the agent knows that no further beat comes.
const LAST_BEAT_MS = 1_000;

/** How a worker connects to its agent. */
export interface WorkerOptions {
  /**
   * `http://HOST:PORT` or `unix:PATH`. The default is LEASEHOLD_ADDR, then LEASEHOLD_SOCKET, then
   * `http://127.0.0.1:7411`.
   */
  readonly address?: string | undefined;
  /** Whether this process announces the worker's start: one process of a worker does. */
  readonly start?: boolean | undefined;
  /**
   * Streams and bindings are lost so many milliseconds before their leases end, or when a tenth of
   * their time is left, whichever is later. The default is 1000.
   */
  readonly stopBeforeMs?: number | undefined;
  /**
   * The worker tells its agent that it lives. If the agent hears nothing for so many milliseconds,
   * the worker gets no job, and its streams and bindings go to other workers, until it is heard
   * again: so a process that hangs keeps nothing. The default is 30,000, the least 1000. Null for a
   * worker that may block its event loop for longer; then its leases follow its agent.
   */
  readonly beatWithinMs?: number | null | undefined;
  /** Where warnings go; the default writes them to stderr. */
  readonly log?: Log | undefined;
}

/** How to wait for what a loop yields. */
export interface LoopOptions {
  /** Ends the loop: it throws the signal's reason where it waits for the next one. */
  readonly signal?: AbortSignal | undefined;
}

/** How to drain. */
export interface DrainOptions {
  /** Wait until the drain has ended. */
  readonly wait?: boolean | undefined;
  /** Ends the wait: the call rejects with the signal's reason. The drain goes on. */
  readonly signal?: AbortSignal | undefined;
}

/** Works on what it is given. */
export type Handler<T> = (given: T) => void | PromiseLike<unknown>;

/**
 * A worker, from its start to its drain.
 *
 * It keeps the process running until it is closed.
 */
export class Worker {
  readonly #agent: Agent;
  readonly #changes = new Changes();
  readonly #log: Log;
  readonly #jobs: Jobs;
  readonly #link: Link;
  readonly #streams: Owning<StreamLease, Stream>;
  readonly #bindings: Owning<ShareLease, Binding>;
  readonly #beating: Promise<void>;
  #lease: Lease | undefined;
  #isClosed = false;
  #closing: Promise<void> | undefined;

  /** Begins at once. Throws a TypeError or a RangeError for options that are invalid. */
  constructor(options: WorkerOptions = {}) {
    const { stopBeforeMs = STOP_BEFORE_MS, beatWithinMs = BEAT_WITHIN_MS } = options;
    if (!isAtLeast(stopBeforeMs, 0)) {
      throw new RangeError(`invalid stopBeforeMs ${inspect(stopBeforeMs)}: use 0 or more`);
    }
    if (beatWithinMs !== null && !isAtLeast(beatWithinMs, BEAT_WITHIN_MS_MIN)) {
      const shown = inspect(beatWithinMs);
      throw new RangeError(`invalid beatWithinMs ${shown}: use null, or 1000 or more`);
    }
    this.#log = options.log ?? stderrLog;
    this.#agent = new Agent(options.address);
    this.#jobs = new Jobs(this.#agent, this.#changes);
    this.#link = this.#newLink(options.start === false ? undefined : newId());
    // The watch requests only the kinds that are consumed; another kind needs a new watch.
    const begun = (): void => this.#link.cut();
    this.#streams = new Owning(streamKind, this.#changes, this.#log, stopBeforeMs, begun);
    this.#bindings = new Owning(bindingKind, this.#changes, this.#log, stopBeforeMs, begun);
    for (const work of [this.#link.run(), this.#newNotifier().run(), ...this.#expiring()]) {
      this.#report(work);
    }
    this.#beating = beatWithinMs === null ? Promise.resolve() : this.#beat(beatWithinMs);
    this.#report(this.#beating);
  }

  /**
   * The newest lease; undefined before the first. It lists streams and bindings once `streams` and
   * `bindings` are consumed.
   */
  get lease(): Lease | undefined {
    return this.#lease;
  }

  /** Whether the worker drains. */
  get draining(): boolean {
    return this.#jobs.draining;
  }

  /**
   * Waits for a slot, and gives the job that may run now.
   *
   * Rejects with Draining when the worker drains, with Refused where there was no slot in time or
   * the id makes no sense, with Unreachable where the agent could not be asked in time, with
   * Closed, with a RangeError for an id that runs already, and with a TypeError for an id that is
   * no text or a `waitMs` that is no number.
   */
  job(id: string = newId(), options: JobOptions = {}): Promise<Job> {
    return this.#jobs.begin(this.#link, id, options);
  }

  /**
   * One job after another, each ended before the next, until the worker drains.
   *
   * Each holds its slot from when it is given out. Where there is no work for it, call `job.end()`
   * before you wait; or take the work first, and then `job`.
   */
  async *jobs({ signal }: LoopOptions = {}): AsyncGenerator<Job, void> {
    for (;;) {
      let job: Job;
      try {
        job = await this.job(newId(), { signal });
      } catch (error) {
        if (error instanceof Draining || error instanceof Closed) {
          return;
        }
        throw error;
      }
      try {
        yield job;
      } finally {
        void job.end();
      }
    }
  }

  /**
   * Calls `handler` for one job after another, for up to `concurrency` of them at a time as far as
   * the pool has slots; resolves when the worker has drained and the last handler has ended.
   *
   * A job whose handler fails is logged, and ends like any other. A handler without work calls
   * `job.end()` before it waits: each job holds its slot from the handler's begin.
   */
  async runJobs(handler: Handler<Job>, concurrency: number): Promise<void> {
    if (!Number.isInteger(concurrency) || concurrency < 1) {
      throw new RangeError(`invalid concurrency ${inspect(concurrency)}: use 1 or more`);
    }
    await Promise.all(Array.from({ length: concurrency }, () => this.#runJobs(handler)));
  }

  /**
   * Each stream once this worker owns it, until the worker drains.
   *
   * A stream is owned until it is released; or see `runStreams`.
   */
  streams(options: LoopOptions = {}): AsyncGenerator<Stream, void> {
    return each(this.#streams, options);
  }

  /**
   * Each share of a pipeline's node once this worker owns it, until the worker drains.
   *
   * A binding is owned until it is released, like a stream; or see `runBindings`.
   */
  bindings(options: LoopOptions = {}): AsyncGenerator<Binding, void> {
    return each(this.#bindings, options);
  }

  /**
   * Calls `handler` for each stream, for all of them at once; resolves when the worker has drained
   * and all handlers have ended.
   *
   * A handler works until `stream.stopping` aborts. When it ends, the stream is released.
   */
  runStreams(handler: Handler<Stream>): Promise<void> {
    return this.#runEach(this.streams(), handler);
  }

  /** The same for each binding. */
  runBindings(handler: Handler<Binding>): Promise<void> {
    return this.#runEach(this.bindings(), handler);
  }

  /**
   * Begins a drain; says how many jobs run. With `wait`, resolves at its end, with the number of
   * jobs that outlived its deadline. The agent is asked until it answers.
   */
  async drain({ wait = false, signal }: DrainOptions = {}): Promise<number> {
    const pause = new Pause();
    for (;;) {
      signal?.throwIfAborted();
      if (this.#isClosed) {
        throw new Closed();
      }
      try {
        return await this.#agent.drain(wait, signal);
      } catch (error) {
        const isStopping = error instanceof Refused && error.reason === "stopping";
        if (!isStopping && !(error instanceof NoAnswer)) {
          throw error;
        }
        this.#log.debug(`the agent did not answer the drain: ${wordsOf(error)}`);
      }
      await this.#changes.wait(pause.nextMs(), signal);
    }
  }

  /**
   * Ends all of this, once the agent has confirmed everything, or after `timeoutMs` milliseconds.
   *
   * Every loop over jobs, streams and bindings ends. What is still in hand is lost.
   */
  close(timeoutMs = CLOSE_MS): Promise<void> {
    this.#closing ??= this.#close(timeoutMs);
    return this.#closing;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  #newLink(startId: string | undefined): Link {
    const worker = {
      running: () => this.#jobs.running(),
      consumed: () => this.#consumed(),
      apply: (askedMs: number, lease: Lease) => this.#apply(askedMs, lease),
    };
    const [agent, changes, log] = [this.#agent, this.#changes, this.#log];
    return new Link({ agent, changes, log, startId, worker });
  }

  #newNotifier(): Notifier {
    return new Notifier({
      agent: this.#agent,
      changes: this.#changes,
      log: this.#log,
      link: this.#link,
      jobs: this.#jobs,
      releases: [this.#streams, this.#bindings],
      isClosed: () => this.#isClosed,
    });
  }

  #expiring(): readonly Promise<void>[] {
    return [this.#streams.expireLeases(), this.#bindings.expireLeases()];
  }

  /** Logs what ends work in the background: none of it fails unless this package has a defect. */
  #report(work: Promise<void>): void {
    work.catch((error: unknown) => this.#log.error("the worker has failed", error));
  }

  #consumed(): ReadonlySet<LeaseKind> {
    const all = [this.#streams, this.#bindings].filter((owning) => owning.consumed);
    return new Set(all.map((owning) => owning.kind.name));
  }

  #apply(askedMs: number, lease: Lease): void {
    this.#lease = lease;
    this.#jobs.draining = lease.draining;
    this.#streams.apply(askedMs, lease);
    this.#bindings.apply(askedMs, lease);
  }

  async #runJobs(handler: Handler<Job>): Promise<void> {
    for await (const job of this.jobs()) {
      try {
        await handler(job);
      } catch (error) {
        this.#log.error(`the handler of ${job} failed`, error);
      }
    }
  }

  async #runEach<Own extends Owned<ListedLease>>(
    all: AsyncIterable<Own>,
    handler: Handler<Own>,
  ): Promise<void> {
    const handled = new Set<Promise<void>>();
    for await (const own of all) {
      const one: Promise<void> = this.#handle(own, handler).finally(() => handled.delete(one));
      handled.add(one);
    }
    await Promise.all(handled);
  }

  async #handle<Own extends Owned<ListedLease>>(own: Own, handler: Handler<Own>): Promise<void> {
    try {
      await handler(own);
    } catch (error) {
      this.#log.error(`the handler of ${own} failed`, error);
      // It rejects when the lease is to be released earlier.
      await sleep(FAILED_MS, undefined, { signal: own.stopping }).catch(() => undefined);
    } finally {
      void own.release();
    }
  }

  /** Tells the agent that this process lives, as long as it does. */
  async #beat(withinMs: number): Promise<void> {
    for (;;) {
      await this.#changes.until(() => this.#link.up || this.#isClosed);
      const isLast = this.#isClosed;
      try {
        // One that has closed takes its promise back: it may have ended well.
        await this.#agent.beat(isLast ? 0 : withinMs, isLast ? LAST_BEAT_MS : ANSWER_MS);
      } catch (error) {
        if (!isCallFailure(error)) {
          throw error;
        }
        // An agent of an earlier release does not know the call.
        this.#log.debug(`cannot tell the agent that this worker lives: ${wordsOf(error)}`);
      }
      if (isLast) {
        return;
      }
      await this.#changes.until(() => this.#isClosed, clock.nowMs() + withinMs / BEATS_WITHIN);
    }
  }

  async #close(timeoutMs: number): Promise<void> {
    const untilMs = clock.nowMs() + timeoutMs;
    const all = [this.#jobs, this.#streams, this.#bindings];
    for (const one of all) {
      one.close();
    }
    this.#changes.notify();
    await this.#changes.until(() => !all.some((one) => one.isUnsettled()), untilMs);
    this.#isClosed = true;
    this.#link.close();
    // The last beat must not wait for long behind one that the agent does not answer.
    const late = setTimeout(() => this.#agent.cut(), LAST_BEAT_MS);
    await this.#beating.catch(() => undefined);
    clearTimeout(late);
    this.#agent.cut();
  }
}

function isAtLeast(value: unknown, least: number): boolean {
  return typeof value === "number" && value >= least && value < Infinity;
}

async function* each<Listed extends ListedLease, Own extends Owned<Listed>>(
  owning: Owning<Listed, Own>,
  { signal }: LoopOptions,
): AsyncGenerator<Own, void> {
  for (;;) {
    const own = await owning.take(signal);
    if (own === undefined) {
      return;
    }
    yield own;
  }
}
