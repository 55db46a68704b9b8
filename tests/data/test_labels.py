"""Labels and sub-samples against definitions written out as loops."""

import itertools
from collections import Counter

import pytest
import torch

from curvescope.data.labels import balanced_positions, random_labels, stream, two_classes
from curvescope.errors import CurvescopeError


def first_by_hand(labels: list[int], n: int) -> list[int]:
    seen: Counter[int] = Counter()
    chosen = []
    for i, label in enumerate(labels):
        seen[label] += 1
        if seen[label] <= n:
            chosen.append(i)
    return chosen


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("n", [1, 3, 7])
def test_the_first_of_each_class(seed: int, n: int) -> None:
    labels = torch.randint(4, (80,), generator=torch.Generator().manual_seed(seed))
    assert balanced_positions("test", labels, 4, n).tolist() == first_by_hand(labels.tolist(), n)


def test_random_ones_are_balanced_distinct_and_in_order(generator) -> None:
    labels = torch.randint(5, (200,), generator=generator)
    chosen = balanced_positions("test", labels, 5, 20, generator)
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    assert labels[chosen].bincount().tolist() == [20] * 5


def test_every_set_of_n_is_equally_likely(generator) -> None:
    # Two of four of each class: 6 · 6 pairs of pairs, 3600 draws, 100 expected of each; the
    # chi-square statistic with 35 degrees of freedom passes 66.6 once in a thousand times.
    labels = torch.tensor([0, 1, 0, 1, 1, 0, 1, 0])
    draws = Counter(
        tuple(balanced_positions("test", labels, 2, 2, generator).tolist()) for _ in range(3600)
    )
    zeros = itertools.combinations([0, 2, 5, 7], 2)
    ones = list(itertools.combinations([1, 3, 4, 6], 2))
    expected = {tuple(sorted(a + b)) for a in zeros for b in ones}
    assert set(draws) == expected
    assert sum((count - 100) ** 2 / 100 for count in draws.values()) < 66.6


@pytest.mark.parametrize(
    ("n", "message"),
    [
        (3, "per_class=3 needs 3 samples of each class, class 1 has 2"),
        (0, "per_class must be an integer of at least 1, got 0"),
        (1.5, "per_class must be an integer of at least 1, got 1.5"),
    ],
)
def test_too_many_is_refused(n, message: str) -> None:
    with pytest.raises(CurvescopeError, match=message):
        balanced_positions("test", torch.tensor([0, 0, 0, 1, 1]), 2, n)


def test_a_class_without_samples_is_named() -> None:
    with pytest.raises(CurvescopeError, match="class 2 has 0"):
        balanced_positions("test", torch.tensor([0, 1]), 3, 1)


def test_two_classes() -> None:
    labels = torch.arange(10)
    assert two_classes("test", labels, 10).tolist() == [0] * 5 + [1] * 5
    with pytest.raises(CurvescopeError, match="needs ten classes, the data has 100"):
        two_classes("test", labels, 100)


def test_random_labels_are_uniform_and_independent(generator) -> None:
    labels = torch.arange(10).repeat(1000)
    drawn = random_labels(labels, 10, generator)
    assert drawn.dtype == torch.int64
    joint = torch.zeros(10, 10).index_put_((labels, drawn), torch.ones(10_000), accumulate=True)
    # 100 expected in each of 100 cells, rows fixed: 90 degrees of freedom, 137 once in a thousand.
    assert float(((joint - 100) ** 2 / 100).sum()) < 137


def test_streams_differ_by_seed_purpose_and_split() -> None:
    draws = {
        (seed, purpose, split): torch.rand(4, generator=stream("test", seed, purpose, split))
        for seed in (0, 1)
        for purpose in ("labels", "sub-sample", "noise")
        for split in ("train", "test")
    }
    for a, b in itertools.combinations(draws, 2):
        assert not draws[a].equal(draws[b])
    again = torch.rand(4, generator=stream("test", 1, "noise", "test"))
    assert again.equal(draws[1, "noise", "test"])


@pytest.mark.parametrize("seed", [-1, 0.5, "0", True])
def test_a_seed_is_a_natural_number(seed) -> None:
    with pytest.raises(CurvescopeError, match="seed must be an integer of at least 0"):
        stream("test", seed, "labels", "train")
