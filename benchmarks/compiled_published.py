"""Published steps beside the compiled timeline, and the compiled timeline beside the estimate.

    python benchmarks/compiled_published.py [--only TEXT] [--plans] [--write]

The runs of profiling/published/recipes.toml are compiled as the reference decoder by their machine's own compiler, with
the flags of their recipes, and the schedule is timed (`compile.timeline`); to that comes what a training loop measures
beside it (`machine.reached.measured_step_s`). With --plans the 24 plans of
`compiled_accuracy.py` are compiled as well: rank correlation of estimated and compiled times, and what makes the
difference where it is over 20%. With --write everything goes to profiling/calibrations/compiled_published.json. A
quarter of an hour for the runs, half an hour for the plans on one core; known compiles come from the cache.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tomllib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import compiled_accuracy
import numpy as np

from jaxplan.compile.evidence import Evidence
from jaxplan.compile.tiers import Tiers
from jaxplan.estimate.ledger import Estimate
from jaxplan.estimate.single import estimate_plan
from jaxplan.machine import catalogue
from jaxplan.machine.reached import measured_step_s
from jaxplan.plan.plan import Plan, mesh_axes
from jaxplan.plan.record import installed_versions
from jaxplan.units import GIB
from jaxplan.validate import published
from jaxplan.validate.split import part_of
from jaxplan.workload.shape import ModelShape, Workload

ROOT = Path(__file__).parent.parent
PUBLISHED = ROOT / "profiling" / "published"
OUT = ROOT / "profiling" / "calibrations" / "compiled_published.json"
#: GPT-3 as MaxText has it (Brown et al. 2020, arXiv:2005.14165, section 2.1): what `runs.toml` does not say of it.
GPT3: dict[str, Any] = {"norm": "layernorm", "positions": "learned", "max_positions": 2048,
                        "attention_bias": True, "output_bias": True, "mlp_bias": True}  # fmt: skip
TERA = 1e12
LARGE = 0.2     # a difference that is explained


@dataclass(frozen=True)
class Run:
    """A published run and its recipe."""

    row: Mapping[str, Any]
    recipe: Mapping[str, Any]
    flags: Mapping[str, str]

    @property
    def id(self) -> str:
        return self.row["id"]

    @property
    def part(self) -> str:
        """The set of split.toml that the run is in: `fit` or `check`."""
        return part_of(published.PublishedRun(**self.row))

    @property
    def step_time_s(self) -> float:
        """As published; from the FLOP rate and the convention of its FLOPs where only that is."""
        for name in ("step_time_s", "derived_step_time_s"):
            if name in self.row:
                return self.row[name]
        return self.model_flops / (self.row["tflops_per_device"] * TERA)

    @property
    def model_flops(self) -> float:
        """Of one device and step: 6 a matmul parameter and 12 L N H S a token, half of that where it is causal."""
        model, seq = self.row["model"], self.row["seq_len"]
        layers, embed, mlp = (model[name] for name in ("layers", "d_model", "d_ff"))
        heads, kv_heads, head_dim = (model[name] for name in ("heads", "kv_heads", "head_dim"))
        block = 2 * embed * head_dim * (heads + kv_heads) + model["mlp_matrices"] * embed * mlp
        attention = 12 * layers * heads * head_dim * seq * (0.5 if "causal" in self.row["flop_convention"] else 1.0)
        tokens = self.row["global_batch"] * seq / self.row["n_devices"]
        return (6 * (layers * block + embed * model["vocab"]) + attention) * tokens

    @property
    def shape(self) -> ModelShape:
        model = self.row["model"]
        more = GPT3 if model["name"] == "gpt3-175b" else {}
        return ModelShape(
            model["name"], model["layers"], model["d_model"], model["d_ff"], model["heads"], model["kv_heads"],
            model["head_dim"], model["vocab"], activation=model["mlp"],
            tied_embeddings=model["tied_embeddings"], **more,
        )  # fmt: skip

    def plan(self) -> Plan:
        row, recipe = self.row, self.recipe
        chip = row["chip"].removeprefix("tpu-").removesuffix("-sxm")
        machine = catalogue.machine(recipe["mesh"], chip if "machine" not in recipe else None, recipe.get("machine"))
        machine = replace(
            machine, **{name: recipe[name] for name in ("dcn_fraction", "memory_fraction") if name in recipe}
        )
        optimizer = "adamw_bf16" if "mu bf16" in row.get("opt_state_dtype", "") else "adamw"
        return Plan(
            machine=machine,
            workload=Workload(self.shape, row["global_batch"], row["seq_len"], optimizer=optimizer),
            axes=mesh_axes(recipe.get("axes") or {"data": row["dp"], "fsdp": row["fsdp"], "tensor": row["tp"]}),
            remat=recipe["remat"],
            microbatches=1,
            attention="splash" if machine.platform == "tpu" else "cudnn",
            compiler_flags=self.flags,
        )


def runs() -> list[Run]:
    """The runs of recipes.toml, with their rows."""
    rows = {row["id"]: row for row in tomllib.loads((PUBLISHED / "runs.toml").read_text())["run"]}
    recipes = tomllib.loads((PUBLISHED / "recipes.toml").read_text())
    flags = {
        name: {flag: value for flag, value in found.items() if flag.startswith("xla")}
        for name, found in recipes["flags"].items()
    }
    return [Run(rows[recipe["id"]], recipe, flags[recipe["flags"]]) for recipe in recipes["run"]]


def proved(plan: Plan) -> tuple[Estimate, Evidence] | None:
    """A plan estimated and compiled; None where its machine's compiler is not installed."""
    with Tiers(plan.machine, 1) as tiers:
        table = tiers.trace(plan.workload)
        future = tiers.compile(plan)
        return None if future is None else (estimate_plan(plan, table), future.result())


def compared(run: Run) -> dict | None:
    """A published run beside its compiled schedule, as plain data."""
    if (found := proved(run.plan())) is None:
        return None
    expected, evidence = found
    schedule, measured = evidence.schedule, run.step_time_s
    if schedule is None:
        print(f"{run.id}: {evidence.status}: {evidence.message}")
        return None
    machine = run.plan().machine
    value_s, high_s = (measured_step_s(machine, seconds) for seconds in (schedule.value_s, schedule.high_s))
    result = {
        "id": run.id,
        "part": run.part,
        "kind": machine.kind,
        "published_s": measured,
        "compiled_s": value_s,
        "low_s": schedule.low_s,
        "high_s": high_s,
        "error": value_s / measured - 1,
        "inside": schedule.low_s <= measured <= high_s,
        "schedule_s": schedule.value_s,
        "estimated_s": expected.value_s,
        "memory_bytes": evidence.total_bytes,
        "ledger_s": dict(schedule.ledger),
        "communication_s": dict(schedule.communication),
        "differs": run.recipe.get("differs", ""),
    }
    bounds = f"[{schedule.low_s:.3f}, {high_s:.3f}]"
    print(
        f"{run.id:<40} {result['part']:<5} {measured:8.3f} s, compiled {value_s:8.3f} {bounds}"
        f" ({result['error']:+.1%}), estimated {expected.value_s:8.3f}, {(evidence.total_bytes or 0) / GIB:.1f} GiB",
        flush=True,
    )
    return result


def summary(results: list[dict]) -> list[dict]:
    """Mean absolute error, bias, and how many runs lie within their bounds, by kind of chip and part."""
    groups: dict[tuple[str, str], list[dict]] = defaultdict(list)
    for result in results:
        groups[result["kind"], result["part"]].append(result)
        groups[result["kind"], "all"].append(result)
    return [
        {
            "kind": kind,
            "part": part,
            "runs": len(found),
            "mean_absolute_error": statistics.mean(abs(r["error"]) for r in found),
            "bias": statistics.mean(r["error"] for r in found),
            "inside": sum(r["inside"] for r in found),
        }
        for (kind, part), found in sorted(groups.items())
    ]


def group_of(name: str) -> str:
    """The line of a ledger that an entry of either ledger belongs to."""
    if name.startswith("exposed") or name == "slowed by collectives":
        return "communication"
    return {"recompute": "matmul", "lookup": "memory-bound", "kernel": "memory-bound"}.get(name, name)


def by_group(ledger: Mapping[str, float]) -> dict[str, float]:
    total: dict[str, float] = defaultdict(float)
    for name, spent in ledger.items():
        total[group_of(name)] += spent
    return dict(total)


def beside_the_estimate() -> list[dict]:
    """The 24 plans: estimated and compiled time, and what makes the difference where it is large."""
    results = []
    for case in compiled_accuracy.CASES:
        plan = case.plan()
        if (found := proved(plan)) is None or (schedule := found[1].schedule) is None:
            continue
        expected = found[0]
        moved = {" ".join((kind, "+".join(axes))): spent for (kind, axes), spent in expected.communication_s.items()}
        error = expected.value_s / schedule.value_s - 1
        lines = difference(by_group(expected.time_s), by_group(dict(schedule.ledger)))
        links = difference(moved, dict(schedule.communication))
        case_words = f"{case.chip} {case.mesh} {case.model} {plan.label} {case.remat} x{case.microbatches}"
        why = f"time {largest(lines)}; on links {largest(links)}" if abs(error) > LARGE else ""
        results.append({
            "case": case_words,
            "estimated_s": expected.value_s,
            "compiled_s": schedule.value_s,
            "error": error,
            "ledger_s": lines,
            "communication_s": links,
            "why": why,
        })
        times = f"{expected.value_s:8.3f} s, compiled {schedule.value_s:8.3f} ({error:+.1%})"
        print(f"{case_words:<64} {times} {why}", flush=True)
    return results


def difference(estimated: Mapping[str, float], compiled: Mapping[str, float]) -> dict[str, list[float]]:
    """Estimated and compiled seconds by line."""
    return {key: [estimated.get(key, 0.0), compiled.get(key, 0.0)] for key in sorted({*estimated, *compiled})}


def largest(lines: Mapping[str, list[float]], count: int = 3) -> str:
    """The lines that differ most, in words: `memory-bound 0.7 -> 3.8 s`."""
    ordered = sorted(lines.items(), key=lambda item: -abs(item[1][1] - item[1][0]))
    return ", ".join(f"{name} {before:.3g} -> {after:.3g} s" for name, (before, after) in ordered[:count])


def spearman(pairs: list[tuple[float, float]]) -> float:
    """Rank correlation (no ties are expected among times)."""
    left, right = (np.argsort(np.argsort(values)) for values in zip(*pairs, strict=True))
    return float(np.corrcoef(left, right)[0, 1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="runs whose id contains this")
    parser.add_argument("--plans", action="store_true", help="the 24 plans, too")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    asked = [run for run in runs() if arguments.only in run.id]
    results = [found for run in asked if (found := compared(run)) is not None]
    written: dict[str, Any] = {"versions": installed_versions(), "summary": summary(results), "runs": results}
    for line in written["summary"]:
        print(
            f"{line['kind']} {line['part']}: {line['runs']} runs, error {line['mean_absolute_error']:.1%},"
            f" bias {line['bias']:+.1%}, {line['inside']} within bounds"
        )
    if arguments.plans:
        plans = beside_the_estimate()
        written["rank_correlation"] = spearman([(r["estimated_s"], r["compiled_s"]) for r in plans])
        written["plans"] = plans
        print(f"{len(plans)} plans: rank correlation {written['rank_correlation']:.3f}")
    if arguments.write:
        known = json.loads(OUT.read_text()) if OUT.exists() and not arguments.plans else {}
        OUT.write_text(json.dumps({**known, **written}, indent=1) + "\n")


if __name__ == "__main__":
    main()
