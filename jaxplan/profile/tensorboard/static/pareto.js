// Every plan as a point: step time against memory. The front, the memory that there is, what was proven, what is chosen.
import { canvas, tooltip } from "./canvas.js";
import { paretoFront } from "./candidates.js";
import { bytes, unitFor } from "./format.js";
import { paintPoints } from "./raster.js";
import { scale, ticks } from "./scale.js";
import { color } from "./theme.js";

const HEIGHT = 330,
  LEFT = 64,
  RIGHT = 16,
  TOP = 14,
  BOTTOM = 42,
  NEAR = 14;
const FAR = 2; // times what plans need: a line of the memory that there is, further up, would press them together (chosen)
const REACH = 2; // of the fastest step time: how far the plot reaches unless all is asked for (chosen)

export class Pareto {
  constructor(candidates, { onSelect, describe }) {
    this.candidates = candidates;
    this.describe = describe;
    this.rows = new Uint32Array();
    this.selected = null;
    this.all = false;
    this.picture = canvas(HEIGHT, "step time against memory of every plan", (context, width, height) =>
      this.#paint(context, width, height),
    );
    this.node = this.picture.node;
    this.tip = tooltip(this.node);
    const { surface } = this.picture;
    surface.addEventListener("mousemove", (event) => this.#hover(event));
    surface.addEventListener("mouseleave", () => this.tip.hide());
    surface.addEventListener("click", (event) => {
      const row = this.#nearest(event);
      if (row !== null) onSelect(row);
    });
  }

  /** rows: those that pass the filter, in the order of step time. */
  show(rows) {
    this.rows = rows;
    this.front = paretoFront(this.candidates, rows);
    this.picture.draw();
  }

  select(row) {
    this.selected = row;
    this.picture.draw();
  }

  reach(all) {
    this.all = all;
    this.picture.draw();
  }

  /** How many of the rows lie inside of the plot. */
  get inside() {
    return this.rows.length ? this.#reached(this.#limit()) : 0;
  }

  #limit() {
    const times = this.candidates.numbers.step_time_s;
    return this.all ? times[this.rows.at(-1)] : REACH * times[this.rows[0]];
  }

  /** Rows are in the order of step time: how many are below the limit. */
  #reached(limit) {
    const times = this.candidates.numbers.step_time_s;
    let low = 0,
      high = this.rows.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (times[this.rows[middle]] <= limit) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  #paint(context, width, height) {
    const { step_time_s: times, memory_bytes: memory } = this.candidates.numbers;
    if (!this.rows.length) return write(context, "No plan passes the filter.", width / 2, height / 2, "center");
    const shown = this.rows.subarray(0, this.#reached(this.#limit()));
    const slowest = times[shown.at(-1)],
      fastest = times[shown[0]];
    let most = 0,
      least = Infinity;
    for (const row of shown) {
      if (memory[row] > most) most = memory[row];
      if (memory[row] < least) least = memory[row];
    }
    if (this.candidates.capacity < FAR * most) most = Math.max(most, this.candidates.capacity);
    const x = scale(fastest / 1.02, slowest * 1.02, LEFT, width - RIGHT, slowest > 1.5 * fastest),
      y = scale(Math.max(0, least - 0.08 * most), most * 1.06, height - BOTTOM, TOP);
    this.axes = { x, y, shown };
    this.#frame(context, width, height, x, y);
    this.#points(context, width, height, shown, x, y);
    this.#front(context, shown, x, y);
    this.#marks(context, shown, x, y);
  }

  #frame(context, width, height, x, y) {
    const time = unitFor("seconds", [x.high]),
      size = unitFor("bytes", [y.high]);
    context.strokeStyle = color("grid");
    context.lineWidth = 1;
    for (const value of ticks({ low: y.low / size.size, high: y.high / size.size, logarithmic: false }, 5)) {
      const at = y.at(value * size.size);
      line(context, LEFT, at, width - RIGHT, at);
      write(context, String(Number(value.toPrecision(3))), LEFT - 8, at + 4, "right");
    }
    for (const value of ticks({ low: x.low / time.size, high: x.high / time.size, logarithmic: x.logarithmic }, 8)) {
      write(context, String(Number(value.toPrecision(3))), x.at(value * time.size), height - BOTTOM + 17, "center");
    }
    write(context, `step time, ${time.unit}`, (LEFT + width - RIGHT) / 2, height - 6, "center");
    context.save();
    context.translate(14, (TOP + height - BOTTOM) / 2);
    context.rotate(-Math.PI / 2);
    write(context, `memory of a device, ${size.unit}`, 0, 0, "center");
    context.restore();
    this.#capacity(context, width, y, size);
  }

  #capacity(context, width, y, size) {
    const { capacity } = this.candidates;
    if (!capacity) return;
    if (capacity > y.high) {
      return write(context, `a device has ${bytes(capacity)}, far above`, width - RIGHT - 4, TOP - 2, "right", "bad");
    }
    const at = y.at(capacity);
    context.strokeStyle = color("bad");
    context.setLineDash([6, 4]);
    line(context, LEFT, at, width - RIGHT, at);
    context.setLineDash([]);
    write(context, `memory that there is: ${size.full(capacity)}`, width - RIGHT - 4, at - 5, "right", "bad");
  }

  #points(context, width, height, shown, x, y) {
    const { step_time_s: times, memory_bytes: memory } = this.candidates.numbers,
      many = shown.length > 5000,
      faint = many ? 0.25 : shown.length > 500 ? 0.45 : 0.7;
    const across = (i) => x.at(times[shown[i]]),
      down = (i) => y.at(memory[shown[i]]);
    paintPoints(context, width, height, shown.length, across, down, many ? 2 : 3, color("accent"), faint);
  }

  #front(context, shown, x, y) {
    const { step_time_s: times, memory_bytes: memory } = this.candidates.numbers;
    const limit = times[shown.at(-1)];
    context.strokeStyle = color("front");
    context.lineWidth = 2;
    context.beginPath();
    let last = null;
    for (const row of this.front) {
      if (times[row] > limit) break;
      const point = { x: x.at(times[row]), y: y.at(memory[row]) };
      if (last === null) context.moveTo(point.x, point.y);
      else if (point.x - last.x < 0.5 && point.y - last.y < 0.5)
        continue; // on the pixel that was reached
      else {
        context.lineTo(point.x, last.y);
        context.lineTo(point.x, point.y);
      }
      last = point;
    }
    context.stroke();
    context.lineWidth = 1;
  }

  /** Proven plans are diamonds, partitioned ones squares; the chosen one has a ring. */
  #marks(context, shown, x, y) {
    const { step_time_s: times, memory_bytes: memory } = this.candidates.numbers;
    const proof = this.candidates.texts.proof;
    const marked = proof
      ? proof.values.map((word) => (["compiled", "measured"].includes(word) ? 2 : word === "partitioned" ? 1 : 0))
      : [];
    for (const row of shown) {
      const kind = proof ? marked[proof.codes[row]] : 0;
      if (kind) mark(context, x.at(times[row]), y.at(memory[row]), kind);
    }
    if (this.selected !== null && times[this.selected] <= times[shown.at(-1)]) {
      context.strokeStyle = color("ink");
      context.lineWidth = 2;
      context.beginPath();
      context.arc(x.at(times[this.selected]), y.at(memory[this.selected]), 8, 0, 7);
      context.stroke();
      context.lineWidth = 1;
    }
  }

  #nearest(event) {
    if (!this.axes) return null;
    const { x, y, shown } = this.axes,
      { step_time_s: times, memory_bytes: memory } = this.candidates.numbers;
    let best = null,
      least = NEAR ** 2;
    const first = this.#reached(x.inverse(event.offsetX - NEAR)),
      last = this.#reached(x.inverse(event.offsetX + NEAR));
    for (let i = first; i < Math.min(last, shown.length); i++) {
      const row = shown[i],
        away = (x.at(times[row]) - event.offsetX) ** 2 + (y.at(memory[row]) - event.offsetY) ** 2;
      if (away < least) [best, least] = [row, away];
    }
    return best;
  }

  #hover(event) {
    const row = this.#nearest(event);
    this.picture.surface.style.cursor = row === null ? "default" : "pointer";
    if (row === null) this.tip.hide();
    else this.tip.show(event.offsetX, event.offsetY, this.describe(row));
  }
}

function line(context, x1, y1, x2, y2) {
  context.beginPath();
  context.moveTo(x1, y1);
  context.lineTo(x2, y2);
  context.stroke();
}

function write(context, text, x, y, align, name = "muted") {
  context.fillStyle = color(name);
  context.textAlign = align;
  context.fillText(text, x, y);
}

function mark(context, x, y, kind) {
  context.fillStyle = color(kind === 2 ? "compiled" : "partitioned");
  context.strokeStyle = color("panel");
  context.beginPath();
  if (kind === 2)
    for (const [dx, dy] of [
      [0, -7],
      [7, 0],
      [0, 7],
      [-7, 0],
    ])
      context.lineTo(x + dx, y + dy);
  else context.rect(x - 4, y - 4, 8, 8);
  context.closePath();
  context.fill();
  context.stroke();
}
