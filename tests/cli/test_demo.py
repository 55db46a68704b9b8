"""The demonstration: its numbers fit together, and the two forms in which it is shown."""

import dataclasses
import functools
import json
from collections.abc import Iterator

import pytest
import torch

from curvescope.cli import demo as demo_command
from curvescope.cli.app import run
from curvescope.data import load_embedded
from curvescope.experiments import demo as recipe
from curvescope.experiments.demo import Demonstration, Number

small = functools.partial(recipe.demonstrate, epochs=10, eigenvalues=2, probes=24)


@pytest.fixture(scope="module", autouse=True)
def _fewer_images() -> Iterator[None]:
    """A tenth of the images, in their own order, is enough for every statement below."""

    def load_fewer(name: str, *, split: str) -> tuple[torch.Tensor, torch.Tensor]:
        X, y = load_embedded(name, split=split)
        return X[: len(X) // 10], y[: len(y) // 10]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipe, "load_embedded", load_fewer)
        yield


@pytest.fixture(scope="module")
def result(_fewer_images: None) -> Demonstration:
    return small(seed=0)


def test_the_numbers_fit_together(result: Demonstration) -> None:
    assert result.consistent
    assert result.parameters == 784 * 64 + 64 + 64 * 10 + 10
    assert [matrix.name for matrix in result.curvature] == ["H", "G", "E"]
    H, G, E = result.curvature
    assert H.eigenvalues[0] > 0
    # A piecewise linear network has no residual on the diagonal.
    assert E.trace == Number(0.0, 0.0)
    assert 0 < result.discrepancy.stderr < H.trace.value
    assert abs(H.trace.value - G.trace.value) <= 4 * (H.trace.stderr + G.trace.stderr)
    for matrix in result.curvature:
        norm = matrix.frobenius
        assert sum(x**2 for x in matrix.eigenvalues) ** 0.5 <= norm.value + 4 * norm.stderr


def test_it_learns(result: Demonstration) -> None:
    assert result.train.accuracy > 0.6
    assert result.test.accuracy > 0.6


def test_the_same_seed_gives_the_same_numbers(result: Demonstration) -> None:
    assert small(seed=0) == result
    assert small(seed=1).train != result.train


def test_json_is_all_that_is_printed(monkeypatch, capsys, result: Demonstration) -> None:
    monkeypatch.setattr(demo_command, "demonstrate", lambda **settings: result)
    assert run(["demo", "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    shown = json.loads(captured.out)
    assert shown["consistent"] is True
    assert shown["curvature"][0]["eigenvalues"] == list(result.curvature[0].eigenvalues)


def test_the_table_shows_every_matrix(monkeypatch, capsys, result: Demonstration) -> None:
    monkeypatch.setattr(demo_command, "demonstrate", lambda **settings: result)
    assert run(["demo", "--quiet"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    for word in ("eigenvalue 2", "trace", "Frobenius norm", "Self-check", "consistent", "±"):
        assert word in captured.out


def test_an_inconsistent_result_fails(monkeypatch, capsys, result: Demonstration) -> None:
    wrong = dataclasses.replace(result, discrepancy=Number(1.0, 0.1))
    monkeypatch.setattr(demo_command, "demonstrate", lambda **settings: wrong)
    assert run(["demo", "--quiet"]) == 1
    assert "inconsistent" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "stderr", "text"),
    [
        (12.34567, 0.0123, "12.346 ± 0.012"),
        (1234.5, 56.0, "1234 ± 56"),
        (-0.5, 1e-4, "-0.50000 ± 0.00010"),
        (2.0, 0.0, "2 ± 0"),
        (2.0, float("inf"), "2 ± inf"),
    ],
)
def test_value_and_error_share_their_last_digit(value, stderr, text) -> None:
    assert demo_command._plus_minus(Number(value, stderr)) == text
