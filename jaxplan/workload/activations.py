"""The hidden values of a feed-forward, gated or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax

from jaxplan.workload.shape import GATED, Activation

ACTIVATIONS: Mapping[Activation, Callable[[jax.Array], jax.Array]] = {
    "swiglu": jax.nn.silu,  # Shazeer 2020, arXiv:2002.05202, equation 6
    "geglu": jax.nn.gelu,
    "gelu": jax.nn.gelu,
    "relu": jax.nn.relu,
}


def hidden(activation: Activation, made: Callable[[str], jax.Array]) -> jax.Array:
    """The hidden values from what is made by the weights `up` and, where the activation is gated, `gate`."""
    function, up = ACTIVATIONS[activation], made("up")
    return function(made("gate")) * up if activation in GATED else function(up)
