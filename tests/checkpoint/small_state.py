"""A small state with every kind of leaf, on any mesh of eight virtual devices."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def mesh(*sizes: int) -> Mesh:
    count = int(np.prod(sizes))
    return Mesh(np.array(jax.devices()[:count]).reshape(sizes), ("a", "b"))


def put(tree, on: Mesh, spec=("a", "b")):
    """Every array over that mesh: matrices by `spec`, the rest whole on every device."""
    return jax.tree.map(
        lambda x: jax.device_put(x, NamedSharding(on, PartitionSpec(*spec if x.ndim == 2 else ()))), tree
    )


def abstract(tree):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree)


def state_of(seed: int = 0):
    keys = jax.random.split(jax.random.key(seed), 3)
    return {
        "params": {
            "w": jax.random.normal(keys[0], (16, 32)),
            "half": jax.random.normal(keys[1], (8, 16), jnp.bfloat16),
        },
        "optimizer": [jnp.int32(seed), jax.random.normal(keys[2], (16, 32))],
        "key": jax.random.key(seed),
    }


def bits(tree):
    """Every leaf's bytes, read on the host: independent of the digests."""
    raw = jax.tree.map(
        lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x, tree
    )
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(raw)]
