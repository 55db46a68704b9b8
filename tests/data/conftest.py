"""A cache of their own for the tests, and tiny stand-ins for the real data sets."""

from pathlib import Path

import pytest

from curvescope.data.sources import FASHION_MNIST, SOURCES
from tests.data.builders import Arrays, Contents, tiny_cifar, tiny_mnist, tiny_subset


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch) -> Path:
    """An empty folder for the user's cache; the root of no other test and no user is searched."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.delenv("CURVESCOPE_DATA", raising=False)
    return folder / "curvescope"


@pytest.fixture
def mnist(monkeypatch) -> tuple[Contents, Arrays]:
    """MNIST in the catalog is a tiny set: its files and what they hold."""
    source, contents, arrays = tiny_mnist()
    monkeypatch.setitem(SOURCES, "mnist", source)
    return contents, arrays


@pytest.fixture
def fashion(monkeypatch) -> tuple[Contents, Arrays]:
    source, contents, arrays = tiny_mnist(FASHION_MNIST, seed=10)
    monkeypatch.setitem(SOURCES, "fashion-mnist", source)
    return contents, arrays


@pytest.fixture
def cifar(monkeypatch) -> tuple[Contents, Arrays]:
    source, contents, arrays = tiny_cifar()
    monkeypatch.setitem(SOURCES, "cifar-10", source)
    return contents, arrays


@pytest.fixture
def subset(monkeypatch) -> tuple[Contents, Arrays]:
    source, contents, arrays = tiny_subset()
    monkeypatch.setitem(SOURCES, "cifar-100-subset", source)
    return contents, arrays
