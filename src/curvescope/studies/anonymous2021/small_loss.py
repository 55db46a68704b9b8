"""Theorem 1 and eq. 1: curvature while the loss goes to zero, and shifts of the weights.

The theorem's network: ReLU, no biases, softmax and cross-entropy, in float64, because the losses of
single samples fall below what float32 can tell from zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log, sqrt
from pathlib import Path
from statistics import fmean, median, stdev

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from curvescope import io
from curvescope._state import evaluated
from curvescope.figures.model import Curve, Kind, Panel, Picture
from curvescope.flatness import ShiftEstimate, curvature_bound, rescale, shift_estimate
from curvescope.flatness.network_scores import weight_norms
from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem
from curvescope.spectra import eigenpairs
from curvescope.studies.granziol2020.solutions import moment, spectrum
from curvescope.studies.networks import Images
from curvescope.studies.run import Result, Run, Value
from curvescope.training import Recipe, load_weights, train

DECAYS = {"without": 0.0, "with": 5e-4}
_ALPHA = 1e4
_SIZES = (1e-3, 3e-3, 1e-2, 3e-2)
"""Of shifts, in units of the norm of the weights."""


@dataclass(frozen=True)
class Point:
    """The network after an epoch."""

    loss: float
    norm: float  # ‖w‖
    largest: float  # ‖H‖, the largest eigenvalue
    trace: float
    frobenius: float
    bound: float  # of ‖H‖, by losses and norms of the weights


def run(run: Run) -> Result:
    """Train to a small loss with and without weight decay, measure on the way, shift at the end."""
    name = "mnist-6k" if run.scale == "smoke" else "mnist"
    images = Images(name, pixels="unit", samples=run["samples"], coarse=2)
    data = images.load(root=run.root, seed=run.seed, device="cpu")
    X, y = data.X.flatten(1).double(), data.y
    courses: dict[str, list[Point]] = {}
    ends: dict[str, Problem] = {}
    for label, decay in DECAYS.items():
        model = network(run, X.shape[1], data.classes, nn.ReLU)
        folder = _trained(run, model, (X, y), decay)
        courses[label] = []
        for epoch in run["points"]:
            load_weights(folder / "weights" / f"epoch-{epoch:05d}.safetensors", model)
            courses[label].append(_point(run, f"{label}-{epoch}", evaluated(model), X, y))
        ends[f"ReLU, {label} weight decay"] = Problem(model, (X, y))
    smooth = network(run, X.shape[1], data.classes, nn.Tanh)  # second derivatives everywhere
    _trained(run, smooth, (X, y), DECAYS["with"])
    ends["tanh, with weight decay"] = Problem(evaluated(smooth), (X, y))
    shifts = {label: _Shifts.of(run, label, problem) for label, problem in ends.items()}
    values = {**_values(courses, ends), **_shift_values(shifts)}
    numbers = {label: [vars(point) for point in points] for label, points in courses.items()}
    return Result(values, (_against_loss(courses), _shifted(shifts)), {"points": numbers})


def network(
    run: Run, inputs: int, classes: int, activation: type[nn.ReLU] | type[nn.Tanh]
) -> nn.Sequential:
    """A fully connected network without biases, in float64."""
    g = torch.Generator().manual_seed(run.seed)
    layers: list[nn.Module] = []
    for n, m in pairwise((inputs, *run["widths"], classes)):
        layer = nn.Linear(n, m, bias=False).double()
        with torch.no_grad():
            layer.weight.normal_(0.0, sqrt(2 / n), generator=g)
        layers += [layer, activation()]
    return nn.Sequential(*layers[:-1])


def _trained(
    run: Run, model: nn.Sequential, data: tuple[torch.Tensor, torch.Tensor], decay: float
) -> Path:
    points = tuple(run["points"])
    recipe = Recipe(
        seed=run.seed, epochs=points[-1], lr=run["lr"], weight_decay=decay, checkpoints=points
    )
    kind = type(model[1]).__name__
    folder = run.work / "training" / "anonymous2021" / f"small-loss-{kind}-{run.scale}-{decay:g}"
    run.tell(f"{kind}, weight decay {decay:g}: training for {points[-1]} epochs")
    io.make_folder(folder.parent)
    train(model, data, recipe, folder=folder, resume=True)
    return folder


def _point(run: Run, key: str, model: nn.Module, X: torch.Tensor, y: torch.Tensor) -> Point:
    run.tell(f"{key}: curvature")
    problem = Problem(model, (X, y))
    H = spectrum(run, f"small-loss-{key}", Hessian(problem))
    with torch.no_grad():
        losses = cross_entropy(model(X), y, reduction="none")
    norms = [float(torch.linalg.matrix_norm(p.detach(), 2)) for p in model.parameters()]
    return Point(
        loss=float(losses.mean()),
        norm=sqrt(weight_norms(problem).squared),
        largest=float(H.nodes.abs().max()),
        trace=H.dimension * moment(H, 1),
        frobenius=sqrt(H.dimension * moment(H, 2)),
        bound=curvature_bound(losses, X.norm(dim=1), norms).hessian,
    )


def _values(courses: dict[str, list[Point]], ends: dict[str, Problem]) -> dict[str, float | Value]:
    points, decayed = courses["without"], courses["with"]
    last, largest = points[-1], max(p.largest for p in points)
    both = [*points, *decayed]
    rescaled = Hessian(rescale(ends["ReLU, without weight decay"], "0", "2", _ALPHA).problem)
    g = torch.Generator().manual_seed(0)
    return {
        "loss at the end": last.loss,
        "loss at the end, with weight decay": decayed[-1].loss,
        "‖H‖ at the end over its largest": last.largest / largest,
        **{
            f"exponent of {what} in the loss, from the middle point to the last": exponent(
                points, pick
            )
            for what, pick in (("‖H‖", "largest"), ("tr H", "trace"), ("‖H‖_F", "frobenius"))
        },
        "‖H‖ at the end, with weight decay over without": decayed[-1].largest / last.largest,
        "‖w‖ at the end, with weight decay over without": decayed[-1].norm / last.norm,
        "‖H‖ over its bound, largest of all points": max(p.largest / p.bound for p in both),
        "‖H‖ over its bound, smallest of all points": min(p.largest / p.bound for p in both),
        "‖H‖ at the end after a rescaling by 10⁴, over the largest before": float(
            eigenpairs(rescaled, 1, tol=1e-3, generator=g).values[0]
        )
        / largest,
    }


def exponent(points: Sequence[Point], what: str) -> float:
    """``d log(what) / d log(loss)`` over the second half of the points: 1 if proportional."""
    last, middle = points[-1], points[len(points) // 2]
    return log(getattr(last, what) / getattr(middle, what)) / log(last.loss / middle.loss)


# Shifts -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Shifts:
    """The terms of eq. 1 for each size of a shift: in random directions, and along ``v₁``."""

    random: dict[float, list[ShiftEstimate]]
    along: dict[float, ShiftEstimate]

    @classmethod
    def of(cls, run: Run, label: str, problem: Problem) -> _Shifts:
        H, g = Hessian(problem), run.generator(4)
        top = eigenpairs(H, 1, tol=1e-4, generator=g)
        run.tell(f"{label}: shifts")
        measure = spectrum(run, f"small-loss-end-{label}", H)
        size, norm = problem.params.size, sqrt(weight_norms(problem).squared)
        terms = {"trace": size * moment(measure, 1), "largest": float(top.values[0])}
        directions = torch.randn(run["shifts"], size, dtype=torch.float64, generator=g)
        directions /= directions.norm(dim=1, keepdim=True)

        def at(direction: torch.Tensor, share: float) -> ShiftEstimate:
            return shift_estimate(problem, share * norm * direction, **terms)

        return cls(
            {share: [at(d, share) for d in directions] for share in _SIZES},
            {share: at(top.vectors[:, 0], share) for share in _SIZES},
        )


def _shift_values(shifts: dict[str, _Shifts]) -> dict[str, float | Value]:
    values: dict[str, float | Value] = {}
    for label, each in shifts.items():
        for share in (1e-3, 1e-2):
            where = f"{100 * share:g} % of ‖w‖, {label}"
            random, along = each.random[share], each.along[share]
            values |= {
                f"change of the loss over ½δᵀHδ, random shifts of {where}": median(
                    s.change / s.quadratic for s in random
                ),
                f"the same without the slope, random shifts of {where}": median(
                    (s.change - s.slope) / s.quadratic for s in random
                ),
                f"change of the loss over ½λ₁‖δ‖², along v₁ by {where}": along.change / along.worst,
            }
    random = shifts["ReLU, with weight decay"].random[1e-2]
    values["δᵀHδ over tr H / P ‖δ‖², mean of random shifts: distance from 1 in standard errors"] = (
        _distance([s.quadratic / s.isotropic for s in random])
    )
    values["λ₁‖δ‖² over δᵀHδ, mean of random shifts"] = random[0].worst / fmean(
        s.quadratic for s in random
    )
    return values


def _distance(ratios: Sequence[float]) -> Value:
    """How far their mean lies from 1, in standard errors."""
    mean, error = fmean(ratios), stdev(ratios) / sqrt(len(ratios))
    return Value(abs(mean - 1) / error, f"{mean:.3f} ± {error:.3f}")


# Pictures ---------------------------------------------------------------------------------------


def _against_loss(courses: dict[str, list[Point]]) -> Picture:
    def panel(what: str, pick: str, *, bound: bool = False) -> Panel:
        curves = [
            Curve.of(
                f"{label} weight decay",
                [p.loss for p in points],
                [getattr(p, pick) for p in points],
            )
            for label, points in courses.items()
        ]
        if bound:
            points = courses["without"]
            curves.append(
                Curve.of(
                    "bound", [p.loss for p in points], [p.bound for p in points], dash="dashed"
                )
            )
        return Panel(
            xlabel="training loss", ylabel=what, curves=tuple(curves), xscale="log", yscale="log"
        )

    return Picture(
        "loss",
        "Largest eigenvalue with its bound, trace and weight norm against the training loss; "
        "training runs from right to left.",
        (panel("‖H‖", "largest", bound=True), panel("tr H", "trace"), panel("‖w‖", "norm")),
        columns=3,
    )


def _shifted(shifts: dict[str, _Shifts]) -> Picture:
    panels = []
    for label, each in shifts.items():
        columns: dict[str, tuple[list[float], Kind, int]] = {
            "random shifts, mean": (
                [fmean(s.change for s in g) for g in each.random.values()], "points", 0
            ),
            "½ tr H / P ‖δ‖²": ([g[0].isotropic for g in each.random.values()], "line", 0),
            "along v₁": ([s.change for s in each.along.values()], "points", 1),
            "½ λ₁ ‖δ‖²": ([s.worst for s in each.along.values()], "line", 1),
        }  # fmt: skip
        curves = tuple(
            Curve.of(name, list(_SIZES), y, kind=kind, color=color)
            for name, (y, kind, color) in columns.items()
        )
        panels.append(
            Panel(
                title=label,
                xlabel="‖δ‖ / ‖w‖",
                ylabel="change of the loss",
                curves=curves,
                xscale="log",
                yscale="log",
            )
        )
    caption = "Eq. 1: the change of the loss for shifts of the weights."
    return Picture("shifts", caption, tuple(panels), columns=3)
