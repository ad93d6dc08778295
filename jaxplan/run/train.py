"""A plan's training step on attached devices: compiled, its state made where it lies, one step at a time awaited.
Imports JAX when called.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxplan.errors import InputError, VerdictError
from jaxplan.plan.plan import Plan
from jaxplan.run.attached import Attached
from jaxplan.units import format_bytes

if TYPE_CHECKING:
    from jax.sharding import Mesh, Sharding

    from jaxplan.workload.step import TrainStep

SEED = 0
#: How a step is awaited, for people: what its time holds and what it does not.
AWAITED = (
    "A step's time is from its dispatch until its whole new state is there; its batch lies on the devices before. The "
    "next step is dispatched only then: a loop that runs ahead hides the dispatch (its median is given beside). The "
    "gradients' norm is computed in it, too, which adds one pass over them."
)


def attached() -> Attached:
    """What JAX sees, in this process and all others."""
    import jax

    devices = jax.devices()
    first = devices[0]
    return Attached(first.platform, first.device_kind, len(devices), jax.process_index(), jax.process_count())


def mesh_of(plan: Plan, here: Attached, asked: Plan) -> Mesh:
    """The plan's mesh on attached devices: where its placement puts them on its own machine, as JAX lays a mesh of
    that shape on another.

    Raises:
        InputError: several processes, of which some would have no device.
    """
    import jax
    from jax.experimental import mesh_utils
    from jax.sharding import AxisType, Mesh

    from jaxplan.plan import devices as placed

    count = plan.machine.devices
    chosen = sorted(jax.devices(), key=placed.canonical)
    if count < len(chosen) and here.processes > 1:
        raise InputError(
            f"{plan.label} uses {count} devices, {here.processes} processes have {len(chosen)}",
            "as many devices as the plan uses",
        )
    if here.are(asked.machine, count):
        return placed.mesh(plan, chosen[:count], False)
    shape = tuple(plan.sizes.values())
    if here.platform == "tpu":
        grid = mesh_utils.create_device_mesh(shape, chosen[:count], allow_split_physical_axes=True)
    else:
        grid = np.array(chosen[:count], dtype=object).reshape(shape)
    return Mesh(grid, tuple(plan.sizes), axis_types=(AxisType.Auto,) * len(shape))


@dataclass(frozen=True)
class Taken:
    """One step as it went.

    Attributes:
        dispatch_s: until the call returned. seconds: until everything that it makes was there.
    """

    number: int
    seconds: float
    dispatch_s: float
    loss: float
    gradient_norm: float

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.gradient_norm)


class Training:
    """A compiled step and its state.

    Attributes:
        compile_s, init_s: seconds that compiling the step took, and making its state.
        text: the optimised HLO. output_shardings: of the new state, as compiled.
    """

    def __init__(self, plan: Plan, mesh: Mesh, batch_of: Callable[[int, TrainStep], Any]) -> None:
        """Compiles the step and makes its state.

        Raises:
            InputError: the step cannot be built or compiled.
            VerdictError: it does not fit the devices.
        """
        import jax

        from jaxplan.compile.lower import compile_lowered, option_value
        from jaxplan.workload.step import build

        with fitting("compiling the step"):
            begin = time.perf_counter()
            self.step = build(plan, mesh, norm=True)
            options = {name: option_value(text) for name, text in plan.compiler_flags.items()}
            self._compiled = compile_lowered(self.step.lower(), options)
            self.compile_s = time.perf_counter() - begin
        self.text = self._compiled.as_text() or ""
        self.output_shardings = self._compiled.output_shardings[0]
        self._batch_of = batch_of
        with fitting("making the initial state"):
            begin = time.perf_counter()
            key = jax.random.key(SEED)
            init: Any = self.step.init      # jitted: its state lies where the plan stores it from the start
            self._state = jax.block_until_ready(compile_once(init.lower(key))(key))
            self.init_s = time.perf_counter() - begin

    def steps(self, numbers: Sequence[int], annotate: bool = False) -> list[Taken]:
        """Takes some steps, one after another, each awaited.

        Their batches lie on the devices before the first begins, and their losses are fetched after the last, so that
        nothing stands between two steps. With `annotate` a profiler sees which step is which.

        Raises:
            VerdictError: the devices' memory does not suffice.
        """
        import contextlib

        import jax

        taken = []
        with fitting("the step"):
            batches = jax.block_until_ready([self._batch_of(number, self.step) for number in numbers])
            for number, batch in zip(numbers, batches, strict=True):
                label = jax.profiler.StepTraceAnnotation("train", step_num=number)
                with label if annotate else contextlib.nullcontext():
                    begin = time.perf_counter()
                    self._state, metrics = self._compiled(self._state, batch)
                    dispatched = time.perf_counter()
                    jax.block_until_ready((self._state, metrics))
                    end = time.perf_counter()
                taken.append((number, end - begin, dispatched - begin, metrics))
        return [
            Taken(number, seconds, dispatch_s, float(metrics["loss"]), float(metrics["gradient_norm"]))
            for number, seconds, dispatch_s, metrics in taken
        ]


def compile_once(lowered: Any) -> Any:
    """A program that runs once and is not timed: on the host compiled without what makes machine code fast."""
    import jax

    from jaxplan.compile.lower import HOST_OPTIONS, compile_lowered

    return compile_lowered(lowered, dict(HOST_OPTIONS) if jax.devices()[0].platform == "cpu" else {})


class fitting:
    """What a compiler or an allocator refuses inside, as a verdict against the plan."""

    def __init__(self, doing: str) -> None:
        self.doing = doing

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        from jaxplan.compile import diagnostics
        from jaxplan.compile.reading import COMPILER_ERRORS

        if error is None or type(error).__name__ not in COMPILER_ERRORS:
            return
        found = diagnostics.refusal(str(error))
        if found.kind == diagnostics.OUT_OF_MEMORY:
            raise VerdictError(f"does not fit the devices: {self.doing} failed: {found.message}{_has()}") from error


def _has() -> str:
    """What a device's allocator has and holds, where it says so."""
    import jax

    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" not in stats:
        return ""
    held, limit = stats.get("bytes_in_use", 0), stats["bytes_limit"]
    return f"; a device has {format_bytes(limit)}, of which {format_bytes(held)} were in use"


def put(array: Any, sharding: Sharding) -> Any:
    """An array, of which every process has the whole, on the devices of all: each makes its own parts."""
    import jax

    if not isinstance(array, np.ndarray):       # keys of random numbers, which NumPy has no form for
        return jax.device_put(array, sharding)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def device_peaks(here: Attached) -> tuple[list[int] | None, str]:
    """The most memory that each device had in use, by the allocators' own account; else None and why not."""
    import jax

    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    if not all("peak_bytes_in_use" in one for one in stats):
        return None, f"{here.device_kind} devices give no account of their memory"
    mine = np.array([one["peak_bytes_in_use"] for one in stats], dtype=np.int64)
    if here.processes == 1:
        return mine.tolist(), ""
    from jax.experimental import multihost_utils

    # as two halves: without 64-bit arrays JAX would cut them
    halves = np.stack([mine >> 32, mine & 0xFFFFFFFF]).astype(np.uint32)
    every = np.asarray(multihost_utils.process_allgather(halves)).astype(np.int64)
    return ((every[:, 0] << 32) | every[:, 1]).reshape(-1).tolist(), ""
