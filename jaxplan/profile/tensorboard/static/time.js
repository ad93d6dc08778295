// The time ledger: the parts of a step as a waterfall, with the bounds.
import { el, known, svg } from "./dom.js";
import { share, unitFor } from "./format.js";
import { swatch, tiers } from "./memory.js";
import { card, notice, source, table } from "./parts.js";
import { scale, ticks } from "./scale.js";
import { colorName } from "./theme.js";

const WIDTH = 1000,
  LEFT = 210,
  RIGHT = 70,
  ROW = 26,
  FOOT = 46;

export function timeCard({ time }) {
  if (!time) return notice("This plan has no time ledger.");
  const parts = [...time.parts].sort((a, b) => b.seconds - a.seconds);
  const unit = unitFor("seconds", [time.value]);
  const rows = parts.map((part) => [
    swatch(part.name),
    part.name,
    unit.of(part.seconds),
    share(part.seconds / time.value),
    source(part.source),
  ]);
  rows.push(["", el("b", {}, "step"), el("b", {}, unit.of(time.value)), "100%", source(time.source)]);
  return card(
    "time",
    "Where the time goes",
    "One optimizer step. Every part begins where the last one ended; “exposed” is communication for which devices wait." +
      (known(time.low) ? " Low: everything that can overlap does. High: nothing does." : ""),
    waterfall(time, parts, unit),
    el("details", {}, el("summary", {}, "As a table"), table(["", "", unit.unit, "share", "source"], rows, [2, 3])),
    tiers(time.tiers, unit),
  );
}

function waterfall(time, parts, unit) {
  const height = (parts.length + 1) * ROW + FOOT,
    floor = (parts.length + 1) * ROW;
  const high = Math.max(time.value, known(time.high) ? time.high : 0, ...parts.map((part) => part.seconds));
  const x = scale(0, high * 1.02, LEFT, WIDTH - RIGHT);
  let sum = 0;
  const bars = parts.map((part, i) => {
    const from = sum;
    sum += part.seconds;
    return row(
      i,
      part.name,
      x.at(from),
      x.at(sum),
      `var(--${colorName(part.name)})`,
      `${unit.of(part.seconds)} ${unit.unit}`,
      part.name.startsWith("exposed"),
    );
  });
  const marks = [
    ["low", time.low],
    ["value", time.value],
    ["high", time.high],
  ].filter(([, value]) => known(value));
  return svg(
    "svg",
    {
      class: "wide",
      viewBox: `0 0 ${WIDTH} ${height}`,
      role: "img",
      "aria-label": `step time ${unit.full(time.value)}`,
    },
    hatch(),
    ticks({ low: 0, high: x.high / unit.size, logarithmic: false }, 8).map((value) =>
      svg("line", { class: "grid", x1: x.at(value * unit.size), x2: x.at(value * unit.size), y1: 0, y2: floor }),
    ),
    bars,
    row(parts.length, "step", x.at(0), x.at(time.value), "var(--ink)", unit.full(time.value)),
    bounds(time, x, parts.length * ROW + ROW / 2),
    ticks({ low: 0, high: x.high / unit.size, logarithmic: false }, 8).map((value) =>
      svg(
        "text",
        { class: "tick", x: x.at(value * unit.size), y: floor + 16, "text-anchor": "middle" },
        String(Number(value.toPrecision(3))),
      ),
    ),
    svg(
      "text",
      { class: "axis-name", x: (LEFT + WIDTH - RIGHT) / 2, y: floor + 36, "text-anchor": "middle" },
      marks.length > 1
        ? `${unit.unit}: ${marks.map(([name, value]) => `${name} ${unit.of(value)}`).join(", ")}`
        : unit.unit,
    ),
  );
}

function row(i, name, from, to, fill, text, hatched = false) {
  const y = i * ROW + 4,
    width = Math.max(1.5, to - from);
  return svg(
    "g",
    {},
    svg("title", {}, `${name}: ${text}`),
    svg("text", { class: "label", x: LEFT - 10, y: y + 14, "text-anchor": "end" }, name),
    svg("rect", { x: from, y, width, height: ROW - 8, fill }),
    hatched ? svg("rect", { x: from, y, width, height: ROW - 8, fill: "url(#hatch)" }) : null,
    svg("text", { class: "tick", x: from + width + 6, y: y + 14 }, text),
  );
}

function bounds({ low, high }, x, y) {
  if (!known(low) || !known(high)) return null;
  return svg(
    "g",
    { class: "bounds" },
    svg("line", { x1: x.at(low), x2: x.at(high), y1: y + 14, y2: y + 14 }),
    [low, high].map((value) => svg("line", { x1: x.at(value), x2: x.at(value), y1: y + 9, y2: y + 19 })),
  );
}

/** Stripes for time that is waited for. */
export const hatch = () =>
  svg(
    "defs",
    {},
    svg(
      "pattern",
      { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      svg("line", { x1: 0, y1: 0, x2: 0, y2: 6, stroke: "var(--panel)", "stroke-width": 3 }),
    ),
  );
