// Builds and changes elements. Data becomes text or an attribute, never markup.

const SVG = "http://www.w3.org/2000/svg";

/**
 * Makes an element. Attributes that are null, undefined or false are left out; those that begin
 * with "on" are listeners.
 * @param {string} tag
 * @param {Object<string, any>} [attributes]
 * @param {...(Node|string|number|null|false|Array)} children
 * @returns {HTMLElement}
 */
export function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  // Otherwise it would submit a form.
  if (tag === "button") node.type = "button";
  return filled(node, attributes, children);
}

/**
 * Makes an SVG element, as `el` does.
 * @param {string} tag
 * @param {Object<string, any>} [attributes]
 * @param {...(Node|string|null|false)} children
 * @returns {SVGElement}
 */
export function svg(tag, attributes, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : String(child));
  }
  return node;
}

/**
 * Sets a node's text, if it is another: an unchanged node costs no layout.
 * @param {Node} node
 * @param {string|number} text
 */
export function setText(node, text) {
  const wanted = String(text);
  if (node.textContent !== wanted) node.textContent = wanted;
}

/**
 * Sets or, for null and false, removes an attribute, if that changes it.
 * @param {Element} node
 * @param {string} name
 * @param {any} value
 */
export function setAttribute(node, name, value) {
  if (value === null || value === undefined || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
    return;
  }
  const wanted = value === true ? "" : String(value);
  if (node.getAttribute(name) !== wanted) node.setAttribute(name, wanted);
}

/**
 * Replaces a node's children, unless they are the same nodes already.
 * @param {Element} node
 * @param {...Node} children
 */
export function setChildren(node, ...children) {
  const same = node.childNodes.length === children.length
    && children.every((child, index) => node.childNodes[index] === child);
  if (!same) node.replaceChildren(...children);
}

/** The nodes that `keyed` keeps in each parent. */
const kept = new WeakMap();

/**
 * Makes a parent's children those of a list, and keeps the nodes of items that stay, so that
 * focus, selection and animations survive.
 * @template T
 * @param {Element} parent which nobody else puts children into
 * @param {Iterable<T>} items
 * @param {(item: T) => string} keyOf
 * @param {(item: T) => Element} create
 * @param {(node: Element, item: T) => void} [update] called for new nodes, too
 */
export function keyed(parent, items, keyOf, create, update) {
  const before = kept.get(parent) ?? new Map();
  const wanted = new Map();
  for (const item of items) wanted.set(keyOf(item), item);
  // What goes is removed first: otherwise each node after it would be moved, and lose its focus.
  for (const [key, node] of before) if (!wanted.has(key)) node.remove();
  const after = new Map();
  let place = parent.firstChild;
  for (const [key, item] of wanted) {
    const node = before.get(key) ?? create(item);
    update?.(node, item);
    if (node === place) place = place.nextSibling;
    else parent.insertBefore(node, place);
    after.set(key, node);
  }
  kept.set(parent, after);
}

/**
 * Calls a function at most once per `milliseconds`, and after the last request for sure.
 * @param {number} milliseconds
 * @param {() => void} call
 * @returns {{(): void, cancel: () => void}}
 */
export function atMostEvery(milliseconds, call) {
  let timer = 0;
  let last = -Infinity;
  const run = () => {
    timer = 0;
    last = performance.now();
    call();
  };
  const request = () => {
    if (timer) return;
    timer = setTimeout(run, Math.max(0, last + milliseconds - performance.now()));
  };
  request.cancel = () => {
    clearTimeout(timer);
    timer = 0;
  };
  return request;
}
