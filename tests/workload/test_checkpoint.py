"""Every policy is the same loss and the same gradients, and runs again just what it does not keep."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from jaxplan.errors import InputError
from jaxplan.plan.remat import BLOCK_INPUT, NOTHING, POLICIES, TAGS, Policy, policies_of
from jaxplan.plan.sharding import standard_rules
from jaxplan.workload.checkpoint import checkpoint_policy
from jaxplan.workload.decoder import Kernels, LossFunction, loss_function
from jaxplan.workload.impose import impose
from jaxplan.workload.layout import Layout
from jaxplan.workload.optimizer import leaf_dims
from jaxplan.workload.shape import ExpertShape, ModelShape, Workload

TINY = ModelShape("tiny", layers=4, embed=32, mlp=64, heads=8, kv_heads=4, head_dim=8, vocab=64)
BATCH, SEQ = 8, 16
# how often the forward kernel of attention runs in each layer: once more where its result is not kept, and once more
# where a group of layers runs again
KERNEL_RUNS = {"full": 2, "every-2": 2, "every-4": 2, "nested-4": 3, "offload-input": 2}


def model(remat: str, layout: Layout | None = None) -> LossFunction:
    return loss_function(
        TINY, BATCH, SEQ, remat=remat, kernels=Kernels("blockwise", 1, layout), compute_dtype=jnp.float32
    )


def batch() -> dict[str, jax.Array]:
    tokens, targets = (jax.random.randint(key, (BATCH, SEQ), 0, 64) for key in jax.random.split(jax.random.key(3)))
    return {"tokens": tokens, "targets": targets}


def relative(got, expected) -> float:
    """The largest difference of a leaf, relative to the leaf's largest value."""
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True)
    return max(float(jnp.max(jnp.abs(a - b)) / (jnp.max(jnp.abs(b)) + 1e-12)) for a, b in pairs)


@pytest.fixture(scope="module")
def params() -> dict:
    return model("none").init(jax.random.key(0))


@pytest.fixture(scope="module")
def expected(params) -> tuple:
    return jax.jit(jax.value_and_grad(model("none").loss))(params, batch())


def calls(jaxpr, name, times=1):
    """How often a named call is executed in a jaxpr, loops counted by their length.

    Partial evaluation moves a call's constants into a call of the same name without operands: that is no execution.
    """
    total = 0
    for equation in jaxpr.eqns:
        if equation.params.get("name") == name:
            total += times if equation.invars else 0
            continue
        inner = times * equation.params["length"] if equation.primitive.name == "scan" else times
        for value in equation.params.values():
            body = getattr(value, "jaxpr", value)
            if hasattr(body, "eqns"):
                total += calls(body, name, inner)
    return total


@pytest.mark.parametrize("policy", POLICIES)
def test_policies_change_neither_loss_nor_gradients_and_spare_the_kernel(policy, params, expected) -> None:
    step = jax.value_and_grad(model(policy).loss)
    assert relative(jax.jit(step)(params, batch()), expected) < 1e-5
    jaxpr = jax.make_jaxpr(step)(params, batch()).jaxpr
    assert calls(jaxpr, "jaxplan_attention_forward") == KERNEL_RUNS.get(policy, 1) * TINY.layers
    assert calls(jaxpr, "jaxplan_attention_backward") == TINY.layers


@pytest.mark.parametrize("policy", ["every-2", "nested-4", "offload-dots", "offload-input"])
def test_policies_are_the_same_on_a_mesh_with_the_plan_imposed(policy, params, expected) -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("data", "fsdp", "tensor"))
    layout = Layout(mesh, standard_rules(True, False).on(dict(mesh.shape)))
    made = model(policy, layout)
    specs = [layout.sharding(layout.parameter_spec(n)) for n in leaf_dims(params, made.parameter_dims)]
    stored = jax.device_put(params, jax.tree.structure(params).unflatten(specs))
    loss = impose(
        made.loss, made.params, made.batch, layout.rules, mesh, made.parameter_dims, made.batch_dims
    )
    assert relative(jax.jit(jax.value_and_grad(loss))(stored, batch()), expected) < 1e-4


def test_groups_must_divide_the_layers() -> None:
    odd = ModelShape("odd", layers=3, embed=32, mlp=64, heads=8, kv_heads=4, head_dim=8, vocab=64)
    made = loss_function(odd, BATCH, SEQ, remat="every-2")
    with pytest.raises(InputError, match="remat every-2 of 3 layers"):
        jax.eval_shape(made.loss, made.params, made.batch)
    assert not {"every-2", "every-4", "nested-4"} & set(policies_of(Workload(odd, 8, 16), groups=True))


def test_offered_policies_are_those_that_the_caller_can_use() -> None:
    work = Workload(TINY, 8, 16)
    plain = {"none", "dots", "mlp", "qkv", "attention", "full"}
    groups, host = {"every-2", "every-4", "nested-4"}, {"offload-dots", "offload-attention", "offload-input"}
    assert set(policies_of(work)) == plain
    assert set(policies_of(work, groups=True)) == plain | groups
    assert set(policies_of(work, host=True)) == plain | host
    assert set(policies_of(work, groups=True, host=True)) == set(POLICIES)


def test_groups_divide_the_dense_layers_of_a_mixture_of_experts_as_well() -> None:
    experts = ExpertShape(experts=8, top_k=2, mlp=64, first_dense_layers=2)
    mixture = ModelShape(
        "moe", layers=6, embed=32, mlp=64, heads=8, kv_heads=4, head_dim=8, vocab=64, experts=experts
    )
    found = policies_of(Workload(mixture, 8, 16), groups=True)
    assert "every-2" in found and "every-4" not in found    # 2 and 4 layers


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"group": 0}, "group must be at least 1"),
        ({"saved": frozenset(TAGS), "group": 2}, "keeps inputs on the device only"),
        ({"saved": None, "offloaded": frozenset(TAGS)}, "on the device or on the host"),
        ({"saved": frozenset({"key"}), "offloaded": frozenset({"key"})}, "on the device or on the host"),
        ({"inside": frozenset(TAGS)}, "inside goes with a group"),
    ],
)
def test_policies_that_contradict_themselves_are_refused(wrong, words) -> None:
    with pytest.raises(ValueError, match=words):
        Policy(**({"name": "wrong", "saved": NOTHING, "why": ""} | wrong))


def test_offloaded_values_leave_the_device_for_the_hosts_memory() -> None:
    """What the checkpoint keeps of a tagged value, as JAX's own residuals say it."""
    from jax._src.ad_checkpoint import saved_residuals
    from jax.ad_checkpoint import checkpoint_name

    def block(x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(jnp.sin(checkpoint_name(jnp.sin(x), "attention"))))

    keep = checkpoint_policy("offload-attention", TINY, on_mesh=False)
    kept = saved_residuals(jax.checkpoint(block, policy=keep), jnp.ones((4, 4)))
    spaces = [str(aval) for aval, why in kept if "argument" not in why]
    assert len(spaces) == 1 and "<host>" in spaces[0]
    assert BLOCK_INPUT not in TAGS      # what is saved by tag alone is kept once, as the loop's carry
