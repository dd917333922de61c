/** The errors of this package. */

import type { Token } from "./token.js";

/** The base of all errors of this package. */
export class LeaseholdError extends Error {
  override name = "LeaseholdError";
}

/** The agent refused. */
export class Refused extends LeaseholdError {
  override name = "Refused";
  /** One of the worker API's words: `no_slot`, `no_lease`, `invalid`, … */
  readonly reason: string;

  /** @internal */
  constructor(reason: string, message: string) {
    super(`${reason}: ${message}`);
    this.reason = reason;
  }
}

/** The worker is draining: no new job will start. */
export class Draining extends Refused {
  override name = "Draining";

  /** @internal */
  constructor(message = "the worker is draining: no new job may start") {
    super("draining", message);
  }
}

/** The agent did not answer within the caller's time limit. */
export class Unreachable extends LeaseholdError {
  override name = "Unreachable";
}

/** This worker was closed. */
export class Closed extends LeaseholdError {
  override name = "Closed";

  /** @internal */
  constructor() {
    super("the worker was closed");
  }
}

/** A store has seen a higher token than that of the write: what is leased has a later owner. */
export class StaleToken extends LeaseholdError {
  override name = "StaleToken";
  /** What is leased: `SET/STREAM`, or `PIPELINE/NODE/INDEX`. */
  readonly lease: string;
  /** The token of the write. */
  readonly token: Token;
  /** The store's token; undefined if the store did not return it. */
  readonly newer: Token | undefined;

  /** @internal */
  constructor(lease: string, token: Token, newer: Token | undefined) {
    const shown = newer === undefined ? "a newer one" : `${newer}`;
    super(
      `token ${token} of ${lease} is stale: the store has ${shown} of a later owner; ` +
        "write nothing more and release it",
    );
    this.lease = lease;
    this.token = token;
    this.newer = newer;
  }
}

/** No whole answer came over a connection: the request may have taken effect or not. */
export class NoAnswer extends Error {
  override name = "NoAnswer";
}

/** Whether a call has failed: no answer came, or the agent refused. Other errors are defects. */
export function isCallFailure(error: unknown): error is NoAnswer | LeaseholdError {
  return error instanceof NoAnswer || error instanceof LeaseholdError;
}

/** The error for a reason that the agent gave. */
export function refusal(reason: string, message: string): Refused {
  return reason === "draining" ? new Draining(message) : new Refused(reason, message);
}
