// A measured run: step times, the three tiers side by side, loss and parity, devices that lag, what the profiler cost.
import { load } from "./documents.js";
import { el, known } from "./dom.js";
import { bytes, count, percent, seconds, signed, significant, unitFor } from "./format.js";
import { extent, lineChart } from "./line_chart.js";
import { card, figure, notice, table } from "./parts.js";
import { measuredLinks } from "./profile_links.js";
import { timelineCard } from "./timeline.js";
import { comparedCard, findingsCard } from "./tiers.js";
import { timeCard } from "./time.js";

const BINS = 30;

export async function showRun(into, run, name) {
  const found = await load(run, name);
  if (!found) return;
  const timeline = await load(run, name.replace("run", "timeline"));
  into.append(
    ...head(found),
    ...(found.against ?? []).map((fault) => notice(fault, "fault")),
    scaledNotice(found.ran_on) ?? "",
    measuredLinks(run, found.profiler?.session) ?? "",
    findingsCard(found.findings) ?? "",
    comparedCard(found.compared) ?? "",
    ledger(found) ?? "",
    (timeline?.source === "measured" && timelineCard(timeline)) || "",
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
        ` · ${count(found.steps)} steps on ${count(on.devices)} ${on.device_kind}${on.device_kind === on.platform ? "" : ` (${on.platform})`}${on.processes > 1 ? `, ${on.processes} processes` : ""}`,
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
    series: [{ name: "", color: "measured", points, filled: true }],
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
