"""Rematerialization policies by name: which tagged values of a block the forward pass keeps.

The reference decoder tags its values with `jax.ad_checkpoint.checkpoint_name`; a policy is the set of tags that are
kept. A block's input is always kept (it is the carry of the scan over layers).
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxplan.workload.shape import Workload
from jaxplan.workload.user import AS_WRITTEN

TAGS = ("query", "key", "value", "attention", "attention_output", "mlp_gate", "mlp_up", "mlp_output")


@dataclass(frozen=True)
class Policy:
    """A rematerialization policy.

    Attributes:
        saved: the tags that are kept; None keeps everything that the backward pass reads (no rematerialization).
        why: one line for people.
    """

    name: str
    saved: frozenset[str] | None
    why: str


POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy("none", None, "keep everything the backward pass reads: fastest, largest"),
        Policy("dots", frozenset(TAGS), "keep every matmul's and the attention's result"),
        Policy(
            "mlp",
            frozenset({"query", "key", "value", "attention", "attention_output"}),
            "recompute the feed-forward's hidden values only",
        ),
        Policy("qkv", frozenset({"query", "key", "value", "attention"}), "keep attention's operands and result"),
        Policy("attention", frozenset({"attention"}), "keep attention's result only: its kernel never runs twice"),
        Policy("full", frozenset(), "keep each block's input only: smallest, one more forward pass"),
    )
}

# a user's program checkpoints as its author wrote it: its trace has the residuals and the recomputation already
WRITTEN = Policy(AS_WRITTEN, None, "keep and recompute what the program itself says")


def policies_of(workload: Workload) -> dict[str, Policy]:
    """The policies that a workload's program can be compiled with."""
    return POLICIES if workload.model is not None else {WRITTEN.name: WRITTEN}


def policy(name: str) -> Policy:
    """The policy of that name.

    Raises:
        ValueError: there is none.
    """
    known = POLICIES | {WRITTEN.name: WRITTEN}
    if name not in known:
        raise ValueError(f"remat must be one of {', '.join(known)}, got {name!r}")
    return known[name]
