"""Two processes save the same step when one of them is asked to end, and agree on the step that is restored."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def start(folder: Path, mode: str) -> list[subprocess.Popen]:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"} | {"PYTHONPATH": str(HERE.parent.parent)}
    script = [sys.executable, str(HERE / "two_processes.py")]
    return [
        subprocess.Popen(
            [*script, str(i), port, str(folder), mode],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )
        for i in range(2)
    ]  # fmt: skip


def finish(children: list[subprocess.Popen]) -> list[str]:
    said = []
    for child in children:
        out, error = child.communicate(timeout=90)
        assert child.returncode == 0, error[-3000:]
        said.append(out.strip().splitlines()[-1])
    return said


def test_damage_that_is_found_by_both_and_by_one(tmp_path):
    finish(start(tmp_path, "save"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "3"]        # keep=2
    # the second process's arrays of step 3 are cut: each process reads what its own devices need
    file = max((tmp_path / "3" / "state").rglob("d/*"), key=lambda p: p.stat().st_size)
    for path in (tmp_path / "3" / "state").rglob("d/*"):
        if path.stat().st_size == file.stat().st_size:
            os.truncate(path, 20)
    # arange(32) sums to 496, and every step adds one to each of 32 elements
    assert finish(start(tmp_path, "damaged")) == [f"restored 2 3 {496 + 2 * 32:.1f}"] * 2
    assert (tmp_path / "quarantine" / "3").is_dir()


def test_a_signal_to_one_saves_the_same_step_on_both(tmp_path):
    children = start(tmp_path, "preempt")
    for child in children:
        assert child.stdout.readline() == "ready\n"
    children[1].send_signal(signal.SIGTERM)
    said = finish(children)
    assert said[0] == said[1]
    assert [path.name for path in tmp_path.iterdir()] == [said[0].split()[1]]
