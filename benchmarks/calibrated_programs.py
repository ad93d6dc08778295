"""Predicted beside measured: twelve programs on 1 to 8 virtual CPU devices of this host, none of them used for fitting.

    python benchmarks/calibrated_programs.py [--calibration NAME] [--set NAME] [--only TEXT] [--repeats N] [--write]

Without --calibration the host is calibrated first (about four minutes). Each program is compiled for the virtual
devices, priced from its HLO (`compile.timeline`) with the calibration's figures, estimated from its plan where it has
one, and run; the fastest of the repeats is what it takes, as in the calibration. Beside it stands the same program
priced without a calibration: cores times clock times what a vector unit can do, and a data sheet's memory. The bar: the
median error under 15%, the rank correlation at least 0.9. With --write the rows go to
profiling/calibrations/cpu_programs.json and the calibration beside them, to cpu.toml. Run it when nothing else runs on
the host.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from jaxplan.compile import host
from jaxplan.compile.environment import environment
from jaxplan.compile.worker import Job, run
from jaxplan.machine.attached import AttachedCalibration, Figure, load, written
from jaxplan.machine.attached_machine import attached_machine
from jaxplan.plan.files import save
from jaxplan.plan.record import installed_versions
from jaxplan.profile.calibrate.session import Session

FOLDER = Path(__file__).parent.parent / "profiling" / "calibrations"
OUT = FOLDER / "cpu_programs.json"
MEDIAN_BAR, RANK_BAR = 0.15, 0.9
#: A data sheet's figures of one core: two 512-bit fused multiply-adds a cycle, and of its memory: two channels.
FLOPS_A_CYCLE, MEMORY_BYTES_PER_S = 64, 80e9


@dataclass(frozen=True)
class Case:
    """One program: a decoder's plan, or (with `program`) one of PROGRAMS split over the batch."""

    name: str
    devices: int
    precision: str
    sizes: dict[str, int]
    batch: int
    seq: int
    model: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    program: str = ""


def decoder(layers: int, embed: int, mlp: int, heads: int, vocab: int, **more: Any) -> dict[str, Any]:
    return {"layers": layers, "embed": embed, "mlp": mlp, "heads": heads, "kv_heads": heads, "vocab": vocab, **more}


FULL, DOTS = {"remat": "full"}, {"remat": "dots"}
CASES = (
    Case("decoder, one device", 1, "f32", {}, 6, 160, decoder(4, 320, 960, 5, 3000), FULL),
    Case("decoder, one device", 1, "bf16", {}, 8, 96, decoder(6, 192, 640, 4, 4096), DOTS),
    Case("decoder, data", 2, "f32", {"data": 2}, 12, 128, decoder(3, 288, 1152, 6, 2048), FULL),
    Case("decoder, tensor", 2, "bf16", {"tensor": 2}, 4, 192, decoder(4, 384, 1024, 6, 2560), FULL),
    Case("decoder, fsdp", 4, "f32", {"fsdp": 4}, 8, 128, decoder(5, 256, 768, 4, 6144), DOTS),
    Case("decoder, expert", 4, "bf16", {"expert": 4}, 8, 96,
         decoder(2, 256, 512, 4, 2048, experts={"experts": 8, "top_k": 2, "mlp": 512}), FULL),
    Case("decoder, stage and data", 4, "f32", {"stage": 2, "data": 2}, 16, 64, decoder(4, 256, 896, 4, 2048),
         {**FULL, "microbatches": 4}),
    Case("decoder, context", 4, "f32", {"context": 4}, 2, 512, decoder(3, 256, 768, 8, 2048), FULL),
    Case("decoder, fsdp and tensor", 8, "f32", {"fsdp": 2, "tensor": 4}, 8, 128, decoder(4, 384, 1536, 8, 4096), FULL),
    Case("decoder, fsdp and context", 8, "bf16", {"fsdp": 4, "context": 2}, 8, 256,
         decoder(2, 320, 960, 4, 3072), FULL),
    Case("perceptron, data", 2, "f32", {"data": 2}, 512, 0, program="perceptron"),
    Case("convolutions, data", 8, "f32", {"data": 8}, 64, 0, program="convolutions"),
)  # fmt: skip


#: Twelve more, written when everything was finished and run once: nobody had seen their errors before.
AFRESH = (
    Case("decoder, one device", 1, "f32", {}, 4, 256, decoder(3, 384, 1280, 6, 2000), FULL),
    Case("decoder, one device", 1, "bf16", {}, 4, 128, decoder(5, 256, 896, 4, 3000), FULL),
    Case("decoder, fsdp", 2, "f32", {"fsdp": 2}, 6, 192, decoder(4, 320, 1024, 5, 3072), DOTS),
    Case("decoder, context", 2, "bf16", {"context": 2}, 4, 256, decoder(3, 256, 1024, 4, 2048), FULL),
    Case("decoder, tensor", 4, "f32", {"tensor": 4}, 4, 160, decoder(3, 384, 1152, 8, 4096), DOTS),
    Case("decoder, data", 4, "bf16", {"data": 4}, 16, 64, decoder(4, 192, 768, 4, 2560), FULL),
    Case("decoder, stage", 4, "f32", {"stage": 4}, 16, 96, decoder(4, 256, 768, 4, 2048), {**FULL, "microbatches": 4}),
    Case("decoder, expert and data", 8, "f32", {"data": 2, "expert": 4}, 16, 64,
         decoder(3, 192, 512, 4, 2048, experts={"experts": 4, "top_k": 1, "mlp": 768}), FULL),
    Case("decoder, tensor and data", 8, "bf16", {"data": 4, "tensor": 2}, 16, 96, decoder(3, 320, 1280, 8, 2560), FULL),
    Case("decoder, fsdp", 8, "f32", {"fsdp": 8}, 16, 96, decoder(6, 224, 896, 4, 4096), FULL),
    Case("perceptron, data", 4, "f32", {"data": 4}, 768, 0, program="perceptron"),
    Case("convolutions, data", 2, "f32", {"data": 2}, 48, 0, program="convolutions"),
)  # fmt: skip

#: And twelve written after both sets had been looked at, to be run once.
THIRD = (
    Case("decoder, one device", 1, "f32", {}, 8, 112, decoder(5, 256, 704, 4, 2816), DOTS),
    Case("decoder, one device", 1, "bf16", {}, 3, 224, decoder(4, 320, 1152, 5, 2304), FULL),
    Case("decoder, tensor", 2, "f32", {"tensor": 2}, 6, 128, decoder(4, 320, 1024, 4, 3584), FULL),
    Case("decoder, fsdp", 2, "bf16", {"fsdp": 2}, 8, 160, decoder(3, 288, 960, 6, 2048), FULL),
    Case("decoder, data", 4, "f32", {"data": 4}, 16, 80, decoder(3, 256, 832, 4, 3072), DOTS),
    Case("decoder, stage and data", 4, "bf16", {"stage": 2, "data": 2}, 16, 96, decoder(4, 224, 768, 4, 2560),
         {**FULL, "microbatches": 4}),
    Case("decoder, context and tensor", 4, "f32", {"context": 2, "tensor": 2}, 4, 320,
         decoder(3, 256, 1280, 8, 2048), FULL),
    Case("decoder, expert", 4, "f32", {"expert": 4}, 12, 80,
         decoder(3, 224, 640, 4, 2048, experts={"experts": 8, "top_k": 2, "mlp": 448}), FULL),
    Case("decoder, fsdp and data", 8, "bf16", {"data": 2, "fsdp": 4}, 16, 128, decoder(4, 256, 896, 4, 3072), DOTS),
    Case("decoder, tensor", 8, "f32", {"tensor": 8}, 4, 144, decoder(3, 384, 1344, 8, 2560), FULL),
    Case("perceptron, data", 8, "f32", {"data": 8}, 640, 0, program="perceptron"),
    Case("convolutions, data", 4, "f32", {"data": 4}, 56, 0, program="convolutions"),
)  # fmt: skip
SETS = {"": CASES, "afresh": AFRESH, "third": THIRD}


def case_job(case: dict[str, Any], calibration: dict[str, Any], repeats: int) -> dict[str, Any]:
    """In a worker: compile, price, estimate and run one case."""
    from jaxplan.compile.hlo import parse
    from jaxplan.compile.timeline import timeline
    from jaxplan.machine.placement import place

    one, known = Case(**case), AttachedCalibration.from_json(calibration)
    machine = attached_machine(known, one.devices)
    estimated = None
    if one.program:
        sizes, compiled, state, batch = program_of(one)
    else:
        sizes, compiled, state, batch, estimated = decoder_of(one, machine)
    module, placement = parse(compiled.as_text()), place(machine, sizes)
    priced = timeline(module, machine, placement)
    blind = attached_machine(naive(known.cores, one.devices), one.devices)
    times, busy = timed(compiled, state, batch, repeats)
    return {
        "measured_s": min(times),
        "median_s": statistics.median(times),
        "cpu_s": min(busy),
        "predicted_s": priced.value_s,
        "low_s": priced.low_s,
        "high_s": priced.high_s,
        "estimated_s": estimated,
        "uncalibrated_s": timeline(module, blind, place(blind, sizes)).value_s,
        "ledger": [[entry.name, entry.seconds] for entry in priced.ledger],
        "uncovered": dict(priced.uncovered),
    }


def decoder_of(case: Case, machine: Any) -> tuple[Any, ...]:
    """(mesh sizes, compiled step, state, batch, estimated seconds) of a decoder's plan."""
    import jax
    import jax.numpy as jnp

    from jaxplan.compile.lower import trace_job
    from jaxplan.estimate.single import estimate_plan
    from jaxplan.plan.devices import mesh
    from jaxplan.plan.plan import Plan, mesh_axes
    from jaxplan.workload.precision import precision
    from jaxplan.workload.shape import ExpertShape, ModelShape, Workload
    from jaxplan.workload.step import build
    from jaxplan.workload.table import Table

    shape = {**case.model, "head_dim": case.model["embed"] // case.model["heads"]}
    if "experts" in shape:
        shape["experts"] = ExpertShape(**shape["experts"])
    dtypes: dict[str, Any] = dict(precision(case.precision))
    work = Workload(ModelShape("held-out", **shape), case.batch, case.seq, **dtypes)
    decided = {"microbatches": 1, "attention": "blockwise", **case.plan}
    plan = Plan(machine=machine, workload=work, axes=mesh_axes(case.sizes), **decided)
    step = build(plan, mesh(plan, None, True))
    compiled = step.lower().compile()
    shardings = jax.tree.map(lambda a: a.sharding, step.abstract_state)
    state = jax.jit(step.init, out_shardings=shardings)(jax.random.key(0))
    batch = jax.tree.map(lambda a: jax.device_put(jnp.ones(a.shape, a.dtype), a.sharding), step.abstract_batch)
    table = Table.from_json(trace_job(work.to_json()))
    return plan.sizes, compiled, state, batch, estimate_plan(plan, table).value_s


def program_of(case: Case) -> tuple[Any, ...]:
    """(mesh sizes, compiled step, state, batch) of a program that is no decoder, its batch split over all devices."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    on = Mesh(np.array(jax.devices()), ("data",))
    whole, split = NamedSharding(on, PartitionSpec()), NamedSharding(on, PartitionSpec("data"))
    shapes, forward, inputs = PROGRAMS[case.program]
    transform = optax.adamw(1e-3)

    def step(state: Any, batch: Any) -> Any:
        params, held = state

        def loss(p: Any) -> Any:
            return jnp.mean((forward(p, batch) - 1.0) ** 2)

        value, gradients = jax.value_and_grad(loss)(params)
        updates, held = transform.update(gradients, held, params)
        return (optax.apply_updates(params, updates), held), value

    params = [jax.device_put(0.02 * jnp.ones(shape), whole) for shape in shapes]
    state = jax.device_put((params, transform.init(params)), whole)
    batch = jax.device_put(jnp.ones((case.batch, *inputs)), split)
    compiled = jax.jit(step, donate_argnums=0, out_shardings=whole).lower(state, batch).compile()
    return {"data": case.devices}, compiled, state, batch


def perceptron(params: Any, x: Any) -> Any:
    import jax

    for w in params[:-1]:
        x = jax.nn.gelu(x @ w)
    return x @ params[-1]


def convolutions(params: Any, x: Any) -> Any:
    import jax

    numbers = ("NHWC", "HWIO", "NHWC")
    for w in params[:-1]:
        x = jax.nn.relu(jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers))
    return x.mean((1, 2)) @ params[-1]


PROGRAMS: dict[str, Any] = {
    "perceptron": ([(768, 1536), (1536, 1536), (1536, 1536), (1536, 256)], perceptron, (768,)),
    "convolutions": ([(3, 3, 16, 32), (3, 3, 32, 48), (3, 3, 48, 48), (48, 100)], convolutions, (24, 24, 16)),
}


def timed(compiled: Any, state: Any, batch: Any, repeats: int) -> tuple[list[float], list[float]]:
    """Seconds of each step by the clock, and of CPU time over the cores in use; the first three left out.

    Where the clock's are far above the CPU's on as many devices as cores, something else ran on the host.
    """
    import jax

    times, busy, in_use = [], [], min(host.cores(), jax.device_count())
    for _ in range(3 + repeats):
        start, spent = time.perf_counter(), time.process_time()
        state, out = compiled(state, batch)
        jax.block_until_ready((state, out))
        times.append(time.perf_counter() - start)
        busy.append((time.process_time() - spent) / in_use)
    return times[3:], busy[3:]


def naive(cores: int, devices: int) -> AttachedCalibration:
    """What one would assume without measuring: the vector units' peak and the memory's rate, shared by the devices."""
    peak = FLOPS_A_CYCLE * clock_hz() * cores / devices
    memory = MEMORY_BYTES_PER_S / devices
    prices = dict.fromkeys(("matmul f32 FLOPs", "matmul bf16 FLOPs", "convolution FLOPs"), 1 / peak)
    prices |= dict.fromkeys(("bytes read", "bytes written", "bytes copied"), 1 / memory)
    figures = [Figure("price", name, value, "s", devices) for name, value in prices.items()]
    rates = {"matmul peak float32": peak, "matmul peak bfloat16": peak, "memory": memory}
    figures += [Figure("rate", n, v, "B/s" if n == "memory" else "FLOP/s", devices) for n, v in rates.items()]
    for kind in ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute"):
        figures.append(Figure("collective", f"{kind} start", 0.0, "s", devices, devices))
        figures.append(Figure("collective", f"{kind} byte", 2 / memory, "s/B", devices, devices))
    return AttachedCalibration("naive", "cpu", "CPU", "", devices, devices, cores, 2**34, tuple(figures))


def clock_hz() -> float:
    """The clock that the kernel names."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(float(line.partition(":")[2]) * 1e6 for line in lines if line.startswith("cpu MHz"))


def row(case: Case, calibration: AttachedCalibration, repeats: int) -> dict[str, Any]:
    """One case, in a worker of its own; a failure is told, not raised."""
    arguments = {"case": asdict(case), "calibration": calibration.to_json(), "repeats": repeats}
    outcome = run(Job("calibrated_programs:case_job", arguments, environment(case.devices), 900.0))
    about = {"name": case.name, "devices": case.devices, "precision": case.precision, "sizes": case.sizes}
    if not outcome.ok:
        return {**about, "failed": outcome.message[:300]}
    found = outcome.value
    return {**about, **found, "error": found["predicted_s"] / found["measured_s"] - 1}


def show(found: dict[str, Any]) -> None:
    about = f"{found['name']:<26}{found['devices']:>2} {found['precision']:<5}"
    if "failed" in found:
        print(f"{about} failed: {found['failed']}", flush=True)
        return
    columns = [found["measured_s"], found["predicted_s"], found["estimated_s"], found["uncalibrated_s"]]
    cells = "".join(f"{1e3 * seconds:>12.1f}" if seconds else f"{'-':>12}" for seconds in columns)
    print(f"{about}{cells}{found['error']:>+8.1%}   median run {found['median_s'] / found['measured_s'] - 1:+.0%}"
          f"  CPU time {1e3 * found['cpu_s']:.1f}"
          + (f"  uncovered {found['uncovered']}" if found["uncovered"] else ""), flush=True)  # fmt: skip


def ranks(values: list[float]) -> list[int]:
    return [sorted(values).index(value) for value in values]


def judged(rows: list[dict[str, Any]], key: str) -> tuple[float, float]:
    """(median error, rank correlation) of one column of predictions."""
    good = [found for found in rows if found.get(key)]
    errors = [abs(found[key] / found["measured_s"] - 1) for found in good]
    measured, predicted = ([found[name] for found in good] for name in ("measured_s", key))
    return statistics.median(errors), statistics.correlation(ranks(measured), ranks(predicted))


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for key in ("predicted_s", "estimated_s", "uncalibrated_s"):
        if sum(bool(found.get(key)) for found in rows) > 2:
            median, rank = judged(rows, key)
            told[key] = {"median_error": median, "rank_correlation": rank}
            print(f"{key:<16} median error {median:.1%}, rank correlation {rank:.2f}")
    if "predicted_s" in told:
        met = told["predicted_s"]["median_error"] < MEDIAN_BAR and told["predicted_s"]["rank_correlation"] >= RANK_BAR
        told["bar"] = {"median_error": MEDIAN_BAR, "rank_correlation": RANK_BAR, "met": met}
        print(f"bar ({MEDIAN_BAR:.0%}, {RANK_BAR}): {'met' if met else 'not met'}")
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calibration", default="", help="a name or a file; without it the host is calibrated")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--set", choices=tuple(SETS), default="", help="which twelve")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    known = load(arguments.calibration) if arguments.calibration else calibrate(arguments.write)
    print(f"{known.said}; drift {known.drift:.0%}{', NOISY' if known.noisy else ''}")
    print(f"{'milliseconds':<34}{'measured':>12}{'predicted':>12}{'estimated':>12}{'uncalibrated':>12}{'error':>8}")
    rows = []
    for case in SETS[arguments.set]:
        if arguments.only in f"{case.name} {case.devices} {case.precision}":
            rows.append(row(case, known, arguments.repeats))
            show(rows[-1])
    summary = summarize(rows)
    if arguments.write:
        about = {"calibration": known.name, "device_kind": known.device_kind, "date": known.date, "cores": host.cores()}
        document = {**about, "drift": known.drift, "versions": installed_versions(), "summary": summary, "rows": rows}
        out = OUT.with_stem(f"{OUT.stem}_{arguments.set}") if arguments.set else OUT
        save(out, json.dumps(document, indent=1) + "\n")


def calibrate(keep: bool) -> AttachedCalibration:
    """This host, on up to as many devices as the cases have."""
    most = max(case.devices for case in CASES)
    found = Session("cpu", most, False, say=lambda words: print(words, file=sys.stderr)).run()
    if keep:
        save(FOLDER / f"{found.name}.toml", written(found))
    return found


if __name__ == "__main__":
    main()
