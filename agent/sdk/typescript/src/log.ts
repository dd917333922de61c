/** Where the package writes what people should read. */

import { debuglog } from "node:util";

/** A log: `console` is one, and so are most loggers. */
export interface Log {
  /** What the worker does, for those who look for a fault in it. */
  debug(message: string): void;
  /** A change of state. */
  info(message: string): void;
  /** What a person should look at. */
  warn(message: string): void;
  /** A defect, with what was thrown. */
  error(message: string, error: unknown): void;
}

const debug = debuglog("leasehold");

/** Warnings and errors on stderr, and with NODE_DEBUG=leasehold everything. */
export const stderrLog: Log = {
  debug: (message) => debug("%s", message),
  info: (message) => debug("%s", message),
  warn: (message) => console.warn("leasehold: %s", message),
  error: (message, error) => console.error("leasehold: %s:", message, error),
};

/** What was thrown, in words. */
export function wordsOf(error: unknown): string {
  if (error instanceof AggregateError && error.message === "") {
    // A host with several addresses, none of which answers.
    return error.errors.map(wordsOf).join("; ");
  }
  return error instanceof Error ? error.message : String(error);
}
