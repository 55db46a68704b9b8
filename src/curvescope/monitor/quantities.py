"""What a monitor measures: each quantity is a function of one look at the training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from curvescope import _state
from curvescope._random import rademacher
from curvescope.errors import CurvescopeError
from curvescope.flatness.minibatch import minibatch_metric
from curvescope.monitor.limits import Limits, Preconditioned
from curvescope.monitor.noise import PIECES, noise_scale
from curvescope.monitor.probe import gradients, mean, pieces, samples_of
from curvescope.monitor.top import Pairs, largest
from curvescope.operators.base import LinearOperator
from curvescope.operators.gauss_newton import GaussNewton
from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem
from curvescope.problem.batches import Batch

TRACKED = 0.75  # eigenvalues above this part of the limit are followed: 1.5/η for gradient descent
_LINE = (0.0, 0.5, 1.5, 2.0)
_RANK_PROBES = 4


@dataclass
class Settings:
    """How quantities are measured."""

    pairs: int
    tol: float
    max_products: int
    generator: torch.Generator


@dataclass
class Look:
    """The weights of now: the problem on the probe, the step that led here, the limits.

    Measurements of one look share what more than one of them needs. ``vectors`` are where
    the search for eigenvectors begins by the name of their matrix, and are replaced.
    """

    problem: Problem
    batches: Sequence[tuple[Any, Any]]
    settings: Settings
    many: bool  # whether many products come: the linearization is kept for all of them
    step: Tensor | None = None
    limits: Limits | None = None
    vectors: dict[str, Tensor] = field(default_factory=dict)
    loss: float = math.nan
    gradient: Tensor | None = None

    def __post_init__(self) -> None:
        H = Hessian(self.problem)
        self._ready: LinearOperator | None = None
        self._H = H

    @property
    def hessian(self) -> LinearOperator:
        """The Hessian on the probe."""
        if self._ready is None:
            self._ready = self._H.for_many() if self.many else self._H
        return self._ready

    def release(self) -> None:
        """Let go what is kept for products."""
        self._H.release()


Values = dict[str, float]
Quantity = Callable[[Look], Values]


def directional(look: Look) -> Values:
    """``ΔᵀHΔ / ‖Δ‖²`` and ``Δᵀg`` for the step ``Δ`` that was made, after it; one product.

    ``H`` and ``g`` are those of the weights that the step led to. The error is that of rounding.
    """
    step, slope = look.step, look.gradient
    assert step is not None, "measured only after a step"
    assert slope is not None, "the gradient is taken with every look at a step"
    length = float(step.double().norm())
    if length == 0:
        return {"directional/norm": 0.0, "directional/products": 0}
    unit = (step.double() / length).to(step)
    image = look.hessian @ unit
    unit, image = unit.double(), image.double()
    eps = torch.finfo(step.dtype).eps
    return {
        "directional/sharpness": float(unit @ image / (unit @ unit)),
        "directional/error": eps * float(image.norm()),
        "directional/slope": length * float(unit @ slope.double()),
        "directional/norm": length,
        "directional/products": 1,
    }


def top(look: Look) -> Values:
    """``λ_max`` of ``H``, and of the preconditioned matrix whose limit the optimizer sets."""
    limits, values = look.limits, Values()
    plain = limits is None or limits.inverse_root is None
    above = None if limits is None or not plain else TRACKED * limits.threshold
    found = _largest(look, look.hessian, "hessian", above, values)
    products, value = found.products, found.values[0]
    if limits is not None and limits.inverse_root is not None:
        P = Preconditioned(look.hessian, limits.inverse_root, limits.decay)
        above = TRACKED * limits.threshold
        found = _largest(look, P, "preconditioned", above, values)
        products, value = products + found.products, found.values[0]
    if limits is not None:
        values["top/threshold"] = limits.threshold
        values["top/ratio"] = value / limits.threshold
    return values | {"top/products": products}


def _largest(
    look: Look, A: LinearOperator, name: str, above: float | None, values: Values
) -> Pairs:
    how = look.settings
    found = largest(
        A, how.pairs, start=look.vectors.get(name), above=above, tol=how.tol,
        max_products=how.max_products, generator=how.generator,
    )  # fmt: skip
    look.vectors[name] = found.start
    for i, (value, residual) in enumerate(zip(found.values, found.residuals, strict=True), 1):
        place = f"top/{name}" if i == 1 else f"top/{name}_{i}"
        values |= {place: value, f"{place}_residual": residual}
    return found


def trace(look: Look) -> Values:
    """``tr G`` of the Gauss–Newton matrix, and the practical bound's ``tr G + ½‖w‖²``.

    By :func:`curvescope.flatness.minibatch_metric`, one pass forwards and half of one back; its
    error is that of probes and sampling. Where that does not apply, by quadratic forms with random
    signs, whose error is that of the probes alone.
    """
    problem, g = look.problem, look.settings.generator
    variables = problem.variables()
    norm = sum(float(w.detach().double().square().sum()) for w in variables.values())
    metric = _minibatch(look)
    if metric is None:
        G = GaussNewton(problem)
        V = rademacher((G.shape[0], _RANK_PROBES), g, G.dtype, G.device)
        forms = G.quadratic(V)
        value, error = float(forms.mean()), float(forms.std()) / math.sqrt(_RANK_PROBES)
        products = _RANK_PROBES
    else:
        (value, error), products = metric, 0
    return {
        "trace/ggn": value,
        "trace/error": error,
        "trace/metric": value + 0.5 * norm,
        "trace/products": products,
    }


def _minibatch(look: Look) -> tuple[float, float] | None:
    problem = look.problem
    if len(look.batches) > 1 or len(problem.params.names) != len(
        [p for p in problem.model.parameters() if p.requires_grad]
    ):
        return None
    inputs, target = look.batches[0]
    mode: _state.Mode = "norms train" if problem.mode == "train" else "eval"
    try:
        with _state.held(problem.model, mode):
            metric = minibatch_metric(
                problem.model, inputs, target, loss=problem.loss, generator=look.settings.generator
            )
    except CurvescopeError:
        return None  # another loss, or samples that see each other
    return metric.trace.value, metric.trace.stderr


def noise(look: Look) -> Values:
    """The gradient noise scale, see :func:`noise_scale`; a gradient in sixteen pieces."""
    parts = pieces(look.batches, PIECES, look.settings.generator)
    found = list(gradients(look.problem, parts))
    rows = [part.slope / part.weight for part in found if part.slope is not None and part.weight]
    scale = noise_scale(torch.stack(rows), samples_of(parts[0][1]))
    return {
        "noise/scale": scale.scale,
        "noise/error": scale.scale_error,
        "noise/low": scale.low,
        "noise/high": scale.high,
        "noise/variance": scale.variance,
        "noise/variance_error": scale.variance_error,
        "noise/square": scale.square,
        "noise/square_error": scale.square_error,
        "noise/products": 0,
    }


def line(look: Look) -> Values:
    """The loss on the line through the step: at 0 (before), ½, 1 (now), 1½ and 2; four passes."""
    step, problem = look.step, look.problem
    assert step is not None, "measured only after a step"
    values = {"line/1": look.loss}
    now = problem.variables()
    shift = problem.params.unflatten(step)
    for place in _LINE:
        moved = {
            name: (w.detach() + (place - 1) * shift[name]).requires_grad_()
            for name, w in now.items()
        }
        total = weight = 0.0
        for index, (inputs, target) in enumerate(look.batches):
            with problem.evaluation():
                z = problem.output(moved, Batch(inputs, target, index)).detach()
                at = problem.loss.at(z, target)
                total, weight = total + float(at.value()), weight + float(at.weight)
        values[f"line/{place:g}"] = total / weight
    return values | {"line/products": 0}


def rank(look: Look) -> Values:
    """The effective rank ``(tr G)² / tr G²`` of the Gauss–Newton matrix, from four products."""
    G = GaussNewton(look.problem)
    V = rademacher((G.shape[0], _RANK_PROBES), look.settings.generator, G.dtype, G.device)
    images = (G @ V).double()
    traces, squares = (V.double() * images).sum(0), images.square().sum(0)
    value = float(traces.mean()) ** 2 / float(squares.mean())
    left = [
        float(traces[keep].mean()) ** 2 / float(squares[keep].mean())
        for keep in (torch.arange(_RANK_PROBES) != i for i in range(_RANK_PROBES))
    ]
    spread = torch.tensor(left, dtype=torch.float64)
    error = math.sqrt((_RANK_PROBES - 1) * float(spread.var(correction=0)))
    return {"rank/effective": value, "rank/error": error, "rank/products": _RANK_PROBES}


def loss_and_gradient(look: Look, *, slope: bool) -> None:
    """Put the loss, and the gradient if wanted, into a look."""
    look.loss, look.gradient = mean(list(gradients(look.problem, look.batches, slopes=slope)))


QUANTITIES: Mapping[str, Quantity] = {
    "directional": directional, "top": top, "trace": trace, "noise": noise, "line": line,
    "rank": rank,
}  # fmt: skip
NEED_STEP = ("directional", "line")
"""Those that compare the weights with those before the optimizer's step."""
