// Turns what a person types into the form of a plan into a request, and into a command.

import { naturalOrder } from "./format.js";

/**
 * Names that are separated by commas or spaces.
 * @param {string} text
 * @returns {string[]}
 */
function namesIn(text) {
  return [...new Set(text.split(/[\s,]+/).filter(Boolean))];
}

// A number stands for so many workers, unless a worker is called so.
function numberIn(text, workers) {
  return /^\d+$/.test(text.trim()) && !workers.has(text.trim()) ? Number(text.trim()) : null;
}

/**
 * The request of a plan.
 * @param {string} cluster
 * @param {{maxJobs?: string, add?: string, remove?: string}} typed
 * @param {Map<string, object>} workers of the cluster
 * @returns {object} a PlanRequest
 */
export function planRequest(cluster, typed, workers) {
  const request = { cluster };
  const { maxJobs = "", add = "", remove = "" } = typed;
  if (maxJobs !== "") request.maxJobs = Number(maxJobs);
  const more = numberIn(add, workers);
  const fewer = numberIn(remove, workers);
  request.addWorkers = more === null ? namesIn(add) : newNames(more, workers);
  // The last by name are those that a scale-in takes.
  request.removeWorkers = fewer === null ? namesIn(remove)
    : fewer === 0 ? [] : naturalOrder(workers.keys()).slice(-fewer);
  return request;
}

function newNames(number, workers) {
  const names = [];
  for (let index = 1; names.length < Math.min(number, 1000); index += 1) {
    if (!workers.has(`new-${index}`)) names.push(`new-${index}`);
  }
  return names;
}

/**
 * The command that asks the same.
 * @param {object} request a PlanRequest
 * @returns {string}
 */
export function planCommand({ cluster, maxJobs, addWorkers, removeWorkers }) {
  const words = ["leasehold", "plan", quoted(cluster)];
  if (maxJobs !== undefined) words.push("--max-jobs", String(maxJobs));
  for (const name of addWorkers) words.push("--add-worker", quoted(name));
  for (const name of removeWorkers) words.push("--remove-worker", quoted(name));
  return words.join(" ");
}

function quoted(name) {
  return /^[\w@.:/-]+$/.test(name) ? name : `'${name.replaceAll("'", "'\\''")}'`;
}
