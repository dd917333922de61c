// The changes that the page remembers: a bounded number, each once, in the order of their time.

import { groupOf, kindOf, textOf } from "./kinds.js";

/** The most that are kept, and how many of them may be grants and ends of leases. */
const MOST = 5000;
const MOST_FREQUENT = 4000;
/** Trimming is done for this many at once. */
const SLACK = 500;

const FREQUENT = new Set(["pools", "streams"]);

/**
 * @typedef {object} Entry
 * @property {object} change
 * @property {string} key
 * @property {string} kind
 * @property {number} at its time in milliseconds
 * @property {string} text for searching, in lower case
 */

/** A log of changes. */
export class ChangeLog {
  constructor() {
    /** Oldest first. @type {Entry[]} */
    this.entries = [];
    this.keys = new Set();
    /** Whether older ones were dropped. */
    this.dropped = false;
  }

  /**
   * Adds a change, unless it is known: a connection replays what an earlier one has told.
   * @param {object} change a WatchChangesResponse
   * @returns {boolean} whether it is new
   */
  add(change) {
    const { replayed, ...rest } = change;
    const key = JSON.stringify(rest);
    if (this.keys.has(key)) return false;
    this.keys.add(key);
    const kind = kindOf(change);
    const entry = { change, key, kind, at: Date.parse(change.time) || 0, text: textOf(change) };
    let place = this.entries.length;
    while (place > 0 && this.entries[place - 1].at > entry.at) place -= 1;
    if (place === this.entries.length) this.entries.push(entry);
    else this.entries.splice(place, 0, entry);
    if (this.entries.length > MOST + SLACK) this.#trim();
    return true;
  }

  // Leases change most often. They go first, so that an election of an hour ago is still seen.
  #trim() {
    const frequent = ({ kind }) => FREQUENT.has(groupOf(kind).name);
    let spare = this.entries.filter(frequent).length - MOST_FREQUENT;
    const left = this.entries.filter((entry) => {
      if (spare <= 0 || !frequent(entry)) return true;
      spare -= 1;
      return false;
    });
    this.entries = left.slice(-MOST);
    this.keys = new Set(this.entries.map(({ key }) => key));
    this.dropped = true;
  }
}
