"""What the entries of FF and PP share: data, trained solutions, and their sharpness reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn.functional import avg_pool2d

from curvescope import io
from curvescope.data import Dataset, dataset
from curvescope.data.places import MissingFiles
from curvescope.figures.model import Curve, Panel, Picture
from curvescope.flatness import SharpnessReport, compare_reports, sharpness
from curvescope.problem import Problem
from curvescope.studies.entry import Outcome, Row, Settings
from curvescope.studies.trained import trained
from curvescope.training import Recipe

DECAYS = (0.0, 1e-4, 5e-4)
"""The weight decays of FF §4 and PP §5."""

Splits = tuple[Dataset, Dataset]


@dataclass(frozen=True)
class Solution:
    """A trained network, by what distinguishes it from the others."""

    name: str
    model: nn.Module


# Data -------------------------------------------------------------------------------------------


def digits(settings: Settings, samples: int, held_out: int) -> Splits:
    """Two random parts of MNIST's training split, pixels from −1 to 1; embedded at ``smoke``.

    FF and PP do not say how they scale pixels. From −1 to 1 the eigenvalues come out in the range
    of FF's; in [0, 1] the trace would be an eighth, and standardized pixels halve λ_max.
    """
    name = "mnist-6k" if settings.scale == "smoke" else "mnist"
    whole = dataset(name, root=settings.root)
    whole = replace(whole, X=2 * whole.X - 1)
    order = torch.randperm(len(whole), generator=settings.generator())
    parts = order[:samples], order[samples : samples + held_out]
    first, second = (part(whole, rows).to(settings.device) for rows in parts)
    return first, second


def validation(settings: Settings) -> Splits:
    """FF's 45,000 training and 5,000 validation digits: the first and the last of MNIST's file.

    FF do not say which. The last ones are easier than others, and FF's accuracies are those of the
    last ones. At ``smoke`` 1,500 and 500 embedded digits at random.
    """
    if settings.scale == "smoke":
        return digits(settings, 1500, 500)
    whole = dataset("mnist", root=settings.root)
    whole = replace(whole, X=2 * whole.X - 1).to(settings.device)
    rows = torch.arange(len(whole), device=settings.device)
    return part(whole, rows[:45_000]), part(whole, rows[-5_000:])


def photographs(settings: Settings, samples: int, held_out: int) -> Splits:
    """Random training samples and the first test samples of CIFAR-10, by channel; else digits."""
    if settings.scale == "smoke":
        return digits(settings, samples, held_out)
    whole = dataset("cifar-10", root=settings.root, normalize="channel")
    test = dataset("cifar-10", root=settings.root, split="test", normalize="channel")
    order = torch.randperm(len(whole), generator=settings.generator())
    train = part(whole, order[:samples])
    test = part(test, torch.arange(min(held_out, len(test))))
    return train.to(settings.device), test.to(settings.device)


def hundred(settings: Settings, samples: int, held_out: int) -> Splits:
    """So many samples of each class of CIFAR-100, the first ones, by channel.

    There are 40 and 10 in ``cifar-100-subset``, which are the first of the whole set.
    """

    def split(name: str) -> Splits:
        common: dict[str, Any] = {"root": settings.root, "normalize": "channel"}
        train = dataset(name, per_class=samples, **common)
        test = dataset(name, split="test", per_class=held_out, **common)
        return train.to(settings.device), test.to(settings.device)

    try:
        return split("cifar-100-subset")
    except MissingFiles:
        return split("cifar-100")


def smaller(data: Splits, factor: int) -> Splits:
    """Both parts with each square of ``factor`` × ``factor`` pixels replaced by its mean.

    >>> data = Dataset(torch.ones(1, 1, 4, 4), torch.tensor([0]), classes=2, name="white")
    >>> smaller((data, data), 2)[0].input_shape
    (1, 2, 2)
    """
    first, second = (replace(d, X=avg_pool2d(d.X, factor)) for d in data)
    return first, second


def part(data: Dataset, rows: torch.Tensor) -> Dataset:
    """Some samples of a data set.

    >>> data = Dataset(torch.eye(3), torch.tensor([0, 1, 1]), classes=2, name="corners")
    >>> part(data, torch.tensor([2, 0])).y
    tensor([1, 0])
    """
    return replace(data, X=data.X[rows], y=data.y[rows])


# Training ---------------------------------------------------------------------------------------


def by_decay(**settings: Any) -> dict[str, Recipe]:
    """SGD with momentum 0.9 and FF's linear schedule, once for each weight decay.

    >>> list(by_decay(epochs=2, lr=0.03))
    ['weight decay 0', 'weight decay 0.0001', 'weight decay 0.0005']
    """
    common = {"seed": 0, "momentum": 0.9, "schedule": "linear", **settings}
    return {f"weight decay {decay:g}": Recipe(**common, weight_decay=decay) for decay in DECAYS}


def solve(
    settings: Settings,
    key: str,
    network: str,
    data: Dataset,
    recipes: Mapping[str, Recipe],
    *,
    init: str = "pytorch",
) -> list[Solution]:
    """The network trained by each recipe, from the same initial weights; kept under ``key``."""
    found = []
    for name, recipe in recipes.items():
        settings.tell(f"{network}, {name}: training for {recipe.epochs} epochs")
        kept = f"{key}-{_slug(name)}-{settings.scale}"
        (subject,) = trained(
            settings, kept, network, data, recipe, seeds=(settings.seed,), init=init
        )
        found.append(Solution(name, subject.model))
    return found


def _slug(name: str) -> str:
    return name.replace(" ", "-").replace("=", "")


# Measuring --------------------------------------------------------------------------------------


def problem(
    model: nn.Module, data: Dataset, *, samples: int | None = None, size: int, mode: str = "eval"
) -> Problem:
    """Training data, or the first samples of it, in batches of ``size``."""
    count = len(data) if samples is None else min(samples, len(data))
    few = part(data, torch.arange(count, device=data.X.device))
    return Problem(model, few.batches(size), mode=mode)


def report(
    settings: Settings,
    key: str,
    solution: Solution,
    data: Splits,
    *,
    samples: int | None = None,
    size: int = 2500,
    mode: str = "eval",
    **options: Any,
) -> SharpnessReport:
    """The sharpness report of a solution, from ``work`` if it was computed before.

    Args:
        settings: Where to keep it.
        key: Names the entry.
        solution: What to measure.
        data: Training and held-out data.
        samples: Curvature on so many training samples; all by default.
        size: Of the batches, in train mode those of the batch norms.
        mode: Of the batch norms.
        **options: For :func:`~curvescope.flatness.sharpness`.
    """
    named = f"{key}-{_slug(solution.name)}-{mode}"
    file = settings.work / f"{named}-{settings.scale}-seed{settings.seed}.json"
    if file.is_file():
        return io.load(file, SharpnessReport)
    settings.tell(f"{solution.name}, {mode} mode: sharpness")
    found = sharpness(
        problem(solution.model, data[0], samples=samples, size=size, mode=mode),
        test=data[1].batches(size),
        generator=settings.generator(1),
        **options,
    )
    io.make_folder(file.parent)
    io.save(file, found)
    return found


def accuracy(report: SharpnessReport) -> float:
    """Of the held-out data, in per cent."""
    assert report.test is not None, "entries measure with held-out data"
    assert report.test.error is not None, "entries have labels"
    return 100 * (1 - report.test.error.value)


def loss_gap(report: SharpnessReport) -> float:
    """Held-out loss less training loss."""
    assert report.loss_gap is not None, "entries measure with held-out data"
    return report.loss_gap.value


def saved(reports: Mapping[str, SharpnessReport]) -> dict[str, Any]:
    """The reports as plain numbers, for an outcome."""
    return {"reports": {name: io.encode(report)[0] for name, report in reports.items()}}


# Showing ----------------------------------------------------------------------------------------


def findings(reports: Mapping[str, SharpnessReport], *, mode: str = "eval") -> tuple[str, ...]:
    """FF's question answered for held-out error and loss gap, one sentence each."""
    compared = compare_reports({n: r for n, r in reports.items() if r.mode == mode})
    return tuple(
        f"Batch norms in {mode} mode: {said}" if mode == "train" else said[0].upper() + said[1:]
        for said in (compared.finding(figure, mode=mode) for figure in ("test error", "loss gap"))
    )


def beside(settings: Settings, rows: Iterable[Row]) -> tuple[Row, ...]:
    """The rows; at ``smoke`` without the paper's numbers, which belong to another size."""
    if settings.scale != "smoke":
        return tuple(rows)
    return tuple(replace(row, paper=None, low=None, high=None) for row in rows)


def increase(
    what: str, first: float, last: float, *, paper: tuple[float, float] | None = None
) -> Row:
    """The last value over the first, where the paper says that it is larger."""
    printed = None if paper is None else paper[1] / paper[0]
    return Row(f"{what}: last over first", last / first, paper=printed, low=1.0)


def ratios(values: Iterable[float]) -> list[float]:
    """Each value over the one before.

    >>> ratios([1.0, 2.0, 1.0])
    [2.0, 0.5]
    """
    return [b / a for a, b in pairwise(values)]


def grows(outcome: Outcome, what: str, *, paper: Sequence[float] = (), note: str = "") -> Row:
    """The least ratio of a quantity from one weight decay to the next: 1 or more where it grows."""
    return Row(
        f"{what}: least ratio from one weight decay to the next",
        min(ratios(outcome.values(f"{what}, weight decay"))),
        paper=min(ratios(paper)) if paper else None,
        low=1.0,
        note=note,
    )


def sides(
    name: str, caption: str, x: Sequence[float], panels: Mapping[str, Mapping[str, Sequence[float]]]
) -> Picture:
    """One panel for each quantity against the weight decay, a curve for each source."""
    made = [
        Panel(
            xlabel="weight decay / 10⁻⁴",
            ylabel=title,
            curves=tuple(
                Curve.of(label, [1e4 * value for value in x], values)
                for label, values in curves.items()
            ),
        )
        for title, curves in panels.items()
    ]
    return Picture(name, caption, tuple(made), columns=len(made) if len(made) < 4 else 2)
