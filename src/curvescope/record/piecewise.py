"""Is the network behind a layer piecewise linear? Then the residual part ``E`` vanishes there.

``E = Σ_c (∂ℓ/∂z_c) ∂²z_c/∂w²`` restricted to the parameters of one layer vanishes where the output
is piecewise linear in them: behind ReLU, max-pooling, linear and convolution layers, batch norm in
evaluation mode. Then the Hessian's block is ``Jᵀ B J`` (DH eq. 23); and where it is so for every
layer, ``E`` has a zero diagonal, and ``H`` and ``G`` have the same diagonal and trace.

References:
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
"""

from __future__ import annotations

import torch

from curvescope._state import without_gradients
from curvescope.problem.batches import Batch
from curvescope.problem.params import ParamSpace
from curvescope.problem.problem import Problem
from curvescope.record.batch import TapeBatch
from curvescope.record.rules import Untraceable
from curvescope.record.samples import first_samples


class PiecewiseLinear:
    """What was found out about one problem; ``problem.companion(PiecewiseLinear)``.

    Read off the operations recorded on a few samples: a tangent of one layer, its own weights, is
    pushed through the recorded backward pass, and gates stop it whatever the numbers. One trial
    serves all batches that run the same operations.
    """

    def __init__(self, problem: Problem) -> None:
        self._answers: dict[tuple[tuple[str, ...], frozenset[str] | None], bool] = {}

    def behind_each_layer(self, problem: Problem, space: ParamSpace) -> bool:
        """Whether it is so behind every layer of ``space``, for the first samples of the data.

        A model that chooses other operations for other samples is taken at these samples' word.
        """
        key = (space.names, None)
        if key not in self._answers:
            layers = [_within(space, layer) for layer in space.layers]
            first = first_samples(next(iter(problem.data)))
            self._answers[key] = _tried(problem, layers, first)
        return self._answers[key]

    def behind(
        self, problem: Problem, layer: str, operations: frozenset[str], batch: Batch
    ) -> bool:
        """Whether it is so behind a layer for a batch that runs these operations."""
        names = problem.params.select(problem.params.resolve(layer)).names
        key = (names, operations)
        if key not in self._answers:
            smaller = problem.restrict(layer)
            self._answers[key] = _tried(smaller, [smaller.params], first_samples(batch))
        return self._answers[key]


def _within(space: ParamSpace, layer: str) -> ParamSpace:
    return space.select(space.resolve(layer))


def _tried(problem: Problem, layers: list[ParamSpace], few: Batch) -> bool:
    """Whether no layer's tangent meets a second derivative."""
    try:
        tape = TapeBatch(problem, few)
        tape.record_backward(torch.ones_like(tape.output), second_order=True)
        weights = {name: p.detach() for name, p in problem.variables().items()}
        with without_gradients():
            for layer in layers:
                row = torch.cat([weights[name].flatten() for name in layer.names])[None]
                if tape.curves(layer, row):
                    return False
    except Untraceable:
        return False
    return True
