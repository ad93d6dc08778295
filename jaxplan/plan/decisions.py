"""A plan's decisions as people are shown them, and a plan from its decisions. No JAX here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxplan.machine.topology import Machine
from jaxplan.plan.plan import MeshAxis, Plan
from jaxplan.workload.shape import ExpertShape, LatentAttentionShape, ModelShape, Workload


def model_from(data: Mapping[str, Any]) -> ModelShape:
    """The model whose `dataclasses.asdict` is `data`."""
    experts, latent = data["experts"], data["latent_attention"]
    return ModelShape(**{
        **data,
        "experts": ExpertShape(**experts) if experts else None,
        "latent_attention": LatentAttentionShape(**latent) if latent else None,
    })


def workload_from(data: Mapping[str, Any]) -> Workload:
    """The workload whose `to_json()` is `data`."""
    return Workload(**{**data, "model": model_from(data["model"]) if data["model"] else None})


def plan_from(decisions: Mapping[str, Any]) -> Plan:
    """The plan whose `decisions()` are these; its fingerprint is the same.

    Raises:
        KeyError, TypeError, ValueError: the decisions are not those of a plan.
    """
    mesh = decisions["mesh"]
    kept = {key: value for key, value in decisions.items() if key not in ("machine", "workload", "mesh")}
    return Plan(
        machine=Machine.from_json(decisions["machine"]),
        workload=workload_from(decisions["workload"]),
        axes=tuple(MeshAxis(axis["axis"], axis["size"], axis["role"]) for axis in mesh),
        **kept,
    )


def shown(plan: Plan) -> dict[str, Any]:
    """What a plan decides beside its machine and workload, with nothing where a decision makes no difference."""
    return {
        "mesh": plan.sizes,
        "remat": plan.remat,
        "microbatches": plan.microbatches,
        "zero1": plan.zero1,
        "zero2": plan.zero2,
        "sequence_sharding": plan.sequence_sharding,
        "context_attention": plan.context_attention if plan.size("context") > 1 else None,
        "schedule": plan.schedule if plan.stages > 1 else None,
        "repeats": plan.repeats,
        "offload_optimizer": plan.offload_optimizer,
    }
