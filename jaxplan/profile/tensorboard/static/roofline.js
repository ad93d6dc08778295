// The roofline: what the chip can do at most, and where each kind of work lies under it.
import { el, known, svg } from "./dom.js";
import { flopRate, percent, rate, share, significant, unitFor } from "./format.js";
import { card, source, table } from "./parts.js";
import { scale, ticks } from "./scale.js";
import { colorName } from "./theme.js";

const WIDTH = 640,
  HEIGHT = 320,
  LEFT = 70,
  RIGHT = 16,
  TOP = 14,
  BOTTOM = 42;

export function rooflineCard(roofline) {
  if (!roofline?.kinds?.length) return null;
  const { kinds } = roofline,
    total = kinds.reduce((sum, kind) => sum + kind.seconds, 0);
  const time = unitFor(
      "seconds",
      kinds.map((kind) => kind.seconds),
    ),
    work = unitFor(
      "flops",
      kinds.map((kind) => kind.flops),
    ),
    size = unitFor(
      "bytes",
      kinds.map((kind) => kind.nbytes),
    );
  const rows = kinds.map((kind) => [
    swatchOf(kind),
    nameOf(kind),
    time.of(kind.seconds),
    share(kind.seconds / total),
    work.of(kind.flops),
    size.of(kind.nbytes),
    significant(kind.intensity),
    kind.bound,
  ]);
  return card(
    "roofline",
    "Roofline",
    `What bounds each kind of work of one device: the chip’s arithmetic (${flopRate(roofline.flops_per_s)}) or its memory (${rate(roofline.hbm_bytes_per_s)}). Work right of ${significant(roofline.ridge)} FLOP a byte is bound by arithmetic.`,
    el(
      "div",
      {},
      picture(roofline, total),
      table(["", "kind", time.unit, "share", work.unit, size.unit, "FLOP/byte", "bound by"], rows, [2, 3, 4, 5, 6]),
    ),
    el(
      "p",
      { class: "help" },
      source(roofline.source),
      ` Dashed: what such work reaches in practice (matmul ${percent(roofline.fraction)}, attention ${percent(roofline.attention_fraction)} of the peak, memory ${percent(roofline.hbm_fraction)}).`,
    ),
  );
}

const nameOf = (kind) => (kind.recomputed ? `${kind.kind}, recomputed` : kind.kind);
const swatchOf = (kind) =>
  el("i", { class: "swatch", style: `background:var(--${colorName(kind.recomputed ? "recompute" : kind.kind)})` });

function picture({ kinds, flops_per_s, hbm_bytes_per_s, fraction, hbm_fraction, ridge }, total) {
  const points = kinds
    .filter((kind) => kind.flops > 0 && kind.seconds > 0 && known(kind.intensity) && kind.intensity > 0)
    .map((kind) => ({ ...kind, reached: kind.flops / kind.seconds }));
  const xs = [ridge / 10, ridge * 10, ...points.flatMap((point) => [point.intensity / 3, point.intensity * 3])];
  const ys = [flops_per_s * 2, ...points.map((point) => point.reached / 4), flops_per_s / 100];
  const x = scale(Math.min(...xs), Math.max(...xs), LEFT, WIDTH - RIGHT, true),
    y = scale(Math.min(...ys), Math.max(...ys), HEIGHT - BOTTOM, TOP, true);
  const unit = unitFor("flopRate", [flops_per_s]);
  return svg(
    "svg",
    { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": "roofline" },
    ticks(y, 5).map((value) => [
      svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y.at(value), y2: y.at(value) }),
      svg("text", { class: "tick", x: LEFT - 6, y: y.at(value) + 4, "text-anchor": "end" }, unit.of(value)),
    ]),
    ticks(x, 6).map((value) =>
      svg(
        "text",
        { class: "tick", x: x.at(value), y: HEIGHT - BOTTOM + 16, "text-anchor": "middle" },
        String(Number(value.toPrecision(2))),
      ),
    ),
    svg(
      "text",
      { class: "axis-name", x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 6, "text-anchor": "middle" },
      "FLOP a byte of memory traffic",
    ),
    svg(
      "text",
      { class: "axis-name", x: -(TOP + HEIGHT - BOTTOM) / 2, y: 12, transform: "rotate(-90)", "text-anchor": "middle" },
      unit.unit,
    ),
    roof(x, y, flops_per_s, hbm_bytes_per_s, false),
    known(fraction) && known(hbm_fraction)
      ? roof(x, y, flops_per_s * fraction, hbm_bytes_per_s * hbm_fraction, true)
      : null,
    marks(x, y, points, total),
  );
}

/** The slope of memory, then the flat of arithmetic, inside of the plot. */
function roof(x, y, flat, slope, dashed) {
  const start = Math.max(x.low, y.low / slope),
    corner = Math.min(x.high, flat / slope);
  const points = [
    [start, start * slope],
    [corner, corner * slope],
    [x.high, Math.min(flat, x.high * slope)],
  ];
  return svg("polyline", {
    class: "roof",
    points: points.map(([px, py]) => `${x.at(px)},${y.at(py)}`).join(" "),
    "stroke-dasharray": dashed ? "5 4" : null,
  });
}

/** The points, the largest first, each with its name where no other name is. */
function marks(x, y, points, total) {
  const taken = [];
  return [...points].sort((a, b) => b.seconds - a.seconds).map((point) => mark(x, y, point, total, taken));
}

/** A free place for a name around a point: beside it, below, above. */
function place(cx, cy, radius, width, taken) {
  const beside = radius + 5,
    tries = [12, -8, 28, -24, 44, -40].flatMap((dy) => [
      [cx + beside, cy + dy - 8],
      [cx - beside - width, cy + dy - 8],
    ]);
  const free = ([left, top]) =>
    left > LEFT &&
    left + width < WIDTH - RIGHT &&
    top > 8 &&
    !taken.some(([l, t, w]) => left < l + w && l < left + width && Math.abs(top - t) < 14);
  const [left, top] = tries.find(free) ?? tries[0];
  taken.push([left, top, width]);
  return { left, top };
}

function mark(x, y, point, total, taken) {
  const cx = x.at(point.intensity),
    cy = y.at(point.reached),
    radius = 4 + 14 * Math.sqrt(point.seconds / total);
  const { left, top } = place(cx, cy, radius, 6.6 * nameOf(point).length, taken);
  return svg(
    "g",
    {},
    svg("title", {}, `${nameOf(point)}: ${flopRate(point.reached)}, ${percent(point.seconds / total)} of the time`),
    svg("circle", {
      cx,
      cy,
      r: radius,
      fill: `var(--${colorName(point.recomputed ? "recompute" : point.kind)})`,
      "fill-opacity": 0.75,
    }),
    svg("text", { class: "label", x: left, y: top }, nameOf(point)),
  );
}
