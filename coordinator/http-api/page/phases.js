// The states of pipelines and of their nodes, as words and signs.

import { enumWord } from "./format.js";

const SIGNS = {
  pending: "…", plotted: "◐", ready: "✓", broken: "✕", dead_end: "✕", unset: "○",
};

/** In the order of a list: what wants attention comes first. */
export const PHASES = ["broken", "pending", "plotted", "ready"];

/**
 * A pipeline's state: pending, plotted, ready or broken.
 * @param {object} pipeline
 * @returns {string}
 */
export function phaseOf(pipeline) {
  return enumWord(pipeline.phase, "PIPELINE_PHASE_") || "pending";
}

/**
 * A node's state: pending, ready, dead_end or unset.
 * @param {object} binding
 * @returns {string}
 */
export function bindingPhaseOf(binding) {
  return enumWord(binding.phase, "BINDING_PHASE_") || "unset";
}

/**
 * The sign and the word of a state.
 * @param {string} phase
 * @returns {string}
 */
export function phaseText(phase) {
  return `${SIGNS[phase] ?? ""} ${phase.replace("_", " ")}`;
}
