"""Workers: whatever the job does, the caller gets an outcome that says so."""

import dataclasses
import os
import time
from pathlib import Path

import pytest

from jaxplan.compile.environment import environment
from jaxplan.compile.worker import Job, Worker, describe_exit, run

HERE = environment().with_variables(PYTHONPATH=str(Path(__file__).parent))


def job(function, seconds_limit=20.0, **arguments):
    return Job(f"fake_jobs:{function}", arguments, HERE, seconds_limit)


def gone(pid):
    """Whether a process ends within two seconds (a zombie has ended)."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def test_a_job_that_succeeds():
    outcome = run(job("succeed", value=[1, "two", None]))
    assert outcome.ok and outcome.value == {"value": [1, "two", None]}
    assert outcome.message == "" and outcome.seconds > 0 and outcome.peak_bytes > 1_000_000


def test_a_large_value_arrives_whole():
    assert run(job("large", count=50_000)).value == ["x" * 100] * 50_000


def test_an_exception_is_a_failure_with_its_class_and_traceback():
    outcome = run(job("fail"))
    assert outcome.status == "failed" and outcome.error == "ValueError"
    assert outcome.message == "ValueError: seventeen is not divisible by eight"
    assert "fake_jobs.py" in outcome.traceback


@pytest.mark.parametrize("missing", ["no_such_module_here:f", "fake_jobs:no_such_function"])
def test_a_function_that_does_not_exist_fails(missing):
    assert run(Job(missing, {}, HERE)).status == "failed"


def test_sys_exit_and_unsendable_values_fail_without_ending_the_worker():
    with Worker(HERE) as worker:
        assert worker.ask(job("leave")).status == "failed"
        assert worker.ask(job("not_plain_data")).error == "TypeError"
        assert worker.ask(job("succeed")).ok


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [
        ("segfault", "crashed", "SIGSEGV"),
        ("segfault_really", "crashed", "SIGSEGV"),
        ("divide_by_zero_in_c", "crashed", "SIGFPE"),
        ("leave_hard", "crashed", "status 3"),
        ("killed_from_outside", "killed", "SIGKILL"),
    ],
)
def test_a_process_that_dies_is_an_outcome(name, status, said):
    outcome = run(job(name))
    assert outcome.status == status and said in outcome.message


def test_a_crash_leaves_its_place_on_standard_error():
    assert "segfault_really" in run(job("segfault_really")).stderr        # faulthandler's traceback


def test_a_hung_job_is_ended_and_says_where_it_hung():
    outcome = run(job("hang", seconds_limit=0.5))
    assert outcome.status == "timed out"
    assert "in hang" in outcome.stderr


def test_a_job_that_eats_memory_is_killed():
    greedy = dataclasses.replace(job("eat_memory", megabytes=2000), memory_limit_bytes=200 * 2**20)
    outcome = run(greedy)
    assert outcome.status == "killed" and "its limit was 200 MiB" in outcome.message
    assert outcome.peak_bytes > 200 * 2**20


def test_what_c_code_writes_to_standard_error_is_captured():
    outcome = run(job("write_from_c", text="W0000 [SPMD] from C\n"))
    assert outcome.ok and "[SPMD] from C" in outcome.stderr


def test_each_job_gets_its_own_standard_error():
    with Worker(HERE) as worker:
        worker.ask(job("write_from_c", text="first"))
        second = worker.ask(job("write_from_c", text="second"))
        assert second.stderr == "second"
        assert worker.ask(job("read_own_stderr", text="third")).value == "third"


def test_printing_does_not_break_the_line_to_the_parent():
    outcome = run(job("print_to_stdout", text='{"id": 0, "status": "ok", "value": "a lie"}'))
    assert outcome.value == "done" and "a lie" in outcome.stderr


def test_a_job_cannot_read_the_line_from_the_parent():
    assert run(job("read_stdin")).value == ""


def test_the_environment_is_set_before_the_worker_starts():
    assert run(job("variable", name="TF_CPP_MIN_LOG_LEVEL")).value == "0"
    assert run(job("variable", name="JAX_PLATFORMS")).value == "cpu"


def test_killing_a_worker_kills_what_it_started(tmp_path):
    pids = tmp_path / "pids"
    assert run(job("hang_with_child", seconds_limit=1.5, pid_file=str(pids))).status == "timed out"
    worker, child = map(int, pids.read_text().split())
    assert gone(worker) and gone(child)


def test_one_worker_answers_several_jobs():
    with Worker(HERE) as worker:
        pids = {worker.ask(job("process_id")).value for _ in range(3)}
    assert pids == {worker.pid} and gone(worker.pid)


def test_exit_codes_in_words():
    assert describe_exit(-8)[1] == "the worker crashed with SIGFPE (Floating point exception)"
    assert describe_exit(1) == ("crashed", "the worker exited with status 1")
    assert describe_exit(-64)[0] == "crashed"


@pytest.mark.parametrize("wrong", [{"function": "no_colon"}, {"function": "a:b", "seconds_limit": 0}])
def test_a_malformed_job_is_refused(wrong):
    with pytest.raises(ValueError):
        Job(**wrong)


def test_file_descriptors_are_given_back():
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        run(job("succeed"))
    assert len(os.listdir("/proc/self/fd")) == before
