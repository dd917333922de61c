// What the page says of a worker.

import { compareNumerals, count, counted, load } from "./format.js";

/**
 * The states of workers, in the order of legends. Each has a letter, because colour alone would
 * not tell them apart for everyone.
 */
export const STATES = [
  { name: "working", letter: "", says: "takes jobs; filled as far as its slots are used" },
  { name: "draining", letter: "D", says: "takes no new job, gives its streams back" },
  { name: "leaving", letter: "L", says: "its drain has ended, its agent leaves" },
  { name: "failing", letter: "!", says: "fails its check: it gets no job" },
  { name: "silent", letter: "S", says: "not connected, for less than its leases last" },
  { name: "lost", letter: "X", says: "silent for longer: its slots still count" },
  { name: "unreported", letter: "?", says: "known to the leader before, has not reported to this" },
];

const LETTERS = new Map(STATES.map((state) => [state.name, state.letter]));

/**
 * A worker's state, one word.
 * @param {object} worker
 * @returns {string}
 */
export function stateOf(worker) {
  switch (worker.presence) {
    case "PRESENCE_LOST": return "lost";
    case "PRESENCE_UNREPORTED": return "unreported";
    case "PRESENCE_SILENT": return "silent";
    default:
  }
  if (worker.failure) return "failing";
  switch (worker.drain) {
    case "DRAIN_PHASE_DRAINING": return "draining";
    case "DRAIN_PHASE_LEAVING": return "leaving";
    default: return "working";
  }
}

/**
 * The letter of a state; empty for a worker that works.
 * @param {string} state
 * @returns {string}
 */
export function letterOf(state) {
  return LETTERS.get(state) ?? "";
}

/**
 * How much of what a worker may use is used, from 0 to 1.
 * @param {object} worker
 * @param {number} capacity of its class; 0 where it is of a cluster with a budget
 * @returns {number}
 */
export function fillOf(worker, capacity) {
  if (capacity > 0) return Math.min(1, (worker.documentsPerSecond ?? 0) / capacity);
  const running = worker.running ?? 0;
  // What drains has no slots any more; its jobs are seen as part of what it may still be using.
  const most = Math.max(worker.granted ?? 0, worker.committed ?? 0, running);
  return most === 0 ? 0 : running / most;
}

/**
 * Its use in figures, short: "2/3", or "12/30" documents per second.
 * @param {object} worker
 * @param {number} capacity of its class, or 0
 * @returns {string}
 */
export function usageOf(worker, capacity) {
  if (capacity > 0) return `${load(worker.documentsPerSecond)}/${load(capacity)}`;
  return `${worker.running ?? "?"}/${worker.granted ?? 0}`;
}

/**
 * What a worker does, in words.
 * @param {object} worker
 * @param {number} capacity of its class, or 0
 * @returns {string}
 */
export function describe(worker, capacity) {
  const parts = [stateOf(worker)];
  if (capacity > 0) {
    parts.push(`${load(worker.documentsPerSecond)} of ${load(capacity)} documents per second`);
  } else {
    const running = worker.running === undefined ? "unknown" : count(worker.running);
    parts.push(`size ${count(worker.granted)}`, `running ${running}`);
    if ((worker.committed ?? 0) > (worker.granted ?? 0)) {
      parts.push(`${counted(worker.committed, "slot")} may be in use`);
    }
  }
  if (worker.streams) parts.push(counted(worker.streams, capacity > 0 ? "share" : "stream"));
  if (worker.refusedAgent) parts.push("another agent wants its name");
  return parts.join(", ");
}

/**
 * What the view of a cluster says of its workers, from one pass over them.
 * @param {Iterable<object>} workers
 * @returns {{states: Map<string, number>, newest: string, current: number, working: number}}
 *     newest: the highest generation; current: its workers; working: those of them that work
 */
export function sumUp(workers) {
  const states = new Map(STATES.map(({ name }) => [name, 0]));
  let newest = "0";
  let current = 0;
  let working = 0;
  for (const worker of workers) {
    const state = stateOf(worker);
    states.set(state, states.get(state) + 1);
    const { generation = "0" } = worker;
    const order = generation === newest ? 0 : compareNumerals(generation, newest);
    if (order > 0) {
      newest = generation;
      current = 0;
      working = 0;
    }
    if (order < 0) continue;
    current += 1;
    if (state === "working") working += 1;
  }
  for (const [name, number] of states) if (number === 0) states.delete(name);
  return { states, newest, current, working };
}
