/** A binding while the worker owns it: its share of a pipeline's node, and its routes. */

import type { Endpoint, Next, ShareLease } from "./messages.js";
import { Owned, keyOf, type OwnedKind, type Releaser } from "./owned.js";

/** A share of a pipeline's node while this worker owns it. */
export class Binding extends Owned<ShareLease> {
  /** The pipeline. */
  readonly pipeline: string;
  /** The node of it that this worker serves. */
  readonly node: string;
  /** Which of the node's shares it is, from 0. */
  readonly index: number;
  /** This worker's share of the load. It lasts as long as the token does. */
  readonly documentsPerSecond: number;
  #next: readonly Next[];
  readonly #turns = new Turns();

  /** @internal */
  constructor(owning: Releaser, lease: ShareLease) {
    super(owning, bindingKind.key(lease), lease);
    this.pipeline = lease.pipeline;
    this.node = lease.node;
    this.index = lease.index;
    this.documentsPerSecond = lease.documentsPerSecond;
    this.#next = lease.next;
  }

  /** Where documents go from here, by node, at this moment; empty at the end of the pipeline. */
  get next(): readonly Next[] {
    return this.#next;
  }

  /**
   * Where the next document for `node` goes: its workers take turns in proportion to their shares
   * of the load, those that drain only if no other is left. Undefined if no worker serves the node
   * at this moment, or if no node of that name comes next.
   */
  pick(node: string): Endpoint | undefined {
    const route = this.#next.find((one) => one.node === node);
    return route === undefined ? undefined : this.#turns.pick(route);
  }

  /** @internal */
  override renew(askedMs: number, lease: ShareLease, spareMsMax: number): void {
    this.#next = lease.next;
    super.renew(askedMs, lease, spareMsMax);
  }
}

/** Bindings, as their leases list them. */
export const bindingKind: OwnedKind<ShareLease, Binding> = {
  name: "bindings",
  listed: (lease) => lease.bindings,
  key: (lease) => keyOf(lease.pipeline, lease.node, String(lease.index)),
  own: (owning, lease) => new Binding(owning, lease),
};

/**
 * Whose turn it is, node by node: smooth weighted round robin, as nginx has it.
 *
 * Among workers that stay the same, no count is ever a whole turn away from its share.
 */
export class Turns {
  readonly #nodes = new Map<string, Map<string, number>>();

  /** The worker whose turn it is. */
  pick(route: Next): Endpoint | undefined {
    const staying = route.endpoints.filter((endpoint) => !endpoint.draining);
    const open = staying.length > 0 ? staying : route.endpoints;
    // Without loads, all take the same.
    const isEven = open.every((endpoint) => loadMilli(endpoint) === 0);
    const weightOf = (endpoint: Endpoint): number => (isEven ? 1 : loadMilli(endpoint));
    const total = open.reduce((sum, endpoint) => sum + weightOf(endpoint), 0);
    const before = this.#nodes.get(route.node);
    const credits = new Map<string, number>();
    let best: { readonly endpoint: Endpoint; readonly credit: number } | undefined;
    for (const endpoint of open) {
      const weight = weightOf(endpoint);
      // No credit of other workers or loads is worth more than a round.
      const owed = Math.max(-total, Math.min(total, before?.get(endpoint.worker) ?? 0));
      const credit = owed + weight;
      credits.set(endpoint.worker, credit);
      if (weight > 0 && (best === undefined || credit > best.credit)) {
        best = { endpoint, credit };
      }
    }
    if (best !== undefined) {
      credits.set(best.endpoint.worker, best.credit - total);
    }
    this.#nodes.set(route.node, credits);
    return best?.endpoint;
  }
}

/** The load in thousandths: sums of these are exact. */
function loadMilli(endpoint: Endpoint): number {
  return Math.max(0, Math.round(endpoint.documentsPerSecond * 1_000));
}
