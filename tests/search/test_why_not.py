"""Why not another plan: what is asked is read, verdicts agree with the whole space, what is illegal has a reason."""

import math

import pytest

from jaxplan.errors import InputError
from jaxplan.estimate.single import estimate_plan
from jaxplan.machine import catalogue
from jaxplan.plan.plan import Plan, mesh_axes
from jaxplan.plan.sharding import AXES
from jaxplan.search.asked import Asked, parse
from jaxplan.search.meshes import meshes
from jaxplan.search.rank import MEMORY_MARGIN, rank
from jaxplan.search.space import enumerate_space
from jaxplan.search.why_not import broken_rule, illegal, why_not

POD = catalogue.machine("8x16", "v5e", None)


@pytest.fixture(scope="module")
def plan(workload, machine):
    return Plan(machine, workload, mesh_axes({"fsdp": 8}), remat="full", microbatches=2, attention="splash")


@pytest.fixture(scope="module")
def whole(workload, table, machine):
    """The whole space, priced."""
    return rank(enumerate_space(workload, table, machine), table, machine)


def ask(text, plan, table, **more):
    return why_not(parse(text, plan.machine), plan, estimate_plan(plan, table), table, **more)


@pytest.mark.parametrize(
    ("text", "sizes", "decisions"),
    [
        ("data=8,tensor=16", {"data": 8, "tensor": 16}, {}),
        ("data=8 , tensor=16, remat=full,microbatches=4", {"data": 8, "tensor": 16},
         {"remat": "full", "microbatches": 4}),
        ("fsdp=128 data=1", {"fsdp": 128}, {}),
        ("remat=dots", {}, {"remat": "dots"}),
        # as the tables of plans print it
        ("data=2 fsdp=64 zero1", {"data": 2, "fsdp": 64}, {"zero1": True, "zero2": False}),
        ("data=2 fsdp=64 zero2", {"data": 2, "fsdp": 64}, {"zero1": True, "zero2": True}),
        ("stage=4 fsdp=32 circular x2", {"stage": 4, "fsdp": 32}, {"schedule": "circular", "repeats": 2}),
        ("context=2 fsdp=64 ulysses offload", {"context": 2, "fsdp": 64},
         {"context_attention": "ulysses", "offload_optimizer": True}),
        ("fsdp=32 tensor=4 whole-seq", {"fsdp": 32, "tensor": 4}, {"sequence_sharding": False}),
        ("zero1=false", {}, {"zero1": False, "zero2": False}),
        ("zero2=no,sequence_sharding=TRUE", {}, {"zero2": False, "sequence_sharding": True}),
        ("remat=full,remat=full", {}, {"remat": "full"}),
    ],
)
def test_what_is_asked_is_read(text, sizes, decisions):
    assert parse(text, POD) == Asked(text, sizes, decisions)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["got nothing", "data=8,tensor=16"]),
        (" , ", ["got nothing"]),
        ("tensor=16", ["makes 16 devices", "the 128 of v5e 8x16", "--why-not tensor=16,fsdp=8"]),
        ("data=3,tensor=16", ["makes 48 devices"]),
        ("data=8,data=16", ["data twice: 8 and 16"]),
        ("zero1,zero2", ["zero2 twice"]),
        ("data=x", ["'data=x'", "positive whole number"]),
        ("data=-8,tensor=16", ["'data=-8'"]),
        ("data=0", ["'data=0'"]),
        ("data=٨,tensor=16", ["whole number"]),
        ("data=9999999999999999999999", ["whole number"]),
        ("remat=most", ["'remat=most'", "full", "dots"]),
        ("pigs=8", ["'pigs=8'", "tensor", "microbatches"]),
        ("data", ["'data'", "NAME=VALUE"]),
        ("zero1=perhaps", ["true or false"]),
        ("schedule=fast", ["gpipe", "1f1b"]),
        ("=", ["'='"]),
    ],
)
def test_what_cannot_be_read_is_bad_input(text, words):
    with pytest.raises(InputError) as told:
        parse(text, POD)
    for word in words:
        assert word in str(told.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("tensor=8", "kv_heads is not divisible by tensor"),
        ("stage=8", "stages do not divide the layers"),
        ("fsdp=8,zero1", "ZeRO-1 shards nothing where data is 1"),
        ("context=2,fsdp=4", "a device's chunk of the sequence is no multiple of 128 tokens, a kernel's least block"),
        ("expert=2,fsdp=4", "the axis expert means nothing to small, which has"),
        ("microbatches=3", "batch is not divisible by fsdp x microbatches"),
        ("data=8,zero2,microbatches=1", "ZeRO-2 keeps no gradients where there is one microbatch"),
        ("schedule=1f1b", "only gpipe runs on a single stage"),
        ("stage=2,fsdp=4,circular,microbatches=1", "circular needs as many microbatches as stages"),
        ("stage=2,fsdp=4,x3", "stages times repeats do not divide the layers"),
        ("stage=2,tensor=2,fsdp=2,whole-seq", "context and stage axes come with sequence sharding"),
        ("ulysses", "ring or ulysses makes no difference where context is 1"),
    ],
)
def test_an_illegal_plan_has_its_reason(plan, table, text, reason):
    found = ask(text, plan, table)
    assert found.verdict == "illegal" and found.reason.startswith(reason) and found.plan is None


def test_a_rule_is_broken_where_the_space_has_no_candidate_and_only_there(workload, table, plan, whole):
    space = whole.space
    legal = set(space.meshes)
    chosen = [space.plan(row, plan.machine, workload, "splash", {}) for row in range(len(space))]
    of_mesh = {mesh: [p for p, m in zip(chosen, space.mesh, strict=True) if space.meshes[m] == mesh] for mesh in legal}
    asks = [{}, {"zero1": True}, {"zero1": True, "zero2": True}, {"sequence_sharding": False}, {"microbatches": 4},
            {"microbatches": 8}, {"schedule": "circular", "repeats": 2}, {"schedule": "circular", "microbatches": 1}]
    for mesh in meshes(plan.machine.devices, AXES):
        for given in asks:
            plans = [p for p in of_mesh.get(mesh, []) if all(getattr(p, k) == v for k, v in given.items())]
            broken = broken_rule(dict(zip(AXES, mesh, strict=True)), Asked("", {}, given), plan, table)
            assert bool(broken) == (not plans), (mesh, given, broken)


@pytest.mark.parametrize(
    "text", ["data=8", "fsdp=4,tensor=2", "stage=2,fsdp=4", "data=2,fsdp=4,zero1,remat=dots", "tensor=4,group=2"]
)
def test_of_another_mesh_the_best_is_compared(workload, table, plan, whole, text):
    asked, found = parse(text, plan.machine), ask(text, plan, table)
    wanted = {axis.name: axis.size for axis in mesh_axes(asked.sizes)}
    space = whole.space
    alike = []
    for row in range(len(space)):
        other = space.plan(row, plan.machine, workload, "splash", {})
        if other.sizes == wanted and all(getattr(other, name) == value for name, value in asked.decisions.items()):
            alike.append(row)
    assert found.considered == len(alike)
    best = whole.value_s[[row for row in alike if whole.fits[row]]].min()
    assert found.estimate.value_s <= best * 1.001      # what is as fast as the fastest is told apart by memory
    mine = estimate_plan(plan, table)
    assert found.verdict == ("slower" if found.slower_s > 0 else "faster")
    assert math.isclose(found.slower_s, found.estimate.value_s - mine.value_s, abs_tol=1e-15)
    assert math.isclose(sum(found.time_s.values()), found.slower_s, rel_tol=1e-9)
    assert math.isclose(sum(found.memory_bytes.values()), found.estimate.total_bytes - mine.total_bytes, rel_tol=1e-9)
    sizes = [abs(change) for change in found.time_s.values()]
    assert sizes == sorted(sizes, reverse=True) and min(sizes) > 0


def test_on_its_own_mesh_only_what_was_asked_changes(plan, table):
    found = ask("remat=dots", plan, table)
    assert found.plan.remat == "dots" and found.plan.microbatches == plan.microbatches
    assert set(found.time_s) >= {"recompute"} and found.considered == 1
    assert ask("fsdp=8,remat=full,microbatches=2", plan, table).verdict == "the same plan"


def test_what_does_not_fit_says_by_how_much_and_why(plan, table, machine, whole):
    one = "data=8,remat=none,microbatches=1,zero1=false,offload_optimizer=false"
    fitting = ask(one, plan, table)
    assert (fitting.over_bytes, fitting.binding) == (0.0, "")
    ratio = 2 * machine.device_hbm_bytes / fitting.estimate.total_bytes
    found = ask(one, plan, table, memory_ratio=ratio)
    assert found.verdict == "does not fit"
    assert math.isclose(found.over_bytes, (2 * (1 + MEMORY_MARGIN) - 1) * machine.device_hbm_bytes)
    largest = max(found.estimate.memory_bytes.values())
    assert found.estimate.memory_bytes[found.binding] == largest
    # nothing fits: the smallest of all is compared
    smallest = ask("data=8", plan, table, memory_ratio=1e6)
    least = whole.total_bytes[whole.space.size_of("data") == 8].min()
    assert smallest.verdict == "does not fit" and math.isclose(smallest.estimate.total_bytes, least)


def test_schedules_that_only_others_run_are_priced(plan, table):
    found = ask("stage=2,fsdp=4,1f1b,microbatches=4,remat=full", plan, table)
    assert found.plan.schedule == "1f1b" and found.estimate is not None


def test_the_last_resort(plan, table):
    of = dict(zip(AXES, (1, 1, 8, 1, 1, 1, 1), strict=True))
    assert illegal(of, Asked("", {}, {}), plan, table) == "no plan can have all of these at once"
