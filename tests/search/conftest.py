"""A small real workload, traced once: what search sees of it."""

import pytest

from jaxplan.machine import catalogue
from jaxplan.search.rank import rank
from jaxplan.search.space import enumerate_space
from jaxplan.workload.shape import ModelShape, Workload

SMALL = ModelShape("small", layers=4, embed=256, mlp=512, heads=8, kv_heads=4, head_dim=32, vocab=1024)


@pytest.fixture(scope="session")
def workload():
    return Workload(SMALL, batch=32, seq=256)


@pytest.fixture(scope="session")
def table(workload):
    from jaxplan.compile.lower import trace_job
    from jaxplan.workload.table import Table

    return Table.from_json(trace_job(workload.to_json()))


@pytest.fixture(scope="session")
def machine():
    return catalogue.machine("2x4", "v5e", None)


@pytest.fixture(scope="session")
def ranking(workload, table, machine):
    return rank(enumerate_space(workload, table, machine), table, machine)
