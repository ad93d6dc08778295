"""Several processes: what the flags say together, and what launchers set."""

import pytest

from jaxplan.errors import InputError
from jaxplan.run.processes import Explicit, detected, explicit


def test_three_flags_go_together():
    assert explicit(None, None, None) is None
    assert explicit("host:1234", 2, 1) == Explicit("host:1234", 2, 1)
    with pytest.raises(InputError, match="--processes, --process is missing"):
        explicit("host:1234", None, None)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("host", 2, 0), "HOST:PORT"),
        ((":80", 2, 0), "HOST:PORT"),
        (("host:http", 2, 0), "HOST:PORT"),
        (("host:70000", 2, 0), "HOST:PORT"),
        (("host:80", 0, 0), "--processes 0"),
        (("host:80", 2, 2), "0 to 1"),
        (("host:80", 2, -1), "0 to 1"),
    ],
)
def test_flags_that_make_no_sense(flags, words):
    with pytest.raises(InputError, match=words):
        explicit(*flags)


SLURM = {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_PROCID": "1", "SLURM_LOCALID": "0"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ""),
        ({**SLURM, "SLURM_NTASKS": "2"}, "Slurm"),
        ({**SLURM, "SLURM_NTASKS": "1"}, ""),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8"}, ""),       # inside of an allocation, but started by hand
        ({"OMPI_COMM_WORLD_SIZE": "4"}, "Open MPI"),
        ({"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "1"}, "TPU pod"),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, ""),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, ""),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "0"}, "Kubernetes"),
    ],
)
def test_what_launchers_set(environment, expected):
    assert detected(environment) == expected
