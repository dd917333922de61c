/**
 * The messages of the worker API, as the agent writes them in JSON.
 *
 * They follow proto/leasehold/worker/v1/worker.proto, field by field; a field that is
 * `valid_for_ms` there is `validForMs` here. tests/tests/sdk/messages.rs compares the two. A field
 * or a value of an enum that a newer agent adds is ignored; a field that an older agent leaves out
 * has its default.
 */

/** What the worker must do with a stream or a binding. */
export type StreamLeaseState =
  /** Never sent: what a value of a newer agent is read as. */
  | "unspecified"
  /** The worker owns it. */
  | "held"
  /** The worker must stop using it, then release it. */
  | "revoked";

/** The pool lease: how many jobs the worker may run. */
export interface Pool {
  /** How many jobs may run at once; 0 without a lease or while draining. */
  readonly size: number;
  /** The lease's token, written EPOCH.SEQ; empty without a lease. */
  readonly token: string;
  /** How many jobs run now. */
  readonly running: number;
  /**
   * The size is valid for this many milliseconds from when the worker sent the request; undefined
   * where it does not expire.
   */
  readonly validForMs: number | undefined;
}

/** What the leases of streams and of bindings have in common. */
export interface ListedLease {
  /** The fencing token, written EPOCH.SEQ: send it with every write under the lease. */
  readonly token: string;
  /** Held or revoked. */
  readonly state: StreamLeaseState;
  /**
   * The lease is valid for this many milliseconds from when the worker sent the request; undefined
   * where it does not expire.
   */
  readonly validForMs: number | undefined;
  /** If revoked: release it within this many milliseconds from when the worker sent the request. */
  readonly releaseWithinMs: number | undefined;
}

/** The lease of one stream. */
export interface StreamLease extends ListedLease {
  /** The stream set. */
  readonly set: string;
  /** The stream. */
  readonly stream: string;
}

/** A worker that serves a node of a pipeline. */
export interface Endpoint {
  /** The worker's name. */
  readonly worker: string;
  /** Its address, HOST or HOST:PORT; empty where it is not known. */
  readonly address: string;
  /** Its share of the load, in documents per second: route in these proportions. */
  readonly documentsPerSecond: number;
  /** It is draining: send documents there only if no other worker takes them. */
  readonly draining: boolean;
}

/** A node that follows in the pipeline: documents go there next. */
export interface Next {
  /** The node's name. */
  readonly node: string;
  /** The workers that serve it; empty while no worker does. */
  readonly endpoints: readonly Endpoint[];
}

/** The lease of one share of a pipeline's node. */
export interface ShareLease extends ListedLease {
  /** The pipeline. */
  readonly pipeline: string;
  /** The node that the worker serves. */
  readonly node: string;
  /** Which of the node's shares it is, from 0. */
  readonly index: number;
  /** The worker's part of the node's load, in documents per second. */
  readonly documentsPerSecond: number;
  /** The nodes that documents go to next; empty at the end of the pipeline. */
  readonly next: readonly Next[];
}

/** Everything that the worker may do now. */
export interface Lease {
  /** Grows with every change; a renewal does not change it. */
  readonly version: number;
  /** The pool lease. */
  readonly pool: Pool;
  /** The streams that the worker owns, and those that are revoked. */
  readonly streams: readonly StreamLease[];
  /** The worker must start no new job and release every stream. */
  readonly draining: boolean;
  /** Whether the agent is connected to a leading coordinator. */
  readonly connected: boolean;
  /** The cluster. */
  readonly cluster: string;
  /** The worker's name. */
  readonly worker: string;
  /** The shares of pipelines that the worker serves, and those that are revoked. */
  readonly bindings: readonly ShareLease[];
}

/** The answer to BeginJob. */
export interface BeginJobResponse {
  /** The pool lease's token, written EPOCH.SEQ. */
  readonly token: string;
}

/** The answer to Drain. */
export interface DrainResponse {
  /** With `wait`: how many jobs still run after the deadline. */
  readonly jobsLeft: number;
}

/** How a value is read from JSON. */
export interface Reader<T> {
  /** The type as TypeScript writes it. */
  readonly type: string;
  /** What an absent value means. */
  readonly initial: T;
  /** Reads a value that is there. Throws a TypeError for one of another type. */
  read(value: unknown): T;
}

/** How a message is read from JSON. */
export interface MessageReader<T> extends Reader<T> {
  /** The fields, by their names in JSON. */
  readonly fields: ReadonlyMap<string, Reader<unknown>>;
}

/** The values of an enum. */
export interface EnumReader<T> extends Reader<T> {
  /** All values; the first one stands for those of a newer agent. */
  readonly values: readonly T[];
}

function scalar<T>(type: string, initial: T, is: (value: unknown) => value is T): Reader<T> {
  return {
    type,
    initial,
    read(value) {
      if (!is(value)) {
        throw new TypeError(`expected a ${type}, found ${JSON.stringify(value)}`);
      }
      return value;
    },
  };
}

const number = scalar<number>("number", 0, (value) => typeof value === "number");
const text = scalar<string>("string", "", (value) => typeof value === "string");
const flag = scalar<boolean>("boolean", false, (value) => typeof value === "boolean");

function optional<T>(one: Reader<T>): Reader<T | undefined> {
  const read = (value: unknown): T | undefined => one.read(value);
  return { type: `${one.type} | undefined`, initial: undefined, read };
}

function list<T>(one: Reader<T>): Reader<readonly T[]> {
  return {
    type: `readonly ${one.type}[]`,
    initial: [],
    read(value) {
      if (!Array.isArray(value)) {
        throw new TypeError(`expected a list, found ${JSON.stringify(value)}`);
      }
      return value.map((item) => one.read(item));
    },
  };
}

function enumeration<T extends string>(type: string, values: readonly [T, ...T[]]): EnumReader<T> {
  const [initial] = values;
  const read = (value: unknown): T => values.find((known) => known === value) ?? initial;
  return { type, initial, values, read };
}

function message<T>(
  type: string,
  named: { readonly [Name in keyof T]-?: Reader<T[Name]> },
): MessageReader<T> {
  const all = Object.entries<Reader<unknown>>(named).map(([name, field]) => {
    const inJson = name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
    return { name, inJson, field };
  });
  const made = (field: (one: (typeof all)[number]) => unknown): T =>
    // The type of `named` has each field of T, with a reader of its type.
    Object.fromEntries(all.map((one) => [one.name, field(one)])) as T;
  return {
    type,
    fields: new Map(all.map(({ inJson, field }) => [inJson, field])),
    initial: made(({ field }) => field.initial),
    read(value) {
      if (typeof value !== "object" || value === null || Array.isArray(value)) {
        throw new TypeError(`${type}: expected an object, found ${JSON.stringify(value)}`);
      }
      const given = new Map<string, unknown>(Object.entries(value));
      return made(({ inJson, field }) => {
        const item = given.get(inJson);
        try {
          return item === undefined || item === null ? field.initial : field.read(item);
        } catch (error) {
          throw error instanceof TypeError
            ? new TypeError(`${type}.${inJson}: ${error.message}`, { cause: error })
            : error;
        }
      });
    },
  };
}

/** Reads StreamLeaseState. */
export const streamLeaseState = enumeration<StreamLeaseState>("StreamLeaseState", [
  "unspecified",
  "held",
  "revoked",
]);

const listedLease = {
  token: text,
  state: streamLeaseState,
  validForMs: optional(number),
  releaseWithinMs: optional(number),
};

/** Reads Pool. */
export const pool = message<Pool>("Pool", {
  size: number,
  token: text,
  running: number,
  validForMs: optional(number),
});

/** Reads StreamLease. */
export const streamLease = message<StreamLease>("StreamLease", {
  set: text,
  stream: text,
  ...listedLease,
});

/** Reads Endpoint. */
export const endpoint = message<Endpoint>("Endpoint", {
  worker: text,
  address: text,
  documentsPerSecond: number,
  draining: flag,
});

/** Reads Next. */
export const next = message<Next>("Next", { node: text, endpoints: list(endpoint) });

/** Reads Binding, whose lease is a share lease. */
export const shareLease = message<ShareLease>("Binding", {
  pipeline: text,
  node: text,
  index: number,
  ...listedLease,
  documentsPerSecond: number,
  next: list(next),
});

/** Reads Lease. */
export const lease = message<Lease>("Lease", {
  version: number,
  pool,
  streams: list(streamLease),
  draining: flag,
  connected: flag,
  cluster: text,
  worker: text,
  bindings: list(shareLease),
});

/** Reads BeginJobResponse. */
export const beginJobResponse = message<BeginJobResponse>("BeginJobResponse", { token: text });

/** Reads DrainResponse. */
export const drainResponse = message<DrainResponse>("DrainResponse", { jobsLeft: number });
