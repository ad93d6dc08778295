"""What real targets' compilers make of context parallelism and shared key-value heads: two layers, 16 k tokens."""

import functools
import math
from types import SimpleNamespace

import pytest

from jaxplan.compile.environment import available
from jaxplan.compile.tiers import Tiers
from jaxplan.machine import catalogue
from jaxplan.plan.plan import Plan, mesh_axes
from jaxplan.workload.shape import ModelShape, Workload

MODEL = ModelShape("long", layers=2, embed=1024, mlp=2048, heads=8, kv_heads=4, head_dim=128, vocab=4096)
SEQ = 16384
TARGETS = {"cuda": ("1x8", "h100", "cudnn"), "tpu": ("2x4", "v5e", "splash")}
BF16, F32 = 2, 4        # bytes

# target, mesh, context attention, sequences
RING_8_CUDA, RING_8_TPU = ("cuda", {"context": 8}, "ring", 1), ("tpu", {"context": 8}, "ring", 1)
RING_2 = ("cuda", {"context": 2, "fsdp": 2, "tensor": 2}, "ring", 2)
ULYSSES_CUDA, ULYSSES_TPU = ((target, {"context": 4, "fsdp": 2}, "ulysses", 2) for target in ("cuda", "tpu"))
GROUP = ("cuda", {"tensor": 4, "group": 2}, "ring", 1)
CASES = [RING_8_CUDA, RING_8_TPU, RING_2, ULYSSES_CUDA, ULYSSES_TPU, GROUP]

pytestmark = pytest.mark.compiler


def name(case):
    return "-".join([case[0], *(f"{axis}{size}" for axis, size in case[1].items()), case[2]])


@functools.cache
def compiled(index):
    target, sizes, context, sequences = CASES[index]
    if not (found := available(target)).ok:
        pytest.skip(f"the compiler is not here: {found.problem}")
    mesh, chip, kernel = TARGETS[target]
    work = Workload(MODEL, sequences, SEQ)
    # results of attention are kept: with what runs again, its first exchanges would be shared
    plan = Plan(
        catalogue.machine(mesh, chip, None),
        work,
        mesh_axes(sizes),
        "attention",
        1,
        kernel,
        context_attention=context,
    )
    with Tiers(plan.machine, 1) as tiers:
        return tiers.compile(plan, buffers=False).result()


def evidence(case):
    return compiled(CASES.index(case))


def moved(case, kind, *axes):
    """Bytes of all collectives of that kind over these axes, one device, one layer."""
    return sum(row.nbytes for row in evidence(case).traffic if row.kind == kind and row.axes == axes) / MODEL.layers


def local(case):
    """Elements that one device has of a layer's queries, of its keys and values together, and of the stream."""
    _, sizes, _, sequences = case
    size = SimpleNamespace(**{axis: sizes.get(axis, 1) for axis in ("fsdp", "context", "tensor", "group")})
    tokens = sequences * SEQ // (size.fsdp * size.context)
    heads = MODEL.heads // (size.tensor * size.group)
    pair = 2 * MODEL.kv_heads // size.tensor
    return tokens * heads * MODEL.head_dim, tokens * pair * MODEL.head_dim, tokens * MODEL.embed


@pytest.mark.parametrize("case", CASES, ids=name)
def test_it_compiles_without_a_full_rematerialization(case):
    found = evidence(case)
    assert found.ok, found.message
    assert [one.message for one in found.diagnostics if "rematerialization" in one.message.lower()] == []


@pytest.mark.parametrize("case", CASES, ids=name)
def test_no_masked_score_is_computed(case):
    """Two matmuls forward and five backward over half of the square, divided by all devices."""
    _, sizes, _, sequences = case
    matmul = 2 * sequences * MODEL.heads * MODEL.head_dim * SEQ**2 / 2 * MODEL.layers / math.prod(sizes.values())
    flops = evidence(case).flops
    assert flops["attention_forward"] == pytest.approx(2 * matmul, rel=1e-6)
    assert flops["attention_backward"] == pytest.approx(5 * matmul, rel=1e-6)


@pytest.mark.parametrize("case", [RING_8_CUDA, RING_8_TPU], ids=name)
def test_a_ring_passes_keys_and_values_and_their_gradients(case):
    """n - 1 hops of keys and values forward and backward, and of their float32 gradients."""
    hops = case[1]["context"] - 1
    _, pair, _ = local(case)
    expected = hops * pair * (BF16 + BF16 + F32)
    got = moved(case, "collective-permute", "context")
    if case is RING_8_CUDA:
        assert got == expected
    else:
        # this compiler makes permutes of most reduce-scatters, too: of gradients of a layer's weights
        layer = MODEL.embed * (2 * MODEL.heads + 2 * MODEL.kv_heads) * MODEL.head_dim + 3 * MODEL.embed * MODEL.mlp
        assert 0 <= got - expected <= 1.25 * layer * BF16


def test_a_ring_of_two_passes_gradients_as_they_are():
    _, pair, _ = local(RING_2)
    assert moved(RING_2, "collective-permute", "context") == pair * 3 * BF16
    # beside it: weights over fsdp and context, activations over tensor, the lookup's exchanges, and nothing else
    large = {(row.kind, row.axes) for row in evidence(RING_2).traffic if row.nbytes > 2**20}
    assert large == {
        ("collective-permute", ("context",)),
        ("all-gather", ("fsdp", "context")),
        ("reduce-scatter", ("fsdp", "context")),
        ("all-gather", ("tensor",)),
        ("reduce-scatter", ("tensor",)),
        ("all-to-all", ("context",)),
        ("all-to-all", ("fsdp",)),
    }


@pytest.mark.parametrize("case", [ULYSSES_CUDA, ULYSSES_TPU], ids=name)
def test_ulysses_exchanges_sequences_for_heads(case):
    """q, k, v, out forward; q, k, v, out, d out, dq, dk, dv backward; and the stream of the lookup, once each way."""
    query, pair, stream = local(case)
    lookup = 2 * stream * BF16 / MODEL.layers
    assert moved(case, "all-to-all", "context") == (6 * query + 3 * pair) * BF16 + lookup
    assert moved(case, "collective-permute", "context") == 0


def test_gradients_of_shared_heads_are_added_up():
    _, pair, _ = local(GROUP)
    assert moved(GROUP, "all-reduce", "group") == pair * BF16
    assert moved(GROUP, "all-gather", "group") == moved(GROUP, "collective-permute", "tensor", "group") == 0
