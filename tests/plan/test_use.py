"""A plan in use on eight virtual CPU devices: meshes, shardings of Flax and optax states, a checked jit."""

import dataclasses
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from sample_plans import MACHINE, make_plan, make_record

import jaxplan
from jaxplan.errors import InputError
from jaxplan.machine.device_kind import same_chip
from jaxplan.plan import files
from jaxplan.plan.devices import canonical
from jaxplan.plan.plan import mesh_axes
from jaxplan.plan.record import PlanRecord
from jaxplan.plan.step import PlanWarning
from jaxplan.plan.tree import _names as box_names
from jaxplan.plan.use import LoadedPlan


@pytest.fixture
def loaded(record: PlanRecord, tmp_path: Path) -> LoadedPlan:
    return jaxplan.load(files.write(record, tmp_path / "plan.json"))


@pytest.fixture
def mesh(loaded: LoadedPlan) -> Mesh:
    return loaded.mesh(virtual=True)


def struct(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def specs(tree) -> dict[str, P]:
    flat = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: isinstance(x, NamedSharding))[0]
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf.spec for path, leaf in flat}


# meshes


def test_a_mesh_has_the_plans_axes_and_they_are_auto(mesh: Mesh) -> None:
    assert dict(mesh.shape) == {"data": 2, "fsdp": 2, "tensor": 2}
    assert set(mesh.axis_types) == {AxisType.Auto}  # jax.make_mesh would make them Explicit


def test_a_mesh_does_not_depend_on_the_order_of_the_given_devices(loaded: LoadedPlan, mesh: Mesh) -> None:
    # two meshes of the same devices in another order do not mix in one computation
    assert loaded.mesh(devices=jax.devices()[::-1]) == mesh


def test_devices_are_where_the_placement_puts_them(loaded: LoadedPlan, mesh: Mesh) -> None:
    from jaxplan.machine.placement import place

    ids = np.vectorize(lambda device: device.id)(mesh.devices)
    assert (ids == place(MACHINE, loaded.plan.sizes).order).all()


def test_another_machine_is_refused_with_both_named(loaded: LoadedPlan) -> None:
    with pytest.raises(InputError) as caught:
        loaded.mesh()
    text = str(caught.value)
    assert "attached here: 8 x cpu (cpu)" in text
    assert "the plan is for v5e 2x4: 8 x TPU v5e (tpu)" in text
    assert "--xla_force_host_platform_device_count=8" in text
    assert "devices=" in text


def test_another_number_of_devices_is_refused(loaded: LoadedPlan) -> None:
    with pytest.raises(InputError, match=r"4 devices for v5e 2x4\. Expected 8 different devices"):
        loaded.mesh(devices=jax.devices()[:4])
    with pytest.raises(InputError, match="4 devices for v5e 2x4"):
        loaded.mesh(devices=jax.devices()[:4] * 2)


def test_a_mesh_of_other_sizes_is_refused(loaded: LoadedPlan) -> None:
    other = Mesh(np.array(jax.devices()).reshape(8, 1, 1), ("data", "fsdp", "tensor"))
    with pytest.raises(InputError, match=r"the mesh has {'data': 8, 'fsdp': 1, 'tensor': 1}"):
        loaded.shardings({}, other)


# device kinds as JAX prints them for attached chips
@pytest.mark.parametrize(
    ("chip", "kind", "same"),
    [
        ("v5e", "TPU v5 lite", True),
        ("v5p", "TPU v5", True),
        ("v5e", "TPU v5", False),
        ("v5p", "TPU v5p", True),
        ("v6e", "TPU v6 lite", True),
        ("v4", "TPU v4", True),
        ("tpu7x", "TPU7x", True),
        ("h100", "NVIDIA H100 80GB HBM3", True),
        ("h200", "NVIDIA H100 80GB HBM3", False),
        ("a100-80", "NVIDIA A100-SXM4-80GB", True),
        ("a100-40", "NVIDIA A100-SXM4-80GB", False),
        ("b200", "NVIDIA GB200", False),
        ("v5e", "cpu", False),
    ],
)
def test_chips_are_told_by_their_device_kind(chip: str, kind: str, same: bool) -> None:
    assert same_chip(dataclasses.replace(MACHINE.chip, id=chip), kind) is same


def test_tpus_are_ordered_by_coordinates_and_gpus_by_number() -> None:
    def tpu(x: int, y: int, core: int) -> SimpleNamespace:
        return SimpleNamespace(platform="tpu", coords=[x, y, 0], core_on_chip=core, id=99, slice_index=0)

    shuffled = [tpu(1, 1, 0), tpu(0, 0, 1), tpu(1, 0, 0), tpu(0, 1, 0), tpu(0, 0, 0)]
    ordered = [(*d.coords[:2], d.core_on_chip) for d in sorted(shuffled, key=canonical)]
    assert ordered == [(0, 0, 0), (0, 0, 1), (1, 0, 0), (0, 1, 0), (1, 1, 0)]
    assert canonical(SimpleNamespace(platform="gpu", id=3)) == (3,)


# shardings


class Linen(nn.Module):
    """Two annotated layers with a plain norm between them."""

    names: tuple = (("embed", "mlp"), ("mlp", "embed"))
    wide: int = 128

    @nn.compact
    def __call__(self, x):
        for width, names in zip((self.wide, 64), self.names, strict=True):
            init = nn.initializers.lecun_normal()
            x = nn.Dense(width, kernel_init=nn.with_logical_partitioning(init, names) if names else init)(x)
            x = nn.LayerNorm()(x)
        return x


def linen_state(model: nn.Module, transform: optax.GradientTransformation):
    def init(key: jax.Array) -> TrainState:
        params = model.init(key, jnp.ones((1, 64)))["params"]
        return TrainState.create(apply_fn=model.apply, params=params, tx=transform)

    return init, jax.eval_shape(init, jax.random.key(0))


class Nnx(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        init = nnx.initializers.lecun_normal()
        self.up = nnx.Linear(64, 128, kernel_init=nnx.with_partitioning(init, ("embed", "mlp")), rngs=rngs)
        self.down = nnx.Linear(128, 64, kernel_init=nnx.with_partitioning(init, ("mlp", "embed")), rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)


def nnx_state(key: jax.Array):
    with nnx.use_eager_sharding(False):
        model = Nnx(nnx.Rngs(key))
        return model, nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)


UP, UP_MOMENTS = P("fsdp", "tensor"), P(("fsdp", "data"), "tensor")


@pytest.mark.parametrize(
    "transform", [optax.adamw(1e-3), optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))]
)
def test_a_linen_train_state(loaded: LoadedPlan, mesh: Mesh, transform: optax.GradientTransformation) -> None:
    init, state = linen_state(Linen(), transform)
    shardings = loaded.shardings(state, mesh)
    found = specs(shardings)
    assert found["params.Dense_0.kernel.value"] == UP
    moments = [spec for path, spec in found.items() if path.endswith("mu.Dense_0.kernel.value")]
    assert moments == [UP_MOMENTS]
    assert found["params.LayerNorm_0.scale"] == P(None)
    assert found["step"] == P()
    made = jax.jit(init, out_shardings=shardings)(jax.random.key(0))
    kernel = next(
        leaf for path, leaf in jax.tree_util.tree_flatten_with_path(made.opt_state)[0] if "mu" in str(path)
    )
    assert made.params["Dense_0"]["kernel"].value.addressable_shards[0].data.shape == (32, 64)
    assert kernel is not None


def test_the_optimizers_bytes_fall_by_the_size_of_the_data_axis(loaded: LoadedPlan, mesh: Mesh) -> None:
    init, state = linen_state(Linen(), optax.adamw(1e-3))
    made = jax.jit(init, out_shardings=loaded.shardings(state, mesh))(jax.random.key(0))
    mu = made.opt_state[0].mu["Dense_0"]["kernel"].value
    assert mu.nbytes // mu.addressable_shards[0].data.nbytes == 8
    weight = made.params["Dense_0"]["kernel"].value
    assert weight.nbytes // weight.addressable_shards[0].data.nbytes == 4


def test_an_nnx_state_with_its_optimizer_and_random_state(loaded: LoadedPlan, mesh: Mesh) -> None:
    state = nnx.state(nnx.eval_shape(nnx_state, jax.random.key(0)))
    found = specs(loaded.shardings(state, mesh))
    assert found["0.up.kernel.value"] == UP
    assert found["1.opt_state.0.mu.up.kernel.value"] == UP_MOMENTS
    assert found["0.up.bias.value"] == P(None)
    assert found["0.dropout.rngs.key.value"] == P()


def test_an_nnx_module_itself(loaded: LoadedPlan, mesh: Mesh) -> None:
    model, _ = nnx.eval_shape(nnx_state, jax.random.key(0))
    assert UP in specs(loaded.shardings(model, mesh)).values()


@pytest.mark.parametrize("key", ["out_sharding", "sharding_names", "sharding"])
def test_the_three_keys_under_which_nnx_kept_names(mesh: Mesh, key: str) -> None:
    for value in (("embed", "mlp"), P("embed", "mlp"), NamedSharding(mesh, P("fsdp", "tensor"))):
        found = box_names(SimpleNamespace(get_metadata=lambda value=value: {"other": 1, key: value}))
        assert found == tuple(getattr(value, "spec", value))
    assert box_names(SimpleNamespace(get_metadata=lambda: {"other": 1})) is None


def test_an_optax_state_alone_of_boxed_parameters(loaded: LoadedPlan, mesh: Mesh) -> None:
    _, state = linen_state(Linen(), optax.adamw(1e-3))
    found = specs(loaded.shardings(state.opt_state, mesh))
    assert found["0.nu.Dense_0.kernel.value"] == UP_MOMENTS


def test_the_plans_own_state_in_any_wrapping(loaded: LoadedPlan, mesh: Mesh) -> None:
    params = {"embedding": struct(256, 64), "final_norm": struct(64), "layers": {"up": struct(4, 64, 128)}}
    state = {"model": params, "optimizer": jax.eval_shape(optax.adamw(1e-3).init, params)}
    found = specs(loaded.shardings(state, mesh))
    assert found["model.layers.up"] == P(None, "fsdp", "tensor")
    assert found["optimizer.0.mu.layers.up"] == P(None, ("fsdp", "data"), "tensor")
    # an optimizer that the plan did not record mirrors its parameters
    momentum = jax.eval_shape(optax.sgd(1e-3, momentum=0.9).init, params)
    assert specs(loaded.shardings(momentum, mesh))["0.trace.embedding"] == P("tensor", ("fsdp", "data"))
    assert specs(loaded.shardings({"tokens": jax.ShapeDtypeStruct((16, 32), jnp.int32)}, mesh)) == {
        "tokens": P(("data", "fsdp"), None)
    }


def test_a_recorded_path_of_another_shape_is_another_array(loaded: LoadedPlan, mesh: Mesh) -> None:
    with pytest.raises(InputError, match=r"layers.up \(4, 64, 256\)"):
        loaded.shardings({"layers": {"up": struct(4, 64, 256)}}, mesh)


def test_undecided_arrays_are_listed_by_bytes_and_never_replicated(loaded: LoadedPlan, mesh: Mesh) -> None:
    _, state = linen_state(Linen(names=(("embed", "mlp"), None)), optax.sgd(1e-3))
    tree = {"small": struct(2, 2), "state": state}
    with pytest.raises(InputError) as caught:
        loaded.shardings(tree, mesh)
    text = str(caught.value)
    assert text.startswith("2 arrays (32.0 KiB) would be replicated")
    assert text.index("Dense_1.kernel (128, 64) 32.0 KiB") < text.index("small (2, 2) 16 B")
    assert "Dense_0" not in text
    assert specs(loaded.shardings(tree, mesh, default=()))["small"] == P(None, None)
    assert specs(loaded.shardings(tree, mesh, default=("fsdp",)))["small"] == P("fsdp", None)


def test_names_can_be_given_by_the_end_of_a_path(loaded: LoadedPlan, mesh: Mesh) -> None:
    params = {"dense": {"kernel": struct(64, 128)}, "other": {"kernel": struct(64, 128)}}
    state = {"params": params, "opt_state": jax.eval_shape(optax.adamw(1e-3).init, params)}
    names = {"kernel": ("embed", None), "dense/kernel": ("embed", "mlp")}
    found = specs(loaded.shardings(state, mesh, names=names))
    assert found["params.dense.kernel"] == UP
    assert found["opt_state.0.mu.dense.kernel"] == UP_MOMENTS
    assert found["params.other.kernel"] == P("fsdp", None)


def test_a_name_that_is_a_mesh_axis_means_the_axis(loaded: LoadedPlan, mesh: Mesh) -> None:
    names = {"a": ("tensor", None), "b": (("data", "fsdp"), "mlp"), "c": ("tensor", "mlp")}
    found = specs(loaded.shardings({name: struct(64, 128) for name in names}, mesh, names=names))
    assert found == {"a": P("tensor", None), "b": P(("data", "fsdp"), "tensor"), "c": P("tensor", None)}


def test_a_mesh_axis_twice_and_too_many_names_are_refused(loaded: LoadedPlan, mesh: Mesh) -> None:
    with pytest.raises(InputError, match="use a mesh axis twice"):
        loaded.shardings({"a": struct(64, 128)}, mesh, names={"a": ("tensor", "tensor")})
    with pytest.raises(InputError, match=r"2 names .* for 1 dims"):
        loaded.shardings({"a": struct(64)}, mesh, names={"a": ("embed", "mlp")})


def test_a_typo_in_a_name_is_found(loaded: LoadedPlan, mesh: Mesh) -> None:
    _, state = linen_state(Linen(names=(("embd", "ml"), ("mlp", "embed"))), optax.sgd(1e-3))
    with pytest.raises(InputError, match=r"no rule knows 'embd' \(is it 'embed'\?\)"):
        loaded.shardings(state, mesh)
    _, half = linen_state(Linen(names=(("embed", "mpl"), ("mlp", "embed"))), optax.sgd(1e-3))
    with pytest.warns(PlanWarning, match=r"no rule knows 'mpl' \(is it 'mlp'\?\)"):
        loaded.shardings(half, mesh)
    assert loaded.unknown_names(half) == ("mpl",)
    assert loaded.unused_rules(half) == ("batch", "heads", "kv_heads", "vocab", "seq")


def test_indivisible_dims_are_refused_with_what_is_legal(loaded: LoadedPlan, mesh: Mesh) -> None:
    with pytest.raises(InputError) as caught:
        loaded.shardings(
            {"table": struct(50257, 64), "w": struct(17, 16)},
            mesh,
            names={"table": ("vocab", None), "w": (("data", "fsdp", "tensor"), None)},
        )
    text = str(caught.value)
    assert "table (50257, 64): dim 0 (50257) is not divisible by tensor = 2" in text
    assert "pad it to 50304" in text  # the next multiple of 128: GPT-2's usual padding
    # 16 is divisible by 8 where 17 is not
    assert "w (17, 16): dim 0 (17) is not divisible by data*fsdp*tensor = 8" in text
    assert "legal: P(None, ('data', 'fsdp', 'tensor')), or pad it to 24" in text


def test_a_batch_is_sharded_along_its_first_dim(loaded: LoadedPlan, mesh: Mesh) -> None:
    batch = {"image": struct(16, 8, 8, 3), "label": struct(16), "scale": struct()}
    found = specs(loaded.batch_shardings(batch, mesh))
    assert found == {
        "image": P(("data", "fsdp"), None, None, None),
        "label": P(("data", "fsdp")),
        "scale": P(),
    }
    assert loaded.batch_shardings(struct(16, 4), mesh).spec == P(("data", "fsdp"), None)
    with pytest.raises(
        InputError, match=r"dim 0 \(98\) is not divisible by data\*fsdp = 4 \(legal: pad it to 100"
    ):
        loaded.batch_shardings({"image": struct(98, 3)}, mesh)


# rules


def test_axis_rules_give_linen_the_plans_specs(loaded: LoadedPlan) -> None:
    rules = loaded.axis_rules()
    cases = [
        (("batch", "seq", "embed"), P(("data", "fsdp"), "tensor", None)),
        (("batch", "seq", "heads", "head_dim"), P(("data", "fsdp"), None, "tensor", None)),
        (("embed", "mlp"), P("fsdp", "tensor")),
        (("layers", "embed"), P(None, "fsdp")),
    ]
    for names, expected in cases:
        assert nn.logical_to_mesh_axes(names, rules=rules) == expected, names
    assert ("layers", None) in rules


# specs and text


def test_specs_by_path(loaded: LoadedPlan) -> None:
    assert loaded.spec("layers.up") == P(None, "fsdp", "tensor")
    assert loaded.spec("0/mu/layers/up") == P(None, ("fsdp", "data"), "tensor")
    with pytest.raises(InputError, match=r"no array 'layers.upp'. Try layers.up"):
        loaded.spec("layers.upp")
    with pytest.raises(InputError, match="3 arrays end in 'up'"):
        loaded.spec("up")


def test_the_summary_compares_the_tiers(loaded: LoadedPlan) -> None:
    text = loaded.summary()
    assert "data=2 fsdp=2 tensor=2, ZeRO-1" in text
    assert "estimated 800 ms, compiled 900 ms" in text
    assert "800 ms a step, 700 ms to 1.10 s (estimated)" in text


# jit


def train_step(state: TrainState, batch: dict):
    def loss(params):
        return jnp.mean((state.apply_fn({"params": params}, batch["x"]) - batch["y"]) ** 2)

    value, grads = jax.value_and_grad(loss)(state.params)
    return state.apply_gradients(grads=grads), {"loss": value}


def batch() -> dict:
    x = np.random.default_rng(0).normal(size=(16, 64)).astype(np.float32)
    return {"x": x, "y": np.sin(3 * x)}


def test_a_linen_step_trains_and_stays_where_it_is(loaded: LoadedPlan, mesh: Mesh) -> None:
    init, abstract = linen_state(Linen(), optax.adamw(1e-2))
    shardings = loaded.shardings(abstract, mesh)
    state = jax.jit(init, out_shardings=shardings)(jax.random.key(0))
    alone = init(jax.random.key(0))
    step, first = loaded.jit(train_step, mesh=mesh), state
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            state, metrics = step(state, batch())
            alone, expected = train_step(alone, batch())
            # the same sums in another order, in float32
            np.testing.assert_allclose(metrics["loss"], expected["loss"], rtol=1e-5)
    for leaf, sharding in zip(jax.tree.leaves(state), jax.tree.leaves(shardings), strict=True):
        assert leaf.sharding.is_equivalent_to(sharding, leaf.ndim)
    assert first.params["Dense_0"]["kernel"].value.is_deleted()  # donated


def test_an_nnx_step_trains(loaded: LoadedPlan, mesh: Mesh) -> None:
    graph, abstract = nnx.split(nnx.eval_shape(nnx_state, jax.random.key(0)))
    init = jax.jit(lambda key: nnx.state(nnx_state(key)), out_shardings=loaded.shardings(abstract, mesh))

    def step(state, batch):
        model, optimizer = nnx.merge(graph, state)
        value, grads = nnx.value_and_grad(
            lambda m: jnp.mean((m.down(nnx.relu(m.up(batch["x"]))) - batch["y"]) ** 2)
        )(model)
        optimizer.update(model, grads)
        return nnx.state((model, optimizer)), value

    planned, state, losses = loaded.jit(step, mesh=mesh), init(jax.random.key(0)), []
    for _ in range(5):
        state, value = planned(state, batch())
        losses.append(float(value))
    assert losses[-1] < losses[0]


def matrix(rows: int = 64) -> dict:
    return {"w": struct(rows, 128)}


NAMES = {"w": ("embed", "mlp")}


def test_a_large_replicated_result_is_refused(loaded: LoadedPlan, mesh: Mesh) -> None:
    def logits(state, batch):
        return state, {"logits": jnp.ones((1024, 512)) * batch["x"].sum()}

    step = loaded.jit(logits, mesh=mesh, names=NAMES)
    with pytest.raises(InputError, match=r"result.*logits.*\(1024, 512\) 2.00 MiB"):
        step.compile(matrix(), {"x": struct(16, 4)})


def test_a_sharding_that_silently_vanishes_inside_jit_is_refused(loaded: LoadedPlan, mesh: Mesh) -> None:
    # a constraint on a dim that its axis does not divide is accepted inside jit, and comes back replicated
    def constrained(rows: int):
        def step(state, batch):
            wide = jnp.ones((rows, 100_000)) * batch["x"].sum()
            return state, jax.lax.with_sharding_constraint(
                wide, NamedSharding(mesh, P(("data", "fsdp", "tensor")))
            )

        return loaded.jit(step, mesh=mesh, names=NAMES)

    constrained(16).compile(matrix(), {"x": struct(16, 4)})
    with pytest.raises(InputError, match=r"\(17, 100000\) 6.48 MiB"):
        constrained(17).compile(matrix(), {"x": struct(16, 4)})


def test_a_state_that_changes_its_dtype_cannot_be_donated(loaded: LoadedPlan, mesh: Mesh) -> None:
    def narrow(state, batch):
        return jax.tree.map(lambda w: w.astype(jnp.bfloat16), state)

    with pytest.warns(PlanWarning, match=r"\['w'\] comes in as float32\[64, 128\] and goes out as bfloat16"):
        loaded.jit(narrow, mesh=mesh, names=NAMES).compile(matrix(), {"x": struct(16, 4)})


def test_donation_shows_in_the_compiled_step(loaded: LoadedPlan, mesh: Mesh) -> None:
    def step(state, batch):
        return jax.tree.map(lambda w: w + batch["x"].sum(), state)

    local = 64 * 128 * 4 // 4
    arguments = matrix(), {"x": struct(16, 4)}
    donated = loaded.jit(step, mesh=mesh, names=NAMES).compile(*arguments)
    assert donated.memory_analysis().alias_size_in_bytes == local
    kept = loaded.jit(step, mesh=mesh, names=NAMES, donate=False).compile(*arguments)
    assert kept.memory_analysis().alias_size_in_bytes == 0


def test_a_state_elsewhere_is_refused_before_the_compile(loaded: LoadedPlan, mesh: Mesh) -> None:
    # jit(optimizer.init) without out_shardings puts every leaf on one device: the commonest way to get here
    state = jax.device_put({"w": jnp.ones((64, 128))}, NamedSharding(mesh, P()))
    step = loaded.jit(lambda state, batch: state, mesh=mesh, names=NAMES)
    with pytest.raises(InputError, match=r"\['w'\] is P(artitionSpec)?\(\), the plan says .*device_put"):
        step(state, {"x": np.ones((16, 4), np.float32)})


def test_a_step_must_return_its_state(loaded: LoadedPlan, mesh: Mesh) -> None:
    step = loaded.jit(lambda state, batch: {"loss": 0.0}, mesh=mesh, names=NAMES)
    with pytest.raises(InputError, match="something else than the state"):
        step.lower(matrix(), {"x": struct(16, 4)})


def test_further_arguments_are_passed_on(loaded: LoadedPlan, mesh: Mesh) -> None:
    def step(state, batch, key, scale):
        return jax.tree.map(lambda w: w + scale * jax.random.normal(key, w.shape), state), scale

    planned = loaded.jit(step, mesh=mesh, names=NAMES)
    state = jax.device_put({"w": jnp.zeros((64, 128))}, loaded.shardings(matrix(), mesh, names=NAMES))
    state, scale = planned(state, {"x": np.ones((16, 4), np.float32)}, jax.random.key(0), jnp.float32(0.0))
    assert float(scale) == 0.0
    assert float(jnp.abs(state["w"]).max()) == 0.0


def test_a_plan_of_one_axis_works_too() -> None:
    loaded = LoadedPlan(make_record(make_plan(1, 8, 1, zero1=False)))
    mesh = loaded.mesh(virtual=True)
    assert specs(loaded.shardings(matrix(), mesh, names=NAMES)) == {"w": P("fsdp", "tensor")}


COMPILE_ONLY = """
import jax, jax.numpy as jnp
from jax.experimental import topologies
from sample_plans import make_plan, make_record
from jaxplan.machine.device_kind import same_chip
from jaxplan.plan.use import LoadedPlan

devices = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x4").devices
loaded = LoadedPlan(make_record(make_plan()))
assert same_chip(loaded.plan.machine.chip, devices[0].device_kind)
mesh = loaded.mesh(devices=devices[::-1])
state = {"w": jax.ShapeDtypeStruct((512, 1024), jnp.float32)}
batch = jax.ShapeDtypeStruct((16, 512), jnp.float32)
function = lambda s, b: jax.tree.map(lambda w: w + (b @ w).sum(), s)
compiled = loaded.jit(function, mesh=mesh, names={"w": ("embed", "mlp")}).compile(state, batch)
print(compiled.memory_analysis().alias_size_in_bytes, [list(d.coords) for d in mesh.devices[0, 0]])
"""


@pytest.mark.compiler
def test_a_step_compiles_for_a_machine_that_is_not_here() -> None:
    pytest.importorskip("libtpu", reason="libtpu is not installed: pip install 'jax[tpu]'")
    tpu = {
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    }
    here = Path(__file__).parent
    environment = {
        **os.environ,
        **tpu,
        "PYTHONPATH": f"{here.parent.parent}:{here}",
        "TPU_WORKER_HOSTNAMES": "localhost",
    }
    command = [sys.executable, "-c", COMPILE_ONLY]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    # the donated state's local bytes; neighbors of the tensor axis are neighbors on the torus
    aliased, coords = done.stdout.strip().split(" ", 1)
    assert int(aliased) == 512 * 1024 * 4 // 4
    (x0, y0, _), (x1, y1, _) = json.loads(coords)
    assert abs(x0 - x1) + abs(y0 - y1) == 1


@pytest.mark.parametrize(("axis", "word"), [("stage", "pipeline"), ("context", "ring or Ulysses")])
def test_axes_that_need_more_than_shardings_are_said(axis: str, word: str) -> None:
    plan = dataclasses.replace(make_plan(zero1=False), axes=mesh_axes({axis: 2, "fsdp": 4}))
    loaded = LoadedPlan(make_record(plan))
    with pytest.warns(PlanWarning, match=f"axis {axis} shards .* {word}"):
        loaded.jit(lambda state, batch: state, mesh=loaded.mesh(virtual=True))
