"""A folder with two analyses and a training, and a browser to look at their pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from curvescope.data import dataset
from curvescope.experiments.store import RunDirectory
from curvescope.networks import network
from curvescope.training import Recipe, train
from tests.experiments.examples import quick_run


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``first``, ``group/second`` (without layers and classes) and the training ``trained``."""
    root = tmp_path_factory.mktemp("runs")
    quick_run(root / "first")
    quick_run(root / "group" / "second", seed=1, layers=[], classes=False)
    data = dataset("digits", per_class=5)
    recipe = Recipe(seed=2, epochs=3, lr=0.01)
    train(network("F-4", data.input_shape, 10), data, recipe, test=data, folder=root / "trained")
    return root


@pytest.fixture(scope="session")
def first(runs: Path) -> RunDirectory:
    return RunDirectory(runs / "first")


def _is_root() -> bool:
    """Chromium has no sandbox for root; elsewhere it keeps its own."""
    return getattr(os, "geteuid", lambda: 1)() == 0


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium: playwright's own, or one of the system."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="the browser tests need playwright: pip install playwright"
    )
    with playwright.sync_playwright() as driver:
        options: dict[str, Any] = {"args": ["--no-sandbox"] if _is_root() else []}
        if not Path(driver.chromium.executable_path).exists():
            names = ("chromium", "chromium-browser", "google-chrome")
            options["executable_path"] = next(filter(None, map(shutil.which, names)), None)
            if options["executable_path"] is None:
                pytest.skip("no browser: playwright install chromium, or apt-get install chromium")
        chromium = driver.chromium.launch(**options)
        yield chromium
        chromium.close()
