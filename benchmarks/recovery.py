"""What checkpoints survive, counted: flipped bits, kills at random moments, pairs of meshes; and what digests cost.

    python benchmarks/recovery.py [--flips 1000] [--files 200] [--kills 50] [--only flips,files,meshes,cost,kills]

On eight virtual CPU devices (or, for `cost`, on what is attached with --attached), with the tiny plan of the examples.
Kills take about 5 s each on two cores. Seeds are fixed; moments of kills are not.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
DEVICES = 8
#: Four meshes of (data, fsdp, tensor), of all devices and of fewer: twelve ordered pairs.
MESHES = ((2, 2, 2), (1, 8, 1), (1, 1, 4), (4, 1, 1))
SAVE_EVERY = 100        # steps, for the cost: as asked
EVERY = 5               # steps from one save to the next, where training is killed
LONG = 400              # steps of the training that is killed again and again
FROM_FIRST_STEP_S = 2.0     # a kill comes up to so long after a process's first step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flips", type=int, default=1000, help="of array elements on devices")
    parser.add_argument("--files", type=int, default=200, help="flips in files of a checkpoint")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--only", default="flips,files,meshes,cost,kills")
    parser.add_argument("--attached", action="store_true", help="the attached devices, for the cost")
    given = parser.parse_args()
    if not given.attached:
        os.environ["JAX_PLATFORMS"] = "cpu"
        os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"
    with tempfile.TemporaryDirectory() as folder:
        parts = {
            "flips": lambda: flips(given.flips),
            "files": lambda: files(given.files, Path(folder)),
            "meshes": lambda: meshes(Path(folder)),
            "cost": lambda: cost(given.attached),
            "kills": lambda: kills(given.kills, Path(folder)),
        }
        for name in given.only.split(","):
            begin = time.monotonic()
            print(f"{name:<8} {parts[name]()}   ({time.monotonic() - begin:.0f} s)", flush=True)


def tiny_plan(folder: Path) -> Any:
    """The examples' plan."""
    sys.path.insert(0, str(EXAMPLES))
    import tiny_plan as example

    from jaxplan.plan.files import read

    return read(example.write(folder / "plan.json")).plan


def flips(count: int) -> str:
    """Single bits of elements, of several dtypes, sharded over all devices."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from jaxplan.checkpoint.digest import digests

    split = NamedSharding(Mesh(np.array(jax.devices()).reshape(2, -1), ("a", "b")), PartitionSpec("a", "b"))
    draw, found = random.Random(0), 0
    dtypes = ("float32", "bfloat16", "float16", "float8_e4m3fn", "int8", "int32")
    clean = {d: np.asarray(jax.random.normal(jax.random.key(0), (64, 64)).astype(d)) for d in dtypes}
    before = {d: digests([jax.device_put(jnp.asarray(a), split)])[0] for d, a in clean.items()}
    for i in range(count):
        dtype = dtypes[i % len(dtypes)]
        raw = bytearray(clean[dtype].tobytes())
        raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
        damaged = np.frombuffer(bytes(raw), clean[dtype].dtype).reshape(clean[dtype].shape)
        found += digests([jax.device_put(jnp.asarray(damaged), split)])[0] != before[dtype]
    return f"{found} of {count} single-bit flips of elements found, in {len(dtypes)} dtypes"


def files(count: int, folder: Path) -> str:
    """Single bits of the files of a checkpoint: found, or harmless (the state is equal to the bit), never wrong."""
    import jax

    from jaxplan.checkpoint import Checkpointer
    from jaxplan.errors import CheckpointError

    state, target = _state(tiny_plan(folder), (2, 2, 2))
    place, draw = folder / "files", random.Random(0)
    with Checkpointer(place) as saved:
        saved.save(1, state)
    every = [path for path in (place / "1").rglob("*") if path.is_file() and path.stat().st_size]
    weights = [path.stat().st_size for path in every]
    outcome = {"found": 0, "harmless": 0, "wrong": 0}
    reference = _bits(state)
    for path in draw.choices(every, weights, k=count):
        whole = path.read_bytes()
        raw = bytearray(whole)
        raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
        path.write_bytes(bytes(raw))
        with Checkpointer(place, read_only=True) as saved:
            try:
                restored = saved.restore(target)
                same = restored is not None and _bits(restored.state) == reference
                outcome["harmless" if same else "wrong"] += 1
            except CheckpointError:
                outcome["found"] += 1
        path.write_bytes(whole)
    jax.block_until_ready(state)
    return f"{count} single-bit flips of files: " + ", ".join(f"{n} {name}" for name, n in outcome.items())


def meshes(folder: Path) -> str:
    """Every ordered pair of meshes: saved on one, restored on the other."""
    from jaxplan.checkpoint import Checkpointer

    plan, equal = tiny_plan(folder), 0
    layouts = {sizes: _state(plan, sizes) for sizes in MESHES}
    for sizes, (state, _) in layouts.items():
        with Checkpointer(folder / "meshes" / "-".join(map(str, sizes))) as saved:
            saved.save(1, state)
    pairs = list(itertools.permutations(MESHES, 2))
    for source, to in pairs:
        with Checkpointer(folder / "meshes" / "-".join(map(str, source)), read_only=True) as saved:
            restored = saved.restore(layouts[to][1])
        equal += restored is not None and _bits(restored.state) == _bits(layouts[source][0])
    return f"{equal} of {len(pairs)} pairs of meshes restored equal to the bit"


def cost(attached: bool) -> str:
    """The digest of a whole state beside a step: of the examples' plan, or of a larger one on attached devices."""
    import jax

    from jaxplan.checkpoint.digest import digests

    with tempfile.TemporaryDirectory() as folder:
        plan = tiny_plan(Path(folder))
    if attached:
        plan = _larger(plan)
    step = _built(plan, (1, len(jax.devices()), 1) if attached else (2, 2, 2))
    state = step.init(jax.random.key(0))
    batch = jax.tree.map(lambda a: jax.device_put(jax.numpy.zeros(a.shape, a.dtype), a.sharding), step.abstract_batch)
    function, times, spent = step.jit, [], []
    for _ in range(12):
        begin = time.perf_counter()
        state, metrics = function(state, batch)
        jax.block_until_ready((state, metrics))
        times.append(time.perf_counter() - begin)
    for _ in range(12):
        begin = time.perf_counter()
        digests(jax.tree.leaves(state))
        spent.append(time.perf_counter() - begin)
    one, digest = statistics.median(times[2:]), statistics.median(spent[2:])
    nbytes = sum(a.nbytes for a in jax.tree.leaves(state))
    where = f"{len(jax.devices())} x {jax.devices()[0].device_kind}"
    return (
        f"digest of {nbytes / 1e6:.1f} MB {digest * 1e3:.2f} ms, step {one * 1e3:.1f} ms on {where}: "
        f"{digest / (SAVE_EVERY * one):.4%} of step time at a save every {SAVE_EVERY} steps"
    )


def kills(count: int, folder: Path) -> str:
    """kill -9 at random moments of one training, which must come to the same losses and states."""
    from jaxplan.run.drill.orders import Came
    from jaxplan.run.drill.stage import SILENCE_S, Stage

    draw, resumed, wrong, in_save, replayed = random.Random(), 0, [], 0, []
    with Stage(tiny_plan(folder), folder / "kills", LONG, EVERY, "jaxplan", DEVICES) as stage:
        stage.prepare()
        order, done, last = stage.order("killed-0", keep=2), 0, 0
        while done < count:
            stage.renew()
            started: Came = stage.worker.train(order, SILENCE_S, until=lambda e: e["event"] == "step")
            found = [started]
            if last:        # killed before: one interval and the save in flight may be done again
                replayed.append(last - (started.resumed_at or 0))
                resumed += replayed[-1] <= 2 * EVERY
            if not started.events or started.events[-1]["event"] not in ("step", "done"):
                wrong.append(started.said)
            if not started.done:        # else the last step was saved, and the process waits
                found += _until(stage, time.monotonic() + draw.uniform(0, FROM_FIRST_STEP_S))
                stage.worker.kill()
                done += 1
                found.append(stage.worker.listen(SILENCE_S))
            in_save += any(Path(order.folder).glob("*.orbax-checkpoint-tmp"))
            losses = {k: v for came in found for k, v in came.losses.items()}
            states = {k: v for came in found for k, v in came.digests.items()}
            other = stage.reference
            wrong += [s for s in losses if (losses[s], states[s]) != (other.losses[s], other.digests[s])]
            last = max(losses, default=last)
            if any(came.done for came in found):
                order, last = replace(order, folder=f"{order.folder}+"), 0
        shutil.rmtree(stage.folder, ignore_errors=True)
    return (
        f"{done} kills -9 ({in_save} in a save): {resumed} of {len(replayed)} processes that had something to resume "
        f"did, {len(wrong)} steps not equal to the bit; at most {max(replayed, default=0)} steps done twice at a save "
        f"every {EVERY}"
    )


def _until(stage: Any, end_s: float) -> Iterator[Any]:
    """What the training tells until that moment."""
    from jaxplan.run.drill.stage import SILENCE_S

    while time.monotonic() < end_s:
        came = stage.worker.listen(SILENCE_S, until=lambda e: True)
        yield came
        if came.done or came.exit_code is not None:
            return


def _larger(plan: Any) -> Any:
    """The plan with a decoder whose step says something on an accelerator: 0.4 B parameters, 8 x 2048 tokens."""
    shape = replace(plan.workload.model, name="larger", layers=16, embed=1024, mlp=4096, heads=16, kv_heads=16,
                    head_dim=64, vocab=32000)  # fmt: skip
    return replace(plan, workload=replace(plan.workload, model=shape, batch=8, seq=2048), microbatches=1)


def _built(plan: Any, sizes: tuple[int, int, int]) -> Any:
    import jax
    import numpy as np
    from jax.sharding import AxisType, Mesh

    from jaxplan.plan.plan import MeshAxis
    from jaxplan.run.attached import Attached, machine_of
    from jaxplan.workload.step import build

    count = int(np.prod(sizes))
    device = jax.devices()[0]
    axes = tuple(MeshAxis(n, s, n) for n, s in zip(("data", "fsdp", "tensor"), sizes, strict=True))
    machine = machine_of(Attached(device.platform, device.device_kind, count), plan.machine, count)
    plan = replace(plan, machine=machine, axes=axes, microbatches=1, zero1=False)
    names = ("data", "fsdp", "tensor")
    mesh = Mesh(np.array(jax.devices()[:count]).reshape(sizes), names, axis_types=(AxisType.Auto,) * 3)
    return build(plan, mesh)


def _state(plan: Any, sizes: tuple[int, int, int]) -> tuple[Any, Any]:
    """The plan's initial state on a mesh of those sizes, and what asks for it."""
    import jax

    step = _built(plan, sizes)
    return step.init(jax.random.key(0)), step.abstract_state


def _bits(state: Any) -> list[bytes]:
    import jax
    import numpy as np

    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state)]


if __name__ == "__main__":
    main()
