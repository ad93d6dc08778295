"""A plan lowered, compiled and read, in a worker. Imports JAX when called.

The functions named `*_job` are what workers are asked for: plain data in, plain data out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import re
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxplan.compile import artifacts, reading
from jaxplan.compile.environment import Platform, available, versions
from jaxplan.compile.evidence import Donation, Evidence, Tier
from jaxplan.compile.holdings import bytes_on_host, local_bytes, memory_of, with_kinds
from jaxplan.compile.job import captured_stderr
from jaxplan.compile.target import mesh
from jaxplan.machine.placement import Placement, place
from jaxplan.plan.decisions import plan_from, workload_from
from jaxplan.plan.plan import Plan

if TYPE_CHECKING:
    from jaxplan.workload.step import TrainStep


# The host's compile is read for its structure only: what makes machine code fast is left out, a fifth of the time
# remains, collectives and arguments are the same (jaxlib 0.10.2; 0.12 has the first option only).
HOST_OPTIONS = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}


def trace_job(workload: Mapping[str, Any]) -> dict:
    """The table of a workload's training step, unsharded and without rematerialization (`Table.to_json`)."""
    from jaxplan.workload.decoder import Kernels, loss_function
    from jaxplan.workload.optimizer import optimizer_of
    from jaxplan.workload.program import trace

    work = workload_from(workload)
    if work.model is None:
        from jaxplan.workload.loading import traced

        return traced(work).to_json()
    model = loss_function(
        work.model,
        work.batch,
        work.seq,
        kernels=Kernels(dispatch=work.dispatch, capacity_factor=work.capacity_factor),
        compute_dtype=work.compute_dtype,
        parameter_dtype=work.parameter_dtype,
    )
    table = trace(
        model.loss,
        model.params,
        model.batch,
        model.parameter_dims,
        model.batch_dims,
        update=optimizer_of(work),
        name=work.name,
    )
    return table.to_json()


def prove_job(
    decisions: Mapping[str, Any], tier: Tier, platform: Platform, init: bool, buffers: bool, folder: str = ""
) -> dict:
    """The evidence about a plan from one compiler (`Evidence.to_json`)."""
    keep = Path(folder) if folder else None
    return prove(plan_from(decisions), tier, platform, init=init, buffers=buffers, folder=keep).to_json()


@dataclass
class Stages:
    """Wall-clock seconds of each stage, as it ends."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = time.perf_counter() - start


def prove(
    plan: Plan,
    tier: Tier,
    platform: Platform,
    *,
    init: bool = False,
    buffers: bool = False,
    folder: Path | None = None,
) -> Evidence:
    """Lower and compile a plan's training step, and read what the compiler made of it.

    Args:
        init: also compile the program that makes the initial state (it can need more memory than a step).
        buffers: also read the buffers that are alive at the peak.
        folder: for the step's timeline and, with `buffers`, its program (`compile.artifacts`).
    """
    stages, start = Stages(), time.perf_counter()
    about = Evidence(
        tier,
        "ok",
        platform,
        compiler=f"{available(platform).version} for {plan.machine.topology_name or plan.machine.name}",
        capacity_bytes=plan.machine.device_hbm_bytes,
        versions=versions(platform),
        flags=dict(plan.compiler_flags),
    )
    with stages.stage("build"):
        placement = place(plan.machine, plan.sizes)
        step = _build(plan, mesh(plan.machine, plan.sizes, platform, placement.order))
    try:
        evidence = _compiled(about, plan, step, placement, stages, init, buffers, folder)
    except Exception as error:
        evidence = reading.refusal(about, error)
        if evidence is None:
            raise
    evidence = replace(evidence, diagnostics=(*evidence.diagnostics, *reading.warnings(captured_stderr())))
    gc.collect()
    return replace(evidence, seconds=time.perf_counter() - start, stage_seconds=stages.seconds).judged()


def _build(plan: Plan, on: Any) -> TrainStep:
    from jaxplan.workload.step import build

    return build(plan, on)


def _compiled(
    about: Evidence,
    plan: Plan,
    step: TrainStep,
    placement: Placement,
    stages: Stages,
    init: bool,
    buffers: bool,
    folder: Path | None,
) -> Evidence:
    with warnings.catch_warnings(record=True) as caught, stages.stage("lower"):
        warnings.simplefilter("always")
        lowered = step.lower()
    with stages.stage("compile"), _dump(buffers) as dump:
        compiled = compile_lowered(lowered, {**_options(plan, about), **dump})
        alive, assigned = reading.peak(dump["xla_dump_to"]) if dump else ((), None)
        if dump and folder is not None:
            artifacts.keep_program(folder, Path(dump["xla_dump_to"]))
    moved = bytes_on_host(plan, step)
    memory = with_kinds(replace(memory_of(compiled, about.platform, moved), assigned_bytes=assigned), step, moved)
    unused = tuple(str(w.message).partition("\n")[0] for w in caught if "donated" in str(w.message))
    with stages.stage("read"):
        about = replace(about, memory=memory, buffers=alive)
        evidence, passes = reading.read(about, compiled.as_text(), plan, placement)
        if passes is not None and folder is not None:
            artifacts.keep_timeline(folder, passes)
    evidence = replace(
        evidence,
        donation=Donation(local_bytes(step.abstract_state) - moved, memory.alias_bytes, unused),
        output_shardings=wrong_shardings(compiled.output_shardings[0], step.abstract_state),
        partitioner=partitioner(),
    )
    if not init:
        return evidence
    with stages.stage("init"):
        return replace(evidence, init_memory=memory_of(_init(plan, step, about), about.platform))


@contextlib.contextmanager
def _dump(wanted: bool) -> Iterator[dict[str, Any]]:
    """Compiler options that dump the buffer assignment to a folder that lives as long as the block."""
    if not wanted:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="jaxplan-dump-") as folder:
        yield {"xla_dump_to": folder, "xla_dump_hlo_as_proto": True}


def _options(plan: Plan, about: Evidence) -> dict[str, Any]:
    if about.tier == "partitioned" and about.platform == "cpu":
        return dict(HOST_OPTIONS)
    return {name: option_value(text) for name, text in plan.compiler_flags.items()}


def option_value(text: str) -> Any:
    """A flag's value as XLA's compile options take it: it refuses the texts `true` and `false` for a bool."""
    return {"true": True, "false": False}.get(str(text).lower(), text)


def compile_lowered(lowered: Any, options: dict[str, Any]) -> Any:
    """Compile; of the host's options those that this version does not have are left out."""
    while True:
        try:
            return lowered.compile(compiler_options=options or None)
        except Exception as error:
            unknown = re.search(r"No such compile option: '(\w+)'", str(error))
            if unknown is None or unknown[1] not in HOST_OPTIONS:
                raise
            options = {name: value for name, value in options.items() if name != unknown[1]}


def _init(plan: Plan, step: TrainStep, about: Evidence) -> Any:
    """The compiled program that makes the initial state, sharded as the plan stores it."""
    import jax

    key = jax.eval_shape(lambda: jax.random.key(0))
    return step.init.lower(key).compile(compiler_options=_options(plan, about) or None)  # type: ignore


def wrong_shardings(got: Any, requested: Any) -> tuple[str, ...]:
    """The leaves that leave the program in another sharding than was asked for, each as one line.

    Inside a jitted program a constraint that does not divide is dropped without a word, and a carried state
    whose sharding changes makes the next step fail or copy.
    """
    import jax
    from jax.sharding import AbstractMesh, NamedSharding

    lines = []
    wanted, _ = jax.tree_util.tree_flatten_with_path(requested)
    for sharding, (path, leaf) in zip(jax.tree.leaves(got), wanted, strict=True):
        asked = leaf.sharding
        if isinstance(asked.mesh, AbstractMesh):    # in the host's memory, of which these devices know nothing
            asked = NamedSharding(sharding.mesh, asked.spec)
        if not sharding.is_equivalent_to(asked, len(leaf.shape)):
            name = jax.tree_util.keystr(path)
            lines.append(f"{name}: got {getattr(sharding, 'spec', sharding)}, expected {leaf.sharding.spec}")
    return tuple(lines)


def partitioner() -> str:
    """Which of XLA's partitioners decides here."""
    import jax

    shardy = getattr(jax.config, "jax_use_shardy_partitioner", True)
    return "shardy" if shardy else "gspmd"


def tiny_job(platform: Platform, topology: Mapping[str, Any]) -> dict:
    """Proof that a compiler works here: a small sharded program compiled for a small machine (`doctor`)."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    from jaxplan.machine.topology import Machine

    machine = Machine.from_json(topology)
    start = time.perf_counter()
    on = mesh(machine, {"data": machine.devices}, platform)
    rows = NamedSharding(on, PartitionSpec("data"))
    argument = jax.ShapeDtypeStruct((128 * machine.devices, 256), jnp.bfloat16, sharding=rows)
    compiled = jax.jit(lambda x: x.T @ x).lower(argument).compile()
    return {
        "seconds": time.perf_counter() - start,
        "devices": machine.devices,
        "collectives": "all-reduce" in (compiled.as_text() or ""),
        "memory": dataclasses.asdict(memory_of(compiled, platform)),
    }
