// A profile beside its plan: where the prediction missed, and what explains it.
import { load } from "./documents.js";
import { el, known } from "./dom.js";
import { bytes, count, meshWords, percent, seconds, signed, unitFor } from "./format.js";
import { card, figure, notice, source, table } from "./parts.js";
import { comparedCard, findingsCard } from "./tiers.js";

export async function showComparison(into, run, name) {
  const found = await load(run, name);
  if (!found) return;
  into.append(
    ...head(found),
    found.elsewhere ? notice(`Do not read the gap as an error: ${found.elsewhere}.`, "advice") : "",
    findingsCard(found.findings) ?? "",
    comparedCard(found.ledger) ?? "",
    collectives(found.collectives) ?? "",
    operations(found.operations) ?? "",
    devices(found.devices) ?? "",
    found.notes?.length
      ? card(
          "remarks",
          "Notes",
          "",
          el(
            "ul",
            {},
            found.notes.map((line) => el("li", {}, line)),
          ),
        )
      : "",
  );
}

function head({ plan, mesh, profile, step_time_s: time, predicted_by: tier, attributed }) {
  const predicted = time.compiled ?? time.estimated ?? time.expected;
  return [
    el(
      "h2",
      { class: "plan-title" },
      plan ?? meshWords(mesh),
      el(
        "span",
        {},
        ` · ${count(profile.steps)} profiled steps of ${profile.program} on ${count(profile.devices)} ${profile.platform} devices`,
      ),
    ),
    el(
      "div",
      { class: "figures" },
      figure("measured step", seconds(time.measured), "measured"),
      known(predicted) ? figure("predicted step", seconds(predicted), tier ?? "", tier ? "" : "as expected") : null,
      known(time.gap)
        ? figure("gap", signed(seconds)(time.gap), "", `${signed(percent)(time.gap / predicted)} of what was predicted`)
        : null,
      known(attributed)
        ? figure("attributed", percent(attributed), "measured", "of the busy time to a part of the step")
        : null,
    ),
  ];
}

function collectives(rows) {
  if (!rows?.length) return null;
  const times = rows.flatMap((row) => [row.estimated?.seconds, row.compiled?.seconds, row.measured?.seconds]),
    time = unitFor("seconds", times);
  const size = unitFor(
    "bytes",
    rows.flatMap((row) => [row.estimated?.bytes, row.compiled?.bytes, row.measured?.bytes]),
  );
  const lines = rows.map((row) => [
    `${row.kind} over ${row.axes.join(", ") || "axes that are not known"}`,
    size.of(row.compiled?.bytes ?? row.estimated?.bytes),
    size.of(row.measured?.bytes),
    time.of(row.compiled?.seconds ?? row.estimated?.seconds),
    time.of(row.measured?.seconds),
    time.of(row.measured?.exposed_s),
  ]);
  return card(
    "collectives",
    "Collectives",
    "What the plan moves in one step, and what was seen to move.",
    table(
      [
        "",
        `planned, ${size.unit}`,
        `seen, ${size.unit}`,
        `planned, ${time.unit}`,
        el("span", {}, `takes, ${time.unit} `, source("measured")),
        `exposed, ${time.unit}`,
      ],
      lines,
      [1, 2, 3, 4, 5],
    ),
  );
}

function operations(rows) {
  if (!rows?.length) return null;
  const time = unitFor(
    "seconds",
    rows.map((row) => row.seconds),
  );
  const lines = rows.map((row) => [
    time.of(row.seconds),
    row.name,
    row.entry,
    count(row.executions),
    row.nbytes > 0 ? bytes(row.nbytes) : "–",
    el("span", { class: "path", title: `${row.source}\n${row.op_name}` }, row.source || row.op_name),
  ]);
  return card(
    "operations",
    "Longest operations",
    "Of one device in one step, with the line of the program that made them.",
    table(
      [
        el("span", {}, `${time.unit} `, source("measured")),
        "operation",
        "counted under",
        "times",
        "memory traffic",
        "from",
      ],
      lines,
      [0, 3, 4],
    ),
  );
}

function devices(rows) {
  if (!rows?.length) return null;
  const time = unitFor(
    "seconds",
    rows.flatMap((row) => [row.work_s, row.exposed_s]),
  );
  const slowest = [...rows].sort((a, b) => b.behind_s - a.behind_s).slice(0, 32);
  return card(
    "devices",
    "Devices",
    "The furthest behind first. Who is behind lets all others wait.",
    table(
      ["host", "device", `work, ${time.unit}`, `waits, ${time.unit}`, `idle, ${time.unit}`, `behind, ${time.unit}`],
      slowest.map((row) => [
        row.host,
        String(row.ordinal),
        time.of(row.work_s),
        time.of(row.exposed_s),
        time.of(row.idle_s),
        time.of(row.behind_s),
      ]),
      [1, 2, 3, 4, 5],
      rows.length > 32 ? `the first 32 of ${rows.length}` : null,
    ),
  );
}
