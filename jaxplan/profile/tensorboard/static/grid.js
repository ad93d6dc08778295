// A table of any length: only the rows in sight exist.
import { el } from "./dom.js";

const ROW = 28,
  SPARE = 8;

/**
 * columns: [{name, title, head, width, numeric, cell(row)}]. `onSort(name)` and `onSelect(row)` are told what was clicked.
 * show(rows, sorted, descending) sets the rows; select(row) marks one.
 */
export class Grid {
  constructor(columns, height, { onSort, onSelect }) {
    this.columns = columns;
    this.rows = [];
    this.selected = null;
    this.onSelect = onSelect;
    this.heads = columns.map((column) =>
      el(
        "th",
        { class: column.numeric ? "number" : null, scope: "col", title: column.title },
        el("button", { type: "button", onclick: () => onSort(column.name) }, column.head),
      ),
    );
    this.body = el("tbody");
    this.table = el(
      "table",
      { class: "grid" },
      el(
        "colgroup",
        {},
        columns.map((column) => el("col", { style: `width:${column.width}` })),
      ),
      el("thead", {}, el("tr", {}, this.heads)),
      this.body,
    );
    this.node = el(
      "div",
      {
        class: "window",
        style: `height:${height}px`,
        tabindex: 0,
        "aria-label": "plans",
        onscroll: () => this.#paint(),
        onkeydown: (event) => this.#key(event),
      },
      this.table,
    );
    this.body.addEventListener("click", (event) => {
      const line = event.target.closest("tr[data-row]");
      if (line) this.onSelect(Number(line.dataset.row));
    });
  }

  show(rows, sorted, descending) {
    this.rows = rows;
    this.table.setAttribute("aria-rowcount", rows.length);
    this.columns.forEach((column, i) => {
      this.heads[i].setAttribute(
        "aria-sort",
        column.name !== sorted ? "none" : descending ? "descending" : "ascending",
      );
    });
    this.node.scrollTop = 0;
    this.#paint();
  }

  select(row, reveal = false) {
    this.selected = row;
    const place = reveal ? this.rows.indexOf(row) : -1;
    if (place >= 0) this.node.scrollTop = Math.max(0, place * ROW - this.node.clientHeight / 2);
    this.#paint();
  }

  #paint() {
    const shown = Math.ceil(this.node.clientHeight / ROW) || 20;
    const first = Math.max(0, Math.floor(this.node.scrollTop / ROW) - SPARE),
      last = Math.min(this.rows.length, first + shown + 2 * SPARE);
    const lines = [];
    for (let i = first; i < last; i++) lines.push(this.#line(this.rows[i], i));
    this.body.replaceChildren(space(first), ...lines, space(this.rows.length - last));
  }

  #line(row, place) {
    return el(
      "tr",
      { "data-row": row, "aria-rowindex": place + 2, "aria-selected": row === this.selected ? "true" : null },
      this.columns.map((column) => cellOf(column, column.cell(row))),
    );
  }

  #key(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || !this.rows.length) return;
    event.preventDefault();
    const place = this.selected === null ? -1 : this.rows.indexOf(this.selected);
    this.onSelect(this.rows[Math.min(this.rows.length - 1, Math.max(0, place + step))]);
    this.select(this.selected, true);
  }
}

const space = (rows) =>
  el("tr", { "aria-hidden": "true" }, el("td", { class: "space", style: `height:${rows * ROW}px` }));

/** What does not fit the column is told by its title. */
function cellOf(column, found) {
  const title = typeof found === "string" && found.length > 12 ? found : null;
  return el("td", { class: column.numeric ? "number" : null, title }, found);
}
