"""What a certificate will take: a few steps of its optimization and a few draws, counted up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from curvescope._state import copied, held
from curvescope.certificates.blocks import Layout
from curvescope.certificates.bound import draws_for_slack
from curvescope.certificates.evaluate import BLOCK, stochastic_error
from curvescope.certificates.examples import as_examples, home, logits
from curvescope.certificates.methods import Method, posterior_method
from curvescope.certificates.network import StochasticNetwork
from curvescope.certificates.optimize import Optimized, optimize
from curvescope.errors import CurvescopeError
from curvescope.experiments.doctor.records import Forecast, Measured
from curvescope.experiments.doctor.watch import once, peak
from curvescope.problem import Problem
from curvescope.problem.losses.recognize import classifier_loss

_BATCH = 500
_STEPS = 4  # in a short epoch
_LEAST_ERROR = 0.01  # of the stochastic network; few examples may show none
_SHORT, _LONG = 1, 3  # epochs


def certificate(problem: Problem, measured: Measured, method: Method | None = None) -> Forecast:
    """Optimizing the posterior, and the draws.

    The number of draws depends on the error of the stochastic network at the end; that after a few
    steps is taken, and at least 1 %.
    """
    method = posterior_method("local") if method is None else method
    if measured.samples < method.batch_size:
        method = replace(method, batch_size=measured.samples)
    try:
        pair = _examples(problem, min(_STEPS * method.batch_size, measured.samples))
        return _forecast(problem, measured, method, pair)
    except CurvescopeError as error:
        return Forecast("certificate", None, None, (), error.after_where())


def examples(model: nn.Module, data: Any) -> Problem:
    """A problem on the examples of a certificate, with the loss of a classifier."""
    X, _ = as_examples("certify", data, *home("certify", model))
    with held(model, "eval"), torch.no_grad():
        loss = classifier_loss(logits(model, X[:2]))
    return Problem(model, data, loss=loss, batch_size=_BATCH)


def _examples(problem: Problem, count: int) -> tuple[Tensor, Tensor]:
    inputs: list[Tensor] = []
    targets: list[Tensor] = []
    for batch in problem.data:
        x, y = batch.inputs, batch.target
        if not isinstance(x, Tensor) or not isinstance(y, Tensor) or y.ndim != 1:
            rule = "a certificate needs samples that are one tensor, with one label each"
            raise CurvescopeError("certify(data)", rule)
        inputs, targets = [*inputs, x], [*targets, y]
        if sum(map(len, targets)) >= count:
            break
    return torch.cat(inputs)[:count], torch.cat(targets)[:count]


def _forecast(
    problem: Problem, measured: Measured, method: Method, pair: tuple[Tensor, Tensor]
) -> Forecast:
    model, device = copied(problem.model), problem.device
    with held(model, "eval"), torch.no_grad():
        logits(model, pair[0][:2])  # refused here where it has none
    layout = Layout.of(model)
    prior_mean = 0.9 * layout.flatten({n: p.detach() for n, p in model.named_parameters()})
    results: list[Optimized] = []

    def run(epochs: int) -> None:
        g = torch.Generator().manual_seed(0)
        short = replace(method, epochs=epochs, refresh=0)
        results.append(optimize(model, prior_mean, pair, short, generator=g))

    peak_bytes, _ = peak(lambda: run(_SHORT), device)
    short, long = once(lambda: run(_SHORT), device), once(lambda: run(_LONG), device)
    steps = max(len(pair[1]) // method.batch_size, 1)
    epoch = (long - short) / (_LONG - _SHORT)
    step = (epoch if epoch > 0 else long / _LONG) / steps  # the clock may be coarser than an epoch
    basis = max(short - steps * step, 0.0)
    bases = 1 + sum(method.refreshes(epoch) for epoch in range(method.epochs))
    more = measured.samples - len(pair[1])
    passes = 2 * measured.gradient * more / measured.samples if method.basis != "standard" else 0.0
    epochs = method.epochs * max(measured.samples // method.batch_size, 1) * step
    parts = (
        ("optimizing", epochs),
        ("bases", bases * (basis + passes)),
        ("draws", _draws(problem, measured, results[-1], pair)),
    )
    return Forecast("certificate", sum(seconds for _, seconds in parts), peak_bytes, parts)


def _draws(
    problem: Problem, measured: Measured, result: Optimized, pair: tuple[Tensor, Tensor]
) -> float:
    """The draws of the bound, and the twenty rounds for orientation."""
    posterior, device = result.posterior, problem.device

    def rounds(count: int) -> float:
        g = torch.Generator().manual_seed(0)
        return stochastic_error(problem.model, posterior, pair, generator=g, rounds=count)

    error = max(rounds(1), _LEAST_ERROR)
    each = once(lambda: rounds(3), device) / 3  # a pass over the pair, or one of its blocks
    network = StochasticNetwork(problem.model, posterior.layout, pair[0][:4])
    slack = max(error / 30, 1e-3) if network.independent else 1e-2
    draws = draws_for_slack(error, slack, delta=0.01)
    if network.independent:
        passes = -(-draws // measured.samples) + 1
        return passes * each * measured.samples / len(pair[1])
    return draws * each * min(1.0, BLOCK / len(pair[1]))
