// Prints the results of Node's test runner as Rust's runner does: a line for each test, and what
// failed at the end. For `node --test --test-reporter`.

import { basename } from "node:path";
import { inspect } from "node:util";

export default async function* report(events) {
  const failures = [];
  let passed = 0;
  for await (const { type, data } of events) {
    if (type === "test:stdout" || type === "test:stderr") {
      yield data.message;
    }
    if ((type !== "test:pass" && type !== "test:fail") || data.nesting > 0) {
      continue;
    }
    const name = `${basename(data.file ?? "", ".test.js")}::${data.name}`;
    if (type === "test:fail") {
      failures.push([name, inspect(data.details.error.cause ?? data.details.error)]);
      yield `test ${name} ... FAILED\n`;
    } else if (data.skip === undefined) {
      passed += 1;
      yield `test ${name} ... ok\n`;
    }
  }
  if (failures.length > 0) {
    yield "\nfailures:\n";
    for (const [name, text] of failures) {
      yield `\n---- ${name} stdout ----\n${text}\n`;
    }
    yield "\nfailures:\n";
  }
  const word = failures.length > 0 ? "FAILED" : "ok";
  yield `test result: ${word}. ${passed} passed; ${failures.length} failed\n`;
}
