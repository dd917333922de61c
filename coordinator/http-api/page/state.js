// The fleet as the page knows it, made from the messages of the leader.

/** How far back a cluster's chart goes. */
export const WINDOW = 600_000;
const SAMPLE_EVERY = 2000;

/**
 * What has changed since the last drawing.
 */
export class Dirty {
  constructor() {
    this.all = false;
    this.status = false;
    this.samples = false;
    this.clusters = new Set();
    /** Names of workers by cluster. @type {Map<string, Set<string>>} */
    this.workers = new Map();
    this.sets = new Set();
    this.classes = new Set();
    this.pipelines = new Set();
    /** New changes, oldest first. @type {object[]} */
    this.changes = [];
  }

  /** Notes a worker. */
  worker(cluster, name) {
    const names = this.workers.get(cluster) ?? new Set();
    this.workers.set(cluster, names.add(name));
  }
}

function emptyModel() {
  return {
    time: "",
    status: {},
    clusters: new Map(),
    workers: new Map(),
    sets: new Map(),
    classes: new Map(),
    pipelines: new Map(),
  };
}

/** The clusters, workers, sets, classes and pipelines at one moment. */
export class Fleet {
  constructor() {
    this.model = emptyModel();
    /** What a new connection has said so far; shown once it is whole. */
    this.coming = null;
    this.comingSamples = [];
    /** Whether anything is known. */
    this.known = false;
    /** @type {Map<string, Sample[]>} */
    this.samples = new Map();
    this.sampledAt = 0;
  }

  get time() { return this.model.time; }
  get status() { return this.model.status; }
  get clusters() { return this.model.clusters; }
  get sets() { return this.model.sets; }
  get classes() { return this.model.classes; }
  get pipelines() { return this.model.pipelines; }

  /**
   * The workers of a cluster, by name.
   * @param {string} cluster
   * @returns {Map<string, object>}
   */
  workersOf(cluster) {
    return this.model.workers.get(cluster) ?? NO_WORKERS;
  }

  /**
   * Applies a message.
   * @param {object} message a WatchFleetResponse
   * @param {boolean} first it is the first of a connection, which begins from everything
   * @param {Dirty} dirty
   * @returns {boolean} whether the moment is whole, and may be drawn
   */
  apply(message, first, dirty) {
    if (first) {
      this.coming = emptyModel();
      this.comingSamples = [];
    }
    const model = this.coming ?? this.model;
    change(model, message, dirty);
    if (message.histories) this.comingSamples.push(...message.histories);
    if (message.more) return false;
    if (this.coming) {
      this.model = this.coming;
      this.coming = null;
      this.known = true;
      dirty.all = true;
      this.#takeHistories();
    }
    this.#sample(dirty);
    return true;
  }

  // A new leader has seen little. What the page has seen before goes on being shown.
  #takeHistories() {
    const now = Date.now();
    for (const { cluster, samples = [] } of this.comingSamples) {
      const told = samples.map((sample) => ({
        at: now - (sample.secondsAgo ?? 0) * 1000,
        maxJobs: sample.maxJobs ?? 0,
        committed: sample.committed ?? 0,
        running: sample.running ?? 0,
        granted: sample.granted ?? 0,
      }));
      const begin = told[0]?.at ?? Infinity;
      const seen = (this.samples.get(cluster) ?? []).filter((sample) => sample.at < begin);
      this.samples.set(cluster, [...seen, ...told]);
    }
    this.comingSamples = [];
    for (const cluster of this.samples.keys()) {
      if (!this.clusters.has(cluster)) this.samples.delete(cluster);
    }
    this.sampledAt = 0;
  }

  #sample(dirty) {
    const now = Date.now();
    if (now - this.sampledAt < SAMPLE_EVERY) return;
    this.sampledAt = now;
    dirty.samples = true;
    for (const cluster of this.clusters.values()) {
      if (cluster.isClass) continue;
      const samples = this.samples.get(cluster.name) ?? [];
      samples.push({
        at: now,
        maxJobs: cluster.maxJobs ?? 0,
        committed: cluster.committed ?? 0,
        running: cluster.running ?? 0,
        granted: cluster.granted ?? 0,
      });
      while (samples.length > 0 && samples[0].at < now - WINDOW) samples.shift();
      this.samples.set(cluster.name, samples);
    }
  }
}

const NO_WORKERS = new Map();

/**
 * @typedef {object} Sample
 * @property {number} at milliseconds, as Date.now() has them
 * @property {number} maxJobs
 * @property {number} committed
 * @property {number} running
 * @property {number} granted
 */

function change(model, message, dirty) {
  if (message.time) model.time = message.time;
  if (message.status) {
    model.status = message.status;
    dirty.status = true;
  }
  put(model.clusters, message.clusters, message.clustersRemoved, dirty.clusters);
  put(model.sets, message.sets, message.setsRemoved, dirty.sets);
  put(model.classes, message.classes, message.classesRemoved, dirty.classes);
  put(model.pipelines, message.pipelines, message.pipelinesRemoved, dirty.pipelines);
  for (const worker of message.workers ?? []) {
    let workers = model.workers.get(worker.cluster);
    if (!workers) model.workers.set(worker.cluster, workers = new Map());
    workers.set(worker.name, worker);
    dirty.worker(worker.cluster, worker.name);
  }
  for (const { cluster, worker } of message.workersRemoved ?? []) {
    model.workers.get(cluster)?.delete(worker);
    dirty.worker(cluster, worker);
  }
  for (const name of message.clustersRemoved ?? []) model.workers.delete(name);
}

function put(map, changed = [], removed = [], names) {
  for (const item of changed) {
    map.set(item.name, item);
    names.add(item.name);
  }
  for (const name of removed) {
    map.delete(name);
    names.add(name);
  }
}
