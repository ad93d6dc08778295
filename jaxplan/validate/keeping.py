"""What a published run keeps in memory: its words, its framework's profile, and what is fitted for all."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from dataclasses import dataclass
from functools import cache

from jaxplan.estimate.shapes.keeping import LAST, WORST, Keeping, Kept
from jaxplan.estimate.shapes.memory import memory
from jaxplan.machine import files
from jaxplan.validate.capacity import capacity_bytes
from jaxplan.validate.facts import Case
from jaxplan.validate.framework import FOLDER
from jaxplan.validate.kept import LADDER_BY_MODULE, LADDER_BY_NAME, kept_of
from jaxplan.validate.published import PublishedRun

#: A kind of figure of our own: what must be free for the run not to go out of memory. Nobody publishes it.
NEEDED = "needed"
#: Of one element of the buffer in which gradients are summed, as a row may say it.
GRADIENT_BYTES = {"fp32": 4.0, "float32": 4.0, "bf16": 2.0, "bfloat16": 2.0}
FITTED_IN = "profiling/memory"


@dataclass(frozen=True)
class Fitted:
    """Numbers that hold for all frameworks; `profiling/memory/fitted.toml` says which are fitted."""

    slack: float
    tight_slack: float
    workspace_bytes: float
    context_bytes: float
    context_old_bytes: float
    alive_eager: float
    alive_gpu: float
    alive_tpu: float
    margin: float


@cache
def fitted_values() -> Fitted:
    data = tomllib.loads((files.folder(FITTED_IN) / "fitted.toml").read_text())
    return Fitted(**{field.name: data[field.name]["value"] for field in dataclasses.fields(Fitted)})


@cache
def habits(profile: str, framework: str = "") -> dict:
    """The memory table of a framework's profile, with what it says of one framework of the family by name."""
    table = tomllib.loads((files.folder(FOLDER) / f"{profile}.toml").read_text())["memory"]
    own = {name: change for name, change in table.pop("of", {}).items() if name in framework.lower()}
    for change in own.values():
        table |= change
    return table


def _table(case: Case) -> dict:
    return habits(case.profile.id, case.run.framework)


def keeping_of(case: Case, fitted: Fitted | None = None, kind: str | None = None) -> Keeping:
    """Memory habits of a run, for the kind of figure that its source gives, or for another.

    Where the source does not name the policy of recomputation, it is the one that recomputes least of those that fit.
    """
    table, fitted = _table(case), fitted or fitted_values()
    wanted = case.run.memory_kind or NEEDED if kind is None else kind
    said = kept_of(case.run, case.facts.model, table["xla"])
    if said is not None:
        return _keeping(case, said, fitted, wanted)
    ladder = LADDER_BY_NAME if table["xla"] else LADDER_BY_MODULE
    return _keeping(case, next((kept for kept in ladder if _fits(case, kept, fitted)), ladder[-1]), fitted, wanted)


def _fits(case: Case, kept: Kept, fitted: Fitted) -> bool:
    need = memory(case.facts, _keeping(case, kept, fitted, NEEDED)).value
    return bool(need <= capacity_bytes(case))


def _keeping(case: Case, kept: Kept, fitted: Fitted, kind: str) -> Keeping:
    run, table, facts = case.run, _table(case), case.facts
    xla, choices, model, layout = table["xla"], facts.choices, facts.model, facts.layout
    circular = 0.0
    if xla and layout.stage > 1:
        chunks = layout.stage * layout.repeats
        circular = (model.moe_layers or model.dense_layers) // chunks * chunks
    slack, outside = outside_of(kind, table, fitted)
    words = f"{run.layout_note or ''} {run.config_notes or ''}"
    parameter = 2.0 if run.weight_dtype == "bf16" else table["parameter_bytes"]
    return Keeping(
        kept=kept,
        xla=float(xla),
        sharded=float(xla or choices.zero_stage >= 3 or layout.fsdp > 1),
        split_state=float(not xla and 1 <= choices.zero_stage < 3 and layout.fsdp == 1),
        parameter_bytes=parameter,
        gradient_bytes=_gradient_bytes(case, parameter),
        state_bytes=table["state_bytes"] or 2 * (choices.moment_bytes if run.opt_state_dtype else parameter),
        gradient_copies=table["gradient_copies"],
        layers_gathered=table["layers_gathered"],
        stays_gathered=float("not reshard" in words.lower() or "=never" in words.lower()),
        most_gathered=table["most_gathered"],
        held_gathered=float(table["holds_gathered"] and layout.stage > 1),
        reduce_bytes=table["reduce_bytes"],
        spread=_spread(case),
        mask_bytes=table["mask_bytes"],
        score_bytes=table["score_bytes"],
        linear_bytes=1.0 if choices.narrow and table["narrow_inputs"] else 2.0,
        logit_bytes=_logit_bytes(run, table, layout.tensor),
        vocab_tiles=_tiles(run),
        alive=getattr(fitted, table["alive"]),
        routed=_routed(case, xla),
        sorted_again=float(xla and "ragged all-to-all" in (run.moe_dispatch or "").lower()),
        expert_tensor=layout.tensor if table["experts_over_tensor"] else 1.0,
        circular_layers=circular,
        stage_slots=float("own pipeline slot" in words or "embedding slots" in words),
        scope=LAST if (run.memory_scope or "").startswith("last") and kind != NEEDED else WORST,
        slack=slack,
        outside_bytes=outside,
    )


def _gradient_bytes(case: Case, parameter: float) -> float:
    """Of one parameter, the buffer in which gradients are summed."""
    run, table = case.run, _table(case)
    if run.grad_dtype in GRADIENT_BYTES:
        return GRADIENT_BYTES[run.grad_dtype]
    if "fp32 gradient" in (run.precision or "").lower() and table["fp32_gradient_bytes"]:
        return table["fp32_gradient_bytes"]
    return table["gradient_bytes"] or parameter


def _spread(case: Case) -> float:
    run = case.run
    said = run.sequence_parallel
    split = case.facts.choices.sequence_parallel if said is None else float(said or case.facts.chip.tpu)
    return float(case.facts.layout.tensor) if split else 1.0


def _logit_bytes(run: PublishedRun, table: dict, tensor: float) -> float:
    if tensor > 1:
        return table["tensor_logit_bytes"]
    return table["compiled_logit_bytes"] if run.compile else table["logit_bytes"]


def _routed(case: Case, xla: bool) -> float:
    """Copies of a token in experts' buffers over top_k.

    MaxText's dropless exchange has static shapes: a device has room for all that those of its group could send
    it, ep * tokens * min(experts of one device, top_k) rows (layers/moe.py, `get_ragged_buffer_size`).
    """
    dispatch, model, expert = (case.run.moe_dispatch or "").lower(), case.facts.model, float(case.facts.layout.expert)
    if xla and model.top_k and ("ragged all-to-all" in dispatch or "deepep" in dispatch):
        return expert * min(model.experts / expert, model.top_k) / model.top_k
    return float(case.facts.choices.capacity)


def _tiles(run: PublishedRun) -> float:
    found = re.search(r"vocab tiling (\d+)", run.remat or "")
    return float(found[1]) if found else 1.0


def outside_of(kind: str, table: dict, fitted: Fitted) -> tuple[float, float]:
    """(slack, bytes) over what the program asks for, by the kind of figure."""
    if table["xla"]:
        return 0.0, 0.0
    counted = fitted.workspace_bytes + table["allocator_bytes"]
    if "alloc" in kind:
        return 0.0, counted
    if "reserved" in kind:
        return fitted.slack, counted
    slack = fitted.slack if "smi" in kind else fitted.tight_slack
    return slack, counted + getattr(fitted, table["context"])
