"""Whether a chip of the catalogue is what JAX calls by some device kind. No JAX here."""

from __future__ import annotations

import re

from jaxplan.machine.chip import Chip

# TPU device kinds of JAX that do not spell the generation's name ("TPU v5 lite", "TPU v5", "TPU v6 lite")
TPU_KINDS = {"v5lite": "v5e", "v5": "v5p", "v6lite": "v6e", "7x": "tpu7x", "v7x": "tpu7x"}


def same_chip(chip: Chip, device_kind: str) -> bool:
    """Whether JAX's `device_kind` (`TPU v5 lite`, `NVIDIA H100 80GB HBM3`) is that chip."""
    tokens = re.findall(r"[a-z0-9]+", device_kind.lower())
    if tokens and tokens[0].startswith("tpu"):
        spelled = "".join(tokens).removeprefix("tpu")
        return TPU_KINDS.get(spelled, spelled) == chip.id
    # every part of `a100-80` begins a word of `NVIDIA A100-SXM4-80GB`; `b200` begins none of `NVIDIA GB200`
    parts = re.findall(r"[a-z0-9]+", chip.id.lower())
    return all(any(token.startswith(part) for token in tokens) for part in parts)
