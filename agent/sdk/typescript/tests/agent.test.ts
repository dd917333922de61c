/** Where the agent is, and what is made of its answers. */

import assert from "node:assert/strict";
import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import * as http from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test, type TestContext } from "node:test";

import { Unreachable, Worker } from "leasehold";

import { Agent } from "../src/agent.js";
import { clock } from "../src/clock.js";
import { NoAnswer } from "../src/errors.js";
import { lease } from "../src/messages.js";
import { HANG_MS, eventually } from "./fake_agent.js";
import { Lines, nextOf, startAgent, startWorker } from "./fixture.js";

const SDK = new URL("../src/index.js", import.meta.url).href;

/** A program that uses the package. It is killed at the end of the test. */
function startProgram(t: TestContext, script: string, environment: object): ChildProcess {
  const text = `import { Worker } from ${JSON.stringify(SDK)};\n${script}`;
  const { LEASEHOLD_ADDR: _, ...inherited } = process.env;
  const program = spawn(process.execPath, ["--input-type=module", "--eval", text], {
    env: { ...inherited, ...environment },
    stdio: ["ignore", "inherit", "pipe"],
    timeout: HANG_MS,
  });
  t.after(() => program.kill("SIGKILL"));
  return program;
}

test("a worker says that it lives as long as it does", async (t) => {
  const agent = await startAgent(t);
  const beats = (): readonly string[] => agent.called("POST", "/v1/beat").map((call) => call.path);
  const worker = startWorker(t, agent, { beatWithinMs: 1_000 });
  await eventually("three beats", () => beats().length >= 3);
  assert.deepEqual(new Set(beats()), new Set(["/v1/beat?within_ms=1000"]));
  await worker.close();
  assert.equal(beats().at(-1), "/v1/beat?within_ms=0", "it takes its promise back");
});

test("a worker without beats says nothing", async (t) => {
  const agent = await startAgent(t);
  const worker = startWorker(t, agent, { beatWithinMs: null });
  await (await worker.job("a")).end();
  // One with beats takes its promise back when it closes, and waits for that.
  await worker.close();
  assert.deepEqual(agent.called("POST", "/v1/beat"), []);
});

test("a time that is too short is refused", () => {
  const address = "http://127.0.0.1:1";
  for (const wrong of [500, -1, "30s", Number.NaN, Infinity]) {
    const beatWithinMs = wrong as number;
    assert.throws(() => new Worker({ address, beatWithinMs }), /use null, or 1000 or more/);
  }
  // A negative one would have the worker go on after its lease has ended.
  for (const wrong of [-20, "1", Number.NaN, null]) {
    const stopBeforeMs = wrong as number;
    assert.throws(() => new Worker({ address, stopBeforeMs }), /invalid stopBeforeMs .*: use 0 or/);
  }
});

test("the environment says where the agent is", (t) => {
  const both = { LEASEHOLD_ADDR: "http://[::1]:1234", LEASEHOLD_SOCKET: "/run/a.sock" };
  const before = process.env;
  t.after(() => (process.env = before));
  for (const [environment, address] of [
    [both, "http://[::1]:1234"],
    [{ LEASEHOLD_SOCKET: "/run/a.sock" }, "unix:/run/a.sock"],
    [{}, "http://127.0.0.1:7411"],
  ] as const) {
    process.env = { ...environment };
    assert.equal(new Agent().address, address);
    assert.equal(new Agent("http://localhost").address, "http://localhost");
  }
});

test("what is no address is refused", () => {
  for (const wrong of [
    "127.0.0.1:7411",
    "localhost:7411",
    "https://localhost:1",
    "http://",
    "http://localhost/a",
    "unix:",
  ]) {
    assert.throws(() => new Agent(wrong), /expected http:\/\/HOST:PORT or unix:PATH/, wrong);
  }
});

test("a Unix socket serves the same", async (t) => {
  const folder = await mkdtemp(join(tmpdir(), "leasehold-"));
  t.after(() => rm(folder, { recursive: true }));
  const agent = await startAgent(t);
  await agent.kill();
  const path = join(folder, "agent.sock");
  await agent.revive(path);
  const worker = startWorker(t, agent, { address: `unix:${path}` });
  using job = await worker.job("a");
  assert.deepEqual([...agent.jobs], [job.id]);
});

test("a connection never reaches another process", async (t) => {
  const agent = await startAgent(t);
  const connection = await new Agent(agent.address).connect();
  t.after(() => connection.close());
  const read = await Promise.all([1, 2, 3].map(() => connection.readLease(new Set())));
  assert.deepEqual(read.map((one) => one.worker), ["w1", "w1", "w1"]);
  await agent.kill();
  await agent.revive();
  for (let attempt = 0; attempt < 2; attempt += 1) {
    await assert.rejects(connection.readLease(new Set()), NoAnswer);
  }
});

test("calls that wait for a connection fail with it", async (t) => {
  const agent = await startAgent(t);
  agent.startId = "of another process";
  agent.jobs.add("takes the slot");
  const connection = await new Agent(agent.address).connect();
  t.after(() => connection.close());
  const calls = [1, 2].map((id) => connection.call("PUT", `/v1/jobs/${id}?wait_ms=60000`));
  const rejected = calls.map((call) => assert.rejects(call, NoAnswer));
  await eventually("the first one", () => agent.called("PUT", "/v1/jobs/1").length > 0);
  await agent.kill();
  await Promise.all(rejected);
});

test("a program says that there is no agent without any setup of a log", async (t) => {
  const environment = { LEASEHOLD_SOCKET: "/nowhere/agent.sock" };
  const program = startProgram(t, "await new Worker().job();", environment);
  let said = "";
  program.stderr?.on("data", (chunk) => (said += String(chunk)));
  await eventually("a warning", () => said.includes("\n"));
  const address = "unix:/nowhere/agent.sock";
  for (const words of [address, "ENOENT", "LEASEHOLD_SOCKET names", "--listen"]) {
    assert.ok(said.includes(words), `no ${words}: ${said}`);
  }
});

test("a program ends when its worker is closed", async (t) => {
  const agent = await startAgent(t);
  const script = `
    const worker = new Worker();
    const job = await worker.job("a");
    setImmediate(() => job.end());
    await worker.runStreams(() => worker.drain());
    await worker.close();`;
  agent.show("new", "8.1");
  const program = startProgram(t, script, { LEASEHOLD_ADDR: agent.address });
  const [status] = (await once(program, "exit")) as [number | null];
  assert.equal(status, 0);
  assert.equal(agent.jobs.size, 0);
  assert.equal(agent.streams.size, 0);
});

test("an outage is logged once with address, reason and advice", async (t) => {
  const agent = await startAgent(t);
  await agent.kill();
  const log = new Lines();
  const worker = startWorker(t, agent, { log });
  // The time without an agent is over.
  const now = clock.nowMs.bind(clock);
  t.mock.method(clock, "nowMs", () => now() + 3_600_000);
  const asked = (): Promise<unknown> => worker.job(undefined, { waitMs: 200 });
  for (let attempt = 0; attempt < 2; attempt += 1) {
    await assert.rejects(asked(), { name: "Unreachable", message: new RegExp(agent.address) });
  }
  await assert.rejects(asked(), /REFUSED.*LEASEHOLD_ADDR/);
  await eventually("a warning", () => log.warnings.length > 0);
  await agent.revive();
  await (await worker.job()).end();
  assert.equal(log.warnings.length, 1, log.warnings.join("\n"));
  for (const words of [agent.address, "ECONNREFUSED", "the program passes this address"]) {
    assert.ok(log.warnings[0]?.includes(words), `no ${words}: ${log.warnings[0]}`);
  }
});

test("a connection that is lost is logged", async (t) => {
  const agent = await startAgent(t);
  const log = new Lines();
  const worker = startWorker(t, agent, { log });
  await (await worker.job()).end();
  await agent.kill();
  await eventually("a warning", () => log.warnings.length > 0);
  assert.match(log.warnings[0] ?? "", /the connection to the agent at .* is lost/);
});

test("what is no agent is named with what it answered", async (t) => {
  const other = http.createServer((_, response) => response.writeHead(404).end("no such path"));
  other.listen(0, "127.0.0.1");
  t.after(() => other.close());
  await once(other, "listening");
  const address = `http://127.0.0.1:${(other.address() as AddressInfo).port}`;
  const worker = new Worker({ address, log: new Lines() });
  t.after(() => worker.close(0));
  const said = /it answered 404: "no such path"; is this the address of an agent\?/;
  await assert.rejects(worker.job(undefined, { waitMs: 1_000 }), (error) => {
    return error instanceof Unreachable && said.test(error.message);
  });
});

test("a lease with a wrong field is no lease", () => {
  const said = /Lease\.streams: StreamLease\.set: expected a string, found 1/;
  assert.throws(() => lease.read({ streams: [{ set: 1 }] }), said);
  assert.throws(() => lease.read({ streams: {} }), /Lease\.streams: expected a list/);
  assert.throws(() => lease.read(null), /Lease: expected an object/);
});

test("a lease is read as the agent writes it", () => {
  const read = lease.read({
    version: 7,
    pool: { size: 3, token: "8.17", running: 1, valid_for_ms: 9120 },
    streams: [
      { set: "cars", stream: "cars:new", token: "8.18", state: "held" },
      { set: "cars", stream: "cars:sold", state: "borrowed" },
    ],
    draining: false,
    connected: true,
    of_tomorrow: {},
  });
  assert.deepEqual([read.pool.size, read.pool.validForMs], [3, 9120]);
  assert.deepEqual([read.streams[0]?.state, read.streams[0]?.validForMs], ["held", undefined]);
  // A state of tomorrow is no permission.
  assert.equal(read.streams[1]?.state, "unspecified");
  assert.deepEqual([read.connected, read.worker], [true, ""]);
});

test("a token that cannot be read is logged, and the next lease counts", async (t) => {
  const agent = await startAgent(t);
  const log = new Lines();
  const worker = startWorker(t, agent, { log });
  agent.show("new", "no token");
  const first = nextOf(worker.streams());
  await eventually("an error", () => log.errors.length > 0);
  assert.match(log.errors[0] ?? "", /invalid token "no token"/);
  agent.show("new", "8.1");
  assert.equal((await first).name, "new");
});
