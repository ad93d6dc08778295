"""A plan from its decisions: the way back from `Plan.decisions()`. No JAX here."""

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
