// How full the small cells of a group are, drawn on one canvas beneath them. A rectangle costs the
// browser less than a cell whose style changes.

import { el } from "./dom.js";

/** The canvas of one group. */
export class FillCanvas {
  /**
   * @param {object[]} cells with `fill`, in percent, and `shown`
   * @param {HTMLElement} box around them
   */
  constructor(cells, box) {
    this.cells = cells;
    this.node = el("canvas", { "aria-hidden": "true" });
    this.context = this.node.getContext("2d");
    /** Whether places or colours may have changed: everything is then drawn. */
    this.stale = true;
    this.width = 0;
    box.append(this.node);
    new ResizeObserver(([{ contentRect: { width } }]) => {
      if (width === this.width) return;
      this.width = width;
      this.stale = true;
      this.draw();
    }).observe(box);
  }

  /** Draws all cells, if that is due. */
  draw() {
    if (!this.stale || this.width === 0) return;
    this.stale = false;
    const style = getComputedStyle(this.node);
    const [size, gap, used, rest] = ["--cell", "--gap", "--working", "--working-rest"]
      .map((name) => style.getPropertyValue(name));
    this.size = parseInt(size, 10);
    this.pitch = this.size + parseInt(gap, 10);
    this.used = used;
    this.rest = rest;
    const shown = this.cells.filter((cell) => cell.shown);
    // As the box lays its cells out, the last of a row without a gap.
    this.columns = Math.floor((this.width + parseInt(gap, 10)) / this.pitch);
    this.node.width = this.columns * this.pitch;
    this.node.height = Math.ceil(shown.length / this.columns) * this.pitch;
    for (const [place, cell] of shown.entries()) {
      cell.place = place;
      this.fill(cell);
    }
  }

  /**
   * Draws one cell, within its border.
   * @param {object} cell
   */
  fill({ place, fill, shown }) {
    if (this.stale || !shown) return;
    const { context, pitch } = this;
    const inner = this.size - 2;
    const rest = inner - Math.round((inner * fill) / 100);
    const left = (place % this.columns) * pitch + 1;
    const top = Math.floor(place / this.columns) * pitch + 1;
    context.fillStyle = this.rest;
    context.fillRect(left, top, inner, rest);
    context.fillStyle = this.used;
    context.fillRect(left, top + rest, inner, inner - rest);
  }
}
