/** Where the agent is, and the calls that it answers. Nothing is kept from one call to the next. */

import type { NetConnectOpts } from "node:net";

import { ANSWER_MS, Connection, decoded, type CallOptions, type LeaseKind } from "./connection.js";
import { beginJobResponse, drainResponse } from "./messages.js";
import { Token } from "./token.js";

const ADDRESS_DEFAULT = "http://127.0.0.1:7411";
const HTTP_PORT = 80;

/** The agent. A call throws NoAnswer if no whole answer comes, and Refused if the agent refuses. */
export class Agent {
  /** `http://HOST:PORT` or `unix:PATH`. */
  readonly address: string;
  readonly #origin: string;
  readonly #to: NetConnectOpts;
  /** Connections of calls in progress. */
  readonly #open = new Set<Connection>();

  /** Throws a TypeError for an invalid address. */
  constructor(address?: string) {
    [this.address, this.#origin] = found(address);
    this.#to = placeOf(this.address);
  }

  /** What to do where nothing answers as an agent. */
  advice(): string {
    return (
      `${this.#origin}; start this program as the COMMAND of leasehold-agent run, or set ` +
      "LEASEHOLD_ADDR to the agent's --listen, as http://HOST:PORT"
    );
  }

  /** A new connection. Throws NoAnswer where nothing listens. */
  connect(signal?: AbortSignal): Promise<Connection> {
    return Connection.open(this.#to, signal);
  }

  /** Ends the calls in progress. */
  cut(): void {
    for (const connection of this.#open) {
      connection.close();
    }
  }

  /**
   * The pool lease's token, once the job may start. Calls `over` when the agent cannot handle the
   * request any more, which is later than the answer where `signal` or the time ends the wait.
   */
  async beginJob(
    id: string,
    waitMs: number,
    signal: AbortSignal,
    over: () => void,
  ): Promise<Token> {
    let connection: Connection;
    try {
      connection = await this.connect(signal);
    } catch (error) {
      over();
      throw error;
    }
    this.#open.add(connection);
    const close = (): void => {
      this.#open.delete(connection);
      connection.close();
      over();
    };
    const path = `/v1/jobs/${encodeURIComponent(id)}?wait_ms=${waitMs}`;
    const options = { answerMs: ANSWER_MS + waitMs, signal };
    const answer = await connection.callOrHangUp("PUT", path, options, close);
    return decoded((value) => new Token(beginJobResponse.read(value).token), answer);
  }

  /** The job has ended. */
  async endJob(id: string): Promise<void> {
    await this.#once("DELETE", `/v1/jobs/${encodeURIComponent(id)}`);
  }

  /** The worker has released one of its streams or bindings. */
  async release(kind: LeaseKind, key: string, token: Token): Promise<void> {
    await this.#once("DELETE", `/v1/${kind}/${key}?token=${token}`);
  }

  /** Begins a drain; how many jobs are left, with `wait` at its end. */
  async drain(wait: boolean, signal?: AbortSignal): Promise<number> {
    const path = wait ? "/v1/drain?wait=true" : "/v1/drain";
    const answer = await this.#once("POST", path, { answerMs: wait ? null : ANSWER_MS, signal });
    return decoded(drainResponse.read, answer).jobsLeft;
  }

  /** The worker lives, and says so again within this time; 0 takes the promise back. */
  async beat(withinMs: number, answerMs: number): Promise<void> {
    await this.#once("POST", `/v1/beat?within_ms=${withinMs}`, { answerMs });
  }

  /** The worker's process starts. */
  async start(startId: string, running: number): Promise<void> {
    await this.#once("POST", "/v1/start", { body: startOf(startId, running) });
  }

  async #once(method: string, path: string, options: CallOptions = {}): Promise<unknown> {
    const connection = await this.connect(options.signal);
    this.#open.add(connection);
    try {
      return await connection.call(method, path, options);
    } finally {
      this.#open.delete(connection);
      connection.close();
    }
  }
}

/** The body that announces a start. */
export function startOf(startId: string, running: number): object {
  return { start_id: startId, running };
}

/** The address to use, and where it comes from. */
function found(address: string | undefined): [string, string] {
  const { LEASEHOLD_ADDR: named, LEASEHOLD_SOCKET: path } = process.env;
  if (address) {
    return [address, "the program passes this address"];
  }
  if (named) {
    return [named, "LEASEHOLD_ADDR names this address"];
  }
  if (path) {
    return [`unix:${path}`, "LEASEHOLD_SOCKET names this socket"];
  }
  return [ADDRESS_DEFAULT, "LEASEHOLD_ADDR and LEASEHOLD_SOCKET are not set"];
}

function placeOf(address: string): NetConnectOpts {
  const path = address.startsWith("unix:") ? address.slice("unix:".length) : "";
  if (path !== "") {
    return { path };
  }
  const url = URL.canParse(address) ? new URL(address) : undefined;
  if (url?.protocol !== "http:" || url.pathname !== "/" || url.search !== "" || url.hash !== "") {
    throw new TypeError(`invalid address "${address}": expected http://HOST:PORT or unix:PATH`);
  }
  // An IPv6 address stands in brackets in a URL only.
  const host = url.hostname.replace(/^\[(.*)\]$/, "$1");
  return { host, port: url.port === "" ? HTTP_PORT : Number(url.port) };
}
