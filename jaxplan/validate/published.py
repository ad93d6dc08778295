"""Published runs: what a source says of a training run and of how fast it was. No JAX here.

A key that the source does not give is None here; nothing is filled in.
"""

from __future__ import annotations

import tomllib
from datetime import date
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from jaxplan.errors import InputError
from jaxplan.machine import files

BUNDLED = "profiling/published"


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("expected a number, not true or false")
    return value


def _text(value: Any) -> Any:
    """TOML has dates of its own."""
    return value.isoformat() if isinstance(value, date) else value


Count = Annotated[int, BeforeValidator(_number), Field(gt=0, le=10**12)]
Extra = Annotated[int, BeforeValidator(_number), Field(ge=0, le=10**12)]
Size = Annotated[int, BeforeValidator(_number), Field(gt=0, le=10**8)]
ExtraSize = Annotated[int, BeforeValidator(_number), Field(ge=0, le=10**8)]
Amount = Annotated[float, BeforeValidator(_number), Field(gt=0, ge=1e-12, le=1e15, allow_inf_nan=False)]
Day = Annotated[str, BeforeValidator(_text)]


class PublishedModel(BaseModel):
    """The model of a run, as configurations name it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str = ""
    layers: Size | None = None
    d_model: Size | None = None
    d_ff: Size | None = None
    heads: Size | None = None
    kv_heads: Size | None = None
    head_dim: Size | None = None
    vocab: Size | None = None
    mlp_matrices: Size | None = None
    tied_embeddings: bool | None = None
    experts: ExtraSize | None = None
    top_k: ExtraSize | None = None
    moe_d_ff: ExtraSize | None = None
    shared_experts: ExtraSize | None = None
    first_dense_layers: ExtraSize | None = None
    moe_layer_step: Size | None = None
    q_lora_rank: ExtraSize | None = None
    kv_lora_rank: ExtraSize | None = None
    qk_nope_head_dim: ExtraSize | None = None
    qk_rope_head_dim: ExtraSize | None = None
    v_head_dim: Size | None = None
    mtp_layers: ExtraSize | None = None
    sliding_window: ExtraSize | None = None
    sliding_window_pattern: str | int | None = None
    n_params: Amount | None = None
    note: str | None = None


class PublishedRun(BaseModel):
    """One row of a file of runs; the conventions stand at the top of `profiling/published/runs.toml`."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    chip: str
    n_devices: Annotated[int, BeforeValidator(_number)]
    framework: str
    model: PublishedModel
    grade: str = "C"
    kind: str = "dense"
    source: str = ""
    date: Day | None = None
    series: str | None = None
    varies: str | None = None
    doubt: str | None = None
    topology: str | None = None
    interconnect: str | None = None
    n_slices: Count | None = None
    nodes: Count | None = None
    devices_per_node: Count | None = None
    seq_len: Count | None = None
    global_batch: Amount | None = None
    micro_batch: Amount | None = None
    per_device_batch: Amount | None = None
    num_microbatches: Amount | None = None
    grad_accum: Amount | None = None
    dp: Count | None = None
    fsdp: Count | None = None
    tp: Count | None = None
    cp: Count | None = None
    pp: Count | None = None
    vpp: Extra | None = None
    ep: Extra | None = None
    ep_axis: str | None = None
    dcn_dp: Count | None = None
    dcn_fsdp: Count | None = None
    dcn_ep: Count | None = None
    zero_stage: Extra | None = None
    sequence_parallel: bool | None = None
    remat: str | None = None
    precision: str | None = None
    weight_dtype: str | None = None
    opt_state_dtype: str | None = None
    grad_dtype: str | None = None
    optimizer: str | None = None
    attention_kernel: str | None = None
    moe_dispatch: str | None = None
    capacity_factor: Amount | None = None
    compile: bool | None = None
    cp_kind: str | None = None
    pp_schedule: str | None = None
    overlap_note: str | None = None
    layout_note: str | None = None
    config_notes: str | None = None
    task: str | None = None
    step_time_s: Amount | None = None
    derived_step_time_s: Amount | None = None
    tokens_per_s_per_device: Amount | None = None
    derived_tokens_per_s_per_device: Amount | None = None
    tflops_per_device: Amount | None = None
    mfu: Amount | None = None
    mfu_peak_tflops: Amount | None = None
    flop_convention: str | None = None
    memory_gib: Amount | None = None
    memory_gb_reported: Amount | None = None
    memory_kind: str | None = None
    memory_scope: str | None = None
    oom: bool = False
    #: Why the row cannot be read, where it cannot: it is kept and reported as not predicted.
    unreadable: str | None = None


def bundled() -> Path:
    """The runs that come with jaxplan."""
    return files.folder(BUNDLED) / "runs.toml"


def read(path: str | Path | None = None) -> tuple[PublishedRun, ...]:
    """The runs of a TOML file with one `[[run]]` each; of the bundled file without a path.

    Raises:
        InputError: no such file, no TOML, or no runs in it. A row that cannot be read is kept, with `unreadable`.
    """
    return _read(Path(path) if path is not None else bundled())


@cache
def _read(path: Path) -> tuple[PublishedRun, ...]:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", "a TOML file of runs") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path} is no TOML: {error}", "[[run]] tables as in profiling/published/runs.toml") from error
    rows = data.get("run")
    if not isinstance(rows, list) or not rows:
        raise InputError(f"{path} has no [[run]]", "[[run]] tables as in profiling/published/runs.toml")
    return tuple(_row(row, i) for i, row in enumerate(rows))


def _row(row: Any, index: int) -> PublishedRun:
    if not isinstance(row, dict):
        row = {}
    try:
        return PublishedRun(**row)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        reason = f"{where}: {first['msg'].lower()}"
        count = row.get("n_devices")
        return PublishedRun(
            id=str(row.get("id") or f"run {index + 1}"),
            chip=str(row.get("chip") or "unknown"),
            framework=str(row.get("framework") or "unknown"),
            n_devices=count if isinstance(count, int) and not isinstance(count, bool) else 0,
            model=PublishedModel(),
            unreadable=reason,
        )
