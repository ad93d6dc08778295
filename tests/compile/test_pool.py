"""The pool: two at a time, warm workers, cancel, Ctrl-C, death of the parent."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from pathlib import Path

import pytest

from jaxplan.compile import pool as pool_module
from jaxplan.compile.environment import environment
from jaxplan.compile.pool import WorkerPool
from jaxplan.compile.worker import Job, run

REPOSITORY = Path(__file__).parents[2]
HERE = environment().with_variables(PYTHONPATH=str(Path(__file__).parent))


def job(function, seconds_limit=20.0, place=HERE, **arguments):
    return Job(f"fake_jobs:{function}", arguments, place, seconds_limit)


def gone(pid):
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


def wait_for(path, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.02)
    return path.read_text()


def test_outcomes_come_as_futures_and_bad_jobs_do_not_stop_the_others():
    names = ["succeed", "segfault", "succeed", "fail", "leave_hard", "succeed"]
    with WorkerPool(2) as pool:
        futures = {pool.submit(job(name)): name for name in names}
        results = sorted((futures[f], f.result().status) for f in as_completed(futures))
    assert results == sorted(
        zip(names, ["ok", "crashed", "ok", "failed", "crashed", "ok"], strict=True)
    )


def test_two_run_at_a_time(tmp_path):
    with pytest.raises(KeyboardInterrupt), WorkerPool(2) as pool:
        for i in range(3):
            pool.submit(job("hang_and_tell", pid_file=str(tmp_path / f"{i}")))
        assert wait_for(tmp_path / "0") != wait_for(tmp_path / "1")
        assert not (tmp_path / "2").exists()
        raise KeyboardInterrupt


def test_a_worker_is_used_again_and_an_environment_is_never_mixed_up():
    other = HERE.with_variables(JAXPLAN_TEST="other")
    with WorkerPool(1) as pool:
        first, second = (pool.submit(job("process_id")).result().value for _ in range(2))
        said = pool.submit(job("variable", place=other, name="JAXPLAN_TEST")).result().value
        third = pool.submit(job("process_id", place=other)).result().value
    assert first == second != third and said == "other"


def test_a_worker_that_grew_is_replaced(monkeypatch):
    monkeypatch.setattr(pool_module, "RETIRE_SHARE", 0.0)
    with WorkerPool(1) as pool:
        assert pool.submit(job("process_id")).result().value != pool.submit(job("process_id")).result().value


def test_done_is_called():
    called = threading.Event()
    with WorkerPool(1) as pool:
        pool.submit(job("succeed"), done=lambda future: called.set())
        assert called.wait(10)


def test_cancel_ends_a_job_that_runs(tmp_path):
    with WorkerPool(1) as pool:
        future = pool.submit(job("hang_and_tell", pid_file=str(tmp_path / "pid")))
        pid = int(wait_for(tmp_path / "pid"))
        pool.cancel(future)
        assert future.result(timeout=60).status == "cancelled"
        assert gone(pid)
        assert pool.submit(job("succeed")).result().ok


def test_cancel_drops_a_job_that_waits():
    with WorkerPool(1) as pool:
        running = pool.submit(job("hang", seconds=0.5))
        waiting = pool.submit(job("succeed"))
        pool.cancel(waiting)
        assert running.result().ok
        with pytest.raises(CancelledError):
            waiting.result()


def test_an_exception_in_the_caller_kills_everything(tmp_path):
    with pytest.raises(KeyboardInterrupt), WorkerPool(2) as pool:
        running = pool.submit(job("hang_and_tell", pid_file=str(tmp_path / "pid")))
        queued = [pool.submit(job("hang")) for _ in range(3)]
        pid = int(wait_for(tmp_path / "pid"))
        raise KeyboardInterrupt
    assert gone(pid)
    assert running.result().status == "cancelled" and queued[-1].cancelled()


def test_a_closed_pool_takes_no_jobs():
    pool = WorkerPool(1)
    pool.shutdown()
    with pytest.raises(RuntimeError):
        pool.submit(job("succeed"))


def test_a_worker_that_cannot_start_is_an_outcome(monkeypatch):
    def refuse(*_args, **_kwargs):
        raise OSError("too many open files")

    monkeypatch.setattr(pool_module, "Worker", refuse)
    with WorkerPool(1) as pool:
        outcome = pool.submit(job("succeed")).result()
    assert outcome.status == "crashed" and "too many open files" in outcome.message


def test_any_executor_can_run_a_job():
    with ThreadPoolExecutor(2) as executor:
        futures = [executor.submit(run, job("succeed", value=i)) for i in (1, 2)]
        assert [future.result().value["value"] for future in futures] == [1, 2]


PARENT = textwrap.dedent("""
    import sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[1])
    from jaxplan.compile.environment import environment
    from jaxplan.compile.pool import WorkerPool
    from jaxplan.compile.worker import Job

    here = environment().with_variables(PYTHONPATH=sys.argv[2])
    with WorkerPool(2) as pool:
        for i in (0, 1):
            last = pool.submit(Job("fake_jobs:hang_and_tell", {"pid_file": f"{sys.argv[3]}/{i}"}, here))
        last.result()
""")


@pytest.mark.parametrize("blow", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_workers_die_with_their_parent(tmp_path, blow):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(REPOSITORY), str(Path(__file__).parent), str(tmp_path)],
        stderr=subprocess.PIPE,
    )
    pids = [int(wait_for(tmp_path / str(i))) for i in (0, 1)]
    os.kill(parent.pid, blow)
    parent.communicate(timeout=60)      # workers that hang for good would hold it up
    assert all(gone(pid) for pid in pids)
