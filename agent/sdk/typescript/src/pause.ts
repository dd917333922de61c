/** The pauses between two attempts. */

/** The shortest pause, in milliseconds. */
export const PAUSE_MIN_MS = 50;
/** The longest one. */
export const PAUSE_MAX_MS = 1_000;

/** Pauses between attempts at one thing: each is twice as long as the one before, up to a limit. */
export class Pause {
  #nextMs = PAUSE_MIN_MS;

  /** How long to wait before the next attempt, in milliseconds. */
  nextMs(): number {
    const nextMs = this.#nextMs;
    this.#nextMs = Math.min(nextMs * 2, PAUSE_MAX_MS);
    return nextMs;
  }

  /** Begins with the shortest pause again, after an attempt that succeeded. */
  reset(): void {
    this.#nextMs = PAUSE_MIN_MS;
  }
}
