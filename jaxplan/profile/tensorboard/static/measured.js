// A measured run: step times, the three tiers side by side, loss and parity, devices that lag, what the profiler cost.
import { load } from "./documents.js";
import { el, known, svg } from "./dom.js";
import { bytes, count, percent, seconds, signed, significant, unitFor } from "./format.js";
import { extent, lineChart } from "./line_chart.js";
import { card, figure, legend, notice, source, table } from "./parts.js";
import { measuredLinks } from "./profile_links.js";
import { timeCard } from "./time.js";

const TIERS = [
  ["estimated", "estimated_s"],
  ["compiled", "compiled_s"],
  ["measured", "measured_s"],
];
const WIDTH = 1000,
  LEFT = 200,
  BAR = 11,
  BINS = 30;

export async function showRun(into, run, name) {
  const found = await load(run, name);
  if (!found) return;
  into.append(
    ...head(found),
    ...(found.against ?? []).map((fault) => notice(fault, "fault")),
    scaledNotice(found.ran_on) ?? "",
    measuredLinks(run, found.profiler?.session) ?? "",
    findings(found.findings) ?? "",
    compared(found.compared) ?? "",
    ledger(found) ?? "",
    stepTimes(found) ?? "",
    learning(found) ?? "",
    parity(found.parity) ?? "",
    devices(found) ?? "",
    profiler(found) ?? "",
    remarks(found) ?? "",
  );
}

function head(found) {
  const on = found.ran_on ?? {},
    time = found.step_time_s ?? {},
    memory = found.memory_bytes?.peak_per_device?.filter(known);
  return [
    el(
      "h2",
      { class: "plan-title" },
      found.label,
      el(
        "span",
        {},
        ` · ${count(found.steps)} steps on ${count(on.devices)} ${on.device_kind} (${on.platform})${on.processes > 1 ? `, ${on.processes} processes` : ""}`,
      ),
    ),
    el(
      "div",
      { class: "figures" },
      figure(
        "step time, median",
        seconds(time.median),
        time.source ?? "measured",
        `p90 ${seconds(time.p90)}, worst ${seconds(time.worst)}`,
      ),
      figure("tokens/s", significant(found.tokens_per_s), "measured"),
      found.mfu ? figure("MFU", percent(found.mfu.value), "measured", found.mfu.convention) : null,
      memory?.length
        ? figure("memory, fullest device", bytes(extent(memory)[1]), "measured")
        : figure("memory", "not known", "", found.memory_bytes?.why_not),
      figure("losses", found.finite === false ? "not finite" : "finite", "measured"),
      found.parity
        ? figure(
            "parity",
            found.parity.checked ? (found.parity.passed ? "passed" : "FAILED") : "not checked",
            found.parity.checked ? "measured" : "",
            found.parity.why_not,
          )
        : null,
    ),
  ];
}

/** What was made smaller so that the run fits the devices here. */
function scaledNotice({ scaled } = {}) {
  if (!scaled) return null;
  const pair = (name, [asked, ran]) => `${name} ${asked} → ${ran}`;
  const model = Array.isArray(scaled.model)
    ? [pair("model", scaled.model)]
    : scaled.model
      ? [`model ${typeof scaled.model === "string" ? scaled.model : JSON.stringify(scaled.model)}`]
      : [];
  const parts = [
    ...Object.entries(scaled.axes ?? {}).map(([axis, sizes]) => pair(axis, sizes)),
    ...(scaled.batch ? [pair("batch", scaled.batch)] : []),
    ...model,
  ];
  return notice(
    `Scaled down, so these are not the plan's own times: ${parts.join(", ")}. ${scaled.why ?? ""}`,
    "advice",
  );
}

function findings(found) {
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
          ),
        ),
    ),
  );
}

function compared(rows) {
  if (!rows?.length) return null;
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
    legend(TIERS.map(([word]) => [word, `background:var(--${word})`])),
    bars(rows, unit),
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

function bars(rows, unit) {
  const most = extent(rows.flatMap((row) => TIERS.map(([, key]) => row[key])).filter(known))[1] || 1,
    height = rows.length * (3 * BAR + 12);
  const x = (value) => LEFT + (value / most) * (WIDTH - LEFT - 80);
  return svg(
    "svg",
    { class: "wide", viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": "parts of a step by tier" },
    rows.map((row, i) => {
      const top = i * (3 * BAR + 12);
      return [
        svg("text", { class: "label", x: LEFT - 10, y: top + 1.5 * BAR + 6, "text-anchor": "end" }, row.name),
        TIERS.map(([word, key], k) =>
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

/** The measured step's own ledger. */
function ledger(found) {
  const parts = (found.ledger ?? []).filter((part) => known(part.seconds));
  if (!parts.length) return null;
  const value = parts.reduce((sum, part) => sum + part.seconds, 0);
  return timeCard({
    time: { value, parts: parts.map((part) => ({ ...part, source: "measured" })), source: "measured" },
  });
}

function stepTimes({ step_time_s: time, warmup, steps }) {
  const all = (time?.all ?? []).filter(known);
  if (all.length < 2) return null;
  const unit = unitFor("seconds", [time.median]),
    of = (value) => value / unit.size;
  return card(
    "steps",
    "Step times",
    `${count(all.length)} steps after ${count(warmup)} to warm up. A long tail or steps that drift are worth a look.`,
    el(
      "div",
      { class: "side" },
      lineChart({
        label: "step time by step",
        xName: "step",
        yName: unit.unit,
        writeX: String,
        series: [
          { name: "step", color: "measured", points: all.map((value, i) => [i, of(value)]), dots: all.length < 100 },
        ],
      }),
      histogram(
        all.map(of),
        [
          ["median", of(time.median)],
          ["p90", of(time.p90)],
        ],
        unit.unit,
      ),
    ),
    table(
      ["", "median", "p10", "p90", "worst"],
      [
        [
          `${unit.unit} of ${count(steps)} steps`,
          ...["median", "p10", "p90", "worst"].map((key) => unit.of(time[key])),
        ],
      ],
      [1, 2, 3, 4],
    ),
  );
}

function histogram(values, marks, unit) {
  const [low, high] = extent(values),
    wide = (high - low || high || 1) / BINS,
    bins = new Array(BINS).fill(0);
  for (const value of values) bins[Math.min(BINS - 1, Math.floor((value - low) / wide))] += 1;
  const points = bins.flatMap((n, i) => [
    [low + i * wide, n],
    [low + (i + 1) * wide, n],
  ]);
  return lineChart({
    label: "how often a step took how long",
    xName: unit,
    yName: "steps",
    fromZero: true,
    series: [{ name: "", color: "measured", points }],
    marks: marks.filter(([, x]) => known(x)).map(([name, x]) => ({ name, x })),
  });
}

function learning({ loss, gradient_norm: norm }) {
  const one = (name, values) =>
    values?.length > 1
      ? lineChart({
          label: name,
          xName: "step",
          yName: name,
          writeX: String,
          series: [{ name, color: "accent", points: values.map((value, i) => [i, value]), dots: values.length < 60 }],
        })
      : null;
  const charts = [one("loss", loss), one("gradient norm", norm)].filter(Boolean);
  return charts.length
    ? card(
        "loss",
        "Loss and gradient norm",
        "On the run’s own data; a gap is a step that was not finite.",
        el("div", { class: "side" }, charts),
      )
    : null;
}

function parity(found) {
  if (!found) return null;
  if (!found.checked)
    return card(
      "parity",
      "Parity with one device",
      "Whether the sharded step computes the same as an unsharded one.",
      notice(`Not checked: ${found.why_not ?? "no reason given"}`),
    );
  const limit = found.tolerance ?? {};
  const rows = [
    ["loss", found.loss_difference, limit.loss ?? limit.loss_difference],
    ["gradient norm", found.gradient_norm_difference, limit.gradient_norm ?? limit.gradient_norm_difference],
  ];
  return card(
    "parity",
    "Parity with one device",
    "The sharded step beside an unsharded one on the same data.",
    notice(
      found.passed
        ? "Passed: the sharded step computes the same."
        : "Failed: the sharded step computes something else.",
      found.passed ? "good" : "fault",
    ),
    table(
      ["relative difference of", "found", "allowed"],
      rows.map(([name, value, most]) => [name, small(value), small(most)]),
      [1, 2],
    ),
  );
}

const small = (value) =>
  known(value) ? (value !== 0 && Math.abs(value) < 1e-3 ? value.toExponential(1) : significant(value)) : "–";

function devices({ stragglers, memory_bytes: memory }) {
  const late = (stragglers ?? []).filter((one) => known(one.behind_s));
  if (!late.length) return null;
  const unit = unitFor(
      "seconds",
      late.map((one) => one.behind_s),
    ),
    worst = [...late].sort((a, b) => b.behind_s - a.behind_s).slice(0, 32);
  const rows = worst.map((one) => [
    String(one.device),
    unit.of(one.behind_s),
    bytes(memory?.peak_per_device?.[one.device]),
  ]);
  return card(
    "devices",
    "Devices that lag",
    "How long a device’s part of a step ends after the fastest one’s, in the median.",
    lineChart({
      label: "behind, by device",
      xName: "device",
      yName: unit.unit,
      writeX: String,
      fromZero: true,
      series: [
        {
          name: "behind",
          color: "measured",
          points: late.map((one) => [one.device, one.behind_s / unit.size]),
          dots: true,
          scattered: true,
        },
      ],
    }),
    table(
      ["device", `behind, ${unit.unit}`, "memory at the peak"],
      rows,
      [0, 1, 2],
      late.length > worst.length ? `the ${worst.length} slowest of ${late.length}` : null,
    ),
  );
}

function profiler({ profiler: found }) {
  if (!found) return null;
  return card(
    "profiler",
    "The profiler",
    "Profiled steps take longer than others; the step time above is of steps without it.",
    table(
      ["profiled steps", "overhead", "session"],
      [[count(found.steps), known(found.overhead) ? signed(percent)(found.overhead) : "–", found.session ?? "none"]],
      [0, 1],
    ),
  );
}

function remarks({ notes, calibration }) {
  const lines = [...(notes ?? []), ...(calibration ? [`Calibration: ${calibration}`] : [])];
  return lines.length
    ? card(
        "remarks",
        "Notes",
        "",
        el(
          "ul",
          {},
          lines.map((line) => el("li", {}, line)),
        ),
      )
    : null;
}
