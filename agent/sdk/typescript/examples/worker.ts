/** See HELP. */

import {
  appendFileSync,
  existsSync,
  linkSync,
  mkdirSync,
  readFileSync,
  readdirSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { uptime } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

import { Token, Worker, type Job, type Stream } from "leasehold";

const HELP = `A worker with the SDK: jobs, streams, and a sink that refuses a former owner.

Usage: node dist/examples/worker.js FOLDER

It writes what it did, and when, to FOLDER/journal/WORKER.jsonl, and a record every few milliseconds
to FOLDER/sink/STREAM.jsonl while it owns that stream: a file for each record. While FOLDER/hold
exists no job ends. SIGTERM drains it, and it ends when nothing is left.

Example, with an agent:

    leasehold-agent run ... -- node dist/examples/worker.js FOLDER
`;

const NAME = process.env["LEASEHOLD_WORKER"] ?? "worker";
// Jobs at once, where the pool allows as many.
const JOBS_MAX = 4;
const STEP_MS = 20;
// Much less than by default: another worker goes on with the streams of one that hangs.
const BEAT_WITHIN_MS = 3_000;

// The monotonic clock stops with a suspended machine, the uptime does not, but is rounded down to
// 10 ms: so the largest difference of many is the most exact one.
const AHEAD_NS = Array.from({ length: 10_000 }, () => {
  const hundredths = Math.round(uptime() * 100);
  return BigInt(hundredths) * 10_000_000n - process.hrtime.bigint();
}).reduce((most, one) => (one > most ? one : most));

/** Nanoseconds since the machine has booted, as CLOCK_BOOTTIME counts them. */
function nowNs(): number {
  return Number(process.hrtime.bigint() + AHEAD_NS);
}

/** What this worker did, a line each. */
class Journal {
  readonly #path: string;

  constructor(folder: string) {
    mkdirSync(join(folder, "journal"), { recursive: true });
    this.#path = join(folder, "journal", `${NAME}.jsonl`);
  }

  write(event: string, fields: object, atNs = nowNs()): void {
    const line = { event, at_ns: atNs, wall_us: Date.now() * 1_000, worker: NAME, ...fields };
    appendFileSync(this.#path, `${JSON.stringify(line)}\n`);
  }
}

/** A higher token has been here. */
class Fenced extends Error {}

/**
 * A stream's records, each in a file named by its number. The token of the last record is the
 * highest one; lower ones are refused.
 *
 * A link is made only where no other file has its name. So of two workers that add the next record
 * one finds it there, and then its token: no lock is held by a worker that is stopped meanwhile.
 */
class Sink {
  readonly #token: Token;
  readonly #folder: string;
  /** The last record that this worker has seen, and its token. */
  #last = 0;
  #highest = new Token("0.0");
  /** When this worker's last record was written. */
  lastNs: number | undefined;

  constructor(folder: string, stream: Stream) {
    this.#token = stream.token;
    this.#folder = join(folder, "sink", `${encodeURIComponent(stream.name)}.jsonl`);
    mkdirSync(this.#folder, { recursive: true });
    for (const name of readdirSync(this.#folder)) {
      // What is not yet a record has a name that is no number.
      this.#last = Math.max(this.#last, Number.parseInt(name, 10) || 0);
    }
    if (this.#last > 0) {
      this.#highest = this.#tokenOf(this.#last);
    }
  }

  /** Adds the next record. */
  append(): void {
    for (;;) {
      if (this.#token.compare(this.#highest) < 0) {
        throw new Fenced(`token ${this.#token} is older than ${this.#highest}`);
      }
      this.#last += 1;
      if (this.#write(this.#last)) {
        this.#highest = this.#token;
        return;
      }
      this.#highest = this.#tokenOf(this.#last);
    }
  }

  /** Writes a record; false if there is one of this number. */
  #write(record: number): boolean {
    const atNs = nowNs();
    const draft = join(this.#folder, `draft-${NAME}`);
    const text = `record ${record}`;
    const line = { token: this.#token, record, worker: NAME, at_ns: atNs, text };
    // A former draft may be a record by now, under another name.
    rmSync(draft, { force: true });
    writeFileSync(draft, `${JSON.stringify(line)}\n`);
    try {
      linkSync(draft, this.#pathOf(record));
    } catch (error) {
      if (existsSync(this.#pathOf(record))) {
        return false;
      }
      throw error;
    }
    this.lastNs = atNs;
    return true;
  }

  #tokenOf(record: number): Token {
    const { token } = JSON.parse(readFileSync(this.#pathOf(record), "utf8")) as { token: string };
    return new Token(token);
  }

  #pathOf(record: number): string {
    return join(this.#folder, `${record}.json`);
  }
}

/** The work. */
async function run(job: Job, folder: string, journal: Journal): Promise<void> {
  journal.write("job_start", { job: job.id, token: job.token });
  await sleep(5 * STEP_MS);
  while (existsSync(join(folder, "hold"))) {
    await sleep(STEP_MS);
  }
  journal.write("job_end", { job: job.id });
}

/** Writes to the sink for as long as the stream is this worker's. */
async function consume(stream: Stream, folder: string, journal: Journal): Promise<void> {
  const lease = { set: stream.set, stream: stream.name, token: stream.token };
  const sink = new Sink(folder, stream);
  let why = "revoked";
  while (!stream.stopping.aborted) {
    if (stream.isValid()) {
      const isFirst = sink.lastNs === undefined;
      try {
        sink.append();
      } catch (error) {
        if (!(error instanceof Fenced)) {
          throw error;
        }
        why = `fenced: ${error.message}`;
        break;
      }
      if (isFirst) {
        // From its first record on: that one shuts out a former owner that was stopped between "is
        // it still mine?" and its write.
        journal.write("own_start", lease, sink.lastNs);
      }
    }
    // It rejects when the stream is to be stopped, which the loop's condition then finds.
    await sleep(STEP_MS, undefined, { signal: stream.stopping }).catch(() => undefined);
  }
  if (sink.lastNs === undefined) {
    return;
  }
  const lookedNs = nowNs();
  if (!stream.isValid()) {
    why = "lost";
  }
  // Of a stream that is over this function may hear late; it wrote nothing after that moment.
  journal.write("own_end", { why, ...lease }, why === "revoked" ? lookedNs : sink.lastNs);
}

async function main(folder: string): Promise<void> {
  const journal = new Journal(folder);
  await using worker = new Worker({ beatWithinMs: BEAT_WITHIN_MS });
  process.once("SIGTERM", () => {
    worker.drain().catch((error: unknown) => console.error("cannot drain:", error));
  });
  await Promise.all([
    worker.runJobs((job) => run(job, folder, journal), JOBS_MAX),
    worker.runStreams((stream) => consume(stream, folder, journal)),
  ]);
}

const [folder, ...others] = process.argv.slice(2);
if (folder === "-h" || folder === "--help") {
  console.log(HELP);
} else if (folder === undefined || folder.startsWith("-") || others.length > 0) {
  console.error(HELP);
  process.exitCode = 2;
} else {
  await main(folder);
}
