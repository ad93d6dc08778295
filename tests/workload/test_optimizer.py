"""Optimizers by their real state: how many bytes it takes, where each array of it lies, what an update does."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh

from jaxplan.errors import InputError
from jaxplan.plan.plan import Plan, mesh_axes
from jaxplan.plan.sharding import standard_rules
from jaxplan.workload.decoder import loss_function
from jaxplan.workload.layout import Layout
from jaxplan.workload.optimizer import MUON_RMS, OPTIMIZERS, optimizer, optimizer_of, owners, state_dims
from jaxplan.workload.precision import precision
from jaxplan.workload.program import trace
from jaxplan.workload.shape import ExpertShape, ModelShape, Workload
from jaxplan.workload.step import build

TINY = ModelShape("tiny", layers=2, embed=64, mlp=192, heads=8, kv_heads=4, head_dim=16, vocab=320)
MIXTURE = ModelShape(
    "mixture", layers=2, embed=64, mlp=192, heads=8, kv_heads=4, head_dim=16, vocab=320,
    experts=ExpertShape(experts=8, top_k=2, mlp=96),
)  # fmt: skip
L, D, F, N, K, H, V = 2, 64, 192, 8, 4, 16, 320
MATRICES = L * (D * (2 * N + 2 * K) * H + 3 * D * F)
TABLES, NORMS = 2 * V * D, (2 * L + 1) * D
EVERY = MATRICES + TABLES + NORMS
BYTES = {
    "adamw": 8 * EVERY,
    "adamw_bf16": 6 * EVERY,
    "lion": 4 * EVERY,
    "muon": 4 * MATRICES + 8 * (TABLES + NORMS) + 4 * 3,    # and three coefficients of its polynomial
    "momentum": 4 * EVERY,
    "sgd": 0,
}


def model(shape: ModelShape = TINY):
    return loss_function(shape, 8, 32)


def state_of(name: str, shape: ModelShape = TINY):
    made = model(shape)
    transform = optimizer(name, dims=made.parameter_dims)
    return made, transform, jax.eval_shape(transform.init, made.params)


@pytest.mark.parametrize("name", BYTES)
def test_state_takes_the_bytes_that_its_paper_says(name) -> None:
    state = state_of(name)[2]
    assert sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state) if leaf.ndim) == BYTES[name]


def test_adafactor_keeps_rows_and_columns_of_large_matrices() -> None:
    """Of 128 x 128 and more: a number for each row and column of each layer (Shazeer, Stern 2018, arXiv:1804.04235)."""
    params = {"w": jax.ShapeDtypeStruct((3, 128, 256), jnp.float32)}
    transform = optimizer("adafactor")
    state = jax.eval_shape(transform.init, params)
    dims = state_dims(transform, params, {"w": ("layers", "embed", "mlp")})
    sizes = dict(zip(dims, (leaf.shape for leaf in jax.tree.leaves(state)), strict=True))
    assert sizes["layers", "embed"] == (3, 128) and sizes["layers", "mlp"] == (3, 256)


@pytest.mark.parametrize("shape", [TINY, MIXTURE], ids=lambda shape: shape.name)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_array_of_the_state_lies_where_its_parameter_does(name, shape) -> None:
    """Fully sharded over 8 devices: each device holds an eighth of every array that mirrors a stored weight."""
    made, transform, state = state_of(name, shape)
    mesh = Mesh(np.array(jax.devices()).reshape(1, 8, 1), ("data", "fsdp", "tensor"))
    experts = shape.experts is not None
    layout = Layout(mesh, standard_rules(True, False, False, experts).on(dict(mesh.shape)))
    leaves, dims = jax.tree.leaves(state), state_dims(transform, made.params, made.parameter_dims)
    assert [len(names) for names in dims] == [leaf.ndim for leaf in leaves]
    shapes = {leaf.shape: layout.parameter_spec(n) for leaf, n in zip(
        jax.tree.leaves(made.params),
        jax.tree.structure(made.params).flatten_up_to(made.parameter_dims), strict=True)}  # fmt: skip
    for leaf, names in zip(leaves, dims, strict=True):
        spec = layout.optimizer_spec(names)
        shard = layout.sharding(spec).shard_shape(leaf.shape)
        if leaf.shape in shapes and any(axes for axes in shapes[leaf.shape]):
            assert spec == shapes[leaf.shape] and np.prod(shard) * 8 == leaf.size


def test_a_leaf_belongs_to_the_parameter_whose_path_ends_its_own() -> None:
    params = {"w": jnp.ones(2), "deep": {"w": jnp.ones(3)}}
    state = optax.adam(0.1).init(params)
    # count; mu: deep.w, w; nu: deep.w, w. Parameters: deep.w, w
    assert owners(state, params) == [-1, 0, 1, 0, 1]
    flat = {"count": jnp.ones(2)}
    assert owners(optax.adam(0.1).init(flat), flat) == [-1, 0, 0]


def test_muon_makes_each_layers_matrix_orthogonal_and_adamw_the_rest() -> None:
    """One step from zero: every matrix's update has singular values near its scale, each layer by itself."""
    made = model()
    params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), made.params)
    keys = iter(jax.random.split(jax.random.key(0), len(jax.tree.leaves(params))))
    grads = jax.tree.map(lambda leaf: jax.random.normal(next(keys), leaf.shape), params)
    transform = optimizer("muon", 1.0, made.parameter_dims)
    updates, _ = transform.update(grads, transform.init(params), params)
    up = updates["layers"]["up"]
    for layer in range(L):
        values = np.linalg.svd(np.asarray(up[layer]), compute_uv=False) / (MUON_RMS * max(D, F) ** 0.5)
        assert values.min() > 0.5 and values.max() < 1.5      # Jordan et al. 2024: within 0.5 to 1.5
    query = np.asarray(updates["layers"]["query"][0]).reshape(D, N * H)
    assert np.linalg.svd(query, compute_uv=False).max() < 1.5 * MUON_RMS * max(D, N * H) ** 0.5
    # the rest by AdamW with Nesterov's momentum (Dozat 2016, algorithm 8): its first step is the gradient's sign times
    # b1 (1 - b1) / (1 - b1^2) + 1
    first = 0.9 * 0.1 / (1 - 0.9**2) + 1
    for name, found in (("embedding", updates["embedding"]), ("mlp_norm", updates["layers"]["mlp_norm"])):
        sign = np.sign(grads[name] if name in grads else grads["layers"][name])
        np.testing.assert_allclose(found, -first * sign, atol=1e-3)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_update_can_be_traced_and_its_state_named(name) -> None:
    made = model()
    update = optimizer_of(Workload(TINY, 8, 32, optimizer=name))
    table = trace(made.loss, made.params, made.batch, made.parameter_dims, made.batch_dims, update=update)
    assert table.uncovered == {}
    assert {table.dims[d].name for leaf in table.optimizer for d in leaf.dims} <= {
        "layers", "embed", "mlp", "heads", "kv_heads", "group", "head_dim", "vocab", "?optimizer3",
    }  # fmt: skip


def test_unknown_optimizers_are_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"optimizer 'adam'.*muon"):
        optimizer("adam")


@pytest.mark.parametrize("name", ["adamw", "adafactor", "muon"])
def test_pure_bfloat16_runs_with_state_of_that_dtype(name) -> None:
    """Parameters, gradients and moments stay bfloat16 over updates, on a mesh; the loss of a fixed batch falls."""
    sizes = {"data": 2, "fsdp": 2, "tensor": 2}
    work = Workload(TINY, 8, 32, optimizer=name, **precision("bf16-pure"))
    machine = SimpleNamespace(devices=8, name="virtual CPU devices")
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2, 2), tuple(sizes))
    step = build(Plan(machine, work, mesh_axes(sizes), "full", 2, "blockwise", zero1=True), mesh)
    ids = jax.random.randint(jax.random.key(1), (8, 32), 0, V)
    state, losses = step.init(jax.random.key(0)), []
    for _ in range(4):
        state, metrics = step.jit(state, {"tokens": ids, "targets": ids})
        losses.append(float(metrics["loss"]))
    arrays = [leaf for leaf in jax.tree.leaves(state) if leaf.ndim]
    small = int(name == "muon")     # its three coefficients are float32
    assert len([leaf for leaf in arrays if leaf.dtype != jnp.bfloat16]) == small
    assert losses[-1] < losses[0]
