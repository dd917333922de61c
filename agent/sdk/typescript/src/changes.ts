/** Waits for changes of a worker's state. */

import { clock } from "./clock.js";

// The longest time that a timer of Node's takes.
const TIMER_MS_MAX = 2 ** 31 - 1;

/** Wakes all who wait for a change of the state: each looks again at what it waits for. */
export class Changes {
  #waiting = new Set<() => void>();

  /** The state has changed. */
  notify(): void {
    const waiting = this.#waiting;
    this.#waiting = new Set();
    for (const wake of waiting) {
      wake();
    }
  }

  /** Waits for the next change, for at most `ms` milliseconds, and until `signal` aborts. */
  wait(ms?: number, signal?: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      let timer: NodeJS.Timeout | undefined;
      const wake = (): void => {
        this.#waiting.delete(wake);
        clearTimeout(timer);
        signal?.removeEventListener("abort", wake);
        resolve();
      };
      if (signal?.aborted) {
        resolve();
        return;
      }
      this.#waiting.add(wake);
      signal?.addEventListener("abort", wake);
      if (ms !== undefined) {
        timer = setTimeout(wake, Math.min(ms, TIMER_MS_MAX));
      }
    });
  }

  /** Waits until `holds`, until the clock reads `untilMs`, or until `signal` aborts. */
  async until(holds: () => boolean, untilMs?: number, signal?: AbortSignal): Promise<void> {
    while (!holds() && !signal?.aborted) {
      const leftMs = untilMs === undefined ? undefined : untilMs - clock.nowMs();
      if (leftMs !== undefined && leftMs <= 0) {
        return;
      }
      await this.wait(leftMs, signal);
    }
  }
}
