"""Rematerialization policies by name: which tagged values of a block are kept for the backward pass, and where.

The reference decoder tags its values with `jax.ad_checkpoint.checkpoint_name`; a policy is a set of tags. What it keeps
stays on the device or is moved to the host's memory; what it does not keep is computed again. The input of a block (the
carry of the loop over layers) is always kept, or, in a policy of groups, that of every n-th block.

Megatron-LM's selective recomputation (Korthikanti et al. 2022, arXiv:2205.05198, section 5) is no policy here: it drops
the scores, the softmax and its dropout, and no kernel of ours ever keeps those: it amounts to `none`.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxplan.workload.shape import Workload
from jaxplan.workload.user import AS_WRITTEN

TAGS = (
    *("query", "key", "value", "attention", "attention_output"),
    *("dispatched", "mlp_gate", "mlp_up", "mlp_output"),    # dispatched: tokens at their experts
)
ROUTE = "route"     # what a router chose: kept under every policy, so that nothing is chosen anew and otherwise
BLOCK_INPUT = "block_input"     # the tag of a block's input, where a policy moves it
NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Policy:
    """A rematerialization policy.

    Attributes:
        saved: the tags that are kept on the device; None keeps everything that the backward pass reads.
        why: one line for people.
        offloaded: the tags that are kept in the host's memory; `BLOCK_INPUT` moves the blocks' inputs there.
        group: layers between two inputs that are kept. The backward pass runs a group forward once more before it goes
            back through it (Chen et al. 2016, arXiv:1604.06174, section 4.1).
        inside: the tags that are kept of a group's blocks from then on, beside their inputs.
    """

    name: str
    saved: frozenset[str] | None
    why: str
    offloaded: frozenset[str] = NOTHING
    group: int = 1
    inside: frozenset[str] = NOTHING

    def __post_init__(self) -> None:
        if self.group < 1:
            raise ValueError(f"{self.name}: group must be at least 1, got {self.group}")
        if self.group > 1 and (self.saved != NOTHING or self.offloaded):
            raise ValueError(f"{self.name}: a policy of groups keeps inputs on the device only, got {self}")
        if self.group == 1 and self.inside:
            raise ValueError(f"{self.name}: inside goes with a group of more than one layer, got {self}")
        if self.offloaded and (self.saved is None or self.saved & self.offloaded):
            raise ValueError(f"{self.name}: a tag is kept on the device or on the host, got {self}")


_ATTENTION = frozenset({"attention"})
_ALL = frozenset(TAGS)

POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy("none", None, "keep everything the backward pass reads: fastest, largest"),
        Policy("dots", _ALL, "keep every matmul's and the attention's result"),
        Policy(
            "mlp",
            frozenset({"query", "key", "value", "attention", "attention_output"}),
            "recompute the feed-forward's hidden values only",
        ),
        Policy("qkv", frozenset({"query", "key", "value", "attention"}), "keep attention's operands and result"),
        Policy("attention", _ATTENTION, "keep attention's result only: its kernel never runs twice"),
        Policy("full", NOTHING, "keep each block's input only: one more forward pass"),
        Policy("every-2", NOTHING, "keep every second block's input: one more forward pass", group=2, inside=_ALL),
        Policy("every-4", NOTHING, "keep every fourth block's input: one more forward pass", group=4, inside=_ALL),
        Policy("nested-4", NOTHING, "keep every fourth block's input, two more forward passes: smallest", group=4),
        Policy("offload-dots", NOTHING, "keep what `dots` keeps in the host's memory", _ALL),
        Policy("offload-attention", NOTHING, "keep attention's result in the host's memory", _ATTENTION),
        Policy("offload-input", NOTHING, "keep each block's input in the host's memory", frozenset({BLOCK_INPUT})),
    )
}

# a user's program checkpoints as its author wrote it: its trace has the residuals and the recomputation already
WRITTEN = Policy(AS_WRITTEN, None, "keep and recompute what the program itself says")


def policies_of(workload: Workload, *, groups: bool = False, host: bool = False) -> dict[str, Policy]:
    """The policies that a workload's program can be compiled with.

    Args:
        groups: also those that keep one input in several layers, where the layers are a multiple of that many.
        host: also those that keep values in the host's memory.
    """
    model = workload.model
    if model is None:
        return {WRITTEN.name: WRITTEN}
    dense = model.experts.first_dense_layers if model.experts is not None else 0
    stacks = (dense, model.layers - dense)      # loops over layers, each of its own kind

    def legal(policy: Policy) -> bool:
        if policy.offloaded and not host:
            return False
        return policy.group == 1 or (groups and all(layers % policy.group == 0 for layers in stacks))

    return {name: policy for name, policy in POLICIES.items() if legal(policy)}


def policy(name: str) -> Policy:
    """The policy of that name.

    Raises:
        ValueError: there is none.
    """
    known = POLICIES | {WRITTEN.name: WRITTEN}
    if name not in known:
        raise ValueError(f"remat must be one of {', '.join(known)}, got {name!r}")
    return known[name]
