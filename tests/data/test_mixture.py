"""The canonical classification model of TR §8: its moments, and its place among the data sets."""

import math

import pytest
import torch

from curvescope.data import dataset, gaussian_mixture
from curvescope.errors import CurvescopeError


def test_the_deviations_are_standard_normal() -> None:
    n = 20_000
    data = gaussian_mixture(2.5, classes=3, dimension=5, per_class=n, seed=0, dtype=torch.float64)
    assert data.X.shape == (3 * n, 5)
    assert data.y.bincount().tolist() == [n] * 3
    for c in range(3):
        z = data.X[data.y == c].clone()
        z[:, c] -= 2.5
        assert z.mean(0).abs().max() < 4 / math.sqrt(n)
        covariance = z.T @ z / n
        # Entries have variance 2 / n on the diagonal and 1 / n beside it.
        assert (covariance - torch.eye(5)).abs().max() < 4 * math.sqrt(2 / n)


def test_classes_take_turns() -> None:
    data = gaussian_mixture(1, classes=4, dimension=4, per_class=3, seed=0)
    assert data.y.tolist() == [0, 1, 2, 3] * 3


def test_the_signal_is_added_to_the_same_noise() -> None:
    weak, strong = (
        gaussian_mixture(t, classes=3, dimension=4, per_class=5, seed=0, dtype=torch.float64)
        for t in (0, 10)
    )
    difference = strong.X - weak.X
    expected = 10 * torch.eye(3, 4, dtype=torch.float64)[weak.y]
    torch.testing.assert_close(difference, expected, rtol=0, atol=1e-14)


def test_seeds_and_splits_are_independent() -> None:
    def draw(**changes) -> torch.Tensor:
        settings = {"classes": 2, "dimension": 3, "per_class": 4, "seed": 0, **changes}
        return gaussian_mixture(1, **settings).X

    assert draw().equal(draw())
    assert not draw().equal(draw(seed=1))
    assert not draw().equal(draw(split="test"))
    torch.testing.assert_close(draw(dtype=torch.float64).float(), draw(), rtol=0, atol=0)


def test_by_name() -> None:
    named = dataset("gaussian-mixture-C3-D4-t2.5", per_class=6, seed=1, split="test")
    direct = gaussian_mixture(2.5, classes=3, dimension=4, per_class=6, seed=1, split="test")
    assert named.X.equal(direct.X)
    assert named.y.equal(direct.y)
    assert named.name == direct.name == "gaussian-mixture-C3-D4-t2.5"
    assert named.input_shape == (4,)


def test_its_variants() -> None:
    name = "gaussian-mixture-C10-D10-t2"
    true = dataset(name, per_class=50, seed=0)
    assert dataset(f"{name}-2", per_class=50, seed=0).y.equal((true.y >= 5).long())
    random = dataset(f"{name}-R", per_class=50, seed=0)
    assert random.X.equal(true.X)
    assert (random.name, random.classes) == (f"{name}-R", 10)
    assert not random.y.equal(true.y)


SETTINGS = {"t": 1, "classes": 2, "dimension": 3, "per_class": 4, "seed": 0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"t": -1}, "t must be at least 0"),
        ({"t": math.nan}, "t must be a finite number"),
        ({"classes": 1}, "classes must be an integer of at least 2"),
        ({"dimension": 1}, "dimension must be at least classes=2, got 1"),
        ({"per_class": 0}, "per_class must be an integer of at least 1"),
        ({"seed": None}, "seed must be an integer of at least 0, got None"),
        ({"split": "all"}, "split must be one of 'train', 'test'"),
        ({"dtype": torch.int64}, "dtype must be a floating-point type"),
    ],
)
def test_mistakes_are_named(changes: dict, message: str) -> None:
    with pytest.raises(CurvescopeError, match=f"^gaussian_mixture: {message}"):
        gaussian_mixture(**{**SETTINGS, **changes})


@pytest.mark.parametrize("changes", [{"per_class": None}, {"seed": None}, {"normalize": "channel"}])
def test_by_name_it_needs_its_settings(changes: dict) -> None:
    with pytest.raises(CurvescopeError, match="needs per_class, seed and normalize='none'"):
        dataset("gaussian-mixture-C2-D3-t1", **{"per_class": 2, "seed": 0, **changes})
