// Curves over a common x, as SVG.
import { el, known, svg } from "./dom.js";
import { significant } from "./format.js";
import { legend } from "./parts.js";
import { scale, ticks } from "./scale.js";

const WIDTH = 560,
  HEIGHT = 220,
  LEFT = 62,
  RIGHT = 12,
  TOP = 10,
  BOTTOM = 36;

/**
 * series: [{name, color, points: [[x, y]], dashed, dots, scattered, filled}]; marks: [{x, name}] vertical lines.
 * xName and yName carry the units; `write` makes texts of y.
 */
export function lineChart({
  label,
  series,
  marks = [],
  xName,
  yName,
  logX = false,
  fromZero = false,
  write = significant,
  writeX = significant,
}) {
  const points = series.flatMap((one) => one.points).filter(([x, y]) => known(x) && known(y) && (!logX || x > 0));
  if (!points.length) return el("p", { class: "help" }, `${label}: no finite values.`);
  const box = { label, ...bounds(points, fromZero, marks, logX) };
  const drawn = svg(
    "svg",
    { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label },
    ...frame(box, xName, yName, write, writeX),
    ...marks.filter((mark) => known(mark.x)).map((mark) => vertical(box, mark)),
    ...series.flatMap((one) => curve(box, one)),
  );
  const names = series.filter((one) => one.name);
  return el(
    "figure",
    {},
    drawn,
    names.length > 1 || marks.length ? legend(names.map((one) => [one.name, `background:var(--${one.color})`])) : null,
  );
}

function bounds(points, fromZero, marks, logX) {
  const xs = [...points.map(([x]) => x), ...marks.map((mark) => mark.x).filter(known)];
  const ys = points.map(([, y]) => y);
  const [x0, x1] = extent(xs);
  let [y0, y1] = extent(ys);
  const room = (y1 - y0 || Math.abs(y1) || 1) * 0.06;
  y0 = fromZero ? Math.min(0, y0) : y0 - room;
  return { x: scale(x0, x1, LEFT, WIDTH - RIGHT, logX), y: scale(y0, y1 + room, HEIGHT - BOTTOM, TOP) };
}

/** The least and the largest; spread over arguments, a hundred thousand values would not fit the stack. */
export function extent(values) {
  let low = Infinity,
    high = -Infinity;
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

function frame({ x, y }, xName, yName, write, writeX) {
  return [
    ...ticks(y, 4).flatMap((value) => [
      svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y.at(value), y2: y.at(value) }),
      svg("text", { class: "tick", x: LEFT - 6, y: y.at(value) + 4, "text-anchor": "end" }, write(value)),
    ]),
    ...ticks(x, 6).map((value) =>
      svg("text", { class: "tick", x: x.at(value), y: HEIGHT - BOTTOM + 15, "text-anchor": "middle" }, writeX(value)),
    ),
    svg("line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM }),
    svg("text", { class: "axis-name", x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 4, "text-anchor": "middle" }, xName),
    svg(
      "text",
      { class: "axis-name", x: -(TOP + HEIGHT - BOTTOM) / 2, y: 12, transform: "rotate(-90)", "text-anchor": "middle" },
      yName,
    ),
  ];
}

function vertical({ x }, mark) {
  const late = x.at(mark.x) > WIDTH * 0.7;
  return svg(
    "g",
    {},
    svg("line", { class: "mark", x1: x.at(mark.x), x2: x.at(mark.x), y1: TOP, y2: HEIGHT - BOTTOM }),
    svg(
      "text",
      {
        class: "mark-name",
        x: x.at(mark.x) + (late ? -5 : 5),
        y: HEIGHT - BOTTOM - 6,
        "text-anchor": late ? "end" : "start",
      },
      mark.name,
    ),
  );
}

/** A curve with gaps where a value is missing. */
function curve({ x, y }, { points, color, dashed, dots, scattered, filled }) {
  let pen = "M",
    path = "";
  for (const [px, py] of points) {
    if (!known(px) || !known(py)) pen = "M";
    else {
      path += `${pen}${x.at(px).toFixed(1)} ${y.at(py).toFixed(1)}`;
      pen = "L";
    }
  }
  const low = Math.max(y.low, 0);
  const area = filled
    ? svg("path", {
        d: `${path}L${x.at(points.at(-1)[0])} ${y.at(low)}L${x.at(points[0][0])} ${y.at(low)}Z`,
        fill: `var(--${color})`,
        "fill-opacity": 0.35,
      })
    : null;
  const line = scattered
    ? null
    : svg("path", {
        d: path,
        fill: "none",
        stroke: `var(--${color})`,
        "stroke-width": 2,
        "stroke-dasharray": dashed ? "5 4" : null,
      });
  const shown = dots ? points.filter(([px, py]) => known(px) && known(py)) : [];
  return [
    area,
    line,
    ...shown.map(([px, py]) => svg("circle", { cx: x.at(px), cy: y.at(py), r: 3, fill: `var(--${color})` })),
  ];
}
