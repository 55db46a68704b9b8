"""What the entries of TR share: data, the recipe of its App. D, and spectra as histograms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from curvescope._state import fast_precision
from curvescope.data import Dataset, dataset
from curvescope.figures.model import Curve, Panel
from curvescope.problem import Problem
from curvescope.spectra.control import Status
from curvescope.spectra.exact import ExactSpectrum
from curvescope.spectra.measure import SpectralMeasure
from curvescope.structure.outliers import Attribution
from curvescope.studies.entry import Row, Settings
from curvescope.studies.trained import Subject, trained
from curvescope.training import Recipe, evaluate

Spectrum = ExactSpectrum | SpectralMeasure
EPS = 1e-5
"""What TR adds to eigenvalues before it takes their logarithm (fig. 6)."""
RANGES = (
    "The paper prints pictures of this, hardly a number: ranges put its sentences into numbers, "
    "and their width is ours."
)
_EMBEDDED = {"mnist": "mnist-6k", "fashion-mnist": "fashion-mnist-3k", "cifar-10": "mnist-6k"}
_BINS = 90


def images(settings: Settings, name: str, per_class: int, *, split: str = "train") -> Dataset:
    """The first ``per_class`` images of each class, normalized by channel; embedded at smoke."""
    known = _EMBEDDED[name] if settings.scale == "smoke" else name
    data = dataset(known, root=settings.root, split=split, per_class=per_class, normalize="channel")
    return data.to(settings.device)


def recipe(epochs: int, lr: float, *, checkpoints: tuple[int, ...] = ()) -> Recipe:
    """TR App. D at one learning rate: SGD, momentum 0.9, weight decay 5e-4, two steps down.

    >>> recipe(30, 0.1).rate(11)
    0.010000000000000002
    """
    return Recipe(
        seed=0, epochs=epochs, lr=lr, momentum=0.9, weight_decay=5e-4, schedule="step",
        checkpoints=checkpoints,
    )  # fmt: skip


def train_one(
    settings: Settings, key: str, network: str, data: Dataset, plan: Recipe, *, init: str = "xavier"
) -> Subject:
    """A network trained once, kept under ``key`` and the scale; on a GPU in TF32."""
    with fast_precision():
        (subject,) = trained(
            settings,
            f"{key}-{settings.scale}",
            network,
            data,
            replace(plan, seed=settings.seed),
            seeds=(settings.seed,),
            init=init,
        )
    return subject


def problem(subject: Subject, data: Dataset, *, size: int = 500) -> Problem:
    """The network on some data, in batches of ``size``."""
    return Problem(subject.model, data.batches(size))


def fit(subject: Subject, data: Dataset) -> tuple[float, float]:
    """Loss and error on some data."""
    found = evaluate(subject.model, data)
    return found.loss, 1 - found.accuracy


def saved_measure(found: SpectralMeasure) -> dict[str, Tensor]:
    """A measure of one probe as tensors, to be kept; :func:`restored_measure` reads them."""
    return {
        "nodes": found.nodes,
        "weights": found.weights,
        "residuals": found.residuals,
        "support": torch.tensor(found.support, dtype=torch.float64),
        "dimension": torch.tensor([found.dimension]),
    }


def restored_measure(found: Mapping[str, Tensor]) -> SpectralMeasure:
    """What :func:`saved_measure` wrote."""
    nodes, weights, residuals = (found[k].cpu() for k in ("nodes", "weights", "residuals"))
    low, high = found["support"].tolist()
    return SpectralMeasure(
        nodes, weights, residuals, nodes.new_empty(0), int(found["dimension"]), (low, high),
        nodes.numel(), Status.DONE,
    )  # fmt: skip


# Rows -------------------------------------------------------------------------------------------


def attribution_rows(found: Attribution, *, of: str = "G") -> tuple[Row, ...]:
    """How many outliers there are beside C, and the attribution table (TR 1.6)."""
    C = found.classes
    rows = [Row(f"outliers of {of}, above the edge of its bulk", found.outliers, paper=C)]
    for group in found.groups:
        gone = f"gone by subtraction: {group.subtracted}, by projection: {group.projected}"
        expected = float(group.expected) if group.name in ("global", "class", "cross") else None
        rows.append(Row(f"outliers made by the {group.name} part", group.outliers, expected,
                        note=gone))  # fmt: skip
    return tuple(rows)


def attribution_numbers(found: Attribution, *, most: int = 150) -> dict[str, object]:
    """The same as plain numbers."""
    return {
        "classes": found.classes,
        "edge": found.edge,
        "outliers": found.outliers,
        "groups": [
            {
                "part": g.name,
                "paper": g.expected,
                "made": g.outliers,
                "gone by subtraction": g.subtracted,
                "gone by projection": g.projected,
            }
            for g in found.groups
        ],
        "eigenvalues": found.values[:most].tolist(),
        "shares": found.shares[:most].tolist(),
    }


def kolmogorov(a: Spectrum, b: Spectrum, above: float, *, alone: bool = False) -> float:
    """The largest distance of distribution functions at eigenvalues above a value.

    With ``alone`` each function is that of the eigenvalues above the value, so that millions of
    zeros do not hide what happens to the others.
    """
    points = torch.cat([s.values if isinstance(s, ExactSpectrum) else s.nodes[0] for s in (a, b)])
    points = torch.cat([points[points > above], points.new_tensor([above])])
    shares = []
    for spectrum in (a, b):
        share = 1 - spectrum.cdf(points)
        shares.append(share / share[-1] if alone else share)
    return float((shares[0] - shares[1]).abs().max())


# Pictures ---------------------------------------------------------------------------------------


def decades(spectra: Mapping[str, Spectrum], *, floor: float = EPS) -> Tensor:
    """Edges of bins for ``log₁₀(|λ| + floor)`` that hold all spectra: ``[bins + 1]``."""
    top = max(_largest(spectrum) for spectrum in spectra.values())
    low, high = torch.tensor([floor, max(top, 10 * floor)], dtype=torch.float64).log10().tolist()
    return torch.linspace(low - 0.05, high + 0.1, _BINS + 1, dtype=torch.float64)


def histogram(
    label: str, spectrum: Spectrum, edges: Tensor, *, floor: float = EPS, color: int | None = None
) -> Curve:
    """How many eigenvalues lie in each bin of ``log₁₀(|λ| + floor)``."""
    points = (10**edges - floor).clamp(min=0.0)
    below = spectrum.cdf(points) - spectrum.cdf(-points - 1e-300)
    counts = below.diff().clamp(min=0) * spectrum.dimension
    counts[0] += below[0] * spectrum.dimension
    return Curve.of(label, 10 ** edges[:-1], counts, kind="steps", color=color)


def log_panel(title: str, curves: tuple[Curve, ...], *, lowest: float = 0.5) -> Panel:
    """Eigenvalues on a logarithmic axis, their number on another."""
    most = max(max(curve.y) for curve in curves)
    return Panel(
        title=title,
        xlabel="|λ| + ε",
        ylabel="eigenvalues",
        curves=curves,
        xscale="log",
        yscale="log",
        ylim=(lowest, 3 * max(most, 10.0)),
    )


def _largest(spectrum: Spectrum) -> float:
    if isinstance(spectrum, ExactSpectrum):
        return float(spectrum.values.abs().max())
    return max(abs(side) for side in spectrum.support)
