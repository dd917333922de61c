/** A stream while the worker owns it. */

import type { StreamLease } from "./messages.js";
import { Owned, keyOf, type OwnedKind, type Releaser } from "./owned.js";

/** A stream while this worker owns it. */
export class Stream extends Owned<StreamLease> {
  /** The stream set. */
  readonly set: string;
  /** The stream's name. */
  readonly name: string;

  /** @internal */
  constructor(owning: Releaser, lease: StreamLease) {
    super(owning, streamKind.key(lease), lease);
    this.set = lease.set;
    this.name = lease.stream;
  }
}

/** Streams, as their leases list them. */
export const streamKind: OwnedKind<StreamLease, Stream> = {
  name: "streams",
  listed: (lease) => lease.streams,
  key: (lease) => keyOf(lease.set, lease.stream),
  own: (owning, lease) => new Stream(owning, lease),
};
