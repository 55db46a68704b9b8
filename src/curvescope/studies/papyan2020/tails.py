"""The spectrum of E has the tails of a power law, alike on both sides (Papyan 2020, fig. 16)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from curvescope.data import Dataset
from curvescope.figures.model import Curve, Panel, Picture
from curvescope.operators.gauss_newton import GaussNewton
from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem
from curvescope.spectra.measure import SpectralMeasure, spectral_measure
from curvescope.spectra.tails import PowerLaw, TailDensity, power_law, tail_density, tail_masses
from curvescope.studies.measures import restored, saved
from curvescope.studies.run import Result, Run, Value
from curvescope.training import evaluate

_RESOLVED = 0.02  # of the largest |λ|
_KEPT = 2000  # images whose linearization fits beside a large network


def run(run: Run) -> Result:
    """Train, run Lanczos on the test E over several numbers of images, fit both tails."""
    group = run.networks("digits")
    (model,) = group.models
    fit = evaluate(model, group.held_out)
    values: dict[str, float | Value] = {"test loss": fit.loss, "test error": 1 - fit.accuracy}
    numbers: dict[str, object] = {}
    panels = []
    for per_class, steps in zip(run["test_per_class"], run["steps"], strict=True):
        data = group.held_out if per_class == 0 else group.held_out.per_class(per_class)

        run.tell(f"E over {len(data)} test images, {steps} steps")
        residual = partial(_residual, model, data, steps, run.generator(20))
        measure = restored(run.once(f"tails-{len(data)}", residual))
        wrong = round((1 - evaluate(model, data).accuracy) * len(data))
        tails = tail_density(measure)
        laws = {side: power_law(tails, side=side) for side in ("both", "positive", "negative")}
        images = f"{len(data):,} test images"
        values[f"{images}: of these wrong"] = wrong
        values |= _values(images, measure, laws)
        numbers[images] = {
            "points": tails.points.tolist(),
            "positive": tails.positive.tolist(),
            "negative": tails.negative.tolist(),
        }
        panels.append(_panel(images, tails, laws["both"]))
    caption = (
        "The two tails of the test E and a power law on the widest window with an R² of 0.99 "
        "(fig. 16)."
    )
    return Result(values, (Picture("tails", caption, tuple(panels)),), numbers)


def derive(values: Mapping[str, float], numbers: Mapping[str, object]) -> dict[str, float]:
    """A window of no width where none has the R²."""
    names = (f"{images}: width of the window, powers of ten" for images in numbers)
    return {name: values.get(name, 0.0) for name in names}


def _residual(
    model: nn.Module, data: Dataset, steps: int, generator: torch.Generator
) -> dict[str, Tensor]:
    problem, few = Problem(model, data.batches(1000)), len(data) <= _KEPT
    E = Hessian(problem, keep=few) - GaussNewton(problem, keep=few)
    return saved(spectral_measure(E, steps=steps, generator=generator))


def _values(
    images: str, measure: SpectralMeasure, laws: dict[str, PowerLaw | None]
) -> dict[str, float | Value]:
    low, high = measure.support
    # Below, Lanczos has few Ritz values for most of the spectrum, whose sides mean nothing.
    positive, negative = tail_masses(measure, beyond=_RESOLVED * max(high, -low))
    second = measure.moment(2).value
    values: dict[str, float | Value] = {
        f"{images}: largest over smallest eigenvalue": high / -low,
        f"{images}: mass of positive over negative eigenvalues": Value(
            positive / negative, f"|λ| above {_RESOLVED:g} of the largest"
        ),
        f"{images}: mean eigenvalue over the root mean square": measure.moment(1).value
        / math.sqrt(second),
    }
    for side, law in laws.items():
        of = f"{images}: " if side == "both" else f"{images}, {side} side: "
        if law is not None:
            values |= {
                f"{of}exponent of the power law": Value(law.exponent, _window(law, high)),
                f"{of}R² of the power law": law.r2,
                f"{of}prefactor of the power law": law.factor,
                f"{of}width of the window, powers of ten": math.log10(
                    law.window[1] / law.window[0]
                ),
            }
    return values


def _window(law: PowerLaw, top: float) -> str:
    low, high = (end / top for end in law.window)
    return f"from {low:.2g} to {high:.2g} of the largest, {law.points} bins"


def _panel(title: str, tails: TailDensity, law: PowerLaw | None) -> Panel:
    curves = []
    for side in ("positive", "negative"):
        values = tails.of(side)
        alive = values > 0
        curves.append(Curve.of(side, tails.points[alive], values[alive], kind="points"))
    if law is not None:
        ends = torch.tensor(law.window, dtype=torch.float64)
        label = f"|λ|^{law.exponent:.2f}, R² = {law.r2:.2f}"
        curves.append(Curve.of(label, ends, law.factor * ends**law.exponent))
    return Panel(title=title, xlabel="|λ|", ylabel="density", curves=tuple(curves), xscale="log",
                 yscale="log")  # fmt: skip
