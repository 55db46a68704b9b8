"""The pictures of a language model's spectra."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from curvescope.figures.model import Curve, Image, Panel, Picture
from curvescope.problem import ParamSpace
from curvescope.spectra.eigensolver import EigenPairs
from curvescope.spectra.measure import SpectralMeasure
from curvescope.studies.language.subjects import KINDS, NAMES, Subject, by_kind, sizes
from curvescope.studies.pictures import curves

_DENSITIES = (
    "Spectral densities of H, G, E = H − G and P⁻¹H (rows: the start, the middle and the end of "
    "the training), with one standard error over the probes. The largest eigenvalues (of E: in "
    "magnitude) were found one by one and are points."
)
_KINDS = (
    "In which layers the top eigenvectors of H and of P^-1/2 H P^-1/2 live: the share of each "
    "eigenvector's squared length in the layers of each kind."
)
_TRACES = (
    "The share of each kind of layer in the trace of H and of G, beside its share of the "
    "parameters; of H where its trace is known better than its sign."
)
_TRAINING = "Loss and predicted characters after each epoch, on the training text and held out."


def spectra_pictures(of: Subject, found: list[dict[str, Any]]) -> tuple[Picture, ...]:
    """Densities, and where eigenvectors and traces live, at all points; and the training."""
    space = of.problem(of.points[0]).params
    densities, shares = [], []
    for point, each in zip(of.points, found, strict=True):
        for name, measure in each["measures"].items():
            densities.append(_density(f"{point.name}: {NAMES[name]}", each["pairs"][name], measure))
        if "P" not in each["pairs"]:
            densities.append(Panel(title=f"{point.name}: P⁻¹H", note="Adam has no state yet"))
        shares.append(_shares(f"{point.name}: H", each["pairs"]["H"], space))
    shares += [
        _shares(f"{point.name}: P⁻¹H", each["pairs"]["P"], space)
        for point, each in zip(of.points, found, strict=True)
        if "P" in each["pairs"]
    ]
    return (
        Picture("densities", _DENSITIES, tuple(densities), columns=4),
        Picture("kinds", _KINDS, tuple(shares), columns=3),
        Picture("traces", _TRACES, tuple(_traces(of, found)), columns=2),
        Picture("training", _TRAINING, _training(of), columns=2),
    )


def _density(title: str, pairs: EigenPairs, measure: SpectralMeasure) -> Panel:
    """Eigenvalues per cell of the axis, with the standard error over the probes."""
    smooth = measure.density(points=1024, kappa=3.0)
    cell = measure.dimension * float(smooth.grid[1] - smooth.grid[0])
    count, error = cell * smooth.values, cell * smooth.stderr
    low, high = ((count + sign * error).clamp(min=1e-12) for sign in (-1, 1))
    curve = Curve.of(
        "density, ± standard error", smooth.grid[::2], count[::2].clamp(min=1e-12),
        low=low[::2], high=high[::2],
    )  # fmt: skip
    values = pairs.values.double()
    points = Curve.of("found one by one", values, torch.ones_like(values), kind="points")
    return Panel(
        title=title, xlabel="eigenvalue", ylabel="eigenvalues per cell", curves=(curve, points),
        yscale="log", ylim=(1e-2, 3 * float(count.max())),
    )  # fmt: skip


def _shares(title: str, pairs: EigenPairs, space: ParamSpace) -> Panel:
    shares = by_kind(pairs.vectors.square(), space)
    image = Image.of(shares, low=0.0, high=0.9, label="share", rows=KINDS)
    return Panel(title=title, xlabel="eigenvector", ylabel="", image=image)


def _traces(of: Subject, found: list[dict[str, Any]]) -> Iterator[Panel]:
    """Shares of kinds in the traces of G and H, where the trace is known better than its sign."""
    space = of.problem(of.points[0]).params
    for name in ("G", "H"):
        columns = {"parameters": sizes(space).double()}
        for point, each in zip(of.points, found, strict=True):
            kinds = each["probes"][f"{name} kinds"].double()
            if is_known(kinds.sum(0)):
                columns[point.name] = kinds.mean(1) / kinds.mean(1).sum()
        image = Image.of(
            torch.stack(list(columns.values()), 1), low=0.0, high=0.6, label="share", rows=KINDS,
            columns=tuple(columns),
        )  # fmt: skip
        yield Panel(title=f"tr {name}", image=image)


def is_known(samples: Tensor) -> bool:
    """Whether the mean is more than four standard errors from zero.

    >>> is_known(torch.tensor([5.0, 6.0, 5.5])), is_known(torch.tensor([-9.0, 12.0, 1.0]))
    (True, False)
    """
    return float(samples.mean().abs()) > 4 * float(samples.std()) / len(samples) ** 0.5


def _training(of: Subject) -> tuple[Panel, ...]:
    history = of.run.history
    epochs = [each.epoch for each in history]
    losses = {
        "training": (epochs, [each.loss for each in history]),
        "held out": (epochs, [each.test_loss or 0.0 for each in history]),
    }
    hits = {
        "training": (epochs, [each.accuracy for each in history]),
        "held out": (epochs, [each.test_accuracy or 0.0 for each in history]),
    }
    return (
        curves("loss, nats per character", "epoch", "loss", losses),
        curves("characters predicted", "epoch", "share", hits),
    )
