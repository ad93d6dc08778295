// One plan: headline, ledgers, timeline, roofline, mesh, axes, what to change, assumptions.
import { axesCard } from "./axes.js";
import { changesCard } from "./changes.js";
import { loadAll } from "./documents.js";
import { el, known } from "./dom.js";
import { bytes, count, meshWords, optionWords, percent, seconds, significant } from "./format.js";
import { memoryCard } from "./memory.js";
import { meshCard } from "./mesh.js";
import { card, figure, notice, table } from "./parts.js";
import { compiledLinks } from "./profile_links.js";
import { rooflineCard } from "./roofline.js";
import { timeCard } from "./time.js";
import { timelineCard } from "./timeline.js";

/** Names of the documents of plan.json, plan-2.json, ... */
export const companions = (name) => ({
  explain: name.replace("plan", "explain"),
  timeline: name.replace("plan", "timeline"),
});

/** Fills `into` with the plan of that file name. */
export async function showPlan(into, run, name) {
  const others = companions(name);
  const { found, faults } = await loadAll(run, [name, others.explain, others.timeline]);
  const plan = found[name],
    explain = found[others.explain],
    timeline = found[others.timeline];
  into.append(...faults.map((fault) => notice(fault, "fault")));
  if (!plan && !explain) return;
  const absent = Object.entries(others).filter(([, other]) => !(other in run.documents));
  const view = read(plan, explain);
  into.append(
    ...head(view, run, name),
    absent.length
      ? notice(
          `Not in this run: ${absent.map(([kind, other]) => `${other} (${{ explain: "roofline, axes, changes", timeline: "the schedule of a step" }[kind]})`).join(", ")}. \`jaxplan search\` writes ${absent.length > 1 ? "them" : "it"} for the plans that it compiles.`,
        )
      : "",
    memoryCard(view),
    timeCard(view),
    timelineCard(timeline) ?? "",
    rooflineCard(explain?.roofline) ?? "",
  );
  const mesh = el("div");
  into.append(
    mesh,
    axesCard(explain) ?? "",
    changesCard(explain) ?? "",
    pipelineCard(explain?.pipeline) ?? "",
    assumptionsCard(view),
  );
  mesh.append(await meshCard(run, name));
}

/** What both documents say, in one shape: explain's ledgers where there are, else the plan's. */
function read(plan, explain) {
  const mesh = explain?.plan.mesh ?? Object.fromEntries((plan.mesh ?? []).map((axis) => [axis.axis, axis.size]));
  return {
    plan: { ...plan, ...explain?.plan, mesh },
    fits: explain?.fits ?? null,
    fitsSource: explain?.fits_source,
    memory: explain
      ? memoryOf(explain.memory_bytes)
      : plan.memory_bytes && { ...plan.memory_bytes, source: weakest(plan.memory_bytes.parts), tiers: {} },
    time: explain
      ? timeOf(explain.step_time_s)
      : plan.step_time_s && { ...plan.step_time_s, source: plan.step_time_s.parts[0]?.source, tiers: {} },
    flops: explain?.flops,
    bottleneck: explain?.bottleneck,
    tokens: explain?.step_time_s.tokens_per_s_per_chip,
    assumptions: explain?.assumptions ?? plan?.assumptions ?? [],
    versions: plan?.versions ?? {},
    uncovered: explain?.uncovered ?? {},
    buffers: explain?.memory_bytes.largest_at_the_peak,
  };
}

const weakest = (parts) => (parts.some((part) => part.source === "compiled") ? "compiled" : parts[0]?.source);

function memoryOf(memory) {
  const ledger = memory.compiled ?? memory.estimated;
  const parts = Object.entries(ledger.parts).map(([name, part]) => ({ name, ...part }));
  return {
    total: memory.total,
    capacity: memory.capacity,
    parts,
    source: memory.source,
    tiers: memory.by_tier,
    moment: memory.moment,
  };
}

function timeOf(time) {
  const source = time.compiled ? "compiled" : "estimated",
    ledger = time.compiled ?? time.estimated;
  const parts = Object.entries(ledger.parts).map(([name, s]) => ({ name, seconds: s, source }));
  return { value: time.value, low: ledger.low, high: ledger.high, parts, source: time.source, tiers: time.by_tier };
}

function head({ plan, time, memory, flops, bottleneck, tokens, fits, fitsSource }, run, name) {
  const work = plan.workload ?? {},
    machine = plan.machine?.name ?? plan.machine;
  const words = [
    work.name ?? work.model?.name,
    `${count(work.batch)} × ${count(work.seq)} tokens`,
    work.optimizer,
    machine,
  ].filter(Boolean);
  const decisions = [
    `${plan.remat} remat`,
    `${count(plan.microbatches)} microbatch${plan.microbatches === 1 ? "" : "es"}`,
    optionWords(plan),
  ].filter(Boolean);
  const room = memory && known(memory.capacity) ? memory.capacity - memory.total : null;
  return [
    el("h2", { class: "plan-title" }, meshWords(plan.mesh), el("span", {}, ` · ${decisions.join(" · ")}`)),
    el("p", { class: "help" }, words.join(" · ")),
    plan.stale
      ? notice(
          "The evidence in this plan file is of other decisions: somebody changed the plan after it was compiled.",
          "fault",
        )
      : "",
    el(
      "div",
      { class: "figures" },
      time
        ? figure(
            "step time",
            seconds(time.value),
            time.source,
            known(time.low) ? `${seconds(time.low)} to ${seconds(time.high)}` : "",
          )
        : null,
      memory
        ? figure("memory of a device", `${bytes(memory.total)}`, memory.source, `of ${bytes(memory.capacity)}`)
        : null,
      room !== null
        ? figure(
            room >= 0 ? "to spare" : "too much by",
            bytes(Math.abs(room)),
            fits === null ? "" : fitsSource,
            fits === null ? "" : fits ? "fits" : "does not fit",
          )
        : null,
      flops ? figure("MFU", percent(flops.mfu.value), flops.mfu.source, "model FLOPs over peak") : null,
      known(tokens) ? figure("tokens/s a chip", significant(tokens), time.source) : null,
      bottleneck
        ? figure("limited by", bottleneck.entry, bottleneck.source, `${percent(bottleneck.share)} of the step`)
        : null,
    ),
    compiledLinks(run, name) ?? "",
  ];
}

function pipelineCard(pipeline) {
  if (!pipeline) return null;
  const rows = [
    ["schedule", `${pipeline.schedule}${pipeline.repeats > 1 ? ` × ${pipeline.repeats}` : ""}`],
    ["stages", count(pipeline.stages)],
    ["microbatches", count(pipeline.microbatches)],
    ["idle in the bubble", `${percent(pipeline.bubble)} of the step, ${seconds(pipeline.bubble_s)}`],
  ];
  return card(
    "pipeline",
    "Pipeline",
    "How long stages wait for the first and the last microbatch (estimated).",
    table(["", ""], rows),
  );
}

function assumptionsCard({ assumptions, versions, uncovered }) {
  const left = Object.entries(uncovered);
  const list = (lines) =>
    el(
      "ul",
      {},
      lines.map((text) => el("li", {}, text)),
    );
  return card(
    "assumptions",
    "What was assumed",
    "Figures hold for these versions and under these assumptions.",
    assumptions.length ? list(assumptions) : el("p", {}, "Nothing."),
    left.length
      ? el(
          "div",
          {},
          el("b", {}, "Not covered by the estimate: "),
          list(left.map(([name, value]) => `${name}: ${value}`)),
        )
      : null,
    el(
      "p",
      { class: "help" },
      Object.entries(versions)
        .map(([name, version]) => `${name} ${version}`)
        .join(", "),
    ),
  );
}
