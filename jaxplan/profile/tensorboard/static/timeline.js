// One step of one device: a lane for compute and one for each axis, loops unfolded as they are zoomed into.
import { canvas, tooltip } from "./canvas.js";
import { el, known } from "./dom.js";
import { seconds, unitFor } from "./format.js";
import { card, legend, notice, source } from "./parts.js";
import { scale, ticks } from "./scale.js";
import { DURATION, EXPOSED, KIND, LANE, NAME, busyOf, depthOf, find, walk } from "./steps.js";
import { color, colorName } from "./theme.js";

const LEFT = 176,
  RULER = 22,
  LOOP = 18,
  ROW = 40,
  PAD = 5,
  FINEST_PX = 3,
  MOST_LOOPS = 3,
  CLOSEST_S = 1e-7;

export function timelineCard(timeline) {
  if (!timeline) return null;
  if (!timeline.root || !timeline.lanes || !(timeline.duration_s > 0))
    return notice("The timeline has no steps in it.");
  const drawn = new Timeline(timeline);
  return card(
    "timeline",
    "One step of one device",
    "Each lane is busy where it is coloured. Striped: the step waits for this communication; plain: it is hidden under compute.",
    el(
      "p",
      { class: "controls" },
      source(timeline.source),
      button("+", "zoom in (W)", () => drawn.zoom(0.5)),
      button("−", "zoom out (S)", () => drawn.zoom(2)),
      button("whole step", "show all (0)", () => drawn.whole()),
      el(
        "span",
        { class: "help" },
        "Drag to move, double-click or Ctrl and the wheel to zoom; click a loop’s name to see one turn of it. Keys W S A D 0.",
      ),
    ),
    drawn.node,
    kindsLegend(timeline),
  );
}

const button = (text, title, onclick) => el("button", { type: "button", title, onclick }, text);

function kindsLegend({ root }) {
  const kinds = new Set();
  const collect = (node) => {
    for (const event of node.events ?? []) if (event[LANE] === 0) kinds.add(event[KIND]);
    (node.children ?? []).forEach(collect);
  };
  collect(root);
  return legend([
    ...[...kinds].slice(0, 10).map((kind) => [kind, `background:var(--${colorName(kind)})`]),
    ["waited for", "background:repeating-linear-gradient(45deg,var(--ink) 0 2px,transparent 2px 5px)"],
  ]);
}

class Timeline {
  constructor(timeline) {
    this.root = timeline.root;
    this.total = timeline.duration_s;
    this.lanes = timeline.lanes
      .map((name, index) => ({ name, index, ...busyOf(timeline.root, timeline.lanes.length)[index] }))
      .filter((lane) => lane.busy > 0 || lane.index === 0);
    this.loops = Math.min(MOST_LOOPS, depthOf(timeline.root) - 1);
    this.top = RULER + this.loops * LOOP + 4;
    this.whole(false);
    this.picture = canvas(this.top + this.lanes.length * ROW + 4, "timeline of one step", (context, width) =>
      this.#paint(context, width),
    );
    this.node = this.picture.node;
    this.tip = tooltip(this.node);
    this.#listen(this.picture.surface);
  }

  whole(draw = true) {
    [this.from, this.to] = [0, this.total];
    if (draw) this.picture.draw();
  }

  zoom(factor, around = (this.from + this.to) / 2) {
    const span = Math.min(this.total, Math.max(CLOSEST_S, (this.to - this.from) * factor));
    const share = (around - this.from) / (this.to - this.from);
    this.#move(around - share * span, span);
  }

  #move(from, span = this.to - this.from) {
    this.from = Math.max(0, Math.min(from, this.total - span));
    this.to = this.from + span;
    this.picture.draw();
  }

  #paint(context, width) {
    const x = (this.x = scale(this.from, this.to, LEFT, width - 8));
    this.hits = [];
    context.textBaseline = "middle";
    this.#ruler(context, width, x);
    context.save();
    context.beginPath();
    context.rect(LEFT, 0, width - LEFT, 4000);
    context.clip();
    const finest = ((this.to - this.from) / Math.max(1, width - LEFT)) * FINEST_PX,
      edges = this.lanes.map(() => -1);
    walk(this.root, this.from, this.to, finest, {
      event: (event, at) => this.#event(context, x, event, at, edges),
      folded: (node, at, whole) => this.#folded(context, x, node, at, whole),
      loop: (node, at, depth) => depth < this.loops && this.#loop(context, x, node, at, depth, width),
    });
    context.restore();
    this.#names(context);
    context.textBaseline = "alphabetic";
  }

  #ruler(context, width, x) {
    const unit = unitFor("seconds", [this.to]);
    context.textAlign = "center";
    for (const value of ticks(
      { low: this.from / unit.size, high: this.to / unit.size, logarithmic: false },
      Math.max(3, width / 120),
    )) {
      const at = x.at(value * unit.size);
      context.fillStyle = color("grid");
      context.fillRect(at, RULER - 4, 1, 4000);
      context.fillStyle = color("muted");
      context.fillText(`${Number(value.toPrecision(6))} ${unit.unit}`, at, RULER / 2);
    }
  }

  #row(lane) {
    return this.lanes.findIndex((one) => one.index === lane);
  }

  #event(context, x, event, at, edges) {
    const row = this.#row(event[LANE]);
    if (row < 0) return;
    const left = Math.max(LEFT - 2, x.at(at)),
      right = Math.min(5000, x.at(at + event[DURATION]));
    if (right - left < 1 && right < edges[row] + 1) return; // lies on a pixel that is painted already
    edges[row] = Math.max(left + 1, right);
    const y = this.top + row * ROW + PAD,
      width = Math.max(1, right - left - (right - left > 3 ? 0.5 : 0)),
      lane = this.lanes[row];
    context.fillStyle = color(event[LANE] === 0 ? colorName(event[KIND]) : colorName(lane.name));
    context.globalAlpha = event[EXPOSED] || event[LANE] === 0 ? 1 : 0.55;
    context.fillRect(left, y, width, ROW - 2 * PAD);
    context.globalAlpha = 1;
    if (event[EXPOSED] > 0)
      this.#exposed(context, Math.max(left, x.at(at + event[DURATION] - event[EXPOSED])), y, right);
    if (width > 60) this.#inside(context, event[NAME] || event[KIND], left + 5, y + (ROW - 2 * PAD) / 2, width - 10);
  }

  #exposed(context, left, y, right) {
    context.save();
    context.beginPath();
    context.rect(left, y, Math.max(1, right - left), ROW - 2 * PAD);
    context.clip();
    context.strokeStyle = color("panel");
    context.lineWidth = 2;
    for (let at = left - ROW; at < Math.min(right, 4000) + ROW; at += 6) {
      context.beginPath();
      context.moveTo(at, y + ROW);
      context.lineTo(at + ROW, y);
      context.stroke();
    }
    context.restore();
  }

  #inside(context, text, x, y, room) {
    context.fillStyle = color("on-color");
    context.textAlign = "left";
    let shown = text;
    while (shown.length > 3 && context.measureText(shown).width > room) shown = `${shown.slice(0, -4)}…`;
    if (shown.length > 3) context.fillText(shown, x, y);
  }

  /** A loop too fine to unfold: each lane is filled as high as it is busy, compute in its kinds. */
  #folded(context, x, node, at, whole) {
    const left = Math.max(LEFT - 2, x.at(at)),
      right = x.at(at + whole);
    const width = Math.max(1, right - left),
      high = (part) => Math.min(1, part / node.duration_s) * (ROW - 2 * PAD);
    for (const [row, lane] of this.lanes.entries()) {
      const { exposed, busy, kinds } = busyOf(node, lane.index + 1)[lane.index],
        parts = lane.index === 0 ? Object.entries(kinds) : [[lane.name, busy]];
      let floor = this.top + (row + 1) * ROW - PAD;
      for (const [name, part] of parts) {
        context.fillStyle = color(colorName(name));
        context.fillRect(left, floor - high(part), width, high(part));
        floor -= high(part);
      }
      if (exposed > 0) this.#exposed(context, left, this.top + (row + 1) * ROW - PAD - high(exposed), right);
    }
  }

  #loop(context, x, node, at, depth, width) {
    const whole = node.duration_s * (node.repeats ?? 1),
      left = Math.max(LEFT, x.at(at)),
      right = Math.min(width, x.at(at + whole));
    if (right - left < 2) return;
    const y = RULER + depth * LOOP;
    context.fillStyle = color("loop");
    context.fillRect(left, y, right - left - 1, LOOP - 3);
    this.hits.push({ left, right, top: y, bottom: y + LOOP, node, at });
    const text = node.repeats > 1 ? `${node.name} × ${node.repeats}` : node.name;
    context.fillStyle = color("ink");
    context.textAlign = "left";
    if (context.measureText(text).width < right - left - 8) context.fillText(text, left + 4, y + LOOP / 2 - 1);
  }

  #names(context) {
    context.textAlign = "right";
    for (const [row, lane] of this.lanes.entries()) {
      const y = this.top + row * ROW + ROW / 2;
      context.fillStyle = color("ink");
      context.fillText(lane.name, LEFT - 10, y - 8);
      context.fillStyle = color("muted");
      context.fillText(
        `${seconds(lane.busy)}${lane.exposed > 0 ? `, ${seconds(lane.exposed)} waited` : ""}`,
        LEFT - 10,
        y + 8,
      );
    }
  }

  #listen(surface) {
    const moment = (event) => this.x.inverse(event.offsetX);
    surface.addEventListener(
      "wheel",
      (event) => {
        if (!event.ctrlKey) return;
        event.preventDefault();
        this.zoom(event.deltaY > 0 ? 1.25 : 0.8, moment(event));
      },
      { passive: false },
    );
    surface.addEventListener("dblclick", (event) => this.zoom(0.4, moment(event)));
    surface.addEventListener("pointerdown", (event) => {
      this.held = { x: event.offsetX, from: this.from, moved: false };
      surface.setPointerCapture(event.pointerId);
    });
    surface.addEventListener("pointerup", (event) => {
      if (this.held && !this.held.moved) this.#click(event);
      this.held = null;
    });
    surface.addEventListener("pointermove", (event) => (this.held ? this.#drag(event) : this.#hover(event)));
    surface.addEventListener("pointerleave", () => this.tip.hide());
    surface.addEventListener("keydown", (event) => this.#key(event));
  }

  #drag(event) {
    const away = event.offsetX - this.held.x;
    this.held.moved ||= Math.abs(away) > 3;
    this.tip.hide();
    if (this.held.moved) this.#move(this.held.from - (away / (this.x.at(this.to) - LEFT)) * (this.to - this.from));
  }

  #key(event) {
    const act = {
      w: () => this.zoom(0.5),
      s: () => this.zoom(2),
      a: () => this.#move(this.from - 0.3 * (this.to - this.from)),
      d: () => this.#move(this.from + 0.3 * (this.to - this.from)),
      0: () => this.whole(),
    }[event.key];
    if (act) act();
  }

  /** A click on a loop's name shows one turn of it. */
  #click(event) {
    const hit = this.#hit(event);
    if (!hit) return;
    const { node, at } = hit,
      turn = Math.min(
        (node.repeats ?? 1) - 1,
        Math.max(0, Math.floor((this.x.inverse(event.offsetX) - at) / node.duration_s)),
      );
    this.#move(at + turn * node.duration_s, node.duration_s);
  }

  #hit(event) {
    return this.hits.find(
      (one) =>
        event.offsetX >= one.left &&
        event.offsetX <= one.right &&
        event.offsetY >= one.top &&
        event.offsetY < one.bottom,
    );
  }

  #hover(event) {
    const loop = this.#hit(event);
    if (loop) {
      const turns =
        loop.node.repeats > 1
          ? `${loop.node.repeats} turns of ${seconds(loop.node.duration_s)}`
          : seconds(loop.node.duration_s);
      return this.tip.show(event.offsetX, event.offsetY, [loop.node.name, turns, "click: one turn"]);
    }
    const lane = this.lanes[Math.floor((event.offsetY - this.top) / ROW)];
    const found =
      lane && event.offsetX > LEFT
        ? find(this.root, lane.index, this.x.inverse(event.offsetX), (this.to - this.from) / 800)
        : null;
    if (!found) return this.tip.hide();
    const [, , duration, name, kind, exposed] = found.event;
    const where = found.path
      .map(({ node, i }) => (node.repeats > 1 ? `${node.name} ${i + 1} of ${node.repeats}` : node.name))
      .join(" › ");
    return this.tip.show(event.offsetX, event.offsetY, [
      name || kind,
      `${kind}, ${seconds(duration)}`,
      ...(known(exposed) && lane.index > 0
        ? [exposed > 0 ? `the step waits ${seconds(exposed)} for it` : "hidden under compute"]
        : []),
      ...(where ? [where] : []),
    ]);
  }
}
