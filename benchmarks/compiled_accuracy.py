"""The estimate beside the compilers: 24 plans (3 models x TPU and GPU x 4 layouts), 10 held out, and every role.

    python benchmarks/compiled_accuracy.py [--group seen, held-out, roles] [--only TEXT] [--write]

`roles` are each role alone and combinations of them, on 8 or 16 devices of v5e and H100. All: an hour on two cores.

Memory: total of one device, estimated against compiled (TPU: the buffer assignment; GPU: XLA's peak). FLOPs: of the
program and its rematerialization against those read off the compiled HLO times trip counts. Collectives: bytes by mesh
axes, estimated against the HLO's. No number is fitted, but rules of `estimate/` (what compilers keep alive, gather
once, reduce later) were written while looking at some of the 24; the held-out ten, of other models, came afterwards.
With --write the rows go to profiling/calibrations/compiled_accuracy.json (those of other groups stay). Known compiles
come from the cache.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from jaxplan.compile.evidence import Evidence
from jaxplan.compile.tiers import Tiers
from jaxplan.estimate.ledger import Estimate
from jaxplan.estimate.single import estimate_plan
from jaxplan.machine import catalogue
from jaxplan.plan.plan import Plan, loss_chunks_for, mesh_axes
from jaxplan.plan.record import installed_versions
from jaxplan.plan.sharding import AXES as ALL_AXES
from jaxplan.plan.sharding import sizes_in_order
from jaxplan.report.text import plan_words
from jaxplan.units import GIB
from jaxplan.workload.shape import ExpertShape, ModelShape, Workload

AXES = ("data", "fsdp", "tensor")
OUT = Path(__file__).parent.parent / "profiling" / "calibrations" / "compiled_accuracy.json"
SHARE = 1e-3        # collectives smaller than this part of the largest are not compared
#: Mixtral 8x7B's proportions (Jiang et al. 2024, arXiv:2401.04088, table 1) at a quarter of its widths and layers.
SMALL_MOE = ModelShape(
    "mixtral-small", layers=8, embed=1024, mlp=3584, heads=8, kv_heads=4, head_dim=128, vocab=32000,
    experts=ExpertShape(experts=8, top_k=2, mlp=3584),
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One plan to compile: `sizes` of (data, fsdp, tensor) or by axis; `more` are further decisions."""

    chip: str
    mesh: str
    model: str
    batch: int
    seq: int
    sizes: tuple[int, int, int] | dict[str, int]
    remat: str
    microbatches: int
    zero1: bool = False
    sequence_sharding: bool = True
    more: dict = field(default_factory=dict)

    @property
    def of(self) -> dict[str, int]:
        return self.sizes if isinstance(self.sizes, dict) else dict(zip(AXES, self.sizes, strict=True))

    def plan(self) -> Plan:
        machine = catalogue.machine(self.mesh, self.chip, None)
        model = SMALL_MOE if self.model == SMALL_MOE.name else catalogue.model(self.model)
        size = dict(zip(ALL_AXES, sizes_in_order(self.of), strict=True))
        rows = self.batch // (size["data"] * size["fsdp"] * size["expert"])
        tokens = rows // (size["stage"] if size["stage"] > 1 else self.microbatches) * self.seq // size["context"]
        return Plan(
            machine=machine,
            workload=Workload(model, self.batch, self.seq),
            axes=mesh_axes(self.of),
            remat=self.remat,
            microbatches=self.microbatches,
            attention="splash" if machine.platform == "tpu" else "cudnn",
            loss_chunks=loss_chunks_for(tokens, model.vocab // (size["tensor"] * size["group"])),
            zero1=self.zero1,
            sequence_sharding=self.sequence_sharding,
            compiler_flags=machine.compiler_flags,
            **self.more,
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


def roles(chip: str, eight: str, sixteen: str) -> list[Case]:
    """Each role alone, then combinations; the decisions beside the mesh differ from case to case."""
    dense, mixture = ("llama3.2-1b", 64, 4096), (SMALL_MOE.name, 64, 4096)
    circular, ulysses = {"schedule": "circular", "repeats": 2}, {"context_attention": "ulysses"}
    return [
        *cases(
            chip, eight, *dense,
            ({"data": 8}, "attention", 4), ({"data": 8}, "full", 4, True, True, {"zero2": True}),
            ({"fsdp": 8}, "dots", 4), ({"tensor": 8}, "attention", 8), ({"context": 8}, "attention", 8),
            ({"context": 8}, "full", 8, False, True, ulysses), ({"stage": 8}, "full", 16),
            ({"stage": 4, "fsdp": 2}, "full", 16, False, True, circular),
            ({"stage": 2, "fsdp": 2, "tensor": 2}, "attention", 8), ({"context": 4, "tensor": 2}, "attention", 8),
            ({"fsdp": 4, "context": 2}, "qkv", 4), ({"stage": 2, "data": 2, "context": 2}, "full", 8),
        ),
        *cases(
            chip, eight, *mixture,
            ({"expert": 8}, "attention", 2), ({"fsdp": 2, "expert": 4}, "full", 4),
            ({"expert": 4, "tensor": 2}, "attention", 4), ({"stage": 2, "expert": 4}, "full", 8),
        ),
        *cases(chip, sixteen, *dense, ({"fsdp": 1, "tensor": 8, "group": 2}, "attention", 8)),
    ]  # fmt: skip


GROUPS = {
    "seen": CASES,
    "held-out": HELD_OUT,
    "roles": [*roles("h100", "1x8", "2x8"), *roles("v5e", "2x4", "4x4")],
}


def by_axes(pairs) -> dict[str, float]:
    """Bytes by the set of mesh axes."""
    total: dict[str, float] = defaultdict(float)
    for axes, nbytes in pairs:
        total["+".join(axes)] += nbytes
    return dict(total)


def row(case: Case, plan: Plan, expected: Estimate, found: Evidence) -> dict:
    """One comparison, as plain data."""
    estimated = by_axes((axes, nbytes) for (_, axes), nbytes in expected.collective_bytes.items())
    compiled = by_axes((entry.axes, entry.nbytes) for entry in found.traffic)
    estimated_kinds = by_axes(((kind, *axes), nbytes) for (kind, axes), nbytes in expected.collective_bytes.items())
    compiled_kinds = by_axes(((entry.kind, *entry.axes), entry.nbytes) for entry in found.traffic)
    flops = sum(found.flops.values())
    return {
        "case": f"{case.chip} {case.mesh} {case.model} {plan_words(plan)} {case.remat} x{case.microbatches}",
        "status": found.status,
        "compiled_bytes": found.total_bytes,
        "estimated_bytes": expected.total_bytes,
        "memory_error": expected.total_bytes / found.total_bytes - 1 if found.total_bytes else None,
        "false_fit": expected.total_bytes <= found.capacity_bytes and not found.ok,
        "flops_error": expected.flops / flops - 1 if flops else None,
        "collective_bytes": paired(estimated, compiled),
        "estimated_s": expected.value_s,
        "compiled_s": found.step_time_s,
        "compile_s": found.seconds,
        "kinds": paired(estimated_kinds, compiled_kinds),
        "message": found.message,
        "diagnostics": [f"{d.kind}: {d.message}" for d in found.diagnostics],
    }


def paired(estimated: dict[str, float], compiled: dict[str, float]) -> dict[str, list[float]]:
    return {key: [estimated.get(key, 0.0), compiled.get(key, 0.0)] for key in sorted({*estimated, *compiled})}


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
    print("".join(f"    {line}\n" for line in [result["message"], *result["diagnostics"]] if line), end="")
    largest = max(max(pair) for pair in result["kinds"].values())
    for axes, (estimated, compiled) in sorted(result["kinds"].items()):
        if max(estimated, compiled) > SHARE * largest:
            error = f"({estimated / compiled - 1:+.1%})" if compiled else ""
            print(f"    {axes:<32} {estimated / 1e9:10.3f} GB, compiled {compiled / 1e9:10.3f} {error}", flush=True)


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
    parser.add_argument("--group", default="", help=", ".join(GROUPS))
    parser.add_argument("--only", default="", help="cases whose text contains this")
    arguments = parser.parse_args()
    results: dict[str, list[dict]] = {}
    for group, chosen in GROUPS.items():
        if arguments.group in ("", group):
            results[group] = [found for case in chosen if (found := compare(case, arguments.only)) is not None]
    for group, found in results.items():
        summarize(group, found)
    if arguments.write:
        write(results)


def compare(case: Case, only: str) -> dict | None:
    """Trace, estimate and compile one case; None where it is not asked for or nothing compiles here."""
    plan = case.plan()
    if only not in f"{case.chip} {case.mesh} {case.model} {plan_words(plan)}":
        return None
    with Tiers(plan.machine, 1) as tiers:
        table = tiers.trace(plan.workload)
        future = tiers.compile(plan)
        if future is None:
            print(f"{case.chip}: {'; '.join(tiers.notes)}")
            return None
        found = row(case, plan, estimate_plan(plan, table), future.result())
    show(found)
    return found


def write(results: dict[str, list[dict]]) -> None:
    """The rows as data; groups that were not run keep theirs."""
    known = json.loads(OUT.read_text())["groups"] if OUT.exists() else {}
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps({"versions": installed_versions(), "groups": {**known, **results}}, indent=1) + "\n")


if __name__ == "__main__":
    main()
