// The columns of candidates.json: sorted, filtered and searched without ever making a row.
import { Fault } from "./documents.js";
import { known } from "./dom.js";

export const ROLES = ["data", "fsdp", "tensor", "group", "context", "expert", "stage"];
const TEXTS = ["mesh", "remat", "options", "bottleneck", "proof", "plan"];
const NUMBERS = ["microbatches", "memory_bytes", "step_time_s", "low_s", "high_s", "mfu"];

export class Candidates {
  /** Raises a Fault where a column is missing or has another length. */
  constructor(document) {
    this.count = document.count;
    this.considered = document.candidates;
    this.feasible = document.feasible ?? document.count;
    this.capacity = document.capacity_bytes;
    this.texts = {};
    this.numbers = {};
    const columns = document.columns ?? {};
    for (const name of TEXTS)
      if (columns[name])
        this.texts[name] = { values: columns[name].values, codes: this.#whole(name, columns[name].codes) };
    for (const name of [...NUMBERS, ...ROLES])
      if (columns[name])
        this.numbers[name] = Float64Array.from(this.#whole(name, columns[name]), (value) =>
          known(value) ? value : NaN,
        );
    const missing = ["mesh", "memory_bytes", "step_time_s"].filter(
      (name) => !(name in this.texts || name in this.numbers),
    );
    if (missing.length) throw new Fault(`candidates.json has no column ${missing.join(", ")}.`);
    this.orders = new Map();
  }

  #whole(name, values) {
    if (values?.length === this.count) return values;
    throw new Fault(`candidates.json: column ${name} has ${values?.length ?? "no"} values, expected ${this.count}.`);
  }

  text(name, row) {
    const column = this.texts[name];
    return column ? column.values[column.codes[row]] : "";
  }

  number(name, row) {
    return this.numbers[name]?.[row];
  }

  /** Role to its sizes, for those roles that have several. */
  sizes() {
    const found = ROLES.filter((role) => role in this.numbers).map((role) => [
      role,
      [...new Set(this.numbers[role])].sort((a, b) => a - b),
    ]);
    return found.filter(([, sizes]) => sizes.length > 1);
  }

  /** All rows in ascending order of a column, worked out once; what is missing comes last. */
  order(name) {
    if (!this.orders.has(name)) this.orders.set(name, this.#sorted(name));
    return this.orders.get(name);
  }

  #sorted(name) {
    const keys = this.numbers[name] ?? ranks(this.texts[name]);
    return Uint32Array.from({ length: this.count }, (_, row) => row).sort(
      (a, b) => keys[a] - keys[b] || Number.isNaN(keys[a]) - Number.isNaN(keys[b]) || a - b,
    );
  }

  /** The rows that pass, in the order of a column. filter: {text, sizes: {role: size}, fits, proof, remat}. */
  select(filter, column = "step_time_s", descending = false) {
    const passes = this.#passes(filter);
    const order = this.order(column);
    const rows = new Uint32Array(this.count);
    let found = 0;
    for (let i = 0; i < this.count; i++) {
      const row = order[descending ? this.count - 1 - i : i];
      if (passes[row]) rows[found++] = row;
    }
    return rows.subarray(0, found);
  }

  #passes({ text = "", sizes = {}, fits = false, proof = "", remat = "" }) {
    const passes = new Uint8Array(this.count).fill(1);
    const keep = (test) => {
      for (let row = 0; row < this.count; row++) if (passes[row] && !test(row)) passes[row] = 0;
    };
    for (const word of text.toLowerCase().split(/\s+/).filter(Boolean)) {
      const matched = Object.values(this.texts).map(({ values, codes }) => ({
        codes,
        hit: values.map((value) => String(value).toLowerCase().includes(word)),
      }));
      keep((row) => matched.some(({ codes, hit }) => hit[codes[row]]));
    }
    for (const [role, size] of Object.entries(sizes)) keep((row) => this.numbers[role][row] === size);
    if (fits) keep((row) => this.numbers.memory_bytes[row] <= this.capacity);
    for (const [name, value] of [
      ["proof", proof],
      ["remat", remat],
    ])
      if (value) {
        const code = this.texts[name].values.indexOf(value),
          codes = this.texts[name].codes;
        keep((row) => codes[row] === code);
      }
    return passes;
  }
}

/** Of every row of a text column, the place of its text in the alphabet. */
function ranks({ values, codes }) {
  const order = values
    .map((_, i) => i)
    .sort((a, b) => String(values[a]).localeCompare(String(values[b]), "en", { numeric: true }));
  const place = new Float64Array(values.length);
  order.forEach((code, i) => {
    place[code] = i;
  });
  return Float64Array.from(codes, (code) => place[code]);
}

/** Of rows in the order of step time, those that need less memory than every faster one. */
export function paretoFront(candidates, rows) {
  const front = [];
  let least = Infinity;
  for (const row of rows) {
    const memory = candidates.numbers.memory_bytes[row];
    if (memory < least) {
      least = memory;
      front.push(row);
    }
  }
  return front;
}
