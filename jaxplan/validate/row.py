"""One published run beside its prediction: what the statistics, the reports and the command line read. No JAX here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

RELATIVE_TOLERANCE = 1e-9   # float sums in another order differ by less
GROUPS = ("TPU", "JAX on GPU", "Megatron", "FSDP", "MoE")
PARTS = ("fit", "check")


@dataclass(frozen=True)
class Row:
    """A published run and what was predicted of it.

    A run is predicted, with bounds and a ledger that adds up to its step time, or `not_predicted` says why not.

    Attributes:
        group: one of `GROUPS`; MoE is every mixture of experts, whatever runs it. Another text is a group of its own.
        series, varies: runs of one series share model and chip and differ in what `varies` names.
        part: the set of `profiling/published/split.toml` that the run is in: `fit` or `check`.
        tokens_per_step: of all devices together.
        model_flops: per device and step, without recomputation.
        peak_flops_per_s: of one device, bfloat16.
        published_step_time_s: None where no time was published (runs that went out of memory, for instance).
        ledger_s: the parts of the predicted step time; they add up to it.
        memory_kind: what `published_memory_bytes` counts (`max_allocated`, `nvidia-smi process total`...); or empty.
        capacity_bytes: what a program can use of one device's memory.
        oom: the source says that the run went out of memory.
        doubt: what the source leaves open, or why its figure is to be distrusted.
        workload: what is trained, model and sequence length, in words that are equal where two runs may be compared.
            Where it is empty, FLOPs per token tell workloads apart.
    """

    id: str
    chip: str
    framework: str
    group: str
    kind: str
    grade: str
    source: str
    series: str | None
    varies: str | None
    devices: int
    part: str
    tokens_per_step: float | None
    model_flops: float | None
    peak_flops_per_s: float | None
    published_step_time_s: float | None
    predicted_step_time_s: float | None
    low_s: float | None
    high_s: float | None
    ledger_s: Mapping[str, float]
    published_memory_bytes: float | None
    memory_kind: str
    predicted_memory_bytes: float | None
    capacity_bytes: float | None
    fits: bool | None
    oom: bool
    not_predicted: str | None
    doubt: str | None
    workload: str = ""

    def __post_init__(self) -> None:
        if self.fits is not None:
            object.__setattr__(self, "fits", bool(self.fits))   # NumPy's True is not `True`
        if self.part not in PARTS:
            raise ValueError(f"run {self.id}: part {self.part!r}, expected one of {', '.join(PARTS)}")
        for name in ("published_step_time_s", "published_memory_bytes", "tokens_per_step", "model_flops"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"run {self.id}: {name} is {value}, expected more than nothing")
        if self.not_predicted is not None:
            self._check_that_nothing_is_predicted()
        else:
            self._check_prediction()

    def _check_that_nothing_is_predicted(self) -> None:
        if not self.not_predicted:
            raise ValueError(f"run {self.id}: no reason why it is not predicted")
        figures = (self.predicted_step_time_s, self.low_s, self.high_s, self.predicted_memory_bytes, self.fits)
        if self.ledger_s or any(figure is not None for figure in figures):
            raise ValueError(f"run {self.id}: predicted, and not predicted ({self.not_predicted})")

    def _check_prediction(self) -> None:
        value, low, high = self.predicted_step_time_s, self.low_s, self.high_s
        if value is None or low is None or high is None:
            raise ValueError(f"run {self.id}: neither a predicted step time with its bounds nor a reason why not")
        slack = RELATIVE_TOLERANCE * value
        if not (math.isfinite(high) and value > 0 and 0 <= low <= value + slack and value <= high + slack):
            raise ValueError(f"run {self.id}: expected 0 <= low <= predicted <= high, got {low}, {value}, {high}")
        total = math.fsum(self.ledger_s.values())
        if not math.isclose(total, value, rel_tol=RELATIVE_TOLERANCE):
            raise ValueError(f"run {self.id}: its ledger adds up to {total} s, its step time is {value} s")

    @property
    def predicted(self) -> bool:
        return self.not_predicted is None

    @property
    def error(self) -> float | None:
        """Predicted over published step time, less 1; None where one of them is missing."""
        if self.predicted_step_time_s is None or self.published_step_time_s is None:
            return None
        return self.predicted_step_time_s / self.published_step_time_s - 1

    @property
    def memory_error(self) -> float | None:
        """Predicted over published memory, less 1; None where one of them is missing or its kind is not stated."""
        if self.predicted_memory_bytes is None or self.published_memory_bytes is None or not self.memory_kind:
            return None
        return self.predicted_memory_bytes / self.published_memory_bytes - 1

    @property
    def ran(self) -> bool:
        """The source shows that the run trained."""
        return not self.oom and (self.published_step_time_s is not None or self.published_memory_bytes is not None)

    @property
    def flops_per_token(self) -> float | None:
        """Model FLOPs of one token, forward and backward."""
        if self.model_flops is None or self.tokens_per_step is None:
            return None
        return self.model_flops * self.devices / self.tokens_per_step

    @property
    def workload_key(self) -> str | None:
        """Equal for runs that train the same; None where nothing tells."""
        if self.workload:
            return self.workload
        flops = self.flops_per_token
        return None if flops is None else f"{flops:.6g} FLOP a token"

    def device_s_per_token(self, step_s: float | None) -> float | None:
        """Device seconds that a token costs when a step takes `step_s`: comparable over batches and machine sizes."""
        if step_s is None or self.tokens_per_step is None:
            return None
        return step_s * self.devices / self.tokens_per_step
