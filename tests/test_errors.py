"""Errors keep their parts: however they are copied, and in every place that raises one."""

from __future__ import annotations

import ast
import copy
import pickle
from pathlib import Path

import pytest

from curvescope.data.places import MissingFiles
from curvescope.errors import CurvescopeError, Inapplicable, MemoryLimitError, ModelError
from curvescope.io.codec import Misfit
from curvescope.record.selection import UnsupportedLayer

KINDS = (
    CurvescopeError,
    Inapplicable,
    MemoryLimitError,
    ModelError,
    MissingFiles,
    Misfit,
    UnsupportedLayer,
)
NAMES = {kind.__name__ for kind in KINDS}
ROOT = Path(__file__).parent.parent
PARTS = [
    ({}, "f(x): must be even"),
    ({"given": 3}, "f(x): must be even, got 3"),
    ({"remedy": "add 1"}, "f(x): must be even; add 1"),
    (
        {"given": 3, "remedy": "add 1", "remedy_cli": "try again"},
        "f(x): must be even, got 3; add 1",
    ),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("parts", "said"), PARTS)
@pytest.mark.parametrize(
    "copied", [lambda e: e, copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))]
)
def test_an_error_is_one_sentence_of_its_parts(kind, parts, said, copied) -> None:
    error = copied(kind("f(x)", "must be even", **parts))
    assert type(error) is kind
    assert str(error) == said
    assert (error.where, error.rule) == ("f(x)", "must be even")
    assert error.given == ("3" if "given" in parts else None)
    assert error.remedy == parts.get("remedy")
    assert error.remedy_cli == parts.get("remedy_cli")


def test_what_was_given_is_not_taken_for_a_mention() -> None:
    given = repr("a `b` c")
    error = CurvescopeError("'`x`.json'", "`y` must not be 'a`b`c' or '`z`'", given=given)
    assert str(error) == "'`x`.json': y must not be 'a`b`c' or '`z`', got 'a `b` c'"


def test_every_error_has_a_rule_and_a_place() -> None:
    with pytest.raises(TypeError, match="rule"):
        CurvescopeError("f: must be even")  # type: ignore[call-arg]
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in NAMES:
                where = node.args[0]
                assert len(node.args) == 2, f"{path}:{node.lineno}"
                assert not (isinstance(where, ast.Constant) and not where.value), path
