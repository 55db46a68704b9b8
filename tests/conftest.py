"""What every test relies on: reproducible numbers and a GPU mark that skips by itself."""

import gc
import signal
from collections.abc import Iterator

import pytest
import torch

# A shell starts background jobs with ctrl-C ignored, and so would all processes of the tests.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Models are initialized from torch's global generator; each test starts it anew."""
    torch.manual_seed(0)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collecting makes objects that stay: looking for garbage among them is lost time."""
    gc.disable()
    yield
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)
