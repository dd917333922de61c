// The addresses of the page: what is shown is in the part after #, so that it can be linked to.

const VIEWS = {
  fleet: ["fleet", "cluster"],
  streams: ["streams", "set"],
  pipelines: ["pipelines", "pipeline"],
  timeline: ["timeline", "timeline"],
  plan: ["plan", "plan"],
};

/**
 * @typedef {object} Target what an explanation is about
 * @property {"cluster"|"worker"|"stream"|"pipeline"} kind
 * @property {string[]} names
 */

/**
 * @typedef {object} Route
 * @property {string} view as in main[data-view]
 * @property {string} section the first part of the address
 * @property {string} name the cluster, set or pipeline; empty where there is none
 * @property {Object<string, string>} query
 * @property {Target|null} target what is explained beside the view
 */

/**
 * Reads an address.
 * @param {string} hash
 * @returns {Route}
 */
export function parse(hash) {
  const [path, query = ""] = hash.replace(/^#/, "").split(/\?(.*)/s);
  const [section = "", name = ""] = path.split("/").slice(1).map(decoded);
  const known = Object.hasOwn(VIEWS, section);
  const views = VIEWS[known ? section : "fleet"];
  const route = {
    view: known && name !== "" ? views[1] : views[0],
    section: known ? section : "fleet",
    name: known ? name : "",
    query: {},
    target: null,
  };
  for (const pair of query.split("&")) {
    const [key, value = ""] = pair.split(/=(.*)/s);
    // A target is decoded part by part: a cluster's name may have a slash in it.
    if (key === "explain") route.target = readTarget(value);
    else if (value !== "") route.query[key] = decoded(value.replaceAll("+", " "));
  }
  return route;
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    // A person may have edited the address.
    return part;
  }
}

/**
 * Writes an address.
 * @param {string} section
 * @param {string} [name]
 * @param {Object<string, string|null>} [query] empty values are left out
 * @param {Target|null} [target]
 * @returns {string}
 */
export function address(section, name = "", query = {}, target = null) {
  const path = name === "" ? `#/${section}` : `#/${section}/${encodeURIComponent(name)}`;
  const parts = Object.entries(query)
    .filter(([, value]) => value !== "" && value !== null && value !== undefined)
    // People read and edit addresses: commas and colons need no encoding here.
    .map(([key, value]) => `${key}=${encodeURIComponent(value)
      .replaceAll("%2C", ",").replaceAll("%3A", ":")}`);
  if (target) parts.push(`explain=${writeTarget(target)}`);
  return parts.length === 0 ? path : `${path}?${parts.join("&")}`;
}

const PARTS = { cluster: 1, pipeline: 1, worker: 2, stream: 2 };

function writeTarget({ kind, names }) {
  return `${kind}:${names.map(encodeURIComponent).join("/")}`;
}

function readTarget(text) {
  const [kind, rest] = text.split(/(?::|%3A)(.*)/s);
  if (!Object.hasOwn(PARTS, kind) || !rest) return null;
  const names = rest.split("/").map(decoded);
  return names.length === PARTS[kind] ? { kind, names } : null;
}

/**
 * A route's address, with other values in its query.
 * @param {Route} route
 * @param {Object<string, string|null>} values null removes one
 * @returns {string}
 */
export function withQuery(route, values) {
  return address(route.section, route.name, { ...route.query, ...values }, route.target);
}

/**
 * A route's address with something explained beside it, or with nothing.
 * @param {Route} route
 * @param {Target|null} target
 * @returns {string}
 */
export function withTarget(route, target) {
  return address(route.section, route.name, route.query, target);
}
