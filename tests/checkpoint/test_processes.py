"""Watchdog and preemption, in processes of their own: what they do ends one."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from jaxplan.checkpoint.watchdog import RESTART, Watchdog

ROOT = Path(__file__).resolve().parent.parent.parent


def start(code: str, *arguments: str) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def test_a_step_that_hangs_ends_with_all_stacks_and_the_code_to_start_again():
    child = start("""
        import threading, time
        from jaxplan.checkpoint import Watchdog
        def step_that_hangs():
            time.sleep(60)
        with Watchdog(0.3, first_s=5) as alive:
            alive(41)
            threading.Thread(target=step_that_hangs, daemon=True).start()
            threading.Event().wait()
    """)
    _, said = child.communicate(timeout=30)
    assert child.returncode == RESTART
    assert "no progress" in said and "the last finished step is 41" in said
    assert "step_that_hangs" in said, "every thread's stack is there"


def test_steps_that_go_on_are_let_be():
    child = start("""
        import time
        from jaxplan.checkpoint import Watchdog
        with Watchdog(1.0) as alive:
            for step in range(12):
                time.sleep(0.15)
                alive(step)
    """)
    _, said = child.communicate(timeout=30)
    assert (child.returncode, said) == (0, "")


def test_the_interpreters_own_alarm_ends_what_holds_its_lock():
    child = start("""
        import ctypes
        from jaxplan.checkpoint import Watchdog
        with Watchdog(0.2, first_s=0.5):
            import time; time.sleep(0.3)
            ctypes.PyDLL(None).sleep(60)        # native code that keeps the lock
    """)
    _, said = child.communicate(timeout=30)
    assert child.returncode == 1 and "Timeout" in said


def test_limits_are_positive():
    with pytest.raises(ValueError, match="must be positive"):
        Watchdog(0)


TRAINING = """
    import sys, time
    import jax, jax.numpy as jnp
    from jaxplan.checkpoint import Checkpointer, Preemption
    state = {"w": jax.device_put(jnp.zeros(8), jax.devices()[0])}
    with Checkpointer(sys.argv[1]) as saved, Preemption(grace_s=float(sys.argv[2])) as preemption:
        print("ready", flush=True)
        for step in range(10_000):
            time.sleep(0.01)
            if preemption.reached(step):
                saved.save(step, state)
                time.sleep(float(sys.argv[3]))
                print(step, flush=True)
                break
"""


def test_a_signal_saves_the_step_and_ends(tmp_path):
    child = start(TRAINING, str(tmp_path), "20", "0")
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGTERM)
    said, _ = child.communicate(timeout=30)
    assert child.returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == [said.strip()]


def test_a_save_longer_than_the_grace_time_ends_before_it_is_killed(tmp_path):
    child = start(TRAINING, str(tmp_path), "1", "60")
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGTERM)
    _, said = child.communicate(timeout=30)
    assert child.returncode == RESTART and "grace" in said
