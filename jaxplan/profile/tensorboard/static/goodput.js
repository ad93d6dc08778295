// How much of the time is useful work: the interval between saves, what is lost and to what, what to improve first.
import { load } from "./documents.js";
import { el, known, svg } from "./dom.js";
import {
  bytes,
  count,
  duration,
  percent,
  quantity,
  rate,
  seconds,
  share,
  signed,
  significant,
  unitFor,
} from "./format.js";
import { lineChart } from "./line_chart.js";
import { card, figure, source, table } from "./parts.js";

const WIDTH = 1000,
  LEFT = 180,
  ROW = 26,
  RIGHT = 190;

export async function showGoodput(into, run, name) {
  const found = await load(run, name);
  if (!found) return;
  into.append(
    ...head(found),
    curveCard(found) ?? "",
    lostCard(found) ?? "",
    leversCard(found) ?? "",
    sparesCard(found) ?? "",
    inputsCard(found),
  );
}

function head({ label, nodes, chips, goodput, interval, mtbf_s, failures_per_day: failures, spares, budget }) {
  const money =
    budget && known(budget.money)
      ? figure(
          "money",
          quantity(budget.money),
          "estimated",
          `${quantity(budget.chip_hours)} chip-hours at ${significant(budget.price_per_chip_hour)}`,
        )
      : null;
  return [
    el(
      "h2",
      { class: "plan-title" },
      label || "A job given by hand",
      el("span", {}, ` · ${count(nodes)} node${nodes === 1 ? "" : "s"}, ${count(chips)} chips`),
    ),
    el(
      "div",
      { class: "figures" },
      figure("goodput", percent(goodput.value), goodput.source, "of the time is useful work"),
      figure(
        "save every",
        duration(interval.value_s),
        interval.given ? "" : "estimated",
        [known(interval.steps) ? `${count(interval.steps)} steps` : "", interval.given ? "as given" : "the best"]
          .filter(Boolean)
          .join(", "),
      ),
      figure("a failure every", duration(mtbf_s), "estimated", `${significant(failures)} a day`),
      spares
        ? figure("spare nodes", count(spares.count), "estimated", `enough ${percent(spares.reached)} of the time`)
        : null,
      budget
        ? figure(
            "the run takes",
            duration(budget.total_s),
            "estimated",
            `${quantity(budget.tokens)} tokens, about ${count(budget.failures)} failures`,
          )
        : null,
      money,
    ),
  ];
}

function curveCard({ curve, interval, goodput, intervals, simulated }) {
  if (!curve?.interval_s?.length) return null;
  const unit = unitFor("days", [interval.value_s]),
    of = (value) => value / unit.size;
  const points = (one) => one.interval_s.map((x, i) => [of(x), 100 * one.goodput[i]]);
  const drawn = curve.simulated
    ? [{ name: "simulated", color: "front", points: points(curve.simulated), dots: true, scattered: true }]
    : [];
  const formulas = (intervals ?? []).map((one) => [
    one.name,
    known(one.interval_s) ? unit.of(one.interval_s) : "–",
    percent(one.goodput),
    one.valid ? "" : one.why_not,
    one.source,
  ]);
  const laws = (simulated ?? []).map((one) => [
    one.law === "exponential" ? "random failures" : `${one.law}, shape ${significant(one.shape)}`,
    percent(one.value),
    `${percent(one.low, 4)} to ${percent(one.high, 4)}`,
    count(one.failures),
  ]);
  return card(
    "interval",
    "How often to save",
    "Save too often and saves cost; too rarely and every failure throws away more work. The curve is flat near its top: a rounder interval costs little.",
    lineChart({
      label: "goodput over the interval between saves",
      xName: `interval between saves, ${unit.unit}`,
      yName: "goodput, %",
      logX: true,
      series: [{ name: "formula", color: "accent", points: points(curve) }, ...drawn],
      marks: [{ x: of(interval.value_s), name: `${duration(interval.value_s)}: ${percent(goodput.value)}` }],
    }),
    formulas.length
      ? table(["formula", unit.unit, "goodput", "", "from"], formulas, [1, 2], source("estimated"))
      : null,
    laws.length ? table(["simulated with", "goodput", "confidence interval", "failures"], laws, [1, 2, 3]) : null,
  );
}

/** Lost time only: next to the useful part it could not be told apart. */
function lostCard({ ledger, total_s: total, restart }) {
  const lost = (ledger ?? []).filter((entry) => entry.name !== "useful work" && entry.share > 0),
    useful = ledger?.find((entry) => entry.name === "useful work");
  if (!lost.length) return null;
  const most = Math.max(...lost.map((entry) => entry.share)),
    height = lost.length * ROW;
  const picture = svg(
    "svg",
    { class: "wide", viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": "lost time" },
    lost.map((entry, i) => [
      svg("text", { class: "label", x: LEFT - 10, y: i * ROW + 17, "text-anchor": "end" }, entry.name),
      svg("rect", {
        x: LEFT,
        y: i * ROW + 4,
        width: Math.max(1.5, (entry.share / most) * (WIDTH - LEFT - RIGHT)),
        height: ROW - 8,
        fill: "var(--front)",
      }),
      svg(
        "text",
        { class: "tick", x: LEFT + Math.max(1.5, (entry.share / most) * (WIDTH - LEFT - RIGHT)) + 6, y: i * ROW + 17 },
        `${share(entry.share)}, ${duration(entry.seconds)}`,
      ),
    ]),
  );
  const phases = (restart?.phases ?? []).map((phase) => `${phase.name} ${seconds(phase.seconds)}`).join(", ");
  return card(
    "lost",
    "Where time is lost",
    `Of ${duration(total)}, ${percent(useful?.share)} is useful work; this is the rest.`,
    picture,
    phases
      ? el(
          "p",
          { class: "help" },
          `A restart takes ${seconds(restart.total_s)}: ${phases}; waiting for a node ${seconds(restart.repair_wait_s)} on average.`,
        )
      : null,
  );
}

function leversCard({ sensitivity, goodput }) {
  if (!sensitivity?.length) return null;
  const now = (lever) => (lever.unit === "1/s" ? `${significant(lever.value * 86400)} a day` : seconds(lever.value));
  const rows = sensitivity.map((lever) => [
    lever.name,
    now(lever),
    percent(lever.halved_goodput),
    signed(percent)(lever.gain),
    known(lever.elasticity) ? signed(significant)(lever.elasticity) : "–",
  ]);
  return card(
    "levers",
    "What to improve first",
    `Each halved, and the interval chosen again; now ${percent(goodput.value)}. Elasticity: percent of goodput for a percent of it.`,
    table(["", "now", "goodput if halved", "more work", "elasticity"], rows, [1, 2, 3, 4], source("estimated")),
  );
}

function sparesCard({ spares }) {
  if (!spares?.table?.length) return null;
  const points = spares.table.map((one) => [one.spares, 100 * one.probability]);
  return card(
    "spares",
    "Spare nodes",
    `How likely it is that so many spares are enough at any moment; ${significant(spares.in_repair)} nodes are in repair on average, ${duration(spares.repair_s)} each.`,
    points.length > 1
      ? lineChart({
          label: "spares",
          xName: "spare nodes",
          yName: "enough, % of the time",
          writeX: String,
          series: [{ name: "", color: "accent", points, dots: true }],
          marks: [{ x: spares.count, name: `${spares.count} spares` }],
        })
      : el("p", {}, `${spares.count} spares: ${percent(spares.reached)} of the time.`),
  );
}

const WRITE = { s: seconds, B: bytes, "B/s": rate, "1/s": (value) => `${significant(value * 86400)} a day` };

function inputsCard({ inputs, assumptions }) {
  const rows = (inputs ?? []).map((one) => [one.name, (WRITE[one.unit] ?? significantCount)(one.value), one.source]);
  return card(
    "inputs",
    "What went in",
    "Every figure and where it comes from.",
    table(["", "value", "source"], rows, [1]),
    el(
      "ul",
      {},
      (assumptions ?? []).map((line) => el("li", {}, line)),
    ),
  );
}

const significantCount = (value) => (known(value) && Number.isInteger(value) ? quantity(value) : significant(value));
