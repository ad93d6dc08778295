"""Timing pieces on all attached devices at once, in a worker. Imports JAX when called.

A piece runs in a loop of n trips inside of one program; (T(n) - T(0)) / n is its time without the launch, with its
arguments as warm in the caches as a step's are. Of several rounds over all pieces the fastest run of each counts: what
disturbs a machine only ever adds. A reference piece is timed in every round: how far its times are apart says how
quiet the machine was.

Where at least as many CPU devices as cores compute without waiting for each other, no core is ever idle, and what a
quiet machine would take is the process's CPU time over the cores: that is timed, which other processes disturb less.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxplan.compile.hlo import parse
from jaxplan.compile.host_work import loop_work
from jaxplan.profile.calibrate import collectives, overlap
from jaxplan.profile.calibrate.kernels import Kernel, kernels, turn

AXIS = "all"
LIMIT_SHARE = 0.2       # of a device's memory, for one piece
FEWEST_TRIPS, MOST_TRIPS = 1, 20_000
REFERENCE = (256, 256)  # of the reference piece's matmul


@dataclass(frozen=True)
class Effort:
    """How long to measure: seconds of one timed run, and rounds over all pieces."""

    run_s: float
    rounds: int


EFFORTS = {"quick": Effort(0.003, 4), "full": Effort(0.004, 14)}     # chosen: seconds, and two minutes or so


@dataclass
class Piece:
    """One piece under measurement: a compiled program of (trips, arguments), its arguments, and what it has taken."""

    name: str
    family: str
    program: Callable[..., Any]
    arguments: Any
    about: dict[str, Any] = field(default_factory=dict)
    cores: int = 0      # that it keeps busy all the time; 0 where it is timed by the clock
    trips: int = 1
    none_s: float = math.inf
    launch_s: float = math.inf
    run_s: float = math.inf
    runs: list[float] = field(default_factory=list)

    def time(self, trips: int, by_clock: bool = False) -> float:
        """One run of so many trips."""
        import jax

        start, spent = time.perf_counter(), time.process_time()
        jax.block_until_ready(self.program(trips, *self.arguments))
        taken, spent = time.perf_counter() - start, time.process_time() - spent
        return taken if by_clock or not self.cores else spent / self.cores

    def prepare(self, run_s: float) -> None:
        """Warm up, and find the trips that take about `run_s`; the faster of two tries counts."""
        self.time(1)
        self.trips = FEWEST_TRIPS
        while self.trips < MOST_TRIPS and (taken := min(self.time(self.trips), self.time(self.trips))) < run_s:
            wanted = self.trips * min(16.0, 1.2 * run_s / max(taken, 1e-6))
            self.trips = min(MOST_TRIPS, max(self.trips + 1, int(wanted)))

    def round(self) -> None:
        """One timed run, and two without trips."""
        self.launch_s = min(self.launch_s, self.time(0, by_clock=True))
        self.none_s = min(self.none_s, self.time(0))
        self.runs.append(self.time(self.trips))
        self.run_s = min(self.run_s, self.runs[-1])

    def to_json(self) -> dict[str, Any]:
        """What was measured: seconds of one execution, and the median run over the fastest."""
        middle = sorted(self.runs)[len(self.runs) // 2]
        seconds = max(0.0, self.run_s - self.none_s) / self.trips
        told = {"name": self.name, "family": self.family, "seconds": seconds, "spread": middle / self.run_s - 1}
        return {**told, "launch_s": self.launch_s, "none_s": self.none_s, "trips": self.trips, **self.about}


def attached_job() -> dict[str, Any]:
    """What JAX sees: platform, device kind, how many, and the versions that matter."""
    import jax

    first = jax.devices()[0]
    client = getattr(first, "client", None)
    return {
        "platform": first.platform,
        "device_kind": first.device_kind,
        "devices": jax.device_count(),
        "processes": jax.process_count(),
        "per_process": jax.local_device_count(),
        "runtime": str(getattr(client, "platform_version", "")).partition("\n")[0],
    }


def kernels_job(effort: str, large: bool) -> dict[str, Any]:
    """Every kernel on every device at once."""
    chosen = kernels(large, effort == "quick")
    limit = _memory_limit()
    pieces = [kernel_piece(kernel) for kernel in chosen if 4 * kernel.nbytes <= limit]
    return measured([*pieces, *_turns(large)], EFFORTS[effort])


def collectives_job(effort: str, large: bool, groups: Sequence[int]) -> dict[str, Any]:
    """Every collective over every group size and some sizes of data, all groups at work; and what it hides."""
    import jax

    limit = _memory_limit()
    asked = [
        *collectives.programs(groups, large, effort == "quick"),
        *overlap.programs(jax.device_count(), large),
    ]
    pieces = [
        Piece(name, "collective", *program(function, arguments, axes), about)
        for name, function, arguments, axes, about in asked
        if about["bytes"] <= limit
    ]
    return measured([*pieces, *_turns(large)], EFFORTS[effort])


def _turns(large: bool) -> list[Piece]:
    """A piece that does nothing, where a turn of the loop takes the host's time."""
    return [kernel_piece(turn())] if large else []


def measured(pieces: list[Piece], effort: Effort) -> dict[str, Any]:
    """Time the pieces in rounds, the reference first in each; pieces that fail are told by name."""
    reference = kernel_piece(_reference())
    reference.cores = 0
    reference.prepare(effort.run_s)
    good, failed = [], {}
    for piece in pieces:
        try:
            piece.prepare(effort.run_s)
            good.append(piece)
        except Exception as error:
            failed[piece.name] = f"{type(error).__name__}: {error}"[:200]
    for _ in range(effort.rounds):
        reference.round()
        for piece in good:
            piece.round()
    reference.round()
    return {"pieces": [p.to_json() for p in good], "failed": failed, "reference_s": [t / reference.trips for t in
            reference.runs]}  # fmt: skip


def _reference() -> Kernel:
    import jax.numpy as jnp

    rows, width = REFERENCE
    return Kernel("reference", "matmul", lambda x: jnp.tanh(x @ x), (((rows, width), "float32"),))


def kernel_piece(kernel: Kernel) -> Piece:
    """A kernel as a piece, with the work that its compiled loop shows where the devices are CPUs."""
    import jax

    compiled, arguments = program(kernel.function, kernel.arguments, {})
    about: dict[str, Any] = {"flops": kernel.flops, "moved": kernel.nbytes + _result_bytes(kernel)}
    if jax.default_backend() == "cpu":
        about["work"] = loop_work(parse(compiled.as_text()), parallel())
    return Piece(kernel.name, kernel.family, compiled, arguments, about, _busy_cores())


def _busy_cores() -> int:
    """Cores that the attached CPU devices keep busy while all compute; 0 where some may idle, or on accelerators."""
    import jax

    from jaxplan.compile.host import cores

    return cores() if jax.default_backend() == "cpu" and jax.device_count() >= cores() else 0


def _result_bytes(kernel: Kernel) -> int:
    import jax

    arguments = (jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in kernel.arguments)
    result = jax.tree.leaves(jax.eval_shape(kernel.function, *arguments))
    return sum(array.size * array.dtype.itemsize for array in result)


def parallel() -> int:
    """Cores that each of the attached CPU devices has to itself when all are at work, at least 1."""
    import jax

    from jaxplan.compile.host import cores

    return max(1, cores() // jax.device_count())


def program(
    function: Callable[..., Any], arguments: Sequence[tuple[tuple[int, ...], str]], axes: dict[str, int]
) -> tuple[Any, tuple[Any, ...]]:
    """(compiled program of (trips, *arguments), arguments): each device loops over its own copy of everything.

    A barrier ties the arguments to the loop's counter, so that nothing can be moved out of the loop, and the last
    result is the program's, so that nothing can be left out.

    Args:
        axes: mesh axes that `function` communicates over, name to size, outermost first; empty where it does not.
    """
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    sizes = axes or {AXIS: jax.device_count()}
    mesh = Mesh(_grid(tuple(sizes.values())), tuple(sizes))
    split = PartitionSpec(tuple(sizes))

    def run(trips: Any, *held: Any) -> Any:
        def body(i: Any, carried: Any) -> Any:
            tied, turn = jax.lax.optimization_barrier((mine, i))
            return carried[0] + turn, function(*tied)

        mine = tuple(value[0] for value in held)
        zeros = jax.tree.map(lambda a: jax.numpy.zeros(a.shape, a.dtype), jax.eval_shape(function, *mine))
        turns, result = jax.lax.fori_loop(0, trips, body, (jax.numpy.int32(0), zeros))
        return jax.tree.map(lambda a: a[None], (turns, result))

    held = tuple(_values(shape, dtype, mesh.size, NamedSharding(mesh, split)) for shape, dtype in arguments)
    specs = (PartitionSpec(), *([split] * len(held)))
    mapped = jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=split, check_vma=False)
    compiled = jax.jit(mapped).lower(jax.ShapeDtypeStruct((), jax.numpy.int32), *held).compile()
    return _Called(compiled, NamedSharding(mesh, PartitionSpec())), held


@dataclass(frozen=True)
class _Called:
    """A compiled program that takes its trips as a plain number."""

    compiled: Any
    everywhere: Any

    def __call__(self, trips: int, *arguments: Any) -> Any:
        import jax
        import numpy as np

        return self.compiled(jax.device_put(np.int32(trips), self.everywhere), *arguments)

    def as_text(self) -> str:
        return self.compiled.as_text()


def _grid(shape: tuple[int, ...]) -> Any:
    import jax
    import numpy as np

    return np.array(jax.devices()).reshape(shape)


def _values(shape: tuple[int, ...], dtype: str, copies: int, sharding: Any) -> Any:
    """One array a device: numbers around 0, or rows spread over the first argument's."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    count = np.arange(math.prod(shape), dtype=np.int32).reshape(1, *shape)
    one = (count * 97) % 256 if dtype == "int32" else np.sin(count % 1021, dtype=np.float32).astype(jnp.dtype(dtype))
    return jax.make_array_from_callback((copies, *shape), sharding, lambda _: one)


def _memory_limit() -> float:
    """Bytes that one piece may take on one device."""
    import jax

    from jaxplan.compile.host import available_bytes

    statistics = jax.local_devices()[0].memory_stats() or {}
    whole = statistics.get("bytes_limit") or available_bytes() / jax.local_device_count()
    return LIMIT_SHARE * whole
