/** Sends ends of jobs and releases of leases until the agent has confirmed them. */

import type { Agent } from "./agent.js";
import type { Changes } from "./changes.js";
import type { LeaseKind } from "./connection.js";
import { Refused, isCallFailure } from "./errors.js";
import type { Jobs } from "./jobs.js";
import type { Link } from "./link.js";
import { wordsOf, type Log } from "./log.js";
import type { Release } from "./owned.js";
import { Pause } from "./pause.js";

/** Where releases wait for their confirmation. */
export interface Releases {
  readonly kind: { readonly name: LeaseKind };
  /** The releases that the agent has not confirmed. */
  unconfirmed(): readonly Release[];
  /** Records that the agent has confirmed the release. */
  confirm(release: Release): void;
}

/** What the notifier is made of. */
export interface NotifierParts {
  readonly agent: Agent;
  readonly changes: Changes;
  readonly log: Log;
  readonly link: Link;
  readonly jobs: Jobs;
  readonly releases: readonly Releases[];
  /** Whether the worker is closed. */
  readonly isClosed: () => boolean;
}

/** The notifier. */
export class Notifier {
  readonly #parts: NotifierParts;

  constructor(parts: NotifierParts) {
    this.#parts = parts;
  }

  /** Notifies until the worker is closed. */
  async run(): Promise<void> {
    const { changes, isClosed, link } = this.#parts;
    const pause = new Pause();
    for (;;) {
      await changes.until(() => isClosed() || (link.up && this.#hasUnconfirmed()));
      if (isClosed()) {
        return;
      }
      if (await this.#sendAll(link.era)) {
        pause.reset();
      } else if (!isClosed()) {
        await changes.wait(pause.nextMs());
      }
    }
  }

  #hasUnconfirmed(): boolean {
    const { jobs, releases } = this.#parts;
    return jobs.reportable().length > 0 || releases.some((one) => one.unconfirmed().length > 0);
  }

  /** Sends all that is unconfirmed; whether the agent has confirmed all of it. */
  async #sendAll(era: number): Promise<boolean> {
    const { jobs, releases } = this.#parts;
    const owed = releases.flatMap((from) =>
      from.unconfirmed().map((release) => ({ from, release })),
    );
    let isConfirmed = true;
    for (const id of jobs.reportable()) {
      isConfirmed = (await this.#sendEnd(id, era)) && isConfirmed;
    }
    for (const { from, release } of owed) {
      isConfirmed = (await this.#sendRelease(from, release)) && isConfirmed;
    }
    return isConfirmed;
  }

  async #sendEnd(id: string, era: number): Promise<boolean> {
    const { agent, changes, jobs, link } = this.#parts;
    // An id that the agent has never admitted needs no end.
    const sent = await this.#isDone(`the end of job ${id}`, agent.endJob(id), ["invalid"]);
    if (!sent || !(await link.confirmEnd(id, era))) {
      return false;
    }
    jobs.unconfirmed.delete(id);
    changes.notify();
    return true;
  }

  async #sendRelease(from: Releases, release: Release): Promise<boolean> {
    const { key, token } = release;
    const sending = this.#parts.agent.release(from.kind.name, key, token);
    // What is not held any more needs no release.
    const sent = await this.#isDone(`the release of ${key}`, sending, ["not_held", "invalid"]);
    if (sent) {
      from.confirm(release);
    }
    return sent;
  }

  /** Whether a call has done what it is for; refusals with these reasons say that it has. */
  async #isDone(what: string, call: Promise<void>, reasons: readonly string[]): Promise<boolean> {
    try {
      await call;
      return true;
    } catch (error) {
      if (!isCallFailure(error)) {
        throw error;
      }
      if (error instanceof Refused && reasons.includes(error.reason)) {
        return true;
      }
      this.#parts.log.debug(`cannot report ${what} yet: ${wordsOf(error)}`);
      return false;
    }
  }
}
