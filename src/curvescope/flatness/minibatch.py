"""PP's metric from one mini-batch, for less than the price of one training step (PP §4.2).

References:
    PP: *A Practical PAC-Bayes Generalisation Bound for Deep Learning* (2020).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from curvescope import _checks
from curvescope._state import differentiable, watching
from curvescope.flatness.trace_gradient.capture import Capture
from curvescope.flatness.trace_gradient.forward import frozen_calls, samples_of, trainable
from curvescope.flatness.trace_gradient.independence import rows_per_sample
from curvescope.flatness.trace_gradient.pullback import Folding, squared_gradients
from curvescope.flatness.trace_gradient.signs import Signs
from curvescope.problem.losses import Loss, as_loss
from curvescope.spectra.estimate import Estimate


@dataclass(frozen=True)
class MinibatchMetric:
    """``tr G + ½‖w‖²`` (PP eq. 7) with the trace estimated on ``samples`` samples.

    The error of ``trace`` is that of probes and sampling together, as an estimate of the trace over
    the distribution that the batch was drawn from.
    """

    trace: Estimate[float]
    squared_norm: float
    loss: float
    samples: int

    @property
    def value(self) -> Estimate[float]:
        """``tr G + ½‖w‖²``."""
        t = self.trace
        return Estimate(t.value + 0.5 * self.squared_norm, t.stderr, t.products, t.probes)


def minibatch_metric(
    model: nn.Module,
    X: Any,
    y: Any,
    *,
    generator: torch.Generator,
    loss: str | nn.Module | Callable[..., Tensor] | Loss = "cross_entropy",
    probes: int = 1,
) -> MinibatchMetric:
    """PP eq. 7 from one mini-batch: the trace survives sub-sampling (PP eq. 11).

    The paper takes one Hessian-vector product, which costs two to three gradients. This takes the
    norms of pulled-back random cotangents instead (see
    :class:`curvescope.TraceRegularizer`): one forward pass and the input half of one backward pass,
    without a second derivative, and with one probe per sample instead of one per batch. For
    piecewise affine networks, ``tr G = tr H``.

    Args:
        model: Any module; its flags, buffers and gradients stay as they are, dropout is off and
            batch norms are in the mode in which they are.
        X: The inputs of the batch.
        y: Its targets.
        generator: The source of the probes.
        loss: As for :class:`curvescope.Problem`, except custom callables.
        probes: How many cotangents per sample.

    Raises:
        CurvescopeError: If the loss is another one, or does not fit the output.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = model.weight.detach().copy_(torch.tensor([[0.0, 4.0]]))
    >>> X, y = torch.tensor([[1.0, 2.0], [1.0, 2.0]]), torch.zeros(2, 1)
    >>> g = torch.Generator().manual_seed(0)
    >>> metric = minibatch_metric(model, X, y, loss="mse", generator=g)
    >>> round(metric.trace.value, 4), round(metric.value.value, 4)  # 2 ‖x‖² and + ½ · 16
    (10.0, 18.0)
    """
    where = "minibatch_metric(model, X, y)"
    probes = _checks.positive_int(where, "probes", probes)
    stream = Signs(_checks.generator(where, generator))
    with differentiable(), frozen_calls(model) as call:
        parameters = trainable(where, model)
        with watching(Capture(parameters, second_order=False)) as capture:
            z = call(X)
        capture.separate(samples_of(X), rows_per_sample(model, X))
    with torch.no_grad():
        root = as_loss(loss).probe(z, y)
        fold, rows, rest = Folding(stream), z.new_zeros(capture.samples), z.new_zeros(())
        for _ in range(probes):
            u = root(stream.draw(root.shape, z))
            by_sample, together = squared_gradients(capture, z, u, fold, create_graph=False)
            rows, rest = rows + by_sample / probes, rest + together / probes
    norm = sum((p.detach().double().square().sum() for p in parameters), torch.zeros(()).double())
    trace = _estimate(rows.double(), rest.double(), float(root.weight), probes)
    return MinibatchMetric(trace, float(norm), float(root.value), capture.samples)


def _estimate(rows: Tensor, rest: Tensor, count: float, probes: int) -> Estimate[float]:
    """The sum over samples with its spread; a squared norm of a random sum has at most √2 of it."""
    total = float(rows.sum() + rest) / count
    spread = float(rows.std()) * len(rows) ** 0.5 if len(rows) > 1 else float("inf")
    stderr = (spread**2 + 2 * float(rest) ** 2 / probes) ** 0.5 / count
    return Estimate(total, stderr, probes, len(rows) * probes)
