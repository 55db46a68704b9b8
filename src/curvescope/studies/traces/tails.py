"""TR fig. 16: the spectrum of E has the tails of a power law, the same on both sides."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from curvescope.figures.model import Curve, Panel, Picture
from curvescope.spectra.measure import SpectralMeasure
from curvescope.studies.entry import Entry, Outcome, Row, Settings
from curvescope.studies.traces.vgg import Digits, digits, test_residual

_BINS = 40
_DECADES = 4.0
_FITTED = (0.02, 0.5)  # the part of the support that is fitted, as shares of the largest |λ|
_OTHER = ((0.01, 0.2), (0.1, 0.5))


@dataclass(frozen=True)
class PowerLaw:
    """``φ(λ) = factor · |λ|^exponent`` and how much of the variance of ``log φ`` it explains."""

    factor: float
    exponent: float
    r2: float


def run(settings: Settings) -> Outcome:
    """Train, run Lanczos on the test E, fit both tails."""
    subject = digits(settings)
    measure = test_residual(settings, subject)
    centers, sides = _sides(measure)
    fits = {side: power_law(centers, values) for side, values in sides.items()}
    density = (sides["positive"] + sides["negative"]) / 2
    both = power_law(centers, density)
    other = {within: power_law(centers, density, within=within) for within in _OTHER}
    numbers = {side: vars(found) for side, found in {**fits, "both": both}.items()}
    return Outcome(
        (*_rows(measure, fits, both), *_ranges(other)),
        (_picture(centers, sides, both),),
        numbers,
        _notes(subject, measure),
    )


def _sides(measure: SpectralMeasure) -> tuple[Tensor, dict[str, Tensor]]:
    """The density of positive and of negative eigenvalues in bins of ``log |λ|``."""
    top = max(abs(side) for side in measure.support)
    edges = torch.logspace(
        math.log10(top) - _DECADES, math.log10(top), _BINS + 1, dtype=torch.float64
    )
    centers = (edges[1:] * edges[:-1]).sqrt()
    positive = measure.cdf(edges).diff() / edges.diff()
    negative = -measure.cdf(-edges).diff() / edges.diff()
    return centers, {"positive": positive.clamp(min=0), "negative": negative.clamp(min=0)}


def power_law(x: Tensor, density: Tensor, *, within: tuple[float, float] = _FITTED) -> PowerLaw:
    """A line through ``log density`` against ``log x``, ``within`` some shares of the largest.

    >>> x = torch.logspace(-4, 0, 41, dtype=torch.float64)
    >>> found = power_law(x, 3e-4 * x**-2.5)
    >>> round(found.exponent, 6), round(found.factor, 9), round(found.r2, 6)
    (-2.5, 0.0003, 1.0)
    """
    low, high = (share * float(x[-1]) for share in within)
    chosen = (x >= low) & (x <= high) & (density > 0)
    if int(chosen.sum()) < 3:
        return PowerLaw(float("nan"), float("nan"), float("nan"))
    a, b = x[chosen].log(), density[chosen].log()
    slope = float(((a - a.mean()) * (b - b.mean())).sum() / (a - a.mean()).square().sum())
    start = float(b.mean() - slope * a.mean())
    left = float((b - start - slope * a).square().sum())
    return PowerLaw(math.exp(start), slope, 1 - left / float((b - b.mean()).square().sum()))


def _rows(measure: SpectralMeasure, fits: dict[str, PowerLaw], both: PowerLaw) -> tuple[Row, ...]:
    low, high = measure.support
    masses = [float(1 - measure.cdf(torch.tensor([1e-4 * high]))),
              float(measure.cdf(torch.tensor([-1e-4 * high])))]  # fmt: skip
    return (
        Row("exponent of the power law", both.exponent, paper=-2.7, low=-2.7, high=-2.2,
            note="−2.7 from the density, −2.2 from the log-density"),
        Row("R² of the fit", both.r2, paper=0.99),
        Row("exponent, positive eigenvalues", fits["positive"].exponent),
        Row("exponent, negative eigenvalues", fits["negative"].exponent),
        Row("largest over smallest eigenvalue", high / -low, paper=1.0,
            note="“almost perfectly symmetric about the origin”"),
        Row("mass of positive over negative eigenvalues", masses[0] / masses[1], paper=1.0),
        Row("mean eigenvalue over the root mean square", float(measure.moment(1).value)
            / math.sqrt(measure.moment(2).value), paper=0.0,
            note="tr E = 0 for a piecewise linear network"),
    )  # fmt: skip


def _ranges(found: Mapping[tuple[float, float], PowerLaw]) -> tuple[Row, ...]:
    """What the exponent would be on other parts of the spectrum."""
    return tuple(
        Row(f"exponent between {low:g} and {high:g} of the largest |λ|", law.exponent,
            note=f"R² = {law.r2:.3f}")
        for (low, high), law in found.items()
    )  # fmt: skip


def _picture(centers: Tensor, sides: dict[str, Tensor], both: PowerLaw) -> Picture:
    curves = [
        Curve.of(name, centers[values > 0], values[values > 0], kind="points")
        for name, values in sides.items()
    ]
    low, high = (share * float(centers[-1]) for share in _FITTED)
    ends = torch.tensor([low, high], dtype=torch.float64)
    curves.append(
        Curve.of(f"|λ|^{both.exponent:.2f}, R² = {both.r2:.2f}", ends,
                 both.factor * ends**both.exponent)
    )  # fmt: skip
    panel = Panel(xlabel="|λ|", ylabel="density", curves=tuple(curves), xscale="log", yscale="log")
    return Picture("tails", "The two tails of the test E and a power law (TR fig. 16).", (panel,),
                   columns=1)  # fmt: skip


def _notes(subject: Digits, measure: SpectralMeasure) -> tuple[str, ...]:
    return (
        f"{subject.note} E is that of the test images; {measure.nodes.shape[1]} Lanczos steps, one "
        "probe. The paper has VGG11 with batch norm, 1,351 digits per class to train on, 200 "
        "epochs, and takes 2048 steps.",
        f"The law is fitted between {_FITTED[0]:g} and {_FITTED[1]:g} of the largest |λ|: the "
        "paper fits “part of the spectrum” and does not say which. The exponent depends on that: "
        "on doubly logarithmic axes the tail is bent, steeper toward its end, and −2.7 … −2.2 is "
        "met or missed by the choice.",
    )


def _checks(outcome: Outcome) -> Iterator[Row]:
    """Fig. 16: “almost perfectly symmetric”, a power law “with an R² of 0.99”."""
    (fit,) = outcome.values("R² of the fit")
    yield Row("R² of the power law, at least", fit, paper=0.99, low=0.95, note="range ours")
    for what, start in (
        ("largest over smallest eigenvalue", "largest over smallest"),
        ("mass of positive over negative eigenvalues", "mass of positive"),
    ):
        (ratio,) = outcome.values(start)
        yield Row(f"{what}, within a tenth", ratio, paper=1.0, low=0.9, high=1.1,
                  note="“almost perfectly symmetric about the origin”; range ours")  # fmt: skip
    (mean,) = outcome.values("mean eigenvalue over the root mean square")
    yield Row("mean eigenvalue over the root mean square, about 0", abs(mean), paper=0.0, high=0.01,
              note="tr E = 0 for a piecewise linear network; range ours")  # fmt: skip


ENTRY = Entry(
    name="traces/tails",
    source="TR sec. C.7: fig. 16",
    shows="The spectrum of E is symmetric and falls like a power of |λ|.",
    cost={
        "smoke": "3 s, embedded digits",
        "small": "3 minutes on two cores, MNIST, LeNet5; shares its network with traces/spectra",
        "paper": "VGG11 with 28 million parameters, 13,510 digits, 1 minute on an H200",
    },
    run=run,
    subject={
        "smoke": "Test E of F-24 on embedded digits",
        "small": "Test E of LeNet5 on mnist",
        "paper": "Test E of VGG11 with batch norm on mnist",
    },
    reduced={
        "smoke": "network, data and epochs",
        "small": (
            "LeNet5 instead of VGG11, 30 digits per class instead of 1,351, 256 Lanczos steps "
            "instead of 2048"
        ),
        "paper": (
            "100 epochs instead of 200, one learning rate instead of the best of 100; E over 100 "
            "test digits per class, 512 Lanczos steps instead of 2048"
        ),
    },
    checks=_checks,
)
