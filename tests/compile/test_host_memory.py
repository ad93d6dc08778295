"""What a plan keeps in its hosts' memory, by the compilers' own account, against closed forms."""

import pytest
from tiny_plans import tiny_plan

from jaxplan.compile.cache import Cache
from jaxplan.compile.environment import available
from jaxplan.compile.tiers import Tiers

COMPILERS = [
    pytest.param("v5e", "2x4", "splash", "tpu", id="v5e"),
    pytest.param("h100", "1x8", "cudnn", "cuda", id="h100"),
]


def optimizer_bytes(plan) -> int:
    """AdamW's two float32 moments of every parameter that is cut in fsdp x tensor = 4 parts, and of the whole norms."""
    model = plan.workload.model
    per_layer = model.embed * (2 * model.heads + 2 * model.kv_heads) * model.head_dim + 3 * model.embed * model.mlp
    cut = model.layers * per_layer + 2 * model.vocab * model.embed
    return 2 * 4 * (cut // 4 + (2 * model.layers + 1) * model.embed)


def tagged_bytes(plan) -> int:
    """What one device keeps of one microbatch: every value that `dots` names and the backward pass reads."""
    model, tensor = plan.workload.model, plan.size("tensor")
    tokens = plan.local_sequences * plan.workload.seq
    wide = 2 * model.heads * model.head_dim + 2 * model.kv_heads * model.head_dim + 2 * model.mlp   # q, out; k, v; mlp
    return model.layers * tokens // tensor * (2 * wide + 2 * model.embed + 4 * model.heads)         # logsumexp: float32


def memory(cache, chip, mesh, attention, **more):
    plan = tiny_plan(mesh, chip, attention=attention, **more)
    with Tiers(plan.machine, 1, Cache(cache)) as tiers:
        evidence = tiers.compile(plan).result()
    assert evidence.ok, evidence.message
    assert evidence.donation.fraction > 0.999 and evidence.output_shardings == ()
    assert sum(evidence.memory.by_kind.values()) == evidence.memory.total_bytes
    return plan, evidence.memory


@pytest.mark.compiler
@pytest.mark.parametrize(("chip", "mesh", "attention", "platform"), COMPILERS)
def test_optimizer_state_and_activations_lie_on_the_host(tmp_path, chip, mesh, attention, platform):
    if not available(platform).ok:
        pytest.skip(available(platform).problem)
    more = {"remat": "offload-dots", "offload_optimizer": True}
    plan, found = memory(tmp_path, chip, mesh, attention, **more)
    expected = optimizer_bytes(plan) + tagged_bytes(plan)
    # a TPU pads each layer's logsumexp to tiles of 8 x 128 and keeps a second copy of some values in flight
    assert expected <= found.host_bytes <= (2 if platform == "tpu" else 1.001) * expected
    assert found.by_kind["optimizer"] == 4      # the count of steps, an int32, stays


@pytest.mark.compiler
@pytest.mark.skipif(not available("cuda").ok, reason=available("cuda").problem)
def test_what_lies_on_the_host_leaves_the_device(tmp_path):
    """Many sequences, so that kept activations outweigh the rest: a tenth of them at most is on its way at any time."""
    here = ("h100", "1x8", "cudnn")
    (_, full), (_, dots), (plan, away) = (
        memory(tmp_path, *here, remat=remat, microbatches=1, batch=256) for remat in ("full", "dots", "offload-dots")
    )
    kept = tagged_bytes(plan)
    assert dots.total_bytes - full.total_bytes > 0.9 * kept - kept / plan.workload.model.layers
    assert away.total_bytes < full.total_bytes + 0.1 * kept
    assert away.host_bytes == pytest.approx(kept, rel=1e-3)
