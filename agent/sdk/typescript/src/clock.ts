/** The one clock of leases: it never jumps back, and it goes on while the machine is suspended. */

import { uptime } from "node:os";
import { performance } from "node:perf_hooks";

/**
 * Counts like CLOCK_BOOTTIME, which Node does not offer: the monotonic clock, which stops while the
 * machine is suspended, plus the time by which the uptime is ahead of it.
 *
 * Invariant: between two readings it counts no less than the monotonic clock does.
 */
export class LeaseClock {
  readonly #uptimeMs: () => number;
  readonly #monotonicMs: () => number;
  #aheadMs = 0;

  /** Takes the two clocks, both in milliseconds. */
  constructor(uptimeMs: () => number, monotonicMs: () => number) {
    this.#uptimeMs = uptimeMs;
    this.#monotonicMs = monotonicMs;
  }

  /** The clock's reading in milliseconds; only differences mean anything. */
  nowMs(): number {
    // In this order, a pause of the process between the two is not taken for a suspension.
    const uptimeMs = this.#uptimeMs();
    const monotonicMs = this.#monotonicMs();
    // The kernel rounds the uptime down to 10 ms: the largest difference is the most exact one.
    this.#aheadMs = Math.max(this.#aheadMs, uptimeMs - monotonicMs);
    return monotonicMs + this.#aheadMs;
  }
}

// The uptime of other systems follows the wall clock, which jumps.
const uptimeMs = process.platform === "linux" ? () => uptime() * 1_000 : () => 0;

/** The clock of this process. */
export const clock = new LeaseClock(uptimeMs, () => performance.now());
