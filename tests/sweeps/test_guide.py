"""The guide: its tables are those of the script, its plan is one."""

import importlib.util
import re
from pathlib import Path

import pytest

from curvescope import io
from curvescope.cli.runs import commands
from curvescope.reports import table
from curvescope.sweeps import tasks_of

ROOT = Path(__file__).parent.parent.parent
GUIDE = (ROOT / "docs" / "guides" / "many.md").read_text(encoding="utf-8")


def arithmetic():  # type: ignore[no-untyped-def]
    spec = importlib.util.spec_from_file_location("arithmetic", ROOT / "tools" / "arithmetic.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["arithmetic"] = module
    spec.loader.exec_module(module)
    return module


def test_the_tables_on_paper_are_those_of_the_script() -> None:
    script = arithmetic()
    for part in script.page().split("\n\n"):
        assert part in GUIDE


@pytest.mark.parametrize("sharded", [False, True])
def test_the_arithmetic_is_that_of_its_formulas(sharded: bool) -> None:
    P, R, k, m, b = 1_000_000, 8, 8, 100, 4
    cost = arithmetic().cost(P, R, sharded=sharded)
    assert cost.basis == b * k * m * P // R
    assert cost.product == (6 if sharded else 2) * (R - 1) * b * P // R
    small = 2 * 2 * (R - 1) * 8 * k // R + 2 * (R - 1) * 8
    assert cost.density == k * m * cost.product + m * small


def test_the_plan_in_the_guide_is_one() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", GUIDE, re.S)
    tasks = tasks_of("guide", io.parse_toml(text, "guide"), commands())
    kinds = [task.kind for task in tasks]
    assert (kinds.count("train"), kinds.count("analyze")) == (10, 30)
    names = [task.name for task in tasks]
    assert "train/network=LeNet5,seed=0" in names
    assert "analyze/network=LeNet5,seed=0,checkpoint=5" in names


def test_every_column_is_in_the_guide() -> None:
    for name in table._ORDER:
        start = name.rstrip(".")
        assert re.search(rf"`{start}[.`]", GUIDE) or f"`{start}`" in GUIDE, name
