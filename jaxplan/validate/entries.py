"""Which parameter of the calibration holds for which run: by chip, by profile, by fabric."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxplan.machine.reached import matmul_fraction, silicon
from jaxplan.validate.choices import is_narrow
from jaxplan.validate.facts import Case

#: Fabrics whose transfers the host's processor drives.
ONLOAD = ("Omni-Path", "A3 High")


@dataclass(frozen=True)
class Entry:
    """One rate of one run: a known factor times parameters."""

    factor: float
    names: tuple[str, ...]


def entries(case: Case, known: Mapping[str, float]) -> dict[str, Entry]:
    """For every field of `Rates` the parameters that make it up.

    Args:
        known: names of the calibration's parameters; of several candidates the first known one is taken.
    """
    kind, chip, profile = case.machine.kind, silicon(case.machine.chip), case.profile.calibrated_as
    choices = case.facts.choices

    def first(*names: str) -> Entry:
        return Entry(1.0, (next(name for name in names if name in known),))

    compiled = "compiled" if choices.compiled else profile
    tensor = "async" if choices.tensor_overlap and kind == "gpu" else kind
    eager = kind == "gpu" and profile == "fsdp" and not choices.compiled
    return {
        "matmul": _wide(case, chip, known),
        "narrow_matmul": _narrow(case, chip, known),
        "sustained": _sustained(case, kind),
        "attention": first(f"attention.{chip}.{profile}", f"attention.{chip}", f"attention.{kind}"),
        "grouped": first(f"grouped.{chip}", f"grouped.{kind}"),
        "memory": first("memory"),
        "link": first(f"link.{kind}"),
        "network": first(f"network.{_fabric(case)}"),
        "exchange": first("exchange.ragged" if choices.ragged else "exchange"),
        "passes": first(f"passes.{compiled}"),
        "state_overlap": first(f"state_overlap.{profile}"),
        "tensor_overlap": first(f"tensor_overlap.{tensor}"),
        "expert_overlap": first("expert_overlap.scheduled" if choices.expert_overlap else "expert_overlap"),
        "launch_s": first("launch_s"),
        "launches": _times(1.0, f"launches.{profile}", known),
        "host_s": first("host_s"),
        "latency": first(f"latency.{kind}"),
        "fixed_s": first("fixed_s"),
        "wave": first(f"wave.{chip}", "wave"),
        "saturation": first(f"saturation.{kind}"),
        "narrow_saturation": first(f"narrow_saturation.{kind}"),
        "misaligned": first("misaligned"),
        "imbalance": first("imbalance"),
        "host_link": first("host_link"),
        "jitter": first("jitter"),
        "scores": first("scores"),
        "tensor_link": first("tensor_link.eager") if eager else Entry(1.0, ()),
        "dcn_overlap": first("dcn_overlap"),
    }


def _times(factor: float, name: str, known: Mapping[str, float]) -> Entry:
    return Entry(factor, (name,) if name in known else ())


def _sustained(case: Case, kind: str) -> Entry:
    """1 where the run's own machine was measured under load."""
    return Entry(1.0, ()) if case.measured_matmul is not None else Entry(1.0, (f"sustained.{kind}",))


def _wide(case: Case, chip: str, known: Mapping[str, float]) -> Entry:
    """The best that was measured, of such chips or by the source on its own machine, and how steps differ from it."""
    measured = case.measured_matmul
    return _times(measured if measured is not None else matmul_fraction(case.machine), f"matmul.{chip}", known)


def _narrow(case: Case, chip: str, known: Mapping[str, float]) -> Entry:
    words = (case.run.precision or "").lower()
    if case.machine.kind == "tpu" or not is_narrow(case.run):
        return _wide(case, chip, known)
    if "fp4" in words:
        return Entry(1.0, ("narrow.float4",))
    own = next((n for n in (f"narrow.{case.machine.chip.id}", f"narrow.{chip}") if n in known), "")
    blocks = "narrow.blocks" if words.startswith("mx") else ""
    return Entry(matmul_fraction(case.machine, "float8"), tuple(name for name in (own, blocks) if name in known))


def _fabric(case: Case) -> str:
    if case.machine.kind == "tpu":
        return "dcn"
    return "onload" if any(name in (case.run.interconnect or "") for name in ONLOAD) else "gpu"
