/** The errors of this package. */

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
