"""Documents of a run folder, made by formulas that tests can do again by hand. They follow the schemas; nothing ran."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

CAPACITY_BYTES = 16 * 2**30
MESHES = [(d, f, t) for d in (1, 2, 4, 8) for f in (1, 2, 4, 8) for t in (1, 2, 4) if d * f * t == 8]
REMATS = ["full", "dots", "attention"]


def write(folder: Path, name: str, data: Any) -> Path:
    """A document, whole."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def candidates(count: int) -> dict[str, Any]:
    """`count` plans: row i takes 1 s + i / count s and, of 16 GiB, more the faster it is, scattered by a fixed rule."""
    shapes = [MESHES[i * 7 % len(MESHES)] for i in range(count)]
    share = [i / count for i in range(count)]
    memory = [round(CAPACITY_BYTES * (0.95 - 0.5 * s + 0.3 * ((i * 7919) % 1000) / 1000 * s)) for i, s in enumerate(share)]
    return {
        "schema": "jaxplan.candidates/1",
        "source": "estimated",
        "candidates": 2 * count,
        "feasible": count,
        "count": count,
        "capacity_bytes": CAPACITY_BYTES,
        "columns": {
            "mesh": {"values": [f"data={d} fsdp={f} tensor={t}" for d, f, t in MESHES], "codes": [i * 7 % len(MESHES) for i in range(count)]},
            "remat": {"values": REMATS, "codes": [i % 3 for i in range(count)]},
            "options": {"values": ["", "zero1"], "codes": [i % 2 for i in range(count)]},
            "microbatches": [2 ** (i % 4) for i in range(count)],
            "memory_bytes": memory,
            "step_time_s": [1 + s for s in share],
            "low_s": [0.8 + s for s in share],
            "high_s": [1.3 + s for s in share],
            "mfu": [0.5 / (1 + s) for s in share],
            "bottleneck": {"values": ["matmul", "fsdp all-gather"], "codes": [int(i % 5 == 0) for i in range(count)]},
            "proof": {"values": ["compiled", "partitioned", "estimated"], "codes": [min(2, i) for i in range(count)]},
            "plan": {"values": ["plan.json", "plan-2.json", ""], "codes": [min(2, i) for i in range(count)]},
            **{role: [shape[k] for shape in shapes] for k, role in enumerate(("data", "fsdp", "tensor"))},
            **{role: [1] * count for role in ("context", "expert", "stage")},
        },
    }


def timeline(layers: int = 16) -> dict[str, Any]:
    """Forward and backward loops of `layers` turns of 10 and 20 ms, and an update of 8 ms.

    A forward turn: matmul for 9 ms, the all-gather of 5 ms of which 1 ms is waited for. A backward turn: twice as much,
    with a reduce-scatter of 4 ms that is hidden.
    """
    forward = {
        "name": "forward layers", "start_s": 0.0, "duration_s": 0.010, "repeats": layers, "children": [],
        "events": [
            [1, 0.0, 0.005, "all-gather weights", "all-gather", 0.001],
            [0, 0.001, 0.006, "qkv projection", "matmul", 0.0],
            [0, 0.007, 0.003, "attention kernel", "attention", 0.0],
        ],
    }
    backward = {
        "name": "backward layers", "start_s": layers * 0.010, "duration_s": 0.020, "repeats": layers, "children": [],
        "events": [
            [1, 0.0, 0.005, "all-gather weights", "all-gather", 0.001],
            [0, 0.001, 0.015, "gradient matmuls", "matmul", 0.0],
            [1, 0.008, 0.004, "reduce-scatter gradients", "reduce-scatter", 0.0],
            [0, 0.016, 0.004, "norms", "memory-bound", 0.0],
        ],
    }
    update = layers * 0.030
    return {
        "schema": "jaxplan.timeline/1", "source": "compiled", "duration_s": update + 0.008,
        "lanes": ["compute", "fsdp", "copies", "host"],
        "root": {
            "name": "step", "start_s": 0.0, "duration_s": update + 0.008, "repeats": 1, "children": [forward, backward],
            "events": [[0, update, 0.008, "adamw", "memory-bound", 0.0]],
        },
    }


def measured(session: str | None = None) -> dict[str, Any]:
    """A run of 40 steps of 0.5 s, every tenth of them 0.6 s, on 8 virtual CPU devices."""
    times = [0.6 if i % 10 == 9 else 0.5 for i in range(40)]
    return {
        "schema": "jaxplan.run/1", "plan": "plan.json", "label": "fsdp=8",
        "ran_on": {
            "platform": "cpu", "device_kind": "cpu", "devices": 8, "processes": 1,
            "scaled": {"axes": {"data": [4, 1]}, "batch": [128, 8], "model": None, "why": "8 devices are here, the plan has 32"},
        },
        "workload": {"name": "small"}, "steps": 40, "warmup": 2,
        "step_time_s": {"median": 0.5, "p10": 0.5, "p90": 0.6, "worst": 0.6, "all": times, "source": "measured"},
        "tokens_per_s": 16384.0, "mfu": None, "memory_bytes": {"peak_per_device": None, "why_not": "CPU devices do not say"},
        "loss": [8 * math.exp(-i / 20) + 2 for i in range(40)],
        "gradient_norm": [3 * math.exp(-i / 30) + 0.5 for i in range(40)],
        "parity": {
            "checked": True, "passed": True, "loss_difference": 3e-7, "gradient_norm_difference": 2e-6,
            "tolerance": {"loss": 1e-5, "gradient_norm": 1e-4}, "why_not": "",
        },
        "finite": True, "stragglers": [{"device": i, "behind_s": 0.001 * i} for i in range(8)],
        "profiler": {"session": session, "overhead": 0.04, "steps": 3},
        "ledger": [{"name": "matmul", "seconds": 0.3}, {"name": "memory-bound", "seconds": 0.15}, {"name": "exposed fsdp", "seconds": 0.05}],
        "compared": [
            {"name": "matmul", "estimated_s": 0.25, "compiled_s": 0.28, "measured_s": 0.3},
            {"name": "memory-bound", "estimated_s": 0.12, "compiled_s": None, "measured_s": 0.15},
            {"name": "exposed fsdp", "estimated_s": 0.03, "compiled_s": 0.04, "measured_s": 0.05},
        ],
        "findings": [{"title": "Every tenth step is slow", "detail": "Steps 9, 19, ... take 0.6 s.", "seconds": 0.01}],
        "calibration": None, "notes": ["made by a formula"],
    }
