/** The fence in a store, which refuses the token of a former owner. */

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import { FENCE_TABLE, StaleToken, Token, type FenceQuery } from "leasehold";

import { nextOf, start } from "./fixture.js";

/** Runs a statement with its parameters in a database of SQLite, and prints its rows. */
const RUN = `
import json, sqlite3, sys
path, statement, *parameters = sys.argv[1:]
with sqlite3.connect(path) as database:
    rows = database.execute(statement, parameters).fetchall()
print(json.dumps([{"token": token} for (token,) in rows]))
`;

const HAS_PYTHON = spawnSync("python3", ["-V"]).status === 0;

test("a database refuses a token below the highest", { skip: !HAS_PYTHON }, async (t) => {
  const { agent, worker } = await start(t);
  const streams = worker.streams();
  agent.show("new", "8.9");
  const first = await nextOf(streams);
  await first.release();
  agent.show("new", "8.10");
  const second = await nextOf(streams);

  const folder = mkdtempSync(join(tmpdir(), "fence-"));
  t.after(() => rmSync(folder, { recursive: true }));
  const query: FenceQuery = (sql, parameters) => {
    const given = ["-c", RUN, join(folder, "fence.db"), sql, ...parameters];
    const { status, stdout, stderr } = spawnSync("python3", given, { encoding: "utf8" });
    assert.equal(status, 0, stderr);
    return JSON.parse(stdout) as unknown[];
  };
  await query(FENCE_TABLE, []);
  for (const owner of [first, second, second]) {
    await owner.fence(query, { mark: "?" });
  }
  await assert.rejects(first.fence(query, { mark: "?" }), (error) => {
    assert.ok(error instanceof StaleToken);
    assert.equal(`${error.newer}`, "8.10");
    assert.equal(
      error.message,
      "token 8.9 of cars/new is stale: the store has 8.10 of a later owner; " +
        "write nothing more and release it",
    );
    return true;
  });
  await second.fence(query, { mark: "?" });
});

test("the statements of the fence are numbered unless the driver marks otherwise", async (t) => {
  const { agent, worker } = await start(t);
  agent.show("new", "8.9");
  const stream = await nextOf(worker.streams());
  const statements: string[] = [];
  await stream.fence((sql, parameters) => {
    statements.push(sql);
    assert.deepEqual(parameters, ["cars/new", new Token("8.9").sortable()]);
    return [{ token: "a row" }];
  });
  assert.equal(statements.length, 1);
  assert.match(statements[0] ?? "", /VALUES \(\$1, \$2\)/);
});

test("a token below the newest is stale", async (t) => {
  const { agent, worker } = await start(t);
  agent.show("new", "8.9");
  const stream = await nextOf(worker.streams());
  for (const newest of ["8.8", "8.9"]) {
    stream.checkToken(new Token(newest));
  }
  assert.throws(() => stream.checkToken(new Token("8.10")), StaleToken);
});
