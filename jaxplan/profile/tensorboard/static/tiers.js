// The same parts of a step as each tier knows them, and what explains the difference.
import { el, known, svg } from "./dom.js";
import { percent, seconds, signed, unitFor } from "./format.js";
import { extent } from "./line_chart.js";
import { card, legend, source, table } from "./parts.js";

const TIERS = [
  ["estimated", "estimated_s"],
  ["compiled", "compiled_s"],
  ["measured", "measured_s"],
];
const WIDTH = 1000,
  LEFT = 200,
  BAR = 11;

export function findingsCard(found) {
  if (!found?.length) return null;
  return card(
    "findings",
    "Findings",
    "What the measurement says, the costliest first.",
    el(
      "ul",
      { class: "findings" },
      [...found]
        .sort((a, b) => (b.seconds ?? 0) - (a.seconds ?? 0))
        .map((one) =>
          el(
            "li",
            {},
            el("b", {}, one.title),
            known(one.seconds) ? ` (${seconds(one.seconds)} a step)` : "",
            el("div", {}, one.detail),
            one.suggestion ? el("div", { class: "help" }, `Try: ${one.suggestion}`) : null,
          ),
        ),
    ),
  );
}

/** Nothing where only one tier knows anything: there is nothing beside it. */
export function comparedCard(rows) {
  const tiers = TIERS.filter(([, key]) => rows?.some((row) => known(row[key])));
  if (tiers.length < 2) return null;
  const all = rows.flatMap((row) => TIERS.map(([, key]) => row[key])),
    unit = unitFor("seconds", all);
  const lines = rows.map((row) => [
    row.name,
    ...TIERS.map(([, key]) => unit.of(row[key])),
    known(row.measured_s) && known(row.compiled_s ?? row.estimated_s)
      ? signed(percent)(row.measured_s / (row.compiled_s ?? row.estimated_s) - 1)
      : "–",
  ]);
  return card(
    "compared",
    "Estimated, compiled, measured",
    `The same parts of a step, as each tier knows them, in ${unit.unit}.`,
    legend(tiers.map(([word]) => [word, `background:var(--${word})`])),
    bars(rows, unit, tiers),
    el(
      "details",
      {},
      el("summary", {}, "As a table"),
      table(
        ["", ...TIERS.map(([word]) => el("span", {}, `${unit.unit} `, source(word))), "measured over predicted"],
        lines,
        [1, 2, 3, 4],
      ),
    ),
  );
}

function bars(rows, unit, tiers) {
  const most = extent(rows.flatMap((row) => TIERS.map(([, key]) => row[key])).filter(known))[1] || 1,
    high = tiers.length * BAR + 12,
    height = rows.length * high;
  const x = (value) => LEFT + (value / most) * (WIDTH - LEFT - 80);
  return svg(
    "svg",
    { class: "wide", viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": "parts of a step by tier" },
    rows.map((row, i) => {
      const top = i * high;
      return [
        svg(
          "text",
          { class: "label", x: LEFT - 10, y: top + (tiers.length * BAR) / 2 + 4, "text-anchor": "end" },
          row.name,
        ),
        tiers.map(([word, key], k) =>
          known(row[key])
            ? [
                svg("rect", {
                  x: LEFT,
                  y: top + k * BAR,
                  width: Math.max(1, x(row[key]) - LEFT),
                  height: BAR - 1,
                  fill: `var(--${word})`,
                }),
                svg("text", { class: "tick", x: x(row[key]) + 5, y: top + k * BAR + 9 }, unit.of(row[key])),
              ]
            : null,
        ),
      ];
    }),
  );
}
