"""One finished analysis for all tests of this folder."""

from __future__ import annotations

import pytest

from curvescope.experiments.store import RunDirectory
from tests.experiments.examples import quick_run


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return quick_run(tmp_path_factory.mktemp("analysis") / "run")
