"""What of a layer's values a published run's policy keeps, read from the words of its source."""

from __future__ import annotations

import re

from jaxplan.estimate.shapes.facts import Model
from jaxplan.estimate.shapes.keeping import Kept
from jaxplan.validate.published import PublishedRun

EVERYTHING = Kept(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0)
INPUTS = Kept(1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
NOTHING = Kept(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)    # all on the host
HALF_OF_LAYERS = Kept(1.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.0)
MATMULS = Kept(1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0)
#: MaxText's `remat_policy` (configs/types.py, "checkpointing"): names of values that each saves, projections by group.
NAMED = {
    "minimal_flash": Kept(1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0),
    "minimal_with_context": Kept(1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0),
    "minimal": MATMULS,
    "dots": MATMULS,
    "save_dot_with_context_except_mlp": Kept(1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0),
    "save_dot_except_mlpwi": Kept(1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0),
    "save_dot_except_mlp": Kept(1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    "save_qkv_proj": Kept(1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    "save_out_proj": Kept(1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    "offload dots": INPUTS,
}
#: From the lightest on time to the lightest on memory.
LADDER_BY_NAME = (NAMED["minimal_with_context"], NAMED["save_dot_except_mlp"], NAMED["save_out_proj"], INPUTS, NOTHING)
LADDER_BY_MODULE = (EVERYTHING, HALF_OF_LAYERS, INPUTS, NOTHING)


def kept_of(run: PublishedRun, model: Model, compiled: bool) -> Kept | None:
    """What the run's policy keeps; None where its source does not say.

    Args:
        compiled: the policy chooses among the named values of one program (JAX).
    """
    words = (run.remat or "").lower()
    if "every 2nd" in words:
        return HALF_OF_LAYERS
    if words.startswith("full"):
        return INPUTS
    if words.startswith("none"):
        return EVERYTHING
    if "selective op" in words:
        return _every_second_matmul(model)
    offload = re.search(r"activation cpu offload of (\d+) layers", words)
    if offload:
        share = max(0.0, 1 - int(offload[1]) / float(model.layers))
        return Kept(share, share, share, share, share, share, share, share, 0.0)
    if not compiled:
        return _modules(words) if ":" in words or "(" in words else None
    if words.startswith("custom:"):
        return _custom(words)
    return next((kept for name, kept in NAMED.items() if words.startswith(name)), None)


def _every_second_matmul(model: Model) -> Kept:
    """torchtitan's selective checkpointing by operator (docs, "activation checkpointing"): it keeps attention's output
    and of the matmuls q k v o w1 w3 w2 every second: k, o and w3 are computed again.
    """
    queries, keys = float(model.query_width), float(model.kv_width) / 2
    return Kept(1.0, 0.0, 0.0, (queries + keys) / (queries + 2 * keys), 0.0, 1.0, 0.5, 0.0, 1.0)


def _modules(words: str) -> Kept:
    """Megatron-Core's `recompute_modules`: the output of a module stays, what is inside does not."""
    mlp = "mlp" in words or "moe" in words.replace("moe_act", "")
    return Kept(
        inputs=1.0,
        norms=0.0 if "layernorm" in words else 1.0,
        after_attention=1.0,
        qkv=0.0 if "mla_up" in words else 1.0,
        scores=0.0 if "core" in words else 1.0,
        core=1.0,
        wide=0.0 if mlp else 1.0,
        product=0.0 if mlp or "_act" in words else 1.0,
        narrow=0.0,
    )


def _custom(words: str) -> Kept:
    """MaxText's `custom` policy: each value named is saved on the device or offloaded; only the former counts."""
    stays = "offload" not in words

    def saved(*names: str) -> float:
        return float(stays and any(name in words for name in names))

    return Kept(
        inputs=float(stays or "decoder_layer_input" not in words),
        norms=0.0,
        after_attention=saved("out_proj"),
        qkv=saved("q/k/v", "qkv"),
        scores=0.0,
        core=saved("context"),
        wide=saved("mlpwi"),
        product=0.0,
        narrow=saved("mlpwo"),
    )
