"""The estimate beside the compilers: 24 plans (3 models x TPU and GPU x 4 layouts) and 10 held out. Half an hour.

    python benchmarks/compiled_accuracy.py [--write]

Memory: total of one device, estimated against compiled (TPU: the buffer assignment; GPU: XLA's peak). FLOPs: of the
program and its rematerialization against those read off the compiled HLO times trip counts. Collectives: bytes by mesh
axes, estimated against the HLO's. No number is fitted, but rules of `estimate/` (what compilers keep alive, gather
once, reduce later) were written while looking at some of the 24; the held-out ten, of other models, came afterwards.
With --write the rows go to profiling/calibrations/compiled_accuracy.json. Known compiles come from the cache.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from jaxplan.compile.evidence import Evidence
from jaxplan.compile.tiers import Tiers
from jaxplan.estimate.ledger import Estimate
from jaxplan.estimate.single import estimate_plan
from jaxplan.machine import catalogue
from jaxplan.plan.plan import MeshAxis, Plan, loss_chunks_for
from jaxplan.plan.record import installed_versions
from jaxplan.units import GIB
from jaxplan.workload.shape import Workload

AXES = ("data", "fsdp", "tensor")
OUT = Path(__file__).parent.parent / "profiling" / "calibrations" / "compiled_accuracy.json"
SHARE = 1e-3        # collectives smaller than this part of the largest are not compared


@dataclass(frozen=True)
class Case:
    """One plan to compile."""

    chip: str
    mesh: str
    model: str
    batch: int
    seq: int
    sizes: tuple[int, int, int]
    remat: str
    microbatches: int
    zero1: bool = False
    sequence_sharding: bool = True

    def plan(self) -> Plan:
        machine = catalogue.machine(self.mesh, self.chip, None)
        model = catalogue.model(self.model)
        data, fsdp, tensor = self.sizes
        tokens = self.batch // (data * fsdp * self.microbatches) * self.seq
        return Plan(
            machine=machine,
            workload=Workload(model, self.batch, self.seq),
            axes=tuple(MeshAxis(name, size, name) for name, size in zip(AXES, self.sizes, strict=True)),
            remat=self.remat,
            microbatches=self.microbatches,
            attention="splash" if machine.platform == "tpu" else "cudnn",
            loss_chunks=loss_chunks_for(tokens, model.vocab // tensor),
            zero1=self.zero1,
            sequence_sharding=self.sequence_sharding,
            compiler_flags=machine.compiler_flags,
        )


def cases(chip: str, mesh: str, model: str, batch: int, seq: int, *plans: tuple) -> list[Case]:
    return [Case(chip, mesh, model, batch, seq, *plan) for plan in plans]


CASES = [
    *cases("h100", "1x8", "llama3.2-1b", 64, 4096, ((1, 8, 1), "none", 4), ((8, 1, 1), "full", 2),
           ((1, 4, 2), "dots", 1), ((2, 2, 2), "attention", 4)),
    *cases("h100", "4x8", "llama3-8b", 256, 4096, ((1, 32, 1), "qkv", 4), ((4, 8, 1), "attention", 2),
           ((1, 8, 4), "dots", 4), ((2, 8, 2), "mlp", 8)),
    *cases("h100", "16x8", "llama3-70b", 512, 8192, ((1, 128, 1), "attention", 4), ((2, 64, 1), "full", 4),
           ((1, 32, 4), "qkv", 8), ((4, 8, 4), "full", 4)),
    *cases("v5e", "2x4", "llama3.2-1b", 64, 4096, ((1, 8, 1), "full", 4), ((2, 4, 1), "attention", 8),
           ((1, 4, 2), "attention", 4), ((2, 2, 2), "mlp", 8)),
    *cases("v5e", "8x16", "llama3-8b", 512, 8192, ((1, 128, 1), "full", 4), ((2, 64, 1), "attention", 4),
           ((1, 64, 2), "qkv", 8), ((2, 16, 4), "full", 4)),
    *cases("v5p", "4x4x8", "llama3-70b", 256, 8192, ((1, 128, 1), "full", 2), ((2, 64, 1), "attention", 2),
           ((1, 32, 4), "qkv", 4), ((2, 16, 4), "attention", 4)),
]  # fmt: skip

HELD_OUT = [
    *cases("h100", "4x8", "llama2-13b", 128, 4096, ((1, 32, 1), "mlp", 2), ((8, 4, 1), "full", 4, True),
           ((2, 4, 4), "attention", 2, True, False)),
    *cases("h200", "16x8", "gpt3-175b", 256, 2048, ((1, 128, 1), "full", 2), ((2, 64, 1), "qkv", 2)),
    *cases("a100", "8x8", "qwen3-14b", 256, 4096, ((2, 32, 1), "attention", 4, True), ((1, 16, 4), "dots", 8)),
    *cases("b200", "2x8", "qwen3-8b", 128, 8192, ((1, 16, 1), "full", 4)),
    *cases("v6e", "4x8", "qwen3-8b", 128, 8192, ((1, 32, 1), "attention", 4)),
    *cases("v5e", "4x8", "llama2-7b", 128, 4096, ((2, 16, 1), "full", 2, True)),
]  # fmt: skip




def by_axes(pairs) -> dict[str, float]:
    """Bytes by the set of mesh axes."""
    total: dict[str, float] = defaultdict(float)
    for axes, nbytes in pairs:
        total["+".join(axes)] += nbytes
    return dict(total)


def row(case: Case, plan: Plan, expected: Estimate, found: Evidence) -> dict:
    """One comparison, as plain data."""
    sizes = plan.sizes
    estimated = by_axes(
        (tuple(a for a in axes if sizes[a] > 1), nbytes) for (_, axes), nbytes in expected.collective_bytes.items()
    )
    compiled = by_axes((entry.axes, entry.nbytes) for entry in found.traffic)
    flops = sum(found.flops.values())
    return {
        "case": f"{case.chip} {case.mesh} {case.model} {plan.label} {case.remat} x{case.microbatches}",
        "status": found.status,
        "compiled_bytes": found.total_bytes,
        "estimated_bytes": expected.total_bytes,
        "memory_error": expected.total_bytes / found.total_bytes - 1 if found.total_bytes else None,
        "false_fit": expected.total_bytes <= found.capacity_bytes and not found.ok,
        "flops_error": expected.flops / flops - 1 if flops else None,
        "collective_bytes": {k: [estimated.get(k, 0.0), compiled.get(k, 0.0)] for k in {*estimated, *compiled}},
        "estimated_s": expected.value_s,
        "compiled_s": found.step_time_s,
        "compile_s": found.seconds,
    }


def show(result: dict) -> None:
    print(f"{result['case']:<64} {result['status']}")
    if result["memory_error"] is not None:
        print(
            f"    memory {result['estimated_bytes'] / GIB:7.2f} GiB, compiled {result['compiled_bytes'] / GIB:7.2f}"
            f" ({result['memory_error']:+.1%})"
        )
    if result["flops_error"] is not None:
        step = f"step {result['estimated_s']:.3g} s, compiled {result['compiled_s']:.3g} s"
        print(f"    FLOPs {result['flops_error']:+.2%}; {step}")
    largest = max(max(pair) for pair in result["collective_bytes"].values())
    for axes, (estimated, compiled) in sorted(result["collective_bytes"].items()):
        if max(estimated, compiled) > SHARE * largest:
            error = f"({estimated / compiled - 1:+.1%})" if compiled else ""
            print(f"    {axes:<20} {estimated / 1e9:10.3f} GB, compiled {compiled / 1e9:10.3f} {error}", flush=True)


def summarize(name: str, results: list[dict]) -> None:
    errors = [abs(r["memory_error"]) for r in results if r["memory_error"] is not None]
    flops = [abs(r["flops_error"]) for r in results if r["flops_error"] is not None]
    if errors and flops:
        memory = f"memory median {statistics.median(errors):.1%}, worst {max(errors):.1%}"
        rest = f"FLOPs worst {max(flops):.2%}; false fits {sum(r['false_fit'] for r in results)}"
        print(f"\n{name}, {len(errors)} plans: {memory}; {rest}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", default="", help="cases whose text contains this")
    arguments = parser.parse_args()
    results = []
    for case in [*CASES, *HELD_OUT]:
        if arguments.only not in f"{case.chip} {case.mesh} {case.model}":
            continue
        plan = case.plan()
        with Tiers(plan.machine, 1) as tiers:
            table = tiers.trace(plan.workload)
            future = tiers.compile(plan)
            if future is None:
                print(f"{case.chip}: {'; '.join(tiers.notes)}")
                continue
            found = row(case, plan, estimate_plan(plan, table), future.result())
            results.append({**found, "held_out": case in HELD_OUT})
        show(results[-1])
    for name, held in (("seen", False), ("held out", True)):
        summarize(name, [r for r in results if r["held_out"] == held])
    if arguments.write:
        OUT.parent.mkdir(parents=True, exist_ok=True)
        OUT.write_text(json.dumps({"versions": installed_versions(), "rows": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
