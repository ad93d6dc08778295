"""Small programs as their authors would write them: no annotation, no sharding, no knowledge of jaxplan.

Each function returns (loss, params, batch): the loss of (params, batch), and both inputs as ShapeDtypeStructs.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

Array = jax.ShapeDtypeStruct
Program = tuple[Any, Any, Any]


def _floats(shapes: Any) -> Any:
    return jax.tree.map(lambda s: Array(s, jnp.float32), shapes, is_leaf=lambda x: isinstance(x, tuple))


def _next_token_loss(logits: jax.Array, tokens: jax.Array) -> jax.Array:
    losses = optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), jnp.roll(tokens, -1, 1))
    return losses.mean()


LLAMA = {"layers": 2, "embed": 64, "mlp": 128, "heads": 8, "kv_heads": 4, "vocab": 256, "batch": 8, "seq": 32}


def llama(scan: bool = True, remat: bool = True) -> Program:
    """Grouped-query decoder on flat (embed, heads * head_dim) matrices, layers scanned or unrolled."""
    m = LLAMA
    width = m["embed"] // m["heads"]
    layers, embed, keys = m["layers"], m["embed"], m["kv_heads"] * width
    block = {
        "norm1": (layers, embed),
        "norm2": (layers, embed),
        "q": (layers, embed, embed),
        "k": (layers, embed, keys),
        "v": (layers, embed, keys),
        "o": (layers, embed, embed),
        "gate": (layers, embed, m["mlp"]),
        "up": (layers, embed, m["mlp"]),
        "down": (layers, m["mlp"], embed),
    }
    params = _floats({"table": (m["vocab"], embed), "head": (embed, m["vocab"]), "norm": (embed,), "block": block})

    def norm(x: jax.Array, scale: jax.Array) -> jax.Array:
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * scale

    def rotate(x: jax.Array) -> jax.Array:
        angles = jnp.arange(x.shape[1])[:, None] / 1e4 ** (jnp.arange(0, width, 2) / width)
        cosine, sine = jnp.cos(angles)[None, :, None], jnp.sin(angles)[None, :, None]
        a, b = jnp.split(x, 2, -1)
        return jnp.concatenate([a * cosine - b * sine, b * cosine + a * sine], -1)

    def layer(x: jax.Array, w: dict[str, jax.Array]) -> jax.Array:
        batch, seq, _ = x.shape
        h = norm(x, w["norm1"])
        q = rotate((h @ w["q"]).reshape(batch, seq, m["heads"], width))
        k = rotate((h @ w["k"]).reshape(batch, seq, m["kv_heads"], width))
        v = (h @ w["v"]).reshape(batch, seq, m["kv_heads"], width)
        x = x + jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(batch, seq, embed) @ w["o"]
        h = norm(x, w["norm2"])
        return x + (jax.nn.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"]

    run = jax.checkpoint(layer, prevent_cse=not scan) if remat else layer

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        x = params["table"][tokens]
        if scan:
            x = jax.lax.scan(lambda x, w: (run(x, w), None), x, params["block"])[0]
        else:
            for i in range(layers):
                x = run(x, jax.tree.map(lambda w, i=i: w[i], params["block"]))
        return _next_token_loss(norm(x, params["norm"]) @ params["head"], tokens)

    return loss, params, Array((m["batch"], m["seq"]), jnp.int32)


def linen(layers: int = 2, embed: int = 64, mlp: int = 192, heads: int = 4, vocab: int = 256) -> Program:
    """Flax linen: `nn.scan` over remat blocks, multi-head attention with a mask, learned positions, tied table."""
    import flax.linen as nn

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array, _: None) -> tuple[jax.Array, None]:
            mask = nn.make_causal_mask(jnp.ones(x.shape[:2]))
            h = nn.LayerNorm()(x)
            x = x + nn.MultiHeadDotProductAttention(num_heads=heads)(h, h, mask=mask)
            return x + nn.Dense(embed)(nn.gelu(nn.Dense(mlp)(nn.LayerNorm()(x)))), None

    class Model(nn.Module):
        @nn.compact
        def __call__(self, tokens: jax.Array) -> jax.Array:
            table = nn.Embed(vocab, embed)
            x = table(tokens) + self.param("positions", nn.initializers.normal(), (tokens.shape[1], embed))
            stack = nn.scan(nn.remat(Block), variable_axes={"params": 0}, split_rngs={"params": True}, length=layers)
            return table.attend(nn.LayerNorm()(stack()(x, None)[0]))

    model, tokens = Model(), Array((8, 32), jnp.int32)
    params = jax.eval_shape(model.init, jax.random.key(0), tokens)

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        return _next_token_loss(model.apply(params, tokens), tokens)

    return loss, params, tokens


def vit(layers: int = 2, embed: int = 48, mlp: int = 96, heads: int = 4, classes: int = 16) -> Program:
    """Flax nnx: an image transformer, patches by a strided convolution, layers unrolled."""
    from flax import nnx

    image, patch = 16, 4

    class Block(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.norm1, self.norm2 = nnx.LayerNorm(embed, rngs=rngs), nnx.LayerNorm(embed, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(num_heads=heads, in_features=embed, decode=False, rngs=rngs)
            self.up, self.down = nnx.Linear(embed, mlp, rngs=rngs), nnx.Linear(mlp, embed, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            x = x + self.attention(self.norm1(x))
            return x + self.down(nnx.gelu(self.up(self.norm2(x))))

    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.patch = nnx.Conv(3, embed, (patch, patch), strides=(patch, patch), padding="VALID", rngs=rngs)
            self.positions = nnx.Param(jnp.zeros((1, (image // patch) ** 2, embed)))
            self.blocks = nnx.List([Block(rngs) for _ in range(layers)])
            self.head = nnx.Linear(embed, classes, rngs=rngs)

        def __call__(self, images: jax.Array) -> jax.Array:
            x = self.patch(images)
            x = x.reshape(x.shape[0], -1, x.shape[-1]) + self.positions[...]
            for block in self.blocks:
                x = block(x)
            return self.head(x.mean(1))

    graph, params, rest = nnx.split(nnx.eval_shape(lambda: Model(nnx.Rngs(0))), nnx.Param, ...)

    def fill(leaf: Any) -> Any:
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return jax.random.key(0) if is_key else jnp.zeros(leaf.shape, leaf.dtype)

    rest = jax.tree.map(fill, rest)

    def loss(params: Any, batch: Any) -> jax.Array:
        logits = nnx.merge(graph, params, rest)(batch["image"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()

    return loss, params, {"image": Array((8, image, image, 3), jnp.float32), "label": Array((8,), jnp.int32)}


def conv(channels: tuple[int, ...] = (16, 32), classes: int = 16) -> Program:
    """A residual convolutional network with batch statistics."""
    blocks, before = [], channels[0]
    for after in channels:
        blocks.append(
            {"a": (3, 3, before, after), "b": (3, 3, after, after), "s": (1, 1, before, after), "scale": (after,)}
        )
        before = after
    params = _floats({"stem": (3, 3, 3, channels[0]), "head": (channels[-1], classes), "blocks": blocks})

    def convolve(x: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
        return jax.lax.conv_general_dilated(
            x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def loss(params: Any, batch: Any) -> jax.Array:
        x = jax.nn.relu(convolve(batch["image"], params["stem"]))
        for w in params["blocks"]:
            h = convolve(jax.nn.relu(convolve(x, w["a"], 2)), w["b"])
            h = (h - h.mean((0, 1, 2))) * jax.lax.rsqrt(h.var((0, 1, 2)) + 1e-5) * w["scale"]
            x = jax.nn.relu(h + convolve(x, w["s"], 2))
        logits = x.mean((1, 2)) @ params["head"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()

    return loss, params, {"image": Array((8, 16, 16, 3), jnp.float32), "label": Array((8,), jnp.int32)}


def moe(layers: int = 2, embed: int = 64, mlp: int = 128, experts: int = 4, top_k: int = 2) -> Program:
    """Mixture of experts by one-hot dispatch einsums with a capacity (GShard, arXiv:2006.16668, algorithm 1)."""
    batch, seq, vocab = 8, 32, 256
    capacity = 2 * seq * top_k // experts
    params = _floats(
        {
            "table": (vocab, embed),
            "head": (embed, vocab),
            "block": {
                "router": (layers, embed, experts),
                "up": (layers, experts, embed, mlp),
                "down": (layers, experts, mlp, embed),
            },
        }
    )

    def layer(x: jax.Array, w: dict[str, jax.Array]) -> tuple[jax.Array, None]:
        gates, chosen = jax.lax.top_k(jax.nn.softmax(x @ w["router"], -1), top_k)
        chosen = jax.nn.one_hot(chosen, experts)
        place = (jnp.cumsum(chosen.reshape(batch, -1, experts), 1).reshape(chosen.shape) - 1) * chosen
        slots = chosen[..., None] * jax.nn.one_hot(place.astype(jnp.int32), capacity)
        combine = jnp.einsum("bske,bskec->bsec", gates[..., None] * chosen, slots)
        h = jnp.einsum("bsec,bsd->becd", slots.sum(2), x)
        h = jax.nn.gelu(jnp.einsum("becd,edf->becf", h, w["up"]))
        h = jnp.einsum("becf,efd->becd", h, w["down"])
        return x + jnp.einsum("becd,bsec->bsd", h, combine), None

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        x = jax.lax.scan(jax.checkpoint(layer), params["table"][tokens], params["block"])[0]
        return _next_token_loss(x @ params["head"], tokens)

    return loss, params, Array((batch, seq), jnp.int32)


PROGRAMS = {
    "llama": llama,
    "llama_unrolled": lambda: llama(scan=False),
    "linen": linen,
    "vit": vit,
    "conv": conv,
    "moe": moe,
}


def concrete(tree: Any, limit: int = 16) -> Any:
    """Random arrays of these shapes: small normal floats, integers below `limit`."""
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(jax.random.key(0), len(leaves))

    def make(key: jax.Array, leaf: Any) -> jax.Array:
        if jnp.issubdtype(leaf.dtype, jnp.integer):
            return jax.random.randint(key, leaf.shape, 0, limit, leaf.dtype)
        return (0.1 * jax.random.normal(key, leaf.shape)).astype(leaf.dtype)

    return structure.unflatten([make(key, leaf) for key, leaf in zip(keys, leaves, strict=True)])
