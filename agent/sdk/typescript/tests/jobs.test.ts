/** Jobs: requests for slots, reports of ends, and restarts of the agent in between. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Closed, Draining, Refused, Token, Unreachable } from "leasehold";

import { Agent } from "../src/agent.js";
import { Changes } from "../src/changes.js";
import { NoAnswer } from "../src/errors.js";
import { Jobs } from "../src/jobs.js";
import { Link } from "../src/link.js";
import { PAUSE_MIN_MS } from "../src/pause.js";
import { HANG_MS, eventually } from "./fake_agent.js";
import { Lines, start, startAgent, startWorker } from "./fixture.js";

test("a block is a job", async (t) => {
  const { agent, worker } = await start(t);
  {
    using job = await worker.job("build/1 ä");
    assert.deepEqual([job.id, String(job.token)], ["build/1 ä", "1.1"]);
    assert.deepEqual([...agent.jobs], ["build/1 ä"]);
  }
  await eventually("the end", () => agent.jobs.size === 0);
});

test("the end of a job can be awaited", async (t) => {
  const { agent, worker } = await start(t);
  const job = await worker.job("a");
  await Promise.all([job.end(), job.end()]);
  assert.equal(agent.jobs.size, 0);
  assert.equal(agent.called("DELETE", "/v1/jobs/a").length, 1);
});

test("the start is announced before the first request", async (t) => {
  const { agent, worker } = await start(t);
  await (await worker.job("a")).end();
  const paths = agent.calls.map((call) => call.path.split("?")[0]);
  assert.equal(paths[0], "/v1/start");
  assert.ok(paths.indexOf("/v1/start") < paths.indexOf("/v1/jobs/a"));
});

test("handlers run at once as far as there are slots until the drain", async (t) => {
  const agent = await startAgent(t);
  const log = new Lines();
  const worker = startWorker(t, agent, { log });
  agent.pool = 2;
  const atOnce: number[] = [];
  let begun = 0;
  let meet = (): void => undefined;
  const both = new Promise<void>((resolve) => (meet = resolve));
  await worker.runJobs(async () => {
    const number = (begun += 1);
    atOnce.push(agent.jobs.size);
    if (number > 6) {
      agent.drain();
    }
    if (number === 2) {
      meet();
    }
    // The first waits for the second: they run at the same time.
    await both;
    if (number === 4) {
      throw new Error("the fourth fails");
    }
  }, 3);
  assert.match(log.errors.join("\n"), /the handler of job .* failed: Error: the fourth fails/);
  assert.ok(begun > 6);
  assert.equal(Math.max(...atOnce), 2);
  await eventually("the ends", () => agent.jobs.size === 0);
  await assert.rejects(worker.runJobs(() => undefined, 0), /invalid concurrency 0: use 1 or more/);
});

test("a job whose loop fails ends too", async (t) => {
  const { agent, worker } = await start(t);
  const loop = async (): Promise<void> => {
    for await (const job of worker.jobs()) {
      throw new Error(`${job} fails`);
    }
  };
  await assert.rejects(loop(), /job .* fails/);
  await eventually("the end", () => agent.jobs.size === 0);
});

test("an id that is no text is refused and stops nothing", async (t) => {
  const { worker } = await start(t);
  for (const wrong of [5, new Date(0), "half a pair: \ud83d"]) {
    const begun = worker.job(wrong as string);
    await assert.rejects(begun, { name: "TypeError", message: /invalid job id .*: use a text/ });
  }
  for (const waitMs of [Number.NaN, Infinity, "1" as unknown as number]) {
    await assert.rejects(worker.job("a", { waitMs }), /invalid waitMs .*: use milliseconds/);
  }
  await (await worker.job("a")).end();
});

test("jobs follow each other in one slot", async (t) => {
  const { agent, worker } = await start(t);
  const seen = new Set<string>();
  for await (const job of worker.jobs()) {
    assert.deepEqual([...agent.jobs], [job.id]);
    seen.add(job.id);
    if (seen.size === 3) {
      break;
    }
  }
  assert.equal(seen.size, 3);
  await eventually("the last end", () => agent.jobs.size === 0);
});

test("a job waits for a slot", async (t) => {
  const { agent, worker } = await start(t);
  const first = await worker.job("a");
  let hasBegun = false;
  const second = worker.job("b").then(() => (hasBegun = true));
  await eventually("the question", () => agent.called("PUT", "/v1/jobs/b").length > 0);
  assert.equal(hasBegun, false);
  await first.end();
  await second;
  assert.deepEqual([...agent.jobs], ["b"]);
});

test("a timeout is refused and leaves no slot in use", async (t) => {
  const { agent, worker } = await start(t);
  using job = await worker.job("a");
  const refused = worker.job("b", { waitMs: 50 });
  await assert.rejects(refused, (error) => error instanceof Refused && error.reason === "no_slot");
  assert.deepEqual([...agent.jobs], [job.id]);
});

test("a wait that is aborted takes no slot", async (t) => {
  const { agent, worker } = await start(t);
  const first = await worker.job("a");
  const given = new AbortController();
  const second = worker.job("b", { signal: given.signal });
  await eventually("the question", () => agent.called("PUT", "/v1/jobs/b").length > 0);
  given.abort(new Error("no longer wanted"));
  await assert.rejects(second, /no longer wanted/);
  await eventually("its end", () => agent.called("DELETE", "/v1/jobs/b").length > 0);
  await first.end();
  assert.equal(agent.jobs.size, 0);
  await assert.rejects(worker.job("b", { signal: given.signal }), /no longer wanted/);
  const loop = worker.jobs({ signal: given.signal });
  await assert.rejects(loop.next(), /no longer wanted/);
});

test("jobs that the agent refuses pause between requests whatever other jobs do", async (t) => {
  const { agent, worker } = await start(t);
  agent.refusal = "limit";
  const refused = ["a", "b", "c"].map((id) => {
    const job = worker.job(id, { waitMs: 8 * PAUSE_MIN_MS });
    return assert.rejects(job, (error) => error instanceof Refused && error.reason === "limit");
  });
  await Promise.all(refused);
  // Pauses of 1, 2 and 4 times the shortest one fit into that, and one more that the end cuts.
  assert.ok(agent.called("PUT", "/v1/jobs/").length <= 5 * refused.length);
});

test("an invalid id is refused at once", async (t) => {
  const { worker } = await start(t);
  const begun = worker.job("a\nb");
  await assert.rejects(begun, (error) => error instanceof Refused && error.reason === "invalid");
});

test("the end of an id that is invalid is not repeated", async (t) => {
  const { agent, worker } = await start(t);
  await (await worker.job("a")).end();
  const given = new AbortController();
  agent.isSilent = true;
  const begun = worker.job("a\nb", { signal: given.signal });
  await eventually("the question", () => agent.called("PUT", "/v1/jobs/a%0Ab").length > 0);
  given.abort(new Error("no longer wanted"));
  await assert.rejects(begun, /no longer wanted/);
  agent.isSilent = false;
  // It is asked for again only once its end is settled.
  const again = worker.job("a\nb", { waitMs: HANG_MS });
  await assert.rejects(again, (error) => error instanceof Refused && error.reason === "invalid");
});

test("an id runs once", async (t) => {
  const { agent, worker } = await start(t);
  {
    using _first = await worker.job("a");
    await assert.rejects(worker.job("a"), { name: "RangeError" });
  }
  // Its end is confirmed before it begins again: it does not end the second run.
  using _second = await worker.job("a");
  assert.deepEqual([...agent.jobs], ["a"]);
  assert.equal(agent.called("DELETE", "/v1/jobs/a").length, 1);
});

test("a drain ends the loop", async (t) => {
  const { agent, worker } = await start(t);
  const done = new Set<string>();
  for await (const job of worker.jobs()) {
    done.add(job.id);
    if (done.size === 3) {
      assert.equal(await worker.drain(), 1);
    }
  }
  assert.equal(done.size, 3);
  const asked = agent.called("PUT", "/v1/jobs/").length;
  await assert.rejects(worker.job(), Draining);
  assert.equal(agent.called("PUT", "/v1/jobs/").length, asked, "the agent is not asked");
  assert.equal(worker.draining, true);
  await eventually("the last end", () => agent.jobs.size === 0);
});

test("a drain is asked for until the agent answers", async (t) => {
  const agent = await startAgent(t);
  const log = new Lines();
  const worker = startWorker(t, agent, { log });
  await agent.kill();
  const drained = worker.drain();
  const unanswered = (line: string): boolean => line.includes("did not answer the drain");
  await eventually("a call without an answer", () => log.debugs.some(unanswered));
  await agent.revive();
  assert.equal(await drained, 0);
  assert.equal(agent.draining, true);
  const given = AbortSignal.abort(new Error("no longer wanted"));
  await assert.rejects(worker.drain({ signal: given }), /no longer wanted/);
});

test("an end is reported after the agent restarts", async (t) => {
  const { agent, worker } = await start(t);
  const job = await worker.job("a");
  await agent.kill();
  void job.end();
  await agent.revive();
  await eventually("the end", () => agent.jobs.size === 0);
  using _next = await worker.job("b");
  assert.deepEqual([...agent.jobs], ["b"]);
});

test("an end that the agent cannot write is repeated", async (t) => {
  const { agent, worker } = await start(t);
  const job = await worker.job("a");
  agent.full = true;
  const ended = job.end();
  await eventually("a second try", () => agent.called("DELETE", "/v1/jobs/a").length > 1);
  assert.deepEqual([...agent.jobs], ["a"]);
  agent.full = false;
  await ended;
  assert.equal(agent.jobs.size, 0);
});

test("an agent with a journal counts each job once", async (t) => {
  const { agent, worker } = await start(t);
  agent.pool = 2;
  const first = await worker.job("a");
  await worker.job("b");
  await agent.kill();
  await agent.revive();
  const starts = (): number => agent.called("POST", "/v1/start").length;
  await eventually("the word", () => starts() > 2);
  assert.equal(agent.called("POST", "/v1/start")[2]?.body?.["running"], 2);
  assert.deepEqual([[...agent.jobs], agent.unnamed], [["a", "b"], 0]);
  await first.end();
  assert.deepEqual([...agent.jobs], ["b"]);
});

test("an agent without a journal gets the number of jobs", async (t) => {
  const { agent, worker } = await start(t);
  agent.pool = 3;
  const first = await worker.job("a");
  const second = await worker.job("b");
  await agent.kill();
  agent.forget();
  await agent.revive();
  await eventually("the word", () => agent.unnamed === 2);
  // A job that this agent knows the id of is no part of that number.
  const third = await worker.job("c");
  await first.end();
  await eventually("one fewer", () => agent.unnamed === 1);
  await third.end();
  assert.deepEqual([agent.jobs.size, agent.unnamed], [0, 1]);
  await second.end();
  await eventually("none", () => agent.unnamed === 0);
});

test("a waiting job is requested again after an agent restart", async (t) => {
  const { agent, worker } = await start(t);
  const first = await worker.job("a");
  let hasBegun = false;
  const second = worker.job("b").then(() => (hasBegun = true));
  await eventually("the question", () => agent.called("PUT", "/v1/jobs/b").length > 0);
  await agent.kill();
  agent.forget();
  await agent.revive();
  await eventually("the word", () => agent.unnamed === 1);
  assert.equal(hasBegun, false, "a waiting job does not run");
  await first.end();
  await second;
  assert.deepEqual([[...agent.jobs], agent.unnamed], [["b"], 0]);
});

test("a job that an earlier process has admitted is asked for again", async (t) => {
  const { agent, worker } = await start(t);
  const first = await worker.job("a");
  const second = worker.job("b");
  await eventually("the question", () => agent.called("PUT", "/v1/jobs/b").length > 0);
  agent.cutWatches();
  // Each era begins with one look at the lease.
  await eventually("the next era", () => agent.called("GET", "/v1/lease").length === 2);
  await first.end();
  await second;
  assert.equal(agent.called("PUT", "/v1/jobs/b").length, 2);
  assert.deepEqual([...agent.jobs], ["b"]);
});

test("an end that an earlier process has confirmed is not confirmed", async (t) => {
  const agent = await startAgent(t);
  const worker = {
    running: () => new Set(["a"]),
    consumed: () => new Set<never>(),
    apply: () => undefined,
  };
  const parts = { agent: new Agent(agent.address), changes: new Changes(), log: new Lines() };
  const link = new Link({ ...parts, startId: "a start", worker });
  const followed = link.run();
  await eventually("the first era", () => link.up && link.era === 1);
  agent.cutWatches();
  await eventually("the next era", () => link.up && link.era === 2);
  assert.equal(await link.confirmEnd("a", 1), false);
  assert.equal(await link.confirmEnd("a", 2), true);
  assert.equal(agent.called("POST", "/v1/start").at(-1)?.body?.["running"], 0);
  link.close();
  await followed;
});

test("a job that is admitted while the worker closes is ended", async () => {
  const changes = new Changes();
  const beginJob: Agent["beginJob"] = (_id, _waitMs, _signal, over) => {
    jobs.close();
    over();
    return Promise.resolve(new Token("1.1"));
  };
  const jobs = new Jobs({ beginJob } as unknown as Agent, changes);
  const link = { era: 1, up: true } as Link;
  await assert.rejects(jobs.begin(link, "a", {}), Closed);
  assert.deepEqual([[...jobs.running()], [...jobs.unconfirmed]], [[], ["a"]]);
});

test("the end of what was given up follows the request", async (t) => {
  const { agent, worker } = await start(t);
  await (await worker.job("first")).end();
  agent.unread = "/v1/jobs/a";
  const given = new AbortController();
  const begun = worker.job("a", { signal: given.signal });
  await eventually("the request", () => agent.arrived === 1);
  given.abort(new Error("no longer wanted"));
  await assert.rejects(begun, /no longer wanted/);
  // While the agent may still read the request, its end would come too early. Others do not wait
  // for it: the end of `b` would be sent after that of `a`.
  await (await worker.job("b")).end();
  assert.deepEqual(agent.called("DELETE", "/v1/jobs/a"), []);
  await assert.rejects(worker.job("a", { waitMs: 50 }), Unreachable);
  assert.equal(agent.arrived, 1);
  agent.unread = "";
  agent.tell();
  await eventually("its end", () => agent.called("DELETE", "/v1/jobs/a").length > 0);
  await eventually("free slots", () => agent.jobs.size === 0);
});

test("a request without an answer is over before the next is sent", async () => {
  const overs: (() => void)[] = [];
  const beginJob: Agent["beginJob"] = (_id, _waitMs, _signal, over) => {
    overs.push(over);
    return Promise.reject(new NoAnswer("it does not answer"));
  };
  const jobs = new Jobs({ beginJob } as unknown as Agent, new Changes());
  const link = { era: 1, up: true, outage: () => "no answer" } as unknown as Link;
  // There is time for a second request.
  await assert.rejects(jobs.begin(link, "a", { waitMs: 4 * PAUSE_MIN_MS }), Unreachable);
  assert.deepEqual([overs.length, [...jobs.unconfirmed], jobs.reportable()], [1, ["a"], []]);
  overs[0]?.();
  assert.deepEqual(jobs.reportable(), ["a"]);
});

test("a missing agent is unreachable within the wait", async (t) => {
  const { agent, worker } = await start(t);
  await agent.kill();
  await assert.rejects(worker.job(undefined, { waitMs: 50 }), Unreachable);
});

test("a second process of the worker announces no start", async (t) => {
  const agent = await startAgent(t);
  agent.startId = "told by the worker's first process";
  const other = startWorker(t, agent, { start: false });
  using _job = await other.job("of another process");
  assert.deepEqual([...agent.jobs], ["of another process"]);
  assert.deepEqual(agent.called("POST", "/v1/start"), []);
});

test("more requests for slots than are sent at once wait in the worker", async (t) => {
  const { agent, worker } = await start(t);
  const first = await worker.job("first");
  const all = Array.from({ length: 300 }, (_, number) => worker.job(`job ${number}`));
  await eventually("the questions", () => agent.called("PUT", "/v1/jobs/job").length === 256);
  const late = worker.job("late", { waitMs: 50 });
  await assert.rejects(late, (error) => error instanceof Refused && error.reason === "no_slot");
  assert.deepEqual(agent.called("PUT", "/v1/jobs/late"), []);
  agent.pool = 300;
  await first.end();
  await Promise.all(all);
  assert.equal(agent.jobs.size, 300);
});

test("closing ends the wait for a slot", async (t) => {
  const { agent, worker } = await start(t);
  await worker.job("a");
  const waiting = assert.rejects(worker.job("b"), Closed);
  await eventually("the question", () => agent.called("PUT", "/v1/jobs/b").length > 0);
  await worker.close();
  await waiting;
  assert.equal(agent.called("DELETE", "/v1/jobs/b").length, 1);
  assert.deepEqual([...agent.jobs], ["a"]);
});

test("closing ends the loops and reports unconfirmed ends", async (t) => {
  const { agent, worker } = await start(t);
  const job = await worker.job("a");
  const waiting = assert.rejects(worker.job("b"), Closed);
  await eventually("the question", () => agent.called("PUT", "/v1/jobs/b").length > 0);
  void job.end();
  await worker.close();
  await waiting;
  assert.equal(agent.jobs.size, 0);
  await assert.rejects(worker.job(), Closed);
  assert.deepEqual(await worker.jobs().next(), { value: undefined, done: true });
  await assert.rejects(worker.drain(), Closed);
});
