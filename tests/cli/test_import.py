"""``import curvescope`` is quick: heavy libraries are imported where they are used."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("matplotlib", "sklearn", "pooch", "jinja2", "pandas", "torchvision")


def used(code: str) -> float:
    """Processor seconds of a fresh interpreter: the clock would measure the neighbours too."""
    import resource

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.skipif(sys.platform == "win32", reason="processor times of children are POSIX")
def test_it_takes_at_most_one_and_a_half_times_what_torch_takes() -> None:
    rounds = [(used("import torch"), used("import curvescope")) for _ in range(2)]
    torch, ours = (min(times) for times in zip(*rounds, strict=True))
    assert ours <= 1.5 * torch, rounds


@pytest.mark.parametrize(
    ("module", "heavy"),
    [("curvescope", (*HEAVY, "typer", "rich")), ("curvescope.cli", HEAVY)],
)
def test_heavy_libraries_wait_until_they_are_used(module: str, heavy: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
