"""What the studies of Papyan (2020) share: networks chosen by test error, spectra."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from math import pi

import torch
from torch import Tensor, nn

from curvescope._state import fast_precision
from curvescope.data import Dataset
from curvescope.figures.model import Curve, Panel
from curvescope.identity import digest
from curvescope.networks import network
from curvescope.operators.gram import GramForm
from curvescope.problem import Problem
from curvescope.record.extended import class_directions
from curvescope.spectra.exact import ExactSpectrum
from curvescope.studies.networks import Description
from curvescope.studies.pictures import EPSILON, Spectrum
from curvescope.studies.run import Run, Value
from curvescope.studies.trainings import first_classes
from curvescope.training import Sweep, learning_rates, sweep

_WIDTH = 0.06  # of the Gaussians that a density is made of, in powers of ten
_POINTS = 240


# Networks ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chosen:
    """The network with the best test error among several learning rates (App. D.1)."""

    model: nn.Module
    description: Description
    data: Dataset
    held_out: Dataset
    sweep: Sweep

    def values(self, prefix: str = "") -> dict[str, float | Value]:
        """The rate, the errors and the loss; the note has the errors at all rates."""
        best = self.sweep.best
        if best is None or best.train is None:
            raise RuntimeError("no rate gave finite weights")
        pairs = zip(self.sweep.rates, self.sweep.scores, strict=True)
        listed = ", ".join(f"{rate:.2g}: {error:.3f}" for rate, error in pairs)
        return {
            f"{prefix}learning rate chosen": Value(best.recipe.lr, f"test errors {listed}"),
            f"{prefix}test error": min(self.sweep.scores),
            f"{prefix}training loss": best.train.loss,
            f"{prefix}training error": 1 - best.train.accuracy,
        }


def chosen(
    run: Run, key: str, *, data: str | None = None, per_class: int | None = None,
    epochs: int | None = None, classes: int | None = None,
) -> Chosen:  # fmt: skip
    """A network trained at every rate of the scale's ``rates``; the best by its test error.

    ``rates`` is a list, or how many rates there are between 0.25 and 0.0001. ``data``,
    ``per_class`` and ``epochs`` replace those of the description; ``classes`` takes the images of
    the first classes.
    """
    of = on(run.describe(key), data=data, per_class=per_class)
    if epochs is not None:
        of = replace(of, recipe=replace(of.recipe, epochs=epochs))
    assert of.held_out is not None, "a sweep needs images to choose by"
    train, test = (
        first_classes(images.load(root=run.root, seed=run.seed, device=run.device), classes)
        for images in (of.images, of.held_out)
    )
    model = network(
        of.network, train.input_shape, train.classes, init=of.init, generator=_seeded(run.seed)
    ).to(run.device)
    given = run["rates"]
    rates = learning_rates(given) if isinstance(given, int) else tuple(given)
    folder = run.work / "papyan2020" / "sweeps" / f"{key}-{run.scale}-{digest(repr(of))[:16]}"
    run.tell(f"{of.network} at {len(rates)} rates, {of.recipe.epochs} epochs, {len(train)} images")
    recipe = replace(of.recipe, seed=run.seed)
    run.workers.finish(
        of, [run.seed] * len(rates), [replace(recipe, lr=rate) for rate in rates],
        [folder / f"rate-{rate!r}" for rate in rates], classes=classes, fast=of.fast,
    )  # fmt: skip
    with fast_precision() if of.fast else nullcontext():
        found = sweep(model, train, recipe, rates, test=test, folder=folder, resume=True)
    return Chosen(model, of, train, test, found)


def on(of: Description, *, data: str | None = None, per_class: int | None = None) -> Description:
    """The same network and recipe on other images."""
    if data is not None:
        test = None if of.held_out is None else replace(of.held_out, data=data)
        of = replace(of, images=replace(of.images, data=data), held_out=test)
    if per_class is not None:
        of = replace(of, images=replace(of.images, per_class=per_class))
    return of


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def carriers(problem: Problem) -> int:
    """How many samples it takes, the heaviest first, to make half of ``tr G``."""
    form = GramForm(problem, class_directions)
    norms = form.diagonal()
    samples = sum(len(batch.target) for batch in form.source.batches)
    shares = norms.reshape(samples, -1).sum(1).sort(descending=True).values.cumsum(0)
    return int((shares < shares[-1] / 2).sum()) + 1


# Spectra -----------------------------------------------------------------------------------------


def log_densities(
    title: str, spectra: Mapping[str, Spectrum], *, colors: Mapping[str, int] | None = None
) -> Panel:
    """Eigenvalues per power of ten of ``λ + ε``, all smoothed by the same Gaussians.

    The paper's pictures of log-spectra are of this kind; a histogram of Lanczos' nodes is a comb.
    """
    places = {label: _places(spectrum) for label, spectrum in spectra.items()}
    top = max(float(x.max()) for x, _ in places.values())
    grid = torch.linspace(
        torch.tensor(EPSILON).log10() - 0.2, top + 0.3, _POINTS, dtype=torch.float64
    )
    curves = []
    for label, (x, count) in places.items():
        bumps = torch.exp(-0.5 * ((grid[:, None] - x) / _WIDTH) ** 2) / (_WIDTH * (2 * pi) ** 0.5)
        color = None if colors is None else colors[label]
        curves.append(Curve.of(label, 10**grid, (bumps @ count).clamp(min=1e-3), color=color))
    most = max(max(curve.y) for curve in curves)
    return Panel(
        title=title, xlabel="λ + ε", ylabel="eigenvalues per decade", curves=tuple(curves),
        xscale="log", yscale="log", ylim=(0.3, 3 * most),
    )  # fmt: skip


def _places(spectrum: Spectrum) -> tuple[Tensor, Tensor]:
    """``log₁₀(|λ| + ε)`` and how many eigenvalues stand there."""
    if isinstance(spectrum, ExactSpectrum):
        values = torch.cat([spectrum.values.double().cpu(), torch.zeros(1, dtype=torch.float64)])
        count = torch.ones_like(values)
        count[-1] = spectrum.zeros
    else:
        values = spectrum.nodes.flatten().double().cpu()
        count = spectrum.weights.flatten().double().cpu() * spectrum.dimension / spectrum.probes
    return (values.abs() + EPSILON).log10(), count
