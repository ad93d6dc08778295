"""Documents of a run folder, made by formulas that tests can do again by hand. They follow the schemas; nothing ran."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

CAPACITY_BYTES = 16 * 2**30
MESHES = [(d, f, t) for d in (1, 2, 4, 8) for f in (1, 2, 4, 8) for t in (1, 2, 4) if d * f * t == 8]


def write(folder: Path, name: str, data: Any) -> Path:
    """A document, or a text as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def candidates(count: int) -> dict[str, Any]:
    """`count` plans: row i takes 1 s + i / count s. Every third needs 15 GiB, others from 14 GiB (the fastest) to 4.

    Meshes, remat, microbatches take turns; the first plan is compiled, the second partitioned.
    """
    rows = range(count)

    def texts(values: Sequence[str], code: Callable[[int], int]) -> dict[str, list]:
        return {"values": list(values), "codes": [code(i) for i in rows]}

    def mesh(i: int) -> int:
        return i * 7 % len(MESHES)

    columns = {
        "mesh": texts([f"data={d} fsdp={f} tensor={t}" for d, f, t in MESHES], mesh),
        "remat": texts(["full", "dots", "attention"], lambda i: i % 3),
        "options": texts(["", "zero1"], lambda i: i % 2),
        "bottleneck": texts(["matmul", "fsdp all-gather"], lambda i: int(i % 5 == 0)),
        "proof": texts(["compiled", "partitioned", "estimated"], lambda i: min(2, i)),
        "plan": texts(["plan.json", "plan-2.json", ""], lambda i: min(2, i)),
        "microbatches": [2 ** (i % 4) for i in rows],
        "memory_bytes": [round(2**30 * (15 if i % 3 == 2 else 14 - 10 * i / count)) for i in rows],
        "step_time_s": [1 + i / count for i in rows],
        "low_s": [0.8 + i / count for i in rows],
        "high_s": [1.3 + i / count for i in rows],
        "mfu": [0.5 / (1 + i / count) for i in rows],
    }
    columns |= {role: [MESHES[mesh(i)][k] for i in rows] for k, role in enumerate(("data", "fsdp", "tensor"))}
    columns |= {role: [1] * count for role in ("context", "expert", "stage")}
    return {
        "schema": "jaxplan.candidates/1",
        "source": "estimated",
        "candidates": 2 * count,
        "feasible": count,
        "count": count,
        "capacity_bytes": CAPACITY_BYTES,
        "columns": columns,
    }


def timeline(layers: int = 16) -> dict[str, Any]:
    """Forward and backward loops of `layers` turns of 10 and 20 ms, and an update of 8 ms.

    The step waits 1 ms for the all-gather of every turn; the backward's reduce-scatter of 4 ms is hidden.
    """
    gather = [1, 0.0, 0.005, "all-gather weights", "all-gather", 0.001]
    forward = [
        gather,
        [0, 0.001, 0.006, "qkv projection", "matmul", 0.0],
        [0, 0.007, 0.003, "attention kernel", "attention", 0.0],
    ]
    backward = [
        gather,
        [0, 0.001, 0.015, "gradient matmuls", "matmul", 0.0],
        [1, 0.008, 0.004, "reduce-scatter gradients", "reduce-scatter", 0.0],
        [0, 0.016, 0.004, "norms", "memory-bound", 0.0],
    ]

    def node(name: str, start_s: float, duration_s: float, repeats: int, events: list, children: list) -> dict:
        times = {"start_s": start_s, "duration_s": duration_s, "repeats": repeats}
        return {"name": name, **times, "events": events, "children": children}

    update_s = layers * 0.030
    loops = [
        node("forward layers", 0.0, 0.010, layers, forward, []),
        node("backward layers", layers * 0.010, 0.020, layers, backward, []),
    ]
    update = [[0, update_s, 0.008, "adamw", "memory-bound", 0.0]]
    return {
        "schema": "jaxplan.timeline/1",
        "source": "compiled",
        "duration_s": update_s + 0.008,
        "lanes": ["compute", "fsdp", "copies", "host"],
        "root": node("step", 0.0, update_s + 0.008, 1, update, loops),
    }


def measured(session: str | None = None) -> dict[str, Any]:
    """A run of 40 steps of 0.5 s, every tenth of them 0.6 s, scaled down to 8 virtual CPU devices."""
    times = [0.6 if i % 10 == 9 else 0.5 for i in range(40)]
    scaled = {"axes": {"data": [4, 1]}, "batch": [128, 8], "model": None, "why": "8 devices are here, the plan has 32."}
    parity = {"checked": True, "passed": True, "loss_difference": 3e-7, "gradient_norm_difference": 2e-6, "why_not": ""}
    parts = [("matmul", 0.25, 0.28, 0.30), ("memory-bound", 0.12, None, 0.15), ("exposed fsdp", 0.03, 0.04, 0.05)]
    return {
        "schema": "jaxplan.run/1",
        "plan": "plan.json",
        "label": "fsdp=8",
        "ran_on": {"platform": "cpu", "device_kind": "cpu", "devices": 8, "processes": 1, "scaled": scaled},
        "workload": {"name": "small"},
        "steps": 40,
        "warmup": 2,
        "step_time_s": {"median": 0.5, "p10": 0.5, "p90": 0.6, "worst": 0.6, "all": times, "source": "measured"},
        "tokens_per_s": 16384.0,
        "mfu": None,
        "memory_bytes": {"peak_per_device": None, "why_not": "CPU devices do not say"},
        "loss": [8 * math.exp(-i / 20) + 2 for i in range(40)],
        "gradient_norm": [3 * math.exp(-i / 30) + 0.5 for i in range(40)],
        "parity": {**parity, "tolerance": {"loss": 1e-5, "gradient_norm": 1e-4}},
        "finite": True,
        "stragglers": [{"device": i, "behind_s": 0.001 * i} for i in range(8)],
        "profiler": {"session": session, "overhead": 0.04, "steps": 3},
        "ledger": [{"name": name, "seconds": seconds} for name, _, _, seconds in parts],
        "compared": [
            {"name": name, "estimated_s": estimated, "compiled_s": compiled, "measured_s": seconds}
            for name, estimated, compiled, seconds in parts
        ],
        "findings": [{"title": "Every tenth step is slow", "detail": "Steps 9, 19, ... take 0.6 s.", "seconds": 0.01}],
        "calibration": None,
        "notes": ["made by a formula"],
    }


def choice() -> dict[str, Any]:
    """Sizes of 8 to 32 chips: each doubling halves the days and costs a tenth more; the largest is too dear."""
    options = [
        {
            "mesh": f"{2**i}x8",
            "name": f"h100 {2**i}x8",
            "plan": "",
            "chips": 8 * 2**i,
            "spare_chips": 0,
            "step_time_s": {"value": 8 / 2**i, "low": 6 / 2**i, "high": 10 / 2**i},
            "goodput": 0.99,
            "interval_s": 3600.0,
            "days": {"value": 40 / 2**i, "low": 30 / 2**i, "high": 50 / 2**i},
            "chip_hours": 7680 * 1.1**i,
            "money": 15360 * 1.1**i,
            "on_front": True,
            "allowed": i < 2,
        }
        for i in range(3)
    ]
    asked = {"tokens": 1e12, "deadline_s": None, "price_per_chip_hour": 2.0, "most": 17000.0}
    found = {"options": options, "cheapest": "1x8", "fastest": "2x8", "refused": [{"name": "1x4", "why": "memory"}]}
    return {"schema": "jaxplan.choice/1", "source": "estimated", **asked, **found, "inputs": [], "assumptions": []}
