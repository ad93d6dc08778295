"""What a calibration found, as lines for people and as a JSON document. Computes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jaxplan.machine.attached import NOISY, SCHEMA, AttachedCalibration
from jaxplan.units import GB, format_seconds, significant

RATES = (
    ("matmul peak float32", "best matmul, float32", 1e9, "GFLOP/s"),
    ("matmul float32", "median matmul, float32", 1e9, "GFLOP/s"),
    ("matmul peak bfloat16", "best matmul, bfloat16", 1e9, "GFLOP/s"),
    ("matmul bfloat16", "median matmul, bfloat16", 1e9, "GFLOP/s"),
    ("attention", "attention's matmuls", 1e9, "GFLOP/s"),
    ("memory", "passes over memory", GB, "GB/s"),
)


def calibration_lines(found: AttachedCalibration, path: str) -> Iterator[str]:
    """The calibration as lines: rates of one device at each number of devices, collectives, how well it fits."""
    yield f"{found.device_kind} ({found.platform}), {found.date}, measured in {found.seconds:.0f} s"
    counts = list(found.measured_devices)
    yield "One device, with so many at work  " + "".join(f"{n:>10}" for n in counts)
    for name, words, unit, unit_name in RATES:
        values = [found.rate(name, n) for n in counts]
        if any(values):
            cells = "".join(f"{significant(v / unit) if v else '-':>10}" for v in values)
            yield f"  {words + ', ' + unit_name:<32}{cells}"
    launches = "".join(f"{format_seconds(found.rate('launch', n) or 0.0):>10}" for n in counts)
    yield f"  {'launch of a program':<32}{launches}"
    for kind in ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute"):
        cells = [_collective(found, kind, n) for n in counts]
        if any(cells):
            yield f"  {kind + ' of all, 1 MiB':<32}" + "".join(f"{cell or '-':>10}" for cell in cells)
    for residual in found.residuals:
        yield (
            f"fit of {residual.timings} {residual.of} on {residual.devices}: "
            f"{residual.median:.0%} off in the median, {residual.worst:.0%} at most"
        )
    if found.noisy:
        yield (
            f"NOISY: a reference took {found.drift:.0%} longer than at its fastest in the median round (expected under "
            f"{NOISY:.0%}). Run it again when nothing else runs here."
        )
    yield f"Written to {path}"


def _collective(found: AttachedCalibration, kind: str, devices: int) -> str:
    start, byte = (found.collective(f"{kind} {what}", devices, devices) for what in ("start", "byte"))
    measured = any(f.of == "collective" and f.devices == devices for f in found.figures)
    return format_seconds(start + byte * 2**20) if measured and start is not None and byte is not None else ""


def calibration_json(found: AttachedCalibration, path: str) -> dict[str, Any]:
    """The document of `calibrate --json`."""
    return {"schema": SCHEMA, "path": path, "noisy": found.noisy, **found.to_json()}
