"""A folder with two steps of a small state."""

import pytest
from small_state import abstract, mesh, put, state_of

from jaxplan.checkpoint.checkpointer import Checkpointer


@pytest.fixture
def saved(tmp_path):
    """A checkpointer with the steps 1 and 2 of the small state, on a 2x4 mesh."""
    with Checkpointer(tmp_path / "saved", keep=None) as found:
        for step in (1, 2):
            found.save(step, put(state_of(step), mesh(2, 4)))
        found.wait()
        yield found


@pytest.fixture
def target():
    return abstract(put(state_of(), mesh(2, 4)))
