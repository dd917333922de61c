/** Tokens compare as numbers, and are texts elsewhere. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Token } from "leasehold";

test("tokens compare as numbers", () => {
  const texts = ["9.1", "10.2", "9.10", "9.9"];
  const tokens = texts.map((text) => new Token(text)).sort((a, b) => a.compare(b));
  assert.deepEqual(tokens.map(String), ["9.1", "9.9", "9.10", "10.2"]);
  const sortable = tokens.map((token) => token.sortable());
  assert.deepEqual([...sortable].sort(), sortable);
  assert.ok(sortable.every((text) => text.length === 41));
  const [low, token, high] = [new Token("9.9"), new Token("9.10"), new Token("10.2")];
  assert.ok(low < token && token < high && token <= new Token("9.10") && !(token >= high));
  assert.equal(token.equals(new Token("9.10")), true);
  assert.equal(token.equals(low), false);
  assert.equal(token.compare(new Token("9.10")), 0);
});

test("tokens are texts in templates and in JSON", () => {
  const token = new Token("9.10");
  assert.deepEqual([token.epoch, token.seq], [9n, 10n]);
  assert.equal(`${token}`, "9.10");
  assert.equal(JSON.stringify({ token }), '{"token":"9.10"}');
});

test("tokens of 64 bits are exact", () => {
  const [low, high] = [new Token("1.18446744073709551614"), new Token("1.18446744073709551615")];
  assert.ok(low < high && low.compare(high) < 0 && low.sortable() < high.sortable());
  assert.equal(String(high), "1.18446744073709551615");
});

test("what is no token is refused", () => {
  for (const wrong of ["", "9", "9.", "a.1", "-1.2", "1.2.3", "1.18446744073709551616"]) {
    assert.throws(() => new Token(wrong), { name: "RangeError", message: /invalid token/ }, wrong);
  }
});
