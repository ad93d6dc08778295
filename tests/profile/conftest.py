"""One small profile of the host platform, recorded once."""

import pytest
from recorded_program import Recorded, record


@pytest.fixture(scope="session")
def recorded(tmp_path_factory) -> Recorded:
    return record(tmp_path_factory.mktemp("profiled"))
