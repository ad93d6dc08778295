"""The tiers: cached answers, every outcome an evidence, nothing needed where the cache is warm."""

import dataclasses
import subprocess
import sys
import textwrap
from concurrent.futures import Future
from pathlib import Path

import pytest
from tiny_plans import tiny_plan

from jaxplan.compile import tiers as tiers_module
from jaxplan.compile.cache import Cache
from jaxplan.compile.environment import Availability, available
from jaxplan.compile.evidence import Evidence, Memory
from jaxplan.compile.tiers import Tiers
from jaxplan.compile.worker import Outcome
from jaxplan.errors import InputError, JaxplanError
from jaxplan.workload.table import Table

GB = 10**9
PLAN = tiny_plan()
GOOD = Evidence("compiled", "ok", "tpu", memory=Memory("tpu", GB, GB, GB, GB), capacity_bytes=16 * GB)
EMPTY_TABLE = Table((), (), (), (), (), (), (), {}, "tiny")


class FakePool:
    """Answers every job at once with what it was told."""

    def __init__(self, outcome):
        self.outcome, self.jobs = outcome, []

    def submit(self, job, done=None):
        self.jobs.append(job)
        future = Future()
        if self.outcome is None:
            future.cancel()
        else:
            future.set_result(self.outcome)
        if done:
            done(future)
        return future

    def shutdown(self, cancel_futures):
        pass


@pytest.fixture
def tiers(tmp_path, monkeypatch):
    monkeypatch.setattr(tiers_module, "available", lambda platform: Availability(platform, f"{platform} 1"))
    made = Tiers(PLAN.machine, cache=Cache(tmp_path))
    made._pool = FakePool(Outcome("ok", GOOD.to_json()))
    return made


def test_an_answer_is_asked_for_once(tiers):
    first = tiers.compile(PLAN).result()
    assert tiers.compile(PLAN).result() is first == GOOD and not first.from_cache
    again = Tiers(PLAN.machine, cache=tiers.cache)
    assert again.compile(PLAN).result() == GOOD and again.compile(PLAN).result().from_cache
    assert len(tiers._pool.jobs) == 1 and again._pool is None


def test_what_decides_the_answer_decides_the_entry(tiers, monkeypatch):
    tiers.compile(PLAN)
    tiers.compile(PLAN, init=True)
    tiers.compile(dataclasses.replace(PLAN, remat="none"))
    tiers.compile(PLAN.with_flags({"xla_tpu_scoped_vmem_limit_kib": "98304"}))
    tiers.partition(PLAN)
    monkeypatch.setattr(tiers_module, "versions", lambda platform: {"jax": "9"})
    tiers.compile(PLAN)
    monkeypatch.setenv("XLA_FLAGS", "--xla_some_flag=1")
    tiers.compile(PLAN)
    monkeypatch.setattr(tiers_module, "source_hash", lambda *parts: "other sources")
    tiers.compile(PLAN)
    assert len(tiers._pool.jobs) == 8


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome("failed", None, "XlaRuntimeError: INTERNAL: a long\nstory", "XlaRuntimeError"),
        Outcome("crashed", None, "the worker crashed with SIGFPE (Floating point exception)"),
        Outcome("timed out", None, "no answer after 900 s"),
        Outcome("killed", None, "the worker used 9 GiB of memory"),
        None,
    ],
)
def test_every_outcome_is_evidence_and_bad_luck_is_not_kept(tiers, outcome):
    tiers._pool.outcome = outcome
    evidence = tiers.compile(PLAN).result()
    assert evidence.status == (outcome.status if outcome else "cancelled") and not evidence.ok
    assert evidence.message and "\n" not in evidence.message and evidence.fits is None
    tiers._pool.outcome = Outcome("ok", GOOD.to_json())
    assert tiers.compile(PLAN).result().ok


def test_a_plan_too_large_for_the_host_is_partitioned_by_the_compile_that_proves_it(tiers):
    plan = tiny_plan("512x8", "h100", (512, 2, 4), "cudnn", batch=2048)
    large = Tiers(plan.machine, cache=tiers.cache)
    large._pool = tiers._pool
    assert large.partition(plan) is large.compile(plan)
    assert [job.arguments["platform"] for job in tiers._pool.jobs] == ["cuda"]


def test_that_a_plan_does_not_fit_is_kept(tiers):
    refused = Evidence("compiled", "does not fit", "tpu", "needs 32 GB", needed_bytes=32 * GB)
    tiers._pool.outcome = Outcome("ok", refused.to_json())
    tiers.compile(PLAN)
    assert tiers.compile(PLAN).result() == refused and len(tiers._pool.jobs) == 1


def test_without_a_compiler_there_is_no_future_and_a_note(tmp_path, monkeypatch):
    missing = Availability("tpu", "", "the TPU compiler (libtpu) is not installed", 'pip install "jax[tpu]"')
    monkeypatch.setattr(tiers_module, "available", lambda platform: missing)
    tiers = Tiers(PLAN.machine, cache=Cache(tmp_path))
    assert tiers.compile(PLAN) is None
    assert any('pip install "jax[tpu]"' in note for note in tiers.notes)


def test_a_chip_without_a_compiler_has_no_compile_tier(tmp_path):
    plan = tiny_plan("1x8", "mi300x", attention="blockwise")
    tiers = Tiers(plan.machine, cache=Cache(tmp_path))
    assert tiers.target is None and tiers.compile(plan) is None and "MI300X" in " ".join(tiers.notes)


def test_traces_are_kept_and_their_errors_are_ours(tiers):
    ours = "jaxplan.errors.InputError"
    tiers._pool.outcome = Outcome("failed", None, "InputError: no experts. Try x.", ours)
    with pytest.raises(InputError, match=r"no experts. Try x.$"):
        tiers.trace(PLAN.workload)
    tiers._pool.outcome = Outcome("crashed", None, "the worker crashed")
    with pytest.raises(JaxplanError, match="tracing tiny: crashed: the worker crashed"):
        tiers.trace(PLAN.workload)
    tiers._pool.outcome = Outcome("ok", EMPTY_TABLE.to_json())
    assert tiers.trace(PLAN.workload) == EMPTY_TABLE == tiers.trace(PLAN.workload)
    assert len(tiers._pool.jobs) == 3


def test_a_trace_whose_process_died_is_tried_again(tiers):
    tiers._pool.outcome = Outcome("killed", None, "killed from outside", exit_code=-9)
    with pytest.raises(JaxplanError, match="killed from outside"):
        tiers.trace(PLAN.workload)
    assert len(tiers._pool.jobs) == 2


WARM = textwrap.dedent("""
    import sys, time
    sys.path[:0] = [sys.argv[1], sys.argv[2]]
    from pathlib import Path
    from tiny_plans import tiny_plan
    from jaxplan.compile.cache import Cache
    from jaxplan.compile.tiers import Tiers

    plan = tiny_plan(head_dim=32)
    with Tiers(plan.machine, cache=Cache(Path(sys.argv[3]))) as tiers:
        table, evidence = tiers.trace(plan.workload), tiers.partition(plan).result()
        cold = sys.argv[4] == "cold"
        assert evidence.ok and evidence.from_cache != cold, evidence
        assert (tiers._pool is not None) == cold
        assert "jax" not in sys.modules and "flax" not in sys.modules
        print(evidence.memory.argument_bytes, len(table.operations))
""")


def test_a_real_plan_is_partitioned_and_a_warm_cache_needs_no_worker_and_no_jax(tmp_path):
    def ask(state):
        here = Path(__file__).parent
        arguments = [str(here.parents[1]), str(here), str(tmp_path), state]
        command = [sys.executable, "-c", WARM, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert ask("cold") == ask("warm")


def parameters_bytes(plan):
    """One device's parameters and AdamW state: matrices over fsdp x tensor, vectors everywhere."""
    m = plan.workload.model
    shards = plan.sizes["fsdp"] * plan.sizes["tensor"]
    attention = 2 * m.embed * m.heads * m.head_dim + 2 * m.embed * m.kv_heads * m.head_dim
    matrices = m.layers * (attention + 3 * m.embed * m.mlp) + 2 * m.vocab * m.embed
    vectors = 2 * m.layers * m.embed + m.embed
    return 3 * 4 * (matrices // shards + vectors)      # float32: parameter, two moments


def check_real(evidence, plan, memory_slack):
    assert evidence.ok, evidence.message
    state = parameters_bytes(plan)
    tokens = 2 * 4 * plan.workload.tokens // (plan.sizes["data"] * plan.sizes["fsdp"])
    arguments = evidence.memory.argument_bytes
    assert abs(arguments - state - tokens) <= memory_slack
    assert evidence.donation.fraction > 0.999 and evidence.output_shardings == ()
    assert sum(evidence.memory.by_kind.values()) == evidence.memory.total_bytes
    kinds = {(row.kind, row.axes) for row in evidence.traffic}
    assert ("all-gather", ("fsdp",)) in kinds and ("reduce-scatter", ("fsdp",)) in kinds
    assert evidence.flops["matmul"] > 0 and evidence.unknown_trip_counts == 0
    assert evidence.versions["jaxlib"] and evidence.partitioner


@pytest.mark.parametrize("sizes", [(2, 2, 2), (1, 8, 1)])
def test_partitioned_arguments_are_the_closed_form(tmp_path, sizes):
    plan = tiny_plan(head_dim=32, sizes=sizes)
    with Tiers(plan.machine, 1, Cache(tmp_path)) as tiers:
        evidence = tiers.partition(plan).result()
    check_real(evidence, plan, memory_slack=64)         # the step's counter and alignment
    assert evidence.schedule is None


COMPILERS = [
    pytest.param("v5e", "2x4", "splash", "tpu", id="v5e"),
    pytest.param("h100", "1x8", "cudnn", "cuda", id="h100"),
]


@pytest.mark.compiler
@pytest.mark.parametrize(("chip", "mesh", "attention", "platform"), COMPILERS)
def test_compiled_by_the_target(tmp_path, chip, mesh, attention, platform):
    if not available(platform).ok:
        pytest.skip(available(platform).problem)
    plan = tiny_plan(mesh, chip, attention=attention)
    with Tiers(plan.machine, 1, Cache(tmp_path)) as tiers:
        evidence = tiers.compile(plan, init=True).result()
    check_real(evidence, plan, memory_slack=4096)       # TPU pads each small array to a tile
    time = evidence.schedule
    assert time.low_s <= time.value_s <= time.high_s
    assert sum(seconds for _, seconds in time.ledger) == pytest.approx(time.value_s)
    assert evidence.init_memory.output_bytes >= parameters_bytes(plan)


@pytest.mark.compiler
@pytest.mark.parametrize(("chip", "mesh", "attention", "platform"), COMPILERS)
def test_what_does_not_fit_is_refused_whether_the_compiler_says_so_or_not(
    tmp_path, chip, mesh, attention, platform
):
    if not available(platform).ok:
        pytest.skip(available(platform).problem)
    plan = tiny_plan(mesh, chip, (8, 1, 1), attention, batch=8 * 2**15, microbatches=1, remat="none")
    with Tiers(plan.machine, 1, Cache(tmp_path)) as tiers:
        evidence = tiers.compile(plan).result()
    assert evidence.status == "does not fit", evidence
    assert evidence.total_bytes > evidence.capacity_bytes > 0 and evidence.message
