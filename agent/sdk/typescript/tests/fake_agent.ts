/** A fake agent: it counts slots, lists what the test sets, and can be killed. */

import { EventEmitter, once } from "node:events";
import * as http from "node:http";
import type { AddressInfo, Socket } from "node:net";
import { text } from "node:stream/consumers";
import { setTimeout as sleep } from "node:timers/promises";

/** A hang shows as a failure after this time, in milliseconds. */
export const HANG_MS = 60_000;
const POLL_MS = 5;

/** Waits until a condition holds, and returns its value. */
export async function eventually<T>(
  what: string,
  holds: () => T,
): Promise<Exclude<T, undefined | false>> {
  for (const end = performance.now() + HANG_MS; performance.now() < end; await sleep(POLL_MS)) {
    const value = holds();
    if (value !== undefined && value !== false) {
      return value as Exclude<T, undefined | false>;
    }
  }
  throw new Error(`timeout: ${what}`);
}

/** A call that the agent has got. */
export interface Call {
  readonly method: string;
  /** With its query. */
  readonly path: string;
  readonly body: Json | undefined;
}

type Json = Record<string, unknown>;
type Answer = readonly [status: number, body: object];

/** What a listed lease may set beside its name, token and state. */
export interface Times {
  readonly valid_for_ms?: number;
  readonly release_within_ms?: number;
}

/** One process of an agent's after another, on one port. */
export class FakeAgent {
  pool = 1;
  draining = false;
  /** The journal cannot be written. */
  full = false;
  /** The answer to each request for a slot, if it is not empty. */
  refusal = "";
  /** Calls get no answer. */
  isSilent = false;
  /** Requests to PUT this path are not read yet. */
  unread = "";
  /** How many such requests have come. */
  arrived = 0;
  /** What a new start changes. */
  onStart: () => void = () => undefined;
  dead = true;
  version = 1;
  startId: unknown;
  readonly jobs = new Set<string>();
  unnamed = 0;
  /** Calls in their order. */
  readonly calls: Call[] = [];
  readonly streams = new Map<string, Json>();
  readonly bindings = new Map<string, Json>();
  readonly #news = new EventEmitter().setMaxListeners(0);
  readonly #connections = new Set<Socket>();
  readonly #watches = new Set<http.ServerResponse>();
  #server = http.createServer();
  #port = 0;

  /** An agent that listens, which the test closes. */
  static async start(): Promise<FakeAgent> {
    const agent = new FakeAgent();
    await agent.revive();
    return agent;
  }

  get address(): string {
    return `http://127.0.0.1:${this.#port}`;
  }

  /** The journal is lost. */
  forget(): void {
    this.startId = undefined;
    this.jobs.clear();
    this.unnamed = 0;
    this.full = false;
  }

  /** A process listens. */
  async revive(path?: string): Promise<void> {
    this.dead = false;
    this.#server = http.createServer((request, response) => {
      this.#serve(request, response).catch((error: unknown) => response.destroy(error as Error));
    });
    const [read] = this.#server.listeners("connection") as ((socket: Socket) => void)[];
    this.#server.removeAllListeners("connection").on("connection", (socket: Socket) => {
      this.#connections.add(socket);
      socket.on("close", () => this.#connections.delete(socket));
      socket.on("error", () => undefined);
      void this.#readable(socket).then(() => read?.call(this.#server, socket));
    });
    if (path === undefined) {
      this.#server.listen(this.#port, "127.0.0.1");
    } else {
      this.#server.listen(path);
    }
    await once(this.#server, "listening");
    if (path === undefined) {
      this.#port = (this.#server.address() as AddressInfo).port;
    }
  }

  /** Kills the process: the port closes, and all connections break. */
  async kill(): Promise<void> {
    if (this.dead) {
      return;
    }
    this.dead = true;
    this.tell();
    const closed = once(this.#server, "close");
    this.#server.close();
    for (const socket of this.#connections) {
      socket.destroy();
    }
    await closed;
  }

  /** Breaks the connections of watches: to a worker this looks like another process. */
  cutWatches(): void {
    for (const watch of this.#watches) {
      watch.destroy();
    }
  }

  /** Something has changed: the watches and those who wait hear of it. */
  tell(): void {
    this.version += 1;
    this.#news.emit("news");
  }

  drain(): void {
    this.draining = true;
    this.tell();
  }

  /** Lists a stream of the set `cars`. */
  show(name: string, token: string, state = "held", times: Times = {}): void {
    this.streams.set(name, { set: "cars", stream: name, token, state, ...times });
    this.tell();
  }

  /** Removes a stream from the lease. */
  hide(name: string): void {
    this.streams.delete(name);
    this.tell();
  }

  /** Lists the binding `ns/first/in/2`; `next` are workers of the node `out` with their loads. */
  bind(
    token: string,
    state = "held",
    next: readonly (readonly [worker: string, load: number])[] = [],
    times: Times = {},
  ): void {
    const endpoints = next.map(([worker, load]) => {
      return { worker, address: `${worker}:80`, documents_per_second: load };
    });
    this.bindings.set("in", {
      pipeline: "ns/first",
      node: "in",
      index: 2,
      token,
      state,
      documents_per_second: 2.5,
      next: [{ node: "out", endpoints }],
      ...times,
    });
    this.tell();
  }

  /** The calls so far whose path starts so. */
  called(method: string, start: string): readonly Call[] {
    return this.calls.filter((call) => call.method === method && call.path.startsWith(start));
  }

  /** Waits until the request on a new connection may be read. */
  async #readable(socket: Socket): Promise<void> {
    if (this.unread === "") {
      return;
    }
    await once(socket, "readable");
    const head = socket.read() as Buffer;
    socket.unshift(head);
    const isUnread = (): boolean =>
      this.unread !== "" && head.toString().startsWith(`PUT ${this.unread}`);
    this.arrived += isUnread() ? 1 : 0;
    while (isUnread() && !this.dead) {
      await once(this.#news, "news");
    }
  }

  async #serve(request: http.IncomingMessage, response: http.ServerResponse): Promise<void> {
    const [method = "", path = ""] = [request.method, request.url];
    const sent = await text(request);
    const url = new URL(path, "http://localhost");
    if (url.pathname === "/v1/lease/watch") {
      await this.#watch(response, url.searchParams);
      return;
    }
    const body = sent === "" ? undefined : (JSON.parse(sent) as Json);
    this.calls.push({ method, path, body });
    const [status, answer] = await this.#answer({ method, path, body }, url, response);
    if (!this.dead && !this.isSilent) {
      response.writeHead(status, { "content-type": "application/json" });
      response.end(JSON.stringify(answer));
    }
  }

  async #answer(call: Call, url: URL, response: http.ServerResponse): Promise<Answer> {
    const { method, body } = call;
    if (this.full && ["DELETE", "POST"].includes(method)) {
      return [503, refused("journal")];
    }
    const parts = url.pathname.split("/").slice(2).map(decodeURIComponent);
    const [what, name = "", node = "", index = ""] = parts;
    const token = url.searchParams.get("token");
    switch (what) {
      case "start":
        return this.#start(body ?? {});
      case "lease":
        return [200, this.#lease(url.searchParams)];
      case "drain":
        this.drain();
        return [200, { jobs_left: this.jobs.size }];
      case "streams":
        return this.#release(this.streams, node, token);
      case "bindings":
        return [name, node, index].join() === "ns/first,in,2"
          ? this.#release(this.bindings, node, token)
          : [404, refused("invalid")];
      case "jobs":
        return this.#job(method, name, Number(url.searchParams.get("wait_ms")), response);
      default:
        return [200, {}];
    }
  }

  #start(body: Json): Answer {
    const running = Number(body["running"]);
    if (this.startId !== body["start_id"]) {
      this.startId = body["start_id"];
      this.unnamed = running;
      this.jobs.clear();
      this.onStart();
    }
    this.unnamed = Math.min(this.unnamed, running);
    this.#news.emit("news");
    return [200, {}];
  }

  #release(listed: Map<string, Json>, name: string, token: string | null): Answer {
    if (listed.get(name)?.["token"] !== token) {
      return [409, refused("not_held")];
    }
    listed.delete(name);
    this.tell();
    return [200, {}];
  }

  async #job(
    method: string,
    id: string,
    waitMs: number,
    response: http.ServerResponse,
  ): Promise<Answer> {
    if (/\p{Cc}/u.test(id)) {
      return [400, refused("invalid")];
    }
    if (method === "DELETE") {
      this.jobs.delete(id);
      this.#news.emit("news");
      return [200, {}];
    }
    if (this.refusal !== "") {
      return [409, refused(this.refusal)];
    }
    const isOver = AbortSignal.timeout(waitMs);
    const isFree = (): boolean => this.jobs.has(id) || this.#hasSlot();
    while (!(this.draining || this.dead || isFree() || isOver.aborted || response.destroyed)) {
      await firstOf([this.#news, "news"], [isOver, "abort"], [response, "close"]);
    }
    if (this.draining) {
      return [409, refused("draining")];
    }
    if (this.dead || response.destroyed || !isFree()) {
      return [409, refused("no_slot")];
    }
    this.jobs.add(id);
    return [200, { token: "1.1" }];
  }

  #hasSlot(): boolean {
    return this.startId !== undefined && this.jobs.size + this.unnamed < this.pool;
  }

  #lease(query: URLSearchParams): object {
    const listed = (kind: string, all: Map<string, Json>): readonly Json[] =>
      query.has(`without_${kind}`) ? [] : [...all.values()];
    return {
      version: this.version,
      pool: { size: this.pool, token: "1.1", running: this.jobs.size + this.unnamed },
      streams: listed("streams", this.streams),
      bindings: listed("bindings", this.bindings),
      draining: this.draining,
      connected: true,
      cluster: "ci",
      worker: "w1",
      a_field_of_tomorrow: [1],
    };
  }

  async #watch(response: http.ServerResponse, query: URLSearchParams): Promise<void> {
    this.#watches.add(response);
    response.on("close", () => this.#watches.delete(response));
    response.writeHead(200, { "content-type": "application/json" });
    for (let seen = 0; !this.dead && !response.destroyed; ) {
      if (seen === this.version) {
        await firstOf([this.#news, "news"], [response, "close"]);
        continue;
      }
      seen = this.version;
      response.write(`${JSON.stringify(this.#lease(query))}\n`);
    }
  }
}

/** Waits for the first of these events. */
async function firstOf(...events: readonly [EventEmitter | AbortSignal, string][]): Promise<void> {
  const others = new AbortController();
  const { signal } = others;
  try {
    // Node's types have no overload for both kinds of senders.
    await Promise.race(events.map(([of, name]) => once(of as EventEmitter, name, { signal })));
  } finally {
    others.abort();
  }
}

function refused(reason: string): object {
  return { error: { reason, message: "set by the test" } };
}
