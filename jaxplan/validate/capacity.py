"""How much memory a published run's device offers it."""

from __future__ import annotations

import re

from jaxplan.units import GIB
from jaxplan.validate.facts import Case

VISIBLE = re.compile(r"([\d.]+) GiB (?:HBM )?visible")
AFTER_ALLOCATOR = re.compile(r"capacity after allocator about ([\d.]+) GiB")
FRACTION = re.compile(r"memory fraction (0?\.\d+)")


def capacity_bytes(case: Case) -> float:
    """As the run's notes say, else the chip's usable memory; of which an XLA client may take only a fraction."""
    words = case.run.config_notes or ""
    after = AFTER_ALLOCATOR.search(words)
    if after:
        return float(after[1]) * GIB
    visible, fraction = VISIBLE.search(words), FRACTION.search(words)
    offered = float(visible[1]) * GIB if visible else float(case.facts.chip.capacity_bytes)
    return offered * (float(fraction[1]) if fraction else 1.0)
