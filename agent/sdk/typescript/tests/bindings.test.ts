/** Bindings: handed out like streams, and where their documents go next. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Turns } from "../src/bindings.js";
import { eventually, type Call, type FakeAgent } from "./fake_agent.js";
import { aborted, nextOf, start } from "./fixture.js";

const PATH = "/v1/bindings/ns%2Ffirst/in/2?token=";

function released(agent: FakeAgent, token: string): readonly Call[] {
  return agent.called("DELETE", `${PATH}${token}`);
}

test("a block owns a binding and sees the newest way on", async (t) => {
  const { agent, worker } = await start(t);
  const times = { valid_for_ms: 60_000 };
  agent.bind("8.17", "held", [["a", 1]], times);
  const binding = await nextOf(worker.bindings());
  {
    using own = binding;
    assert.deepEqual([own.pipeline, own.node, own.index], ["ns/first", "in", 2]);
    assert.deepEqual([`${own.token}`, own.documentsPerSecond], ["8.17", 2.5]);
    assert.equal(own.isValid(), true);
    assert.equal(own.pick("out")?.address, "a:80");
    assert.equal(own.pick("elsewhere"), undefined);
    agent.bind("8.17", "held", [["a", 1], ["b", 1]], times);
    await eventually("the way on", () => own.next[0]?.endpoints.length === 2);
    const picked = [1, 2, 3, 4].map(() => own.pick("out")?.worker);
    assert.deepEqual(picked.sort(), ["a", "a", "b", "b"]);
    agent.bind("8.17", "held", [], times);
    await eventually("nobody to be next", () => own.pick("out") === undefined);
    assert.deepEqual(released(agent, "8.17"), []);
  }
  await eventually("the release", () => released(agent, "8.17").length > 0);
  assert.equal(binding.isValid(), false);
});

test("a binding's next token comes after the last was released", async (t) => {
  const { agent, worker } = await start(t);
  agent.bind("8.1", "held", [["a", 1]]);
  const bindings = worker.bindings();
  const last = await nextOf(bindings);
  agent.bind("8.2", "held", [["b", 1]]);
  await aborted(last.lost);
  assert.equal(last.pick("out")?.worker, "a");
  void last.release();
  assert.equal(`${(await nextOf(bindings)).token}`, "8.2");
});

test("a worker that takes only streams releases no binding", async (t) => {
  const { agent, worker } = await start(t);
  agent.bind("8.1", "revoked");
  agent.show("new", "8.2");
  await (await nextOf(worker.streams())).release();
  assert.equal(agent.called("DELETE", "/v1/streams/").length, 1);
  assert.deepEqual(released(agent, "8.1"), []);
});

test("a handler for each binding", async (t) => {
  const { agent, worker } = await start(t);
  agent.bind("8.1");
  let isServed = false;
  const serving = worker.runBindings(async (binding) => {
    isServed = true;
    await aborted(binding.stopping);
  });
  await eventually("its handler", () => isServed);
  agent.bind("8.1", "revoked", [], { release_within_ms: 30_000 });
  await eventually("the release", () => released(agent, "8.1").length > 0);
  agent.drain();
  await serving;
});

test("a drain goes on with what was handed out and releases the rest", async (t) => {
  const { agent, worker } = await start(t);
  agent.bind("8.1");
  const bindings = worker.bindings();
  const binding = await nextOf(bindings);
  agent.drain();
  assert.equal((await bindings.next()).done, true);
  assert.equal(binding.stopping.aborted, false);
  assert.equal(binding.isValid(), true);
  agent.bind("8.2");
  await aborted(binding.lost);
  void binding.release();
  await eventually("the release of what nobody takes", () => released(agent, "8.2").length > 0);
});

/** What is picked among `[WORKER, LOAD]`, with a `~` before one that drains. */
function picks(turns: Turns, count: number, ...workers: readonly [string, number][]): string {
  const endpoints = workers.map(([name, documentsPerSecond]) => {
    const worker = name.replace("~", "");
    return { worker, address: "", documentsPerSecond, draining: name.startsWith("~") };
  });
  const one = (): string => turns.pick({ node: "out", endpoints })?.worker ?? "-";
  return Array.from({ length: count }, one).join("");
}

test("workers take turns in proportion to their loads and smoothly", () => {
  assert.equal(picks(new Turns(), 14, ["a", 5], ["b", 1], ["c", 1]), "aabacaaaabacaa");
  assert.equal(picks(new Turns(), 8, ["a", 2.5], ["b", 7.5]), "babbbabb");
});

test("one that drains takes documents only where nobody else does", () => {
  const turns = new Turns();
  assert.equal(picks(turns, 3, ["~a", 5], ["b", 1]), "bbb");
  assert.equal(picks(turns, 4, ["~a", 1], ["~b", 1]), "abab");
  assert.equal(picks(turns, 1), "-");
});

test("a change of the workers keeps the turns of those that stay", () => {
  const turns = new Turns();
  assert.equal(picks(turns, 1, ["a", 1], ["b", 1], ["c", 1]), "a");
  assert.equal(picks(turns, 5, ["a", 1], ["b", 1]), "bbaba");
  assert.equal(picks(turns, 2, ["a", 0], ["b", 1]), "bb");
  assert.equal(picks(turns, 4, ["a", 0], ["b", 0]), "baba");
});

test("what was due under larger loads is no debt under smaller ones", () => {
  const turns = new Turns();
  assert.equal(picks(turns, 1, ["a", 900], ["b", 800]), "a");
  assert.equal(picks(turns, 6, ["a", 1], ["b", 1]), "bbabab");
});
