// Describes the messages of the SDK for TypeScript for messages.rs, as JSON on the standard output:
//
//     node read_messages.mjs dist/src/messages.js
//
// The standard input is a JSON object: a message's name, and an object of that message. Of each
// message that the module reads it prints the fields with their types, what it makes of the given
// object, and what of an empty one; of each enum its values.

import { json } from "node:stream/consumers";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

/** A value with the names of fields as JSON has them, and null where a field is absent. */
function plain(value) {
  if (Array.isArray(value)) {
    return value.map(plain);
  }
  if (typeof value !== "object" || value === null) {
    return value ?? null;
  }
  const inJson = (name) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
  return Object.fromEntries(
    Object.entries(value).map(([name, field]) => [inJson(name), plain(field)]),
  );
}

const given = await json(process.stdin);
const [messages, enums] = [{}, {}];
for (const reader of Object.values(await import(pathToFileURL(resolve(process.argv[2]))))) {
  if (reader.values !== undefined) {
    const values = reader.values.map((value) => [value.toUpperCase(), reader.read(value)]);
    const later = ["(a later one)", reader.read("(a later one)")];
    enums[reader.type] = Object.fromEntries([...values, later]);
  } else {
    const types = [...reader.fields].map(([name, field]) => [name, field.type]);
    messages[reader.type] = {
      types: Object.fromEntries(types),
      read: plain(reader.read(given[reader.type] ?? {})),
      read_of_nothing: plain(reader.read({})),
      made_of_nothing: plain(reader.initial),
    };
  }
}
console.log(JSON.stringify({ messages, enums }));
