// Texts that have commands in them, and what a change says, as nodes.

import { el } from "./dom.js";
import { partsOf, titleOf } from "./kinds.js";

/** A command that stands in a text without backticks, up to where the sentence goes on. */
const COMMAND = /\b(?:kubectl leasehold|leasehold(?:-agent|-coordinator)?) [a-z]+(?: [^\s;,()]+)*/g;

/**
 * A text with its commands as code, each with a button that copies it.
 * @param {string} text
 * @returns {Node[]}
 */
export function prose(text) {
  const quoted = text.includes("`") ? text : text.replace(COMMAND, "`$&`");
  return quoted.split("`").flatMap((part, index) => {
    if (index % 2 === 0) return part === "" ? [] : [document.createTextNode(part)];
    // A flag or a field alone is nothing to type.
    return part.includes(" ") ? [command(part)] : [el("code", {}, part)];
  });
}

/**
 * A command to type.
 * @param {string} text
 * @returns {HTMLElement}
 */
export function command(text) {
  // A line ends between two words, and not within a flag.
  const words = text.split(/( )/).map((word) => (
    word === " " ? word : el("span", { class: "word" }, word)));
  const button = el("button", {
    class: "copy",
    "aria-label": `Copy the command ${text}`,
    // Its word is drawn by the style, so that the sentence around it stays as the leader says it.
    "data-label": "Copy",
    onclick: async () => {
      button.dataset.label = await copy(text) ? "Copied" : "Select it and copy";
      setTimeout(() => { button.dataset.label = "Copy"; }, 2000);
    },
  });
  return el("span", { class: "command" }, el("code", {}, words), button);
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text);
  }
}

// Browsers give the clipboard to pages of this host and of HTTPS only.
function copyBySelection(text) {
  const field = el("textarea", { class: "visually-hidden", readonly: true });
  field.value = text;
  const before = document.activeElement;
  document.body.append(field);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  before?.focus?.();
  return copied;
}

/**
 * A link that asks for an explanation.
 * @param {import("./app.js").App} app
 * @param {import("./router.js").Target} target
 * @param {string} [text]
 * @returns {HTMLElement}
 */
export function explained(app, target, text = titleOf(target)) {
  return el("button", {
    class: "thing",
    onclick: (event) => app.explain(target, event.currentTarget),
  }, text);
}

/**
 * A change in words, its things as links.
 * @param {import("./app.js").App} app
 * @param {object} change
 * @returns {Node[]}
 */
export function changeProse(app, change) {
  return partsOf(change).map((part) => (
    typeof part === "string" ? document.createTextNode(part) : explained(app, part)
  ));
}
