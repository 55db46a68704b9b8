"""Properties of a run that sentences depend on (classes, batch norms), and numbers as words."""

from __future__ import annotations

from collections.abc import Sequence

from curvescope.experiments.stages.overview import Overview
from curvescope.experiments.stages.sharpness import sharpness_of
from curvescope.experiments.store import RunDirectory

_WORDS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def classes_of(run: RunDirectory) -> int | None:
    """The number of classes of the loss; None if it has none."""
    return run.result("overview", Overview).classes


def has_batch_norm(run: RunDirectory) -> bool:
    """Whether the sharpness was measured in both modes of batch norms."""
    measured = sharpness_of(run)
    return measured is not None and len(measured.reports) > 1


def ordinal(n: int) -> str:
    """The number as a rank.

    >>> [ordinal(n) for n in (1, 2, 3, 10, 11, 22)]
    ['1st', '2nd', '3rd', '10th', '11th', '22nd']
    """
    ending = {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th") if n % 100 not in (11, 12, 13) else "th"
    return f"{n}{ending}"


def count(n: int, noun: str) -> str:
    """A number with its noun, in words.

    >>> count(1, "layer"), count(3, "layer"), count(12, "self-check"), count(0, "class")
    ('one layer', 'three layers', '12 self-checks', 'no classes')
    """
    word = "no" if n == 0 else _WORDS[n] if n < len(_WORDS) else f"{n:,}"
    ending = "" if n == 1 else "es" if noun.endswith("s") else "s"
    return f"{word} {noun}{ending}"


def span(values: Sequence[float], digits: int = 2) -> str:
    """The range from the smallest to the largest value, in words.

    >>> span([0.5, 0.25]), span([1.0, 1.001])
    ('0.25 to 0.50', '1.00')
    """
    low, high = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return low if low == high else f"{low} to {high}"


def listed(names: Sequence[str]) -> str:
    """Names as a list in a sentence.

    >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
