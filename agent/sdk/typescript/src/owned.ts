/**
 * The streams and bindings that the worker owns, and until when by its own clock.
 *
 * Invariant: a lease is handed out at most once under a token, and never to a second owner in this
 * process before the first has released it. `lost` aborts before the lease ends, even if the agent
 * cannot be reached.
 */

import type { Changes } from "./changes.js";
import { clock } from "./clock.js";
import type { LeaseKind } from "./connection.js";
import { advance, check, type FenceQuery, type ParameterMark } from "./fence.js";
import type { Log } from "./log.js";
import type { Lease, ListedLease } from "./messages.js";
import { Token } from "./token.js";

// A timer of Node's does not count the time that a suspended machine slept, which leases do.
const SLEEP_MS_MAX = 1_000;
// A lease is lost at most the tenth part of its remaining time before its end.
const SPARE_DIVISOR = 10;

/** Names what is leased: the parts of its path in the worker API, each percent-encoded. */
export type Key = string;

/** The key of these parts. */
export function keyOf(...parts: readonly string[]): Key {
  return parts.map(encodeURIComponent).join("/");
}

/** Streams or bindings: what differs between the two. */
export interface OwnedKind<Listed extends ListedLease, Own extends Owned<Listed>> {
  /** Their name in the worker API's paths. */
  readonly name: LeaseKind;
  /** Those of this kind that a lease lists. */
  listed(lease: Lease): readonly Listed[];
  /** Names what is leased. */
  key(listed: Listed): Key;
  /** A listed one, in its owner's hands. */
  own(owning: Releaser, listed: Listed): Own;
}

/** Takes back what its owner releases. */
export interface Releaser {
  /** The owner has released it. Resolves when the agent has confirmed that. */
  release(own: Owned<ListedLease>): Promise<void>;
  /** Notes that its time is over. */
  expire(own: Owned<ListedLease>): void;
}

/** A stream or a binding while this worker owns it. */
export abstract class Owned<Listed extends ListedLease> {
  /** The fencing token: send it with every write under the lease. */
  readonly token: Token;
  /** @internal Names what is leased. */
  readonly key: Key;
  /** @internal When to have stopped, by the clock; undefined where it does not end by time. */
  endMs: number | undefined;
  readonly #owning: Releaser;
  readonly #lost = new AbortController();
  #revoked = new AbortController();
  #stopping = new AbortController();
  #releaseByMs: number | undefined;

  /** @internal */
  constructor(owning: Releaser, key: Key, listed: Listed) {
    this.#owning = owning;
    this.key = key;
    this.token = new Token(listed.token);
  }

  /** Aborts when the lease has ended or is about to end: it permits no more writes. */
  get lost(): AbortSignal {
    return this.#lost.signal;
  }

  /**
   * Aborts when it is revoked: finish the current work, then release it. A revocation can be taken
   * back: then this is another signal, and so is `stopping`.
   */
  get revoked(): AbortSignal {
    return this.#revoked.signal;
  }

  /** Aborts with either: what a worker looks at between two steps. */
  get stopping(): AbortSignal {
    return this.#stopping.signal;
  }

  /** Whether anything may be written under it at this moment, by the clock. */
  isValid(): boolean {
    if (this.endMs !== undefined && clock.nowMs() >= this.endMs) {
      this.#owning.expire(this);
    }
    return !this.lost.aborted;
  }

  /**
   * Refuses a write in the transaction of `query`, if a later owner has written to the database.
   * Call it in the transaction of the write, before the write. The table is `FENCE_TABLE`. `mark`
   * is how the driver marks a parameter: `$` (the default) for `$1` and `$2`.
   *
   * Rejects with StaleToken: roll the transaction back. Or with what `query` throws.
   */
  fence(query: FenceQuery, { mark = "$" }: { mark?: ParameterMark } = {}): Promise<void> {
    return advance(this.#name, this.token, query, mark);
  }

  /**
   * Refuses a write to a store that has seen `newest`, the highest token of this stream or binding
   * that it keeps. Nobody else may write to the store between that look and the write: it is
   * locked, or the write is conditional. Throws StaleToken.
   */
  checkToken(newest: Token): void {
    check(this.#name, this.token, newest);
  }

  /** Milliseconds until `lost`, unless the lease is renewed; undefined where it does not end. */
  timeLeftMs(): number | undefined {
    if (this.lost.aborted) {
      return 0;
    }
    return this.endMs === undefined ? undefined : Math.max(0, this.endMs - clock.nowMs());
  }

  /** Of a revoked one: milliseconds within which it should be released. */
  releaseWithinMs(): number | undefined {
    const byMs = this.#releaseByMs;
    return byMs === undefined ? undefined : Math.max(0, byMs - clock.nowMs());
  }

  /**
   * Releases it, at once: the token permits no more writes. The promise resolves when the agent has
   * confirmed that, or when the worker is closed; it need not be awaited, and never rejects.
   */
  release(): Promise<void> {
    return this.#owning.release(this);
  }

  [Symbol.dispose](): void {
    void this.release();
  }

  toString(): string {
    return `${this.#name} under ${this.token}`;
  }

  /** What is leased, for people and stores. */
  get #name(): string {
    return decodeURIComponent(this.key);
  }

  /** @internal Applies the newest lease, which was requested at `askedMs`. */
  renew(askedMs: number, listed: Listed, spareMsMax: number): void {
    if (this.lost.aborted) {
      return;
    }
    this.endMs = endMs(askedMs, listed, spareMsMax);
    const isHeld = listed.state === "held";
    if (!isHeld && !this.revoked.aborted) {
      if (listed.releaseWithinMs !== undefined) {
        this.#releaseByMs = askedMs + listed.releaseWithinMs;
      }
      this.#revoked.abort();
      this.#stopping.abort();
    } else if (isHeld && this.revoked.aborted) {
      // No longer revoked: a new leader may decide otherwise.
      this.#releaseByMs = undefined;
      this.#revoked = new AbortController();
      this.#stopping = new AbortController();
    }
  }

  /** @internal Ends it: it permits no more writes. */
  stop(): void {
    this.#lost.abort();
    this.#stopping.abort();
  }
}

/** When to have stopped: a little before the lease ends. */
export function endMs(
  askedMs: number,
  listed: ListedLease,
  spareMsMax: number,
): number | undefined {
  if (listed.validForMs === undefined) {
    return undefined;
  }
  const untilMs = askedMs + listed.validForMs;
  const leftMs = Math.max(0, untilMs - clock.nowMs());
  return untilMs - Math.min(spareMsMax, leftMs / SPARE_DIVISOR);
}

/** A lease as the agent lists it. */
interface Offer<Listed> {
  readonly askedMs: number;
  readonly listed: Listed;
  readonly token: Token;
}

/** A release that the agent has not confirmed. */
export interface Release {
  readonly key: Key;
  readonly token: Token;
}

/** All of one kind that this worker owns. */
export class Owning<Listed extends ListedLease, Own extends Owned<Listed>> implements Releaser {
  /** Whether this process consumes them. */
  consumed = false;
  closed = false;
  readonly kind: OwnedKind<Listed, Own>;
  readonly #changes: Changes;
  readonly #log: Log;
  readonly #spareMsMax: number;
  readonly #begun: () => void;
  #draining = false;
  #offers = new Map<Key, Offer<Listed>>();
  // Held, and neither handed out nor withdrawn.
  readonly #fresh = new Set<Key>();
  readonly #owned = new Map<Key, Own>();
  // The highest token of each that was handed out or released.
  readonly #spent = new Map<Key, Token>();
  // At most one for each that was listed.
  readonly #unconfirmed = new Map<string, Release>();

  /** `begun` is called when this process begins to consume this kind. */
  constructor(
    kind: OwnedKind<Listed, Own>,
    changes: Changes,
    log: Log,
    spareMsMax: number,
    begun: () => void,
  ) {
    this.kind = kind;
    this.#changes = changes;
    this.#log = log;
    this.#spareMsMax = spareMsMax;
    this.#begun = begun;
  }

  /** Takes the newest lease, which was requested at `askedMs`. */
  apply(askedMs: number, lease: Lease): void {
    this.#draining = lease.draining;
    this.#offers = new Map(
      this.kind.listed(lease).map((listed) => {
        const offer = { askedMs, listed, token: new Token(listed.token) };
        return [this.kind.key(listed), offer];
      }),
    );
    for (const [key, own] of this.#owned) {
      const offer = this.#offers.get(key);
      if (offer?.token.equals(own.token)) {
        own.renew(askedMs, offer.listed, this.#spareMsMax);
      } else {
        this.#lose(own, "it was withdrawn");
      }
    }
    this.#fresh.clear();
    this.#offerAll();
    this.#changes.notify();
  }

  /** Waits for the next one to own; undefined once the worker drains or is closed. */
  async take(signal?: AbortSignal): Promise<Own | undefined> {
    if (!this.consumed) {
      this.consumed = true;
      this.#begun();
      this.#offerAll();
    }
    while (!(this.closed || this.#draining)) {
      signal?.throwIfAborted();
      for (const key of this.#fresh) {
        this.#fresh.delete(key);
        const own = this.#handOut(key);
        if (own !== undefined) {
          return own;
        }
      }
      await this.#changes.wait(undefined, signal);
    }
    return undefined;
  }

  async release(own: Own): Promise<void> {
    const release = { key: own.key, token: own.token };
    if (this.#owned.get(own.key) === own) {
      this.#owned.delete(own.key);
      own.stop();
      this.#unconfirmed.set(idOf(release), release);
      this.#offer(own.key);
      this.#changes.notify();
    }
    await this.#changes.until(() => this.closed || !this.#unconfirmed.has(idOf(release)));
  }

  expire(own: Own): void {
    this.#lose(own, "it was not renewed");
  }

  /** The releases that the agent has not confirmed. */
  unconfirmed(): readonly Release[] {
    return [...this.#unconfirmed.values()];
  }

  /** Records that the agent has confirmed the release. */
  confirm(release: Release): void {
    this.#unconfirmed.delete(idOf(release));
    this.#changes.notify();
  }

  /** Whether one is owned, or its release is not confirmed. */
  isUnsettled(): boolean {
    return this.#owned.size > 0 || this.#unconfirmed.size > 0;
  }

  /** Ends them in time, whether the agent answers or not, until this is closed. */
  async expireLeases(): Promise<void> {
    while (!this.closed) {
      // One reading for all: a reading takes longer than looking at a lease.
      const nowMs = clock.nowMs();
      let waitMs: number | undefined;
      for (const own of this.#owned.values()) {
        if (own.endMs !== undefined && own.endMs > nowMs) {
          waitMs = Math.min(waitMs ?? SLEEP_MS_MAX, own.endMs - nowMs);
        } else if (own.endMs !== undefined) {
          this.expire(own);
        }
      }
      await this.#changes.wait(waitMs);
    }
  }

  /** Ends all: nothing follows the lease any longer. */
  close(): void {
    this.closed = true;
    for (const own of this.#owned.values()) {
      this.#lose(own, "the worker was closed");
    }
  }

  #lose(own: Own, why: string): void {
    if (!own.lost.aborted) {
      this.#log.warn(`${own} is lost: ${why}`);
      own.stop();
    }
  }

  #offerAll(): void {
    for (const key of this.#offers.keys()) {
      this.#offer(key);
    }
  }

  /** Queues one for the next taker, or releases one that no caller takes any more. */
  #offer(key: Key): void {
    const offer = this.#offers.get(key);
    if (offer === undefined || !this.consumed || this.#owned.has(key)) {
      return;
    }
    const { listed, token } = offer;
    const spent = this.#spent.get(key);
    if (spent !== undefined && token.compare(spent) <= 0) {
      return;
    }
    if (listed.state === "held" && !this.#draining) {
      this.#fresh.add(key);
    } else if (listed.state !== "unspecified") {
      this.#spent.set(key, token);
      this.#unconfirmed.set(idOf({ key, token }), { key, token });
    }
  }

  #handOut(key: Key): Own | undefined {
    const offer = this.#offers.get(key);
    if (offer === undefined) {
      return undefined;
    }
    const own = this.kind.own(this, offer.listed);
    own.renew(offer.askedMs, offer.listed, this.#spareMsMax);
    if (own.endMs !== undefined && clock.nowMs() >= own.endMs) {
      // It may be renewed yet: the next lease offers it again.
      return undefined;
    }
    this.#owned.set(key, own);
    this.#spent.set(key, own.token);
    this.#changes.notify();
    return own;
  }
}

function idOf({ key, token }: Release): string {
  return `${key} ${token}`;
}
