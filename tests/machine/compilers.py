"""Running a snippet against a compiler in a process of its own: a bad target kills the process."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap

import pytest

TPU_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


def needs(package: str):
    """Skips where a compiler is absent, and says which."""
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"{package} is not installed")


def run(snippet: str, argument: object, timeout_s: float = 300) -> object:
    """What the snippet prints as JSON in its last line; it finds `argument` in a variable of that name."""
    prelude = "import json, sys\nargument = json.loads(sys.argv[1])\n"
    done = subprocess.run(
        [sys.executable, "-c", prelude + textwrap.dedent(snippet), json.dumps(argument)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, **TPU_ENVIRONMENT, "XLA_FLAGS": ""},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.strip().splitlines()[-1])
