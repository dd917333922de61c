/** A worker with its fake agent, for one test. */

import type { TestContext } from "node:test";

import { Worker, type Log, type WorkerOptions } from "leasehold";

import { FakeAgent } from "./fake_agent.js";

/** A log that keeps its lines. */
export class Lines implements Log {
  readonly debugs: string[] = [];
  readonly warnings: string[] = [];
  readonly errors: string[] = [];

  debug(message: string): void {
    this.debugs.push(message);
  }

  info(): void {}

  warn(message: string): void {
    this.warnings.push(message);
  }

  error(message: string, error: unknown): void {
    this.errors.push(`${message}: ${String(error)}`);
  }
}

/** A fake agent that ends with the test. */
export async function startAgent(t: TestContext): Promise<FakeAgent> {
  const agent = await FakeAgent.start();
  t.after(() => agent.kill());
  return agent;
}

/** A worker that is closed at the end of the test. */
export function startWorker(t: TestContext, agent: FakeAgent, options: WorkerOptions = {}): Worker {
  const worker = new Worker({ address: agent.address, log: new Lines(), ...options });
  t.after(() => worker.close(0));
  return worker;
}

/** Both. */
export async function start(t: TestContext): Promise<{ agent: FakeAgent; worker: Worker }> {
  const agent = await startAgent(t);
  return { agent, worker: startWorker(t, agent) };
}

/** The next one of a loop, which has not ended. */
export async function nextOf<T>(all: AsyncIterator<T, void>): Promise<T> {
  const { value, done } = await all.next();
  if (done) {
    throw new Error("the loop has ended");
  }
  return value;
}

/** Resolves when the signal has aborted. */
export async function aborted(signal: AbortSignal): Promise<void> {
  if (!signal.aborted) {
    await new Promise((resolve) => signal.addEventListener("abort", resolve, { once: true }));
  }
}
