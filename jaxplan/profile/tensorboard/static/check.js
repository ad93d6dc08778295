// What `check` proved of a plan.
import { load } from "./documents.js";
import { el } from "./dom.js";
import { bytes, meshWords, seconds } from "./format.js";
import { card, figure, notice, source, table } from "./parts.js";

export async function showCheck(into, run, name) {
  const found = await load(run, name);
  if (!found) return;
  const evidence = found.evidence ?? [],
    proof = evidence.findLast((one) => one.status === "ok");
  const verdict = found.fits === null ? "too close to tell" : found.fits ? "fits" : "does not fit";
  into.append(
    el("h2", { class: "plan-title" }, found.plan?.label ?? meshWords(found.plan?.mesh)),
    el(
      "div",
      { class: "figures" },
      figure("verdict", verdict, found.fits_source),
      proof
        ? figure("memory of a device", bytes(proof.total_bytes), proof.tier, `of ${bytes(found.capacity_bytes)}`)
        : null,
    ),
    found.plan?.stale ? notice("The plan was changed after it was proven.", "fault") : "",
    card(
      "evidence",
      "What each tier said",
      "The host’s partitioner first, then the target’s own compiler.",
      table(
        ["tier", "status", "compiler", "memory of a device", "took"],
        evidence.map((one) => [
          source(one.tier),
          one.status,
          one.compiler,
          bytes(one.total_bytes),
          seconds(one.seconds),
        ]),
        [3, 4],
      ),
    ),
    ...evidence
      .filter((one) => one.message || one.notes?.length || one.diagnostics?.length)
      .map((one) =>
        card(
          `said-${one.tier}`,
          `Said by the ${one.tier} tier`,
          "",
          one.message ? el("pre", {}, one.message) : null,
          el(
            "ul",
            {},
            [
              ...(one.notes ?? []),
              ...(one.diagnostics ?? []).map((said) => said.text ?? said.message ?? JSON.stringify(said)),
            ].map((line) => el("li", {}, line)),
          ),
        ),
      ),
  );
}
