"""What the studies of weight decay share: networks by decay, what is measured of them, panels.

``tr H`` and ``tr H²`` are divided by the number ``P`` of parameters, as both papers print them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import sqrt
from statistics import fmean, stdev

import torch
from torch import Tensor, nn

from curvescope.data import Dataset
from curvescope.figures.model import Curve, Panel, Scaling
from curvescope.flatness.network_scores import weight_norms
from curvescope.operators.base import LinearOperator
from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem
from curvescope.spectra import SpectralMeasure, spectral_measure
from curvescope.spectra.control import Status
from curvescope.studies.networks import Description, Group
from curvescope.studies.run import Run, Value
from curvescope.training import Fit, evaluate

DECAYS = (0.0, 1e-4, 5e-4)
"""The weight decays of sec. 4 and anonymous2021 sec. 5."""

_CONVERGED = 1e-2  # residual over |value|: an eigenvalue, not a stretch of the bulk
_LARGEST_MASS = 30.0  # in units of 1/P; one eigenvalue has more with probability 4e-8
_SHOWN = 1e-11  # masses below are rounding


@dataclass(frozen=True)
class Solution:
    """A trained network: its fit, its weights, the spectrum of H by the mode of the batch norms."""

    seed: int
    train: Fit
    test: Fit
    right: Tensor  # whether each held-out sample is: [N]
    norm: float  # ‖w‖
    spectra: Mapping[str, SpectralMeasure]

    def columns(self, mode: str) -> dict[str, float]:
        """The columns of anonymous2021's tables, and what the paper's text says beside them."""
        H = self.spectra[mode]
        mean = moment(H, 1)
        return {
            "ΔE": 100 * (self.train.accuracy - self.test.accuracy),
            "ΔL": self.test.loss - self.train.loss,
            "tr H / P": mean,
            "tr H² / P": moment(H, 2),
            "‖H‖": float(H.nodes.max()),
            "a": self.norm / 2 + mean,
            "tr H + ½‖w‖²": H.dimension * mean + self.norm**2 / 2,
            "‖w‖": self.norm,
            "training loss": self.train.loss,
            "training accuracy": 100 * self.train.accuracy,
            "test accuracy": 100 * self.test.accuracy,
        }


Solutions = Mapping[float, Sequence[Solution]]
COLUMNS = ("ΔE", "ΔL", "tr H / P", "tr H² / P", "‖H‖", "a")
"""Those of anonymous2021's tables 1, 2, 4 and 5."""
FITS = ("‖w‖", "training loss", "training accuracy", "test accuracy")


# Computing --------------------------------------------------------------------------------------


def by_decay(run: Run, key: str, described: Description | None = None) -> dict[float, Group]:
    """Networks of this name, or as described, trained with each weight decay.

    All start from the same weights. ``run["faster"]`` multiplies the decays where a training is
    shorter than the papers': a decay ``γ`` acts over ``1/(αγ)`` steps.
    """
    plain, factor = described or run.describe(key), run.get("faster", 1)
    recipes = {decay: replace(plain.recipe, weight_decay=factor * decay) for decay in DECAYS}
    return {
        decay: run.networks(f"{key}-{decay:g}", replace(plain, recipe=recipe))
        for decay, recipe in recipes.items()
    }


def solutions(
    run: Run, key: str, group: Group, *, modes: Sequence[str] = ("eval",)
) -> tuple[Solution, ...]:
    """Every network of a group, measured."""
    few = len(group.few)
    return tuple(
        measured(run, key, each.model, each.seed, group.data, group.held_out, few, modes=modes)
        for each in group.networks
    )


def measured(
    run: Run,
    key: str,
    model: nn.Module,
    seed: int,
    data: Dataset,
    held_out: Dataset,
    curvature: int | None,
    *,
    modes: Sequence[str],
) -> Solution:
    """A network with its fits and the spectrum of H over the first ``curvature`` samples.

    In train mode the samples come in batches of ``run["batch"]``, those of the batch norms.
    """
    few = replace(data, X=data.X[:curvature], y=data.y[:curvature])
    spectra = {}
    for mode in modes:
        run.tell(f"{key}, seed {seed}, {mode} mode: spectrum")
        problem = Problem(model, few.batches(run.get("batch", 2500)), mode=mode)
        spectra[mode] = spectrum(run, f"{key}-seed{seed}-{mode}", Hessian(problem))
    norm = sqrt(weight_norms(problem).squared)
    fits = [evaluate(model, split) for split in (data, held_out)]
    return Solution(seed, fits[0], fits[1], predicted_right(model, held_out), norm, spectra)


@torch.no_grad()
def predicted_right(model: nn.Module, data: Dataset) -> Tensor:
    """Whether each sample is predicted as what it is, in evaluation mode: ``[N]``."""
    found = [model(X).argmax(1) == y for X, y in data.batches(1000)]
    return torch.cat(found).cpu()


def spectrum(run: Run, key: str, A: LinearOperator) -> SpectralMeasure:
    """Ritz values and their masses (App. B), from ``work`` if they are there.

    ``run["steps"]`` Lanczos steps with full re-orthogonalization from ``run["probes"]`` vectors.
    """
    steps, probes, generator = run["steps"], run.get("probes", 1), run.generator(2)

    def compute() -> dict[str, Tensor]:
        measure = spectral_measure(
            A, steps=steps, probes=probes, reorthogonalize=True, generator=generator
        )
        names = ("nodes", "weights", "residuals")
        return {name: getattr(measure, name) for name in names}

    kept = {name: t.cpu() for name, t in run.once(f"spectrum-{key}", compute).items()}
    ends = float(kept["nodes"].min()), float(kept["nodes"].max())
    none = torch.empty(0, dtype=torch.float64)
    return SpectralMeasure(
        **kept, outliers=none, dimension=A.shape[0], support=ends, products=steps * probes,
        status=Status.DONE,
    )  # fmt: skip


def moment(measure: SpectralMeasure, k: int) -> float:
    """``tr H^k / P``, every converged Ritz value counted as one eigenvalue.

    Both papers read the moments off the masses of one random vector. In it a single eigenvalue has
    the mass ``χ²/P`` instead of ``1/P``, which moves ``tr H²`` by its own size where few
    eigenvalues make it up. Only the rest is taken at its sampled mass here.

    >>> row = torch.tensor([[0.0, 4.0]]), torch.tensor([[0.7, 0.3]]), torch.tensor([[0.1, 0.0]])
    >>> measure = SpectralMeasure(*row, torch.empty(0), 8, (0.0, 4.0), 2, Status.DONE)
    >>> moment(measure, 1)  # one eigenvalue of eight is 4
    0.5
    """
    n, nodes, masses = measure.dimension, measure.nodes, measure.weights
    single = (measure.residuals <= _CONVERGED * nodes.abs()) & (masses > 0)
    single &= masses * n <= _LARGEST_MASS
    masses = torch.where(single, torch.full_like(masses, 1 / n), masses)
    return float((masses * nodes**k).sum(1).mean())


# Values -----------------------------------------------------------------------------------------


def named(what: str, decay: float, *, of: str = "") -> str:
    """The name of a number of one weight decay.

    >>> named("‖H‖", 1e-4), named("a", 0.0, of="All-CNN-C")
    ('‖H‖, γ = 0.0001', 'a, All-CNN-C, γ = 0')
    """
    return ", ".join(part for part in (what, of, f"γ = {decay:g}") if part)


def over_seeds(numbers: Sequence[float]) -> Value:
    """The mean over the seeds, with its range."""
    count = len(numbers)
    spread = f"{min(numbers):.4g} … {max(numbers):.4g}, " if count > 1 else ""
    return Value(fmean(numbers), f"{spread}{_seeds(count)}")


def _seeds(count: int) -> str:
    return "one seed" if count == 1 else f"{count} seeds"


def table(
    found: Solutions, columns: Sequence[str], *, mode: str = "eval", of: str = ""
) -> dict[str, Value]:
    """Columns for each weight decay, as means over the seeds."""
    rows = {decay: [each.columns(mode) for each in group] for decay, group in found.items()}
    return {
        named(name, decay, of=of): over_seeds([row[name] for row in group])
        for name in columns
        for decay, group in rows.items()
    }


def beyond(
    differences: Sequence[float], *, error: float | None = None, upper: bool = False
) -> Value:
    """A mean difference less two standard errors: positive where it is more than chance.

    ``upper``: plus two standard errors, which is negative where the difference surely is.

    The standard error is that over the seeds, or ``error`` where that is larger; one seed alone
    has none.

    >>> round(beyond([1.0, 3.0]).number, 6)
    0.0
    """
    count, mean = len(differences), fmean(differences)
    assert count > 1 or error is not None, "one seed has no spread"
    spread = stdev(differences) / sqrt(count) if count > 1 else 0.0
    spread = max(spread, error or 0.0)
    end = mean + 2 * spread if upper else mean - 2 * spread
    return Value(end, f"{mean:+.3g} ± {spread:.2g}, {_seeds(count)}")


def gain(first: Sequence[Solution], last: Sequence[Solution]) -> Value:
    """How much more accurate the last are, in points, less two standard errors.

    The error is the larger of those over the seeds and over the samples, which are the same ones.
    """
    return _gain([(a.right, b.right) for a, b in zip(first, last, strict=True)])


def sample_gain(pairs: Sequence[tuple[nn.Module, nn.Module]], data: Dataset) -> Value:
    """:func:`gain` of networks on held-out data, one pair for each seed."""
    return _gain([(predicted_right(a, data), predicted_right(b, data)) for a, b in pairs])


def _gain(pairs: Sequence[tuple[Tensor, Tensor]]) -> Value:
    changes = 100 * torch.stack([b.double() - a.double() for a, b in pairs])
    samples = changes.mean(0)
    return beyond(changes.mean(1).tolist(), error=float(samples.std()) / sqrt(len(samples)))


def change(found: Solutions, what: str, *, mode: str = "eval", sign: int = 1) -> Value:
    """What the largest weight decay adds (``sign=-1``: takes), as :func:`beyond`."""
    pairs = zip(found[DECAYS[0]], found[DECAYS[-1]], strict=True)
    return beyond([sign * (b.columns(mode)[what] - a.columns(mode)[what]) for a, b in pairs])


def least_step(values: Mapping[str, float | Value], what: str, *, of: str = "") -> float:
    """The least ratio of a quantity from one weight decay to the next: above 1 where it grows."""
    return min(_ratios(_along(values, what, of)))


def largest_step(values: Mapping[str, float | Value], what: str, *, of: str = "") -> float:
    """The largest such ratio: below 1 where it falls."""
    return max(_ratios(_along(values, what, of)))


def last_over_first(values: Mapping[str, float | Value], what: str, *, of: str = "") -> float:
    """The quantity with the largest weight decay over that without."""
    first, *_, last = _along(values, what, of)
    return last / first


def _along(values: Mapping[str, float | Value], what: str, of: str) -> list[float]:
    found = [values[named(what, decay, of=of)] for decay in DECAYS]
    return [each.number if isinstance(each, Value) else each for each in found]


def _ratios(values: Iterable[float]) -> list[float]:
    return [b / a for a, b in pairwise(values)]


# Panels -----------------------------------------------------------------------------------------


def masses(title: str, spectra: Mapping[str, SpectralMeasure]) -> Panel:
    """Mass against Ritz value, spectra over each other by their labels, as Granziol draws them."""
    shown = []
    for label, measure in spectra.items():
        nodes, weights = measure.nodes[0], measure.weights[0]
        real = weights > _SHOWN
        shown.append(Curve.of(label, nodes[real], weights[real], kind="points"))
    return Panel(
        title=title, xlabel="Ritz value of H", ylabel="mass", curves=tuple(shown), yscale="log"
    )


def against_decay(
    title: str,
    what: str,
    shown: Mapping[str, tuple[Solutions, str]],
    *,
    printed: Mapping[str, Sequence[float]] | None = None,
    factor: float = 1.0,
    yscale: Scaling = "linear",
) -> Panel:
    """A column against the weight decay: means over the seeds with bands, and printed values.

    Args:
        title: Of the vertical axis.
        what: The column.
        shown: By label, solutions and the mode of the batch norms.
        printed: The papers' values, by label.
        factor: By how much the decays are larger than the papers'.
        yscale: Of the vertical axis.
    """
    x = [1e4 * factor * decay for decay in DECAYS]
    curves = [
        Curve.mean(
            label, x, torch.tensor([[s.columns(mode)[what] for s in g] for g in of.values()]).T
        )
        for label, (of, mode) in shown.items()
    ]
    curves += [
        Curve.of(label, x, values, kind="points") for label, values in (printed or {}).items()
    ]
    return Panel(xlabel="weight decay / 10⁻⁴", ylabel=title, curves=tuple(curves), yscale=yscale)
