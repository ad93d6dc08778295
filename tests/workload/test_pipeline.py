"""Stages: stored order, what a tick sends, what is gathered once, how gradients are added up, bubbles."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from jaxplan.compile.environment import available
from jaxplan.compile.tiers import Tiers
from jaxplan.errors import InputError
from jaxplan.machine import catalogue
from jaxplan.plan.plan import Plan, mesh_axes
from jaxplan.plan.sharding import standard_rules
from jaxplan.workload.decoder import Kernels, loss_function
from jaxplan.workload.layout import Layout
from jaxplan.workload.pipeline import Pipeline, layer_order
from jaxplan.workload.shape import ModelShape, Workload
from jaxplan.workload.step import build

TINY = ModelShape("tiny", layers=8, embed=32, mlp=48, heads=8, kv_heads=4, head_dim=8, vocab=64)
WEIGHTS = 9     # of a block: four projections of attention, three of the feed-forward, two norms
SCALES = 2      # of them not stored in parts


def layout_of(**sizes):
    sizes = {axis.name: axis.size for axis in mesh_axes(sizes)}
    devices = np.array(jax.devices()[: int(np.prod(list(sizes.values())))]).reshape(list(sizes.values()))
    return Layout(Mesh(devices, list(sizes)), standard_rules(True, False).on(sizes))


@pytest.mark.parametrize("layers, stages, repeats", [(8, 4, 1), (8, 2, 2), (24, 3, 4), (24, 2, 6)])
def test_stored_order_is_stage_by_stage(layers, stages, repeats):
    order, chunk = layer_order(layers, stages, repeats), layers // (stages * repeats)
    assert sorted(order) == list(range(layers))
    for stage in range(stages):
        for repeat in range(repeats):
            first = (stage * repeats + repeat) * chunk
            assert order[first : first + chunk] == tuple(
                (repeat * stages + stage) * chunk + k for k in range(chunk)
            )


def test_stored_order_of_eight_layers_on_two_stages_twice():
    """Stage 0 works on layers 0, 1, then 4, 5; stage 1 on 2, 3, then 6, 7."""
    assert layer_order(8, 2, 2) == (0, 1, 4, 5, 2, 3, 6, 7)
    assert layer_order(8, 4) == tuple(range(8))
    with pytest.raises(ValueError, match="multiples of stages x repeats = 6, got 8"):
        layer_order(8, 3, 2)


def test_a_ring_needs_as_many_microbatches_as_stages():
    with pytest.raises(InputError, match="2 microbatches through 4 stages 2 times"):
        Pipeline(layout_of(stage=4), TINY, {}, "full", microbatches=2, repeats=2)
    Pipeline(layout_of(stage=4), TINY, {}, "full", microbatches=2)


def executed(jaxpr, times=1, found=None):
    """(primitive, axes) to how often it is executed on one device, loops counted by their length."""
    found = collections.Counter() if found is None else found
    for equation in jaxpr.eqns:
        axes = equation.params.get("axis_name", equation.params.get("axes", ()))
        axes = axes if isinstance(axes, tuple) else (axes,)
        found[equation.primitive.name, tuple(map(str, axes))] += times
        inner = times * equation.params["length"] if equation.primitive.name == "scan" else times
        for value in equation.params.values():
            body = getattr(value, "jaxpr", value)
            if hasattr(body, "eqns"):
                executed(body, inner, found)
    return found


def traced(remat, repeats, microbatches, dtype=jnp.bfloat16, **sizes):
    """The jaxpr of loss and gradients."""
    layout = layout_of(**sizes)
    kernels = Kernels("blockwise", 1, layout, microbatches=microbatches, repeats=repeats)
    model = loss_function(TINY, 16, 16, kernels=kernels, remat=remat, compute_dtype=dtype)
    return jax.make_jaxpr(jax.value_and_grad(model.loss))(model.params, model.batch)


@pytest.mark.parametrize("remat", ["none", "full"])
@pytest.mark.parametrize("repeats, microbatches", [(1, 8), (2, 4)])
def test_what_moves_in_a_step(remat, repeats, microbatches):
    """A send a tick forward, one backward; weights gathered and gradients scattered once, in no loop."""
    counts = executed(traced(remat, repeats, microbatches, stage=4, fsdp=2).jaxpr)
    ticks = microbatches * repeats + 4 - 1
    assert counts["ppermute", ("stage",)] == 2 * ticks
    assert counts["all_gather", ("fsdp",)] == counts["reduce_scatter", ("fsdp",)] == WEIGHTS - SCALES
    # activations come in from every stage and go back to it: one array, its cotangent
    assert counts["all_gather", ("stage",)] == counts["reduce_scatter", ("stage",)] == 2


@pytest.mark.parametrize("remat, repeats", [("none", 1), ("none", 2), ("full", 2)])
def test_no_weight_is_kept_for_a_tick(remat, repeats):
    """Under no policy does the loop over ticks stack what it computed with; gradients are added up in float32."""
    text = str(traced(remat, repeats, 4, stage=2, fsdp=2))
    ticks, chunk, held = 4 * repeats + 1, TINY.layers // (2 * repeats), TINY.layers // 2
    kept = f"[{ticks},{chunk},"
    assert f"bf16{kept}2,16,32]" in text                       # each layer's input
    assert f"{kept}32,48]" not in text                          # no layer's weights
    assert f"{kept}{held},32,48]" not in text                   # and no stack of them
    assert f"f32[{held},32,48] = dynamic_update_slice" in text


def run(block, x, weight, microbatches, **sizes):
    """A pipeline of layers with one vector each."""
    dims = {"scale": ("embed",)}
    pipeline = Pipeline(layout_of(**sizes), TINY, dims, "full", microbatches, dtype=jnp.bfloat16)
    return pipeline.over(lambda x, w, _: block(x, w["scale"]))(x, {"scale": weight}, None)


def test_gradients_are_added_up_in_float32():
    """256 and 15 halves: bfloat16 has eight bits and would stay at 256; 263.5 rounds to 264."""
    rows = jnp.full((16, 1, 1), 0.5).at[0].set(256.0)
    grad = jax.grad(lambda w: run(lambda x, w: x * w, rows.astype(jnp.bfloat16), w, 16, stage=2).sum())
    assert jax.jit(grad)(jnp.ones((2, 1)))[0, 0] == 264.0


def test_bubbles_have_no_part_in_it():
    """A block that has no value at zero: bubbles that computed on zeros would make every gradient NaN."""
    x = jnp.arange(1.0, 17.0).reshape(16, 1, 1)

    def loss(w):
        return run(lambda x, w: w / x, x, w, 4, stage=4).sum()

    # four layers: w3 / (w2 / (w1 / (w0 / x))) = x w1 w3 / (w0 w2)
    value, grad = jax.jit(jax.value_and_grad(loss))(jnp.ones((4, 1)))
    assert float(value) == 136.0
    assert np.asarray(grad)[:, 0].tolist() == [-136.0, 136.0, -136.0, 136.0]


def test_schedules_that_are_priced_only_are_not_run():
    work = Workload(TINY, 16, 16)
    machine, axes = catalogue.machine("2x4", "v5e", None), mesh_axes({"stage": 8})
    plan = Plan(machine, work, axes, "full", 16, "blockwise", schedule="1f1b")
    with pytest.raises(InputError, match=r"schedule 1f1b, which is priced only. Expected one of gpipe, circular"):
        build(plan, layout_of(stage=8).mesh)


def compiled():
    """What the compiler for eight H100 makes of four stages of two layers and 16 microbatches."""
    model = ModelShape("small", layers=8, embed=512, mlp=2048, heads=8, kv_heads=4, head_dim=64, vocab=8192)
    machine, axes = catalogue.machine("1x8", "h100", None), mesh_axes({"stage": 4, "fsdp": 2})
    plan = Plan(machine, Workload(model, 32, 512), axes, "full", 16, "cudnn")
    with Tiers(machine, 1) as tiers:
        return tiers.compile(plan, buffers=False).result()


@pytest.mark.compiler
@pytest.mark.skipif(not available("cuda").ok, reason=f"the CUDA plugin is not here: {available('cuda').problem}")
def test_compiled_collectives_are_those_of_the_schedule():
    found = compiled()
    assert found.ok, found.message
    rows = {(row.kind, row.axes): row for row in found.traffic}
    ticks, microbatch = 16 + 3, 512 * 512 * 2              # bytes of one sequence of activations in bfloat16
    sent = rows["collective-permute", ("stage",)]
    assert (sent.executions, sent.nbytes) == (2 * ticks, 2 * ticks * microbatch)
    attention, feed_forward = 512 * 64 * (8 + 4 + 4 + 8), 3 * 512 * 2048
    whole = 2 * (attention + feed_forward) * 2            # two layers in bfloat16
    for kind in ("all-gather", "reduce-scatter"):
        row = rows[kind, ("fsdp",)]
        assert row.executions == row.count                # in no loop
        assert row.nbytes == pytest.approx(whole, rel=1e-6)
