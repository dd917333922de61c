/** The clock of leases, by an uptime and a monotonic clock that the test sets. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { LeaseClock } from "../src/clock.js";

test("a rounded uptime changes no difference", () => {
  let nowMs = 1_000_000;
  // The monotonic clock of a process counts from its start.
  const clock = new LeaseClock(() => Math.floor(nowMs / 10) * 10, () => nowMs - 400_000);
  const begun = clock.nowMs();
  for (const stepMs of [1, 9, 10, 13, 250]) {
    nowMs += stepMs;
    assert.equal(clock.nowMs() - begun, nowMs - 1_000_000);
  }
});

test("a rounded uptime that is read late makes no time shorter", () => {
  let nowMs = 1_000_009;
  const clock = new LeaseClock(() => Math.floor(nowMs / 10) * 10, () => nowMs - 400_000);
  const begun = clock.nowMs();
  nowMs += 1;
  const elapsedMs = clock.nowMs() - begun;
  assert.ok(elapsedMs >= 1 && elapsedMs <= 11, `${elapsedMs} ms`);
});

test("the time for which the machine was suspended counts", () => {
  let [nowMs, suspendedMs] = [1_000_000, 0];
  const clock = new LeaseClock(() => nowMs, () => nowMs - suspendedMs);
  const begun = clock.nowMs();
  [nowMs, suspendedMs] = [nowMs + 60_000, 60_000];
  assert.equal(clock.nowMs() - begun, 60_000);
});

test("a process that was stopped between two reads is not ahead of time", () => {
  let [nowMs, stoppedMs] = [1_000_000, 0];
  const read = (): number => {
    const readMs = nowMs;
    [nowMs, stoppedMs] = [nowMs + stoppedMs, 0];
    return readMs;
  };
  const clock = new LeaseClock(read, read);
  const begun = clock.nowMs();
  stoppedMs = 5_000;
  clock.nowMs();
  assert.equal(clock.nowMs() - begun, 5_000);
});

test("a system without such an uptime counts by its monotonic clock", () => {
  let nowMs = 7;
  const clock = new LeaseClock(() => 0, () => nowMs);
  assert.equal(clock.nowMs(), 7);
  nowMs = 9;
  assert.equal(clock.nowMs(), 9);
});
