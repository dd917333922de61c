// The kinds of changes: their groups, and each change in words.

import { count, enumWord } from "./format.js";

/**
 * Groups of kinds, by which the timeline filters. A group's letter marks its lines.
 */
export const GROUPS = [
  { name: "elections", letter: "E", kinds: ["elected", "deposed", "hold_ended"] },
  { name: "rollouts", letter: "R", kinds: ["joined", "drain_started", "gone"] },
  { name: "losses", letter: "X", kinds: ["lost", "disconnected", "failing", "recovered"] },
  { name: "refusals", letter: "!", kinds: ["name_refused", "offence"] },
  { name: "orders", letter: "O", kinds: ["ordered"] },
  { name: "manifests", letter: "M", kinds: ["manifests"] },
  { name: "pools", letter: "P", kinds: ["pool_granted"] },
  {
    name: "streams",
    letter: "S",
    kinds: [
      "stream_granted", "stream_revoked", "stream_released", "stream_expired", "stream_gone",
    ],
  },
  { name: "pipelines", letter: "G", kinds: ["pipeline", "binding"] },
  { name: "gaps", letter: "…", kinds: ["skipped"] },
];

const GROUP_OF = new Map(GROUPS.flatMap((group) => group.kinds.map((kind) => [kind, group])));
const OTHER = { name: "other", letter: "·", kinds: [] };

/** Kinds that want attention: their lines stand out. */
const BAD = new Set(["lost", "failing", "name_refused", "offence", "deposed", "skipped"]);

/**
 * A change's kind as the page names it: "stream_granted".
 * @param {object} change a WatchChangesResponse
 * @returns {string}
 */
export function kindOf(change) {
  return enumWord(change.kind, "CHANGE_KIND_");
}

/**
 * The group of a kind.
 * @param {string} kind
 */
export function groupOf(kind) {
  return GROUP_OF.get(kind) ?? OTHER;
}

/**
 * Whether a change wants attention.
 * @param {object} change
 * @returns {boolean}
 */
export function isBad(change) {
  const broken = change.pipelinePhase === "PIPELINE_PHASE_BROKEN"
    || change.bindingPhase === "BINDING_PHASE_DEAD_END";
  return broken || BAD.has(kindOf(change));
}

/**
 * A change in parts: texts, and the things that it is about, which can be explained.
 * @param {object} change
 * @returns {(string|import("./router.js").Target)[]}
 */
export function partsOf(change) {
  const kind = kindOf(change);
  const own = SENTENCES[kind]?.(change, thingsOf(change)) ?? otherwise(kind, change);
  const message = change.message ? [`: ${change.message}`] : [];
  return [...own, ...message];
}

function thingsOf(change) {
  const { cluster = "", worker = "", set = "", stream = "", pipeline = "" } = change;
  return {
    cluster: { kind: "cluster", names: [cluster] },
    worker: worker === "" ? "nobody" : { kind: "worker", names: [cluster, worker] },
    stream: { kind: "stream", names: [set, stream] },
    pipeline: { kind: "pipeline", names: [pipeline] },
  };
}

const epochOf = (change) => change.epoch ?? "?";
const token = (change) => (change.token ? [` under ${change.token}`] : []);

const SENTENCES = {
  elected: (c) => [`a replica leads, epoch ${epochOf(c)}`],
  deposed: (c) => [`the replica no longer leads, epoch ${epochOf(c)}`],
  hold_ended: (c, { cluster }) => [cluster, " plans again: its hold has ended"],
  joined: (c, { worker }) => [worker, " has joined"],
  disconnected: (c, { worker }) => [worker, " is not connected any more"],
  lost: (c, { worker }) => [worker, " is lost: silent for longer than its leases last"],
  drain_started: (c, { worker }) => [worker, " drains"],
  gone: (c, { worker }) => [worker, " has left"],
  pool_granted: (c, { worker }) => [worker, ` got the pool size ${count(c.size)}`, ...token(c)],
  stream_granted: (c, { stream, worker }) => [stream, " granted to ", worker, ...token(c)],
  stream_revoked: (c, { stream, worker }) => [stream, " revoked from ", worker],
  stream_released: (c, { stream, worker }) => [stream, " given back by ", worker],
  stream_expired: (c, { stream, worker }) => [stream, " ended by time at ", worker],
  stream_gone: (c, { stream, worker }) => [stream, " ended with ", worker],
  offence: (c, { worker }) => [worker, " broke the protocol's rules"],
  skipped: (c) => [`${count(c.skipped)} changes are missing here`],
  manifests: () => ["the manifests' problems have changed"],
  pipeline: (c, { pipeline }) => [
    "pipeline ", pipeline, ` is ${enumWord(c.pipelinePhase, "PIPELINE_PHASE_")}`,
  ],
  binding: (c, { pipeline }) => [
    `node ${c.node ?? ""} of `, pipeline,
    ` is ${enumWord(c.bindingPhase, "BINDING_PHASE_").replace("_", " ")}`,
  ],
  ordered: (c, { worker }) => (c.worker ? ["an order for ", worker] : ["an order"]),
  failing: (c, { worker }) => [worker, " fails its check"],
  recovered: (c, { worker }) => [worker, " passes its check again"],
  name_refused: (c, { worker }) => ["another agent wants the name of ", worker, ": refused"],
};

function otherwise(kind, change) {
  const { cluster, worker } = thingsOf(change);
  const words = kind.replaceAll("_", " ");
  if (change.worker) return [worker, ` ${words}`];
  return change.cluster ? [cluster, ` ${words}`] : [words];
}

/**
 * What a target is called in a sentence.
 * @param {import("./router.js").Target} target
 * @returns {string}
 */
export function titleOf({ names }) {
  return names.join("/");
}

/**
 * A change as one text, for searching.
 * @param {object} change
 * @returns {string}
 */
export function textOf(change) {
  const parts = partsOf(change).map((part) => (typeof part === "string" ? part : titleOf(part)));
  return `${kindOf(change)} ${change.cluster ?? ""} ${parts.join("")}`.toLowerCase();
}
