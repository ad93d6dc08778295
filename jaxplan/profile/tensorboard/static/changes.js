// What one other decision would change, and what to do about the bottleneck.
import { el } from "./dom.js";
import { bytes, meshWords, optionWords, percent, seconds, signed } from "./format.js";
import { card, notice, source, table } from "./parts.js";

export function changesCard(explain) {
  const changes = explain?.changes;
  if (!changes?.by_decision?.length) return null;
  const now = explain.step_time_s.estimated.value;
  const line = (one) => [
    one.decision.replaceAll("_", " "),
    words(one),
    change(one.step_change_s, now),
    signed(bytes)(one.memory_change_bytes),
    one.fits ? "fits" : el("span", { class: "bad" }, "does not fit"),
  ];
  const faster = changes.best.filter((one) => one.step_change_s < 0);
  const advice = faster.length
    ? notice(
        `${explain.bottleneck.entry} is ${percent(explain.bottleneck.share)} of the step. The change that helps most: ${words(faster[0])} (${seconds(-faster[0].step_change_s)} a step less, ${signed(bytes)(faster[0].memory_change_bytes)} a device).`,
        "advice",
      )
    : notice(
        `${explain.bottleneck.entry} is ${percent(explain.bottleneck.share)} of the step, and no single other decision that fits is estimated to be faster.`,
        "advice",
      );
  return card(
    "changes",
    "What to change",
    "Plans that differ by one decision, and what that changes.",
    advice,
    table(
      ["decision", "instead", "step time", "memory", ""],
      changes.by_decision.map(line),
      [2, 3],
      el("span", {}, "the best alternative of each decision ", source(changes.source)),
    ),
  );
}

function change(delta, whole) {
  return el(
    "span",
    { class: delta < 0 ? "good" : null },
    `${signed(seconds)(delta)} (${signed(percent)(delta / whole)})`,
  );
}

/** The decision as it would be; a mesh with what changes beside it. */
function words(one) {
  const chunks = one.loss_chunks ? `${one.loss_chunks} chunks of the loss` : "other chunks of the loss";
  const of = {
    remat: `${one.remat} remat`,
    microbatches: `${one.microbatches} microbatch${one.microbatches === 1 ? "" : "es"}`,
    zero: one.zero2 ? "zero2" : one.zero1 ? "zero1" : "no zero1",
    sequence_sharding: one.sequence_sharding ? "sequence sharding" : "whole sequences",
    context_attention: one.context_attention,
    offload_optimizer: one.offload_optimizer ? "optimizer on the host" : "optimizer on the device",
    schedule: one.repeats > 1 ? `${one.schedule} x${one.repeats}` : one.schedule,
    loss_chunks: chunks,
  };
  if (one.decision !== "mesh") return of[one.decision] ?? one.decision;
  return [meshWords(one.mesh), optionWords(one), ...one.also.map((other) => of[other] ?? other)]
    .filter((text, i, all) => text && all.indexOf(text) === i)
    .join(", ");
}
