/** Streams: handed out once a token, revoked, and over by the worker's own clock. */

import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";

import type { Stream, Worker } from "leasehold";

import { clock } from "../src/clock.js";
import { streamLease } from "../src/messages.js";
import { endMs } from "../src/owned.js";
import { eventually, type Call, type FakeAgent } from "./fake_agent.js";
import { Lines, aborted, nextOf, start, startAgent, startWorker } from "./fixture.js";

interface Consumer {
  readonly agent: FakeAgent;
  readonly worker: Worker;
  readonly streams: AsyncGenerator<Stream, void>;
}

async function consume(t: TestContext): Promise<Consumer> {
  const { agent, worker } = await start(t);
  return { agent, worker, streams: worker.streams() };
}

function released(agent: FakeAgent, name: string, token: string): readonly Call[] {
  return agent.called("DELETE", `/v1/streams/cars/${name}?token=${token}`);
}

test("a block owns a stream", async (t) => {
  const { agent, streams } = await consume(t);
  agent.show("new", "8.17", "held", { valid_for_ms: 60_000 });
  const stream = await nextOf(streams);
  {
    using own = stream;
    assert.deepEqual([own.set, own.name, `${own.token}`], ["cars", "new", "8.17"]);
    assert.equal(own.isValid(), true);
    assert.ok((own.timeLeftMs() ?? 0) <= 60_000);
    assert.equal(own.stopping.aborted, false);
  }
  await eventually("the release", () => released(agent, "new", "8.17").length > 0);
  assert.equal(stream.isValid(), false);
  assert.equal(stream.stopping.aborted, true);
  assert.equal(stream.timeLeftMs(), 0);
});

test("a release can be awaited", async (t) => {
  const { agent, streams } = await consume(t);
  agent.show("new", "8.17");
  const stream = await nextOf(streams);
  await Promise.all([stream.release(), stream.release()]);
  assert.equal(released(agent, "new", "8.17").length, 1);
});

test("streams are requested only once they are consumed", async (t) => {
  const agent = await startAgent(t);
  const log = new Lines();
  const worker = startWorker(t, agent, { log });
  agent.show("new", "8.17", "held", { valid_for_ms: 60_000 });
  // What the agent shows counts as something that the worker may work on.
  using job = await worker.job("a");
  assert.deepEqual(worker.lease?.streams, []);
  using stream = await nextOf(worker.streams());
  assert.equal(stream.name, "new");
  assert.equal(worker.lease.streams.length, 1);
  assert.deepEqual([...agent.jobs], [job.id]);
  assert.deepEqual(log.warnings, [], "the other watch is no lost connection");
});

test("a pinned stream does not end by time", async (t) => {
  const { agent, streams } = await consume(t);
  agent.show("new", "8.17");
  using stream = await nextOf(streams);
  assert.equal(stream.timeLeftMs(), undefined);
  assert.equal(stream.isValid(), true);
});

test("a revoked stream is valid until it is released", async (t) => {
  const { agent, streams } = await consume(t);
  agent.show("new", "8.17", "held", { valid_for_ms: 60_000 });
  const stream = await nextOf(streams);
  agent.show("new", "8.17", "revoked", { valid_for_ms: 60_000, release_within_ms: 30_000 });
  await aborted(stream.stopping);
  assert.deepEqual([stream.revoked.aborted, stream.isValid()], [true, true]);
  assert.ok((stream.releaseWithinMs() ?? Infinity) <= 30_000);
  assert.deepEqual(released(agent, "new", "8.17"), []);
  await stream.release();
  assert.equal(released(agent, "new", "8.17").length, 1);
});

test("a revocation can be taken back", async (t) => {
  const { agent, streams } = await consume(t);
  agent.show("new", "8.17");
  const stream = await nextOf(streams);
  agent.show("new", "8.17", "revoked", { release_within_ms: 30_000 });
  await aborted(stream.revoked);
  agent.show("new", "8.17");
  await eventually("no revocation", () => !stream.revoked.aborted);
  assert.equal(stream.stopping.aborted, false);
  assert.equal(stream.releaseWithinMs(), undefined);
});

test("a revoked stream that was not handed out is released", async (t) => {
  const { agent, streams } = await consume(t);
  agent.show("old", "8.1");
  agent.show("new", "8.2");
  const taken = await nextOf(streams);
  agent.show("old", "8.1", "revoked");
  agent.show("new", "8.2", "revoked");
  const left = taken.name === "old" ? "new" : "old";
  const path = "/v1/streams/cars/";
  const calls = (name: string): readonly Call[] => agent.called("DELETE", `${path}${name}`);
  await eventually("the release", () => calls(left).length > 0);
  assert.deepEqual(calls(taken.name), []);
});

test("a worker that uses no streams releases none", async (t) => {
  const { agent, worker } = await consume(t);
  agent.show("new", "8.1", "revoked");
  await (await worker.job()).end();
  assert.deepEqual(worker.lease?.streams, []);
  assert.deepEqual(agent.called("DELETE", "/v1/streams"), []);
});

test("a token is handed out once", async (t) => {
  const { agent, streams } = await consume(t);
  agent.show("new", "8.9");
  await (await nextOf(streams)).release();
  // What was on its way lists it once more, before another stream; then it is granted again.
  agent.show("new", "8.9");
  agent.show("other", "8.11");
  assert.equal((await nextOf(streams)).name, "other");
  agent.show("new", "8.10");
  assert.equal(`${(await nextOf(streams)).token}`, "8.10");
});

test("the next owner comes after the last has released", async (t) => {
  const { agent, streams } = await consume(t);
  agent.show("new", "8.1");
  const last = await nextOf(streams);
  agent.show("new", "8.2");
  await aborted(last.lost);
  const taken = nextOf(streams);
  agent.show("other", "8.3");
  assert.equal((await taken).name, "other");
  void last.release();
  assert.equal(`${(await nextOf(streams)).token}`, "8.2");
});

test("a withdrawn stream is lost", async (t) => {
  const { agent, streams } = await consume(t);
  agent.show("new", "8.1");
  const stream = await nextOf(streams);
  agent.hide("new");
  await aborted(stream.lost);
  assert.equal(stream.isValid(), false);
});

test("what was listed before the start was told is passed over", async (t) => {
  const { agent, worker, streams } = await consume(t);
  const next = nextOf(streams);
  const looks = (): number => agent.called("GET", "/v1/lease?without_bindings").length;
  await eventually("a look at streams", () => looks() > 0);
  agent.forget();
  agent.streams.set("new", { set: "cars", stream: "new", token: "8.1", state: "held" });
  agent.onStart = () => agent.show("new", "8.2");
  agent.cutWatches();
  const stream = await next;
  assert.equal(`${stream.token}`, "8.2");
  agent.tell();
  await eventually("the newest lease", () => worker.lease?.version === agent.version);
  assert.equal(stream.lost.aborted, false);
});

test("a release of what is not held any more is over", async (t) => {
  const { agent, streams } = await consume(t);
  agent.show("new", "8.1");
  const stream = await nextOf(streams);
  agent.streams.delete("new");
  await stream.release();
  assert.equal(released(agent, "new", "8.1").length, 1);
});

test("a stream outlives its agent but not its lease", async (t) => {
  const { agent, worker, streams } = await consume(t);
  agent.show("new", "8.1", "held", { valid_for_ms: 600_000 });
  const stream = await nextOf(streams);
  await agent.kill();
  assert.equal(stream.isValid(), true);
  const end = stream.endMs ?? 0;
  const now = t.mock.method(clock, "nowMs", () => end - 1);
  assert.equal(stream.isValid(), true);
  now.mock.mockImplementation(() => end);
  assert.equal(stream.isValid(), false);
  now.mock.restore();
  assert.deepEqual([stream.lost.aborted, stream.stopping.aborted], [true, true]);
  await agent.revive();
  // The agent may still list it: what is lost stays lost until it is released.
  for (const state of ["held", "revoked", "held"]) {
    agent.show("new", "8.1", state, { valid_for_ms: 600_000 });
    await eventually("the newest lease", () => worker.lease?.version === agent.version);
    assert.deepEqual([stream.isValid(), stream.stopping.aborted], [false, true]);
  }
  await stream.release();
  assert.equal(released(agent, "new", "8.1").length, 1);
});

test("a stream is lost by the clock without a call", async (t) => {
  const { agent, streams } = await consume(t);
  agent.show("new", "8.1", "held", { valid_for_ms: 2_000 });
  const stream = await nextOf(streams);
  await agent.kill();
  await aborted(stream.lost);
  assert.ok((stream.endMs ?? Infinity) <= clock.nowMs());
});

test("an expired lease is not handed out", async (t) => {
  const { agent, streams } = await consume(t);
  agent.show("over", "8.1", "held", { valid_for_ms: 0 });
  agent.show("new", "8.2", "held", { valid_for_ms: 60_000 });
  assert.equal((await nextOf(streams)).name, "new");
});

test("a drain ends the loop over streams", async (t) => {
  const { agent, streams } = await consume(t);
  agent.show("new", "8.1");
  const stream = await nextOf(streams);
  agent.drain();
  assert.deepEqual(await streams.next(), { value: undefined, done: true });
  await stream.release();
});

test("an aborted signal ends the loop over streams", async (t) => {
  const { worker } = await consume(t);
  const given = new AbortController();
  const next = worker.streams({ signal: given.signal }).next();
  given.abort(new Error("no longer wanted"));
  await assert.rejects(next, /no longer wanted/);
});

test("a handler for each stream", async (t) => {
  const agent = await startAgent(t);
  const log = new Lines();
  const worker = startWorker(t, agent, { log });
  agent.show("new", "8.1");
  agent.show("old", "8.2");
  const running = new Set<string>();
  const consuming = worker.runStreams(async (stream) => {
    running.add(stream.name);
    await aborted(stream.stopping);
    if (stream.name === "old") {
      throw new Error("the old one fails");
    }
  });
  await eventually("both", () => running.size === 2);
  agent.show("old", "8.2", "revoked");
  await eventually("the release", () => released(agent, "old", "8.2").length > 0);
  assert.match(log.errors.join("\n"), /the handler of cars\/old .* failed: .* the old one fails/);
  agent.show("new", "8.1", "revoked");
  agent.drain();
  await consuming;
  await eventually("the release", () => released(agent, "new", "8.1").length > 0);
});

test("closing ends what is owned and waits for its release", async (t) => {
  const { agent, worker } = await consume(t);
  agent.show("new", "8.1");
  let isOwned = false;
  const consuming = worker.runStreams(async (stream) => {
    isOwned = true;
    await aborted(stream.lost);
  });
  await eventually("an owner", () => isOwned);
  await worker.close();
  await consuming;
  assert.equal(released(agent, "new", "8.1").length, 1);
});

test("a stream ends before its lease counted from the request", (t) => {
  t.mock.method(clock, "nowMs", () => 7_000);
  const lease = { ...streamLease.initial, validForMs: 10_000 };
  assert.equal(endMs(2_000, lease, 1_000), 11_500);
  assert.equal(endMs(2_000, lease, 20), 11_980);
  assert.equal(endMs(2_000, { ...lease, validForMs: 1 }, 1_000), 2_001);
  assert.equal(endMs(2_000, streamLease.initial, 1_000), undefined);
});
