// Numbers, times and names as people read them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

/**
 * A whole number with separators.
 * @param {number|string|undefined} value
 * @returns {string}
 */
export function count(value) {
  return whole.format(Number(value ?? 0));
}

/**
 * A load in documents per second, without its unit.
 * @param {number|undefined} value
 * @returns {string}
 */
export function load(value) {
  return tenth.format(value ?? 0);
}

/**
 * A number with its noun: "1 worker", "2 workers".
 * @param {number} number
 * @param {string} one
 * @param {string} [many]
 * @returns {string}
 */
export function counted(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

/**
 * A span of time, short: "0.4 s", "12 s", "3 min", "2 h".
 * @param {number} milliseconds
 * @returns {string}
 */
export function span(milliseconds) {
  const seconds = Math.max(0, milliseconds) / 1000;
  if (seconds < 1) return `${seconds.toFixed(1)} s`;
  if (seconds < 100) return `${Math.round(seconds)} s`;
  if (seconds < 6000) return `${Math.round(seconds / 60)} min`;
  return `${Math.round(seconds / 3600)} h`;
}

/**
 * The time of day of a timestamp, in the reader's time zone.
 * @param {string|number} time
 * @returns {string}
 */
export function clock(time) {
  const date = new Date(time);
  if (Number.isNaN(date.getTime())) return "";
  const two = (part) => String(part).padStart(2, "0");
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

/**
 * The time of day with milliseconds.
 * @param {string} time
 * @returns {string}
 */
export function exactClock(time) {
  const date = new Date(time);
  if (Number.isNaN(date.getTime())) return "";
  return `${clock(time)}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}

/**
 * A key by which names sort as people expect: worker-2 before worker-10.
 * @param {string} name
 * @returns {string}
 */
export function naturalKey(name) {
  return name.replace(/\d+/g, (digits) => digits.padStart(12, "0"));
}

/**
 * Names in natural order.
 * @param {Iterable<string>} names
 * @returns {string[]}
 */
export function naturalOrder(names) {
  return [...names]
    .map((name) => [naturalKey(name), name])
    .sort((a, b) => (a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : 0))
    .map((pair) => pair[1]);
}

/**
 * Compares 64-bit numbers, which come as text.
 * @param {string} a
 * @param {string} b
 * @returns {number}
 */
export function compareNumerals(a, b) {
  if (a.length !== b.length) return a.length - b.length;
  return a < b ? -1 : a > b ? 1 : 0;
}

/**
 * The last part of an enum's name, as a word: WORKER_PHASE_READY is "ready".
 * @param {string|undefined} value
 * @param {string} prefix
 * @returns {string}
 */
export function enumWord(value, prefix) {
  return (value ?? "").replace(prefix, "").toLowerCase();
}
