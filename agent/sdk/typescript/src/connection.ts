/**
 * A connection to the agent, over TCP or a Unix socket, for HTTP/JSON calls one after another.
 *
 * Invariant: a connection reaches one process of the agent's. It never connects again, so a call
 * fails rather than reach another process.
 */

import { once } from "node:events";
import * as http from "node:http";
import * as net from "node:net";
import type { Duplex } from "node:stream";
import { text } from "node:stream/consumers";

import { NoAnswer, isCallFailure, refusal } from "./errors.js";
import { wordsOf } from "./log.js";
import { lease, type Lease } from "./messages.js";

/** How long an answer may take beyond what the call lets the agent wait, in milliseconds. */
export const ANSWER_MS = 5_000;
// The longest line of a watch. A lease of 10,000 streams is some two MB.
const LINE_BYTES_MAX = 64 * 1024 * 1024;
// At most this many characters are shown of an answer that is no agent's.
const SHOWN_MAX = 200;
const NEWLINE = 10;

/** A kind of lease that a process consumes, as the API's paths name it. */
export type LeaseKind = "streams" | "bindings";

/** What a call may set. */
export interface CallOptions {
  /** The body, which is sent as JSON. */
  readonly body?: object;
  /** How long the answer may take, in milliseconds; null for as long as it takes. */
  readonly answerMs?: number | null;
  /** Ends the call. */
  readonly signal?: AbortSignal | undefined;
}

/** Sends each request over the one socket that it is given. */
class OneSocketAgent extends http.Agent {
  readonly #socket: net.Socket;
  #isTaken = false;

  constructor(socket: net.Socket) {
    super({ keepAlive: true, maxSockets: 1 });
    this.#socket = socket;
  }

  // Node asks for a socket whenever none is free.
  override createConnection(
    _options: http.ClientRequestArgs,
    answer?: (error: Error | null, stream: Duplex) => void,
  ): Duplex | undefined {
    if (this.#isTaken || this.#socket.destroyed) {
      answer?.(new NoAnswer("the connection has ended"), this.#socket);
      return undefined;
    }
    this.#isTaken = true;
    return this.#socket;
  }
}

/** One connection. Its calls throw NoAnswer where no whole answer comes. */
export class Connection {
  readonly #socket: net.Socket;
  readonly #agent: http.Agent;

  private constructor(socket: net.Socket) {
    this.#socket = socket;
    this.#agent = new OneSocketAgent(socket);
  }

  /** Opens a connection. Throws NoAnswer where nothing listens. */
  static async open(to: net.NetConnectOpts, signal?: AbortSignal): Promise<Connection> {
    const socket = net.connect(to);
    // The requests report what goes wrong; an error between two of them needs no report.
    socket.on("error", () => undefined);
    socket.setNoDelay(true);
    const limit = new TimeLimit(ANSWER_MS, () => socket.destroy(), signal);
    try {
      await once(socket, "connect", { signal: limit.signal });
    } catch (error) {
      socket.destroy();
      throw limit.explain(error);
    } finally {
      limit.end();
    }
    return new Connection(socket);
  }

  /** Sends one call; returns the answer's JSON. Throws Refused if the agent refuses. */
  async call(method: string, path: string, options: CallOptions = {}): Promise<unknown> {
    const request = this.#send(method, path, options.body);
    const answerMs = options.answerMs === undefined ? ANSWER_MS : options.answerMs;
    const limit = new TimeLimit(answerMs, () => request.destroy(), options.signal);
    try {
      const response = await responseTo(request, limit.signal);
      const body = await text(response);
      return answerOf(response.statusCode, body);
    } catch (error) {
      throw limit.explain(error);
    } finally {
      limit.end();
    }
  }

  /**
   * Sends one call. Where it ends early, this only closes its own side of the connection: the agent
   * drops the call and closes the other side. `over` is called when the agent can no longer handle
   * the call.
   */
  async callOrHangUp(
    method: string,
    path: string,
    { answerMs, signal }: { readonly answerMs: number; readonly signal: AbortSignal },
    over: () => void,
  ): Promise<unknown> {
    const answer = this.call(method, path, { answerMs: null });
    answer.then(over, over);
    const limit = new TimeLimit(answerMs, () => this.#socket.end(), signal);
    try {
      return await Promise.race([answer, limit.reached()]);
    } catch (error) {
      throw limit.explain(error);
    } finally {
      limit.end();
    }
  }

  /** The lease now, with its streams and bindings where `kinds` has them. */
  async readLease(kinds: ReadonlySet<LeaseKind>): Promise<Lease> {
    return decoded(lease.read, await this.call("GET", `/v1/lease${withoutOthers(kinds)}`));
  }

  /**
   * The lease now, after every change and at every renewal, as `readLease` has it. The agent has
   * accepted the watch when this returns.
   */
  async watch(kinds: ReadonlySet<LeaseKind>): Promise<AsyncGenerator<Lease, void>> {
    const request = this.#send("GET", `/v1/lease/watch${withoutOthers(kinds)}`);
    const limit = new TimeLimit(ANSWER_MS, () => request.destroy());
    try {
      const response = await responseTo(request, limit.signal);
      if (response.statusCode !== 200) {
        answerOf(response.statusCode, await text(response));
      }
      return leasesOf(response);
    } catch (error) {
      throw limit.explain(error);
    } finally {
      // Nothing is due while nothing changes.
      limit.end();
    }
  }

  /** Ends every call on this connection, and closes it. */
  close(): void {
    this.#socket.destroy();
    this.#agent.destroy();
  }

  #send(method: string, path: string, body?: object): http.ClientRequest {
    const request = http.request({
      agent: this.#agent,
      // An agent answers to this name, whatever its address is.
      host: "localhost",
      method,
      path,
      headers: body === undefined ? {} : { "content-type": "application/json" },
    });
    // An error after the response is the response's, too.
    request.on("error", () => undefined);
    request.end(body === undefined ? undefined : JSON.stringify(body));
    return request;
  }
}

/** Ends a call when its time is over, or when its caller's signal aborts. */
class TimeLimit {
  readonly #controller = new AbortController();
  readonly #timer: NodeJS.Timeout | undefined;
  readonly #caller: AbortSignal | undefined;
  readonly #stop: () => void;
  #late = false;

  constructor(ms: number | null, stop: () => void, caller?: AbortSignal) {
    this.#stop = () => {
      this.#controller.abort();
      stop();
    };
    if (ms !== null) {
      this.#timer = setTimeout(() => {
        this.#late = true;
        this.#stop();
      }, ms);
    }
    this.#caller = caller;
    if (caller?.aborted) {
      this.#stop();
    } else {
      caller?.addEventListener("abort", this.#stop);
    }
  }

  /** Aborts with the call. */
  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  /** Rejects when the call is to end. */
  reached(): Promise<never> {
    return new Promise((_, reject) => {
      const { signal } = this.#controller;
      const end = (): void => reject(signal.reason);
      if (signal.aborted) {
        end();
      }
      signal.addEventListener("abort", end);
    });
  }

  /** The call has ended. */
  end(): void {
    clearTimeout(this.#timer);
    this.#caller?.removeEventListener("abort", this.#stop);
  }

  /** The error for the caller: the agent's refusal, or why no whole answer came. */
  explain(error: unknown): unknown {
    if (this.#late) {
      return new NoAnswer("it does not answer", { cause: error });
    }
    return failure(error);
  }
}

/** The response, once its head has come. */
async function responseTo(
  request: http.ClientRequest,
  signal: AbortSignal,
): Promise<http.IncomingMessage> {
  const [response] = (await once(request, "response", { signal })) as [http.IncomingMessage];
  return response;
}

function answerOf(status: number | undefined, body: string): unknown {
  const answer = parsed(body);
  if (status === 200 && answer !== undefined) {
    return answer;
  }
  // An agent's errors are JSON.
  const { reason, message } = fieldsOf(fieldsOf(answer)["error"]);
  if (typeof reason !== "string" || typeof message !== "string") {
    const said = JSON.stringify(body.slice(0, SHOWN_MAX));
    throw new NoAnswer(`it answered ${status}: ${said}; is this the address of an agent?`);
  }
  throw refusal(reason, message);
}

function parsed(body: string): unknown {
  try {
    return JSON.parse(body);
  } catch {
    return undefined;
  }
}

function fieldsOf(value: unknown): { readonly [name: string]: unknown } {
  return Object.fromEntries(Object.entries(typeof value === "object" ? (value ?? {}) : {}));
}

async function* leasesOf(response: http.IncomingMessage): AsyncGenerator<Lease, void> {
  let parts: Buffer[] = [];
  let size = 0;
  try {
    for await (const chunk of response as AsyncIterable<Buffer>) {
      let rest = chunk;
      for (let end = rest.indexOf(NEWLINE); end >= 0; end = rest.indexOf(NEWLINE)) {
        const line = Buffer.concat([...parts, rest.subarray(0, end)]).toString();
        yield decoded((json) => lease.read(JSON.parse(json)), line);
        [parts, size] = [[], 0];
        rest = rest.subarray(end + 1);
      }
      parts.push(rest);
      size += rest.length;
      if (size > LINE_BYTES_MAX) {
        throw new NoAnswer(`a line of the watch is longer than ${LINE_BYTES_MAX} bytes`);
      }
    }
  } catch (error) {
    throw failure(error);
  }
}

/** Reads a message. Throws NoAnswer where it has another form. */
export function decoded<From, T>(read: (value: From) => T, value: From): T {
  try {
    return read(value);
  } catch (error) {
    const why = `cannot decode the agent's answer: ${wordsOf(error)}`;
    throw new NoAnswer(why, { cause: error });
  }
}

/** The query that leaves the other kinds out. */
function withoutOthers(kinds: ReadonlySet<LeaseKind>): string {
  const all: readonly LeaseKind[] = ["streams", "bindings"];
  const leftOut = all.filter((kind) => !kinds.has(kind)).map((kind) => `without_${kind}=true`);
  return leftOut.length > 0 ? `?${leftOut.join("&")}` : "";
}

function failure(error: unknown): unknown {
  return isCallFailure(error) ? error : new NoAnswer(wordsOf(error), { cause: error });
}
