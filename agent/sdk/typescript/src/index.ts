/**
 * Leases for workers: how many jobs may run, which streams this worker owns, and which shares of
 * pipelines it serves.
 *
 *     const worker = new Worker();
 *     const job = await worker.job("build-42"); // waits for a slot
 *     try {
 *       await build(42);
 *     } finally {
 *       await job.end();
 *     }
 *
 *     await worker.runStreams(consume); // until the worker drains
 *     await worker.close();
 */

export type { Binding } from "./bindings.js";
export {
  Closed,
  Draining,
  LeaseholdError,
  Refused,
  StaleToken,
  Unreachable,
} from "./errors.js";
export { FENCE_TABLE, type FenceQuery, type ParameterMark } from "./fence.js";
export type { Job, JobOptions } from "./jobs.js";
export type { Log } from "./log.js";
export type {
  Endpoint,
  Lease,
  ListedLease,
  Next,
  Pool,
  ShareLease,
  StreamLease,
  StreamLeaseState,
} from "./messages.js";
export type { Owned } from "./owned.js";
export type { Stream } from "./streams.js";
export { Token } from "./token.js";
export {
  Worker,
  type DrainOptions,
  type Handler,
  type LoopOptions,
  type WorkerOptions,
} from "./worker.js";
