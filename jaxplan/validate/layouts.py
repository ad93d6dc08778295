"""The layout of a published run."""

from __future__ import annotations

from dataclasses import replace

from jaxplan.estimate.shapes.facts import Layout
from jaxplan.machine.topology import Machine
from jaxplan.validate.groups import Sizes, groups_of
from jaxplan.validate.models import Unpredictable
from jaxplan.validate.published import PublishedRun

MOST_SEQUENCES = 4.0    # of a microbatch whose size nobody gives


def layout_of(run: PublishedRun, machine: Machine) -> Layout:
    """How the run is spread over its machine.

    Raises:
        Unpredictable: batch or sequence are missing, or there are more ranks than parts of the model.
    """
    missing = [name for name in ("seq_len", "global_batch") if not getattr(run, name)]
    if missing:
        raise Unpredictable(f"the source gives no {', '.join(missing)}")
    sizes = sizes_of(run)
    if sizes.stage > (run.model.layers or 0):
        raise Unpredictable(f"{sizes.stage} stages for {run.model.layers} layers")
    if run.model.experts and sizes.expert > run.model.experts:
        raise Unpredictable(f"{sizes.expert} ranks of experts for {run.model.experts} experts")
    micro_batch, microbatches = _microbatches(run, sizes)
    groups, nodes = groups_of(run, machine, sizes)
    return Layout(
        devices=run.n_devices,
        data=sizes.data,
        fsdp=sizes.fsdp,
        tensor=sizes.tensor,
        context=sizes.context,
        stage=sizes.stage,
        repeats=max(1, run.vpp or 1),
        expert=sizes.expert,
        expert_own=float(sizes.own),
        micro_batch=micro_batch,
        microbatches=microbatches,
        seq=run.seq_len,
        nodes=nodes,
        **groups,
    )


def sizes_of(run: PublishedRun) -> Sizes:
    """The axes of the run; what the source leaves out is made up by data, or by fsdp where it gives neither."""
    axes = (run.dp, run.fsdp, run.tp, run.cp, run.pp, run.ep)
    data, fsdp, tensor, context, stage, expert = (int(value or 1) for value in axes)
    sizes = Sizes(data, fsdp, tensor, context, stage, expert, own=run.ep_axis == "own")
    left = max(1, run.n_devices // sizes.devices)
    if run.dp is None and run.fsdp is None:
        return replace(sizes, fsdp=left)
    return replace(sizes, data=left) if run.dp is None else sizes


def _microbatches(run: PublishedRun, sizes: Sizes) -> tuple[float, float]:
    """(sequences of one microbatch of one shard, microbatches)."""
    share = (run.global_batch or 0) / (sizes.data * sizes.fsdp * sizes.expert_axis)
    count, micro = run.num_microbatches or run.grad_accum, run.micro_batch
    if micro is None:
        micro = share / count if count else 1.0 if sizes.stage > 1 else min(share, MOST_SEQUENCES)
    return micro, max(1.0, share / micro)
