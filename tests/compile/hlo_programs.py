"""Small real programs and their compiles: the source of the HLO fixtures in data/, and of the tests marked
`compiler`.

Run as a script to write a fixture anew, one process a target (the environment is set before jax is imported):

    python hlo_programs.py TARGET AXIS=SIZE,...|nested|until|strided MODELKEY=VALUE,... OUT [proto]

TARGET is `cpu` (8 virtual devices), a TPU topology (`v5e:2x4`) or `h100:HOSTSxGPUSx1`.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TF_CPP_MIN_LOG_LEVEL": "1",
}

# Facts of an H100 SXM as XLA wants them for a compile with no GPU attached (GpuTargetConfig text proto).
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 84942979072 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 } registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 patch: 0 }
runtime_version { major: 13 minor: 0 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


@dataclasses.dataclass(frozen=True)
class Model:
    """A small Llama; `fused` means attention kernels where the target has them."""

    layers: int = 3
    embed: int = 512
    mlp: int = 1024
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 128
    vocab: int = 1024
    batch: int = 16
    seq: int = 512
    fused: bool = True

    def matmul_flops(self) -> float:
        """FLOPs of all matmuls outside attention, one step, full rematerialization, all devices together.

        Forward 2, backward 4, recomputation 2 for each parameter and token; the last matmul of a block
        (down) is not recomputed because its result is not needed, and the unembedding stands outside the
        rematerialized block.
        """
        tokens = self.batch * self.seq
        attention = self.embed * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        block = attention + 3 * self.embed * self.mlp
        return tokens * (
            self.layers * (8.0 * block - 2.0 * self.embed * self.mlp) + 6.0 * self.embed * self.vocab
        )

    def attention_flops(self) -> tuple[float, float]:
        """(forward with recomputation, backward) of causal attention: 2 and 5 matmuls, half the square."""
        one = 2.0 * self.batch * self.heads * self.seq**2 * self.head_dim / 2
        return self.layers * 2 * 2 * one, self.layers * 5 * one

    def plain_attention_flops(self) -> float:
        """Dot FLOPs of attention written out (whole square, 2 matmuls forward, 2 recomputed, 4 backward)."""
        return self.layers * 8 * 2.0 * self.batch * self.heads * self.seq**2 * self.head_dim


def devices_of(target: str) -> Any:
    """The compile-only (or virtual CPU) devices of a target."""
    import jax
    from jax.experimental import topologies

    if target == "cpu":
        return jax.devices("cpu")
    if target.startswith("h100:"):
        return topologies.get_topology_desc(
            platform="cuda", topology_name="h100", topology=target.partition(":")[2], target_config=H100
        ).devices
    return topologies.get_topology_desc(platform="tpu", topology_name=target).devices


def lower(target: str, axes: dict[str, int], model: Model) -> Any:
    """The lowered training step for a mesh of `axes`, names among data, fsdp, tensor."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    sizes = {name: axes.get(name, 1) for name in ("data", "fsdp", "tensor")}
    count = int(np.prod(list(sizes.values())))
    mesh = Mesh(np.array(devices_of(target)[:count]).reshape(tuple(sizes.values())), tuple(sizes))
    batch = ("data", "fsdp")

    def put(*spec):
        return NamedSharding(mesh, P(*spec))

    def keep(x, *spec):
        return jax.lax.with_sharding_constraint(x, put(batch, *spec))

    d, f, n, k, h, v = model.embed, model.mlp, model.heads, model.kv_heads, model.head_dim, model.vocab
    layers = model.layers
    shapes = {
        "embedding": ((v, d), ("tensor", "fsdp")),
        "unembed": ((d, v), ("fsdp", "tensor")),
        "layers": {
            "norm": ((layers, d), ()),
            "norm_mlp": ((layers, d), ()),
            "query": ((layers, d, n, h), (None, "fsdp", "tensor")),
            "key": ((layers, d, k, h), (None, "fsdp", "tensor")),
            "value": ((layers, d, k, h), (None, "fsdp", "tensor")),
            "output": ((layers, d, n, h), (None, "fsdp", "tensor")),
            "gate": ((layers, d, f), (None, "fsdp", "tensor")),
            "up": ((layers, d, f), (None, "fsdp", "tensor")),
            "down": ((layers, d, f), (None, "fsdp", "tensor")),
        },
    }

    def norm(x, scale):
        y = x.astype(jnp.float32)
        return (y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-5)).astype(x.dtype) * scale

    def block(x, p):
        p = {name: w.astype(jnp.bfloat16) for name, w in p.items()}
        y = norm(x, p["norm"])
        q, key, value = (
            keep(jnp.einsum("bsd,dnh->bsnh", y, p[w]), None, "tensor") for w in ("query", "key", "value")
        )
        out = attention(q, key, value, target, mesh, model)
        x = keep(x + jnp.einsum("bsnh,dnh->bsd", keep(out, None, "tensor"), p["output"]), None, None)
        y = norm(x, p["norm_mlp"])
        hidden = jax.nn.silu(jnp.einsum("bsd,df->bsf", y, p["gate"])) * jnp.einsum("bsd,df->bsf", y, p["up"])
        return keep(x + jnp.einsum("bsf,df->bsd", keep(hidden, None, "tensor"), p["down"]), None, None)

    block = jax.checkpoint(block, policy=jax.checkpoint_policies.nothing_saveable, prevent_cse=False)

    def loss(params, tokens):
        x = keep(params["embedding"].astype(jnp.bfloat16)[tokens], None, None)
        x, _ = jax.lax.scan(lambda x, p: (block(x, p), None), x, params["layers"])
        logits = keep(jnp.einsum("bsd,dv->bsv", x, params["unembed"].astype(jnp.bfloat16)), None, "tensor")
        labels = jnp.roll(tokens, -1, 1)
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), labels))

    def step(params, tokens):
        value, gradients = jax.value_and_grad(loss)(params, tokens)
        return jax.tree.map(lambda p, g: p - 1e-3 * g, params, gradients), value

    leaf = lambda x: isinstance(x, tuple)  # noqa: E731
    params = jax.tree.map(
        lambda s: jax.ShapeDtypeStruct(s[0], jnp.float32, sharding=put(*s[1])), shapes, is_leaf=leaf
    )
    tokens = jax.ShapeDtypeStruct((model.batch, model.seq), jnp.int32, sharding=put(batch))
    out = (jax.tree.map(lambda s: put(*s[1]), shapes, is_leaf=leaf), put())
    return jax.jit(step, donate_argnums=0, out_shardings=out).lower(params, tokens)


def attention(q, k, v, target: str, mesh, model: Model):
    """Causal attention: splash on TPU, cuDNN on GPU; written out elsewhere or if not `fused`."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    if not model.fused or target == "cpu":
        return jax.nn.dot_product_attention(q, k, v, is_causal=True)
    spec = P(("data", "fsdp"), None, "tensor", None)
    if target.startswith("h100:"):

        def fused(q, k, v):
            return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")

        return jax.shard_map(fused, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec, check_vma=False)(q, k, v)
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    def local(q, k, v):
        repeats = q.shape[2] // k.shape[2]
        q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q, jnp.repeat(k, repeats, 2), jnp.repeat(v, repeats, 2)))
        mask = masks.MultiHeadMask([masks.CausalMask((q.shape[2],) * 2) for _ in range(q.shape[1])])
        size = min(512, q.shape[2])
        sizes = kernel.BlockSizes(
            block_q=size,
            block_kv=size,
            block_kv_compute=size,
            block_q_dkv=size,
            block_kv_dkv=size,
            block_kv_dkv_compute=size,
            use_fused_bwd_kernel=True,
        )
        call = kernel.make_splash_mha(mask, head_shards=1, q_seq_shards=1, block_sizes=sizes)
        return jnp.swapaxes(jax.vmap(call)(q * model.head_dim**-0.5, k, v), 1, 2)

    return jax.shard_map(local, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec, check_vma=False)(q, k, v)


def lower_small(target: str, name: str) -> Any:
    """Lowered one-device programs: `nested` (loops of 5 and 3 trips around a matmul), `until` (a loop that
    ends when the data say so), `strided` (a convolution with stride, padding and groups and its gradients)."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import SingleDeviceSharding

    where = SingleDeviceSharding(devices_of(target)[0])

    def argument(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=where)

    def nested(x, w):
        inner = lambda x, _: (jnp.tanh(x @ w), None)  # noqa: E731
        return jax.lax.scan(lambda x, _: (jax.lax.scan(inner, x, length=3)[0], None), x, length=5)[0]

    def until(s, w):
        return jax.lax.while_loop(lambda s: s.sum() < 1e6, lambda s: s @ w, s)

    def strided(x, w):
        convolve = lambda x, w: jax.lax.conv_general_dilated(  # noqa: E731
            x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=4
        )
        return jax.grad(lambda x, w: (convolve(x, w) ** 2).sum(), argnums=(0, 1))(x, w)

    programs = {
        "nested": (nested, argument(64, 128), argument(128, 128)),
        "until": (until, argument(256, 256), argument(256, 256)),
        "strided": (strided, argument(2, 15, 15, 32), argument(3, 3, 8, 64)),
    }
    program, *arguments = programs[name]
    return jax.jit(program).lower(*arguments)


def trim(text: str) -> tuple[str, list[str]]:
    """Text without the paths of this machine and the code of Pallas kernels; and the paths."""
    paths = re.findall(r'^\d+ "(/[^"]*)"$', text, re.M)
    for path in paths:
        text = text.replace(path, Path(path).name)
    return re.sub(r'"body":"[^"]*"', '"body":""', text), paths


def main(target: str, axes_text: str, model_text: str, out: str, keep_proto: str = "") -> None:
    """Compile one program and leave OUT.hlo.gz (text), OUT.json (what it is, memory figures), OUT.pb.gz
    (HloProto).

    `axes_text` is `AXIS=SIZE,...` for the training step, or the name of a small program.
    """
    options: dict[str, Any] = {}
    record: dict[str, Any] = {"target": target}
    if "=" in axes_text:
        axes = {name: int(size) for name, size in (pair.split("=") for pair in axes_text.split(","))}
        model = Model(**{k: int(v) for k, v in (pair.split("=") for pair in model_text.split(",") if pair)})
        record |= {"axes": axes, "model": dataclasses.asdict(model)}
        lowered = lower(target, axes, model)
    else:
        record["program"] = axes_text
        lowered = lower_small(target, axes_text)
        options = {"xla_gpu_enable_triton_gemm": False} if model_text == "cublas" else {}
    with tempfile.TemporaryDirectory() as folder:
        compiled = lowered.compile(
            compiler_options=options | {"xla_dump_to": folder, "xla_dump_hlo_as_proto": True}
        )
        protos = sorted(
            Path(folder).glob("*after_optimizations.hlo.pb"), key=lambda path: -path.stat().st_size
        )
        proto = protos[0].read_bytes()
    text, paths = trim(compiled.as_text())
    for path in sorted(paths, key=len, reverse=True):
        proto = proto.replace(path.encode(), b"x" * len(path))
    if keep_proto:
        Path(f"{out}.pb.gz").write_bytes(gzip.compress(proto, 9, mtime=0))
    Path(f"{out}.hlo.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    memory = compiled.memory_analysis()
    names = [name for name in dir(memory) if name.endswith("_bytes") and not name.startswith("_")]
    record["memory"] = {name: getattr(memory, name) for name in names if getattr(memory, name)}
    Path(f"{out}.json").write_text(json.dumps(record) + "\n")
    print(out, len(text))


if __name__ == "__main__":
    os.environ.update(ENVIRONMENT)
    main(*sys.argv[1:])
