"""Whether the residual part ``E`` of the Hessian has a zero diagonal.

``E_ii = Σ_c (∂ℓ/∂z_c) ∂²z_c/∂w_i²`` vanishes where the output is piecewise linear in every single
weight, which it is when it is so in every layer: ReLU, max-pooling, linear and convolution layers,
batch norm in evaluation mode. Then ``H`` and ``G`` have the same diagonal and the same trace.
"""

from __future__ import annotations

import torch

from curvescope._state import without_gradients
from curvescope.problem.params import ParamSpace
from curvescope.problem.problem import Problem
from curvescope.record.batch import TapeBatch
from curvescope.record.outputs import Mix
from curvescope.record.rules import Untraceable
from curvescope.record.samples import first_samples


def residual_has_no_diagonal(problem: Problem, space: ParamSpace) -> bool:
    """Whether ``E`` has nothing to propagate within any layer of ``space``.

    Read off the operations recorded on a few samples: a tangent of one layer is pushed through the
    recorded backward pass, and gates stop it whatever the numbers. A model that chooses other
    operations for other samples is taken at these samples' word. Asked once for each space.
    """
    known: dict[tuple[str, ...], bool] = problem.cache.setdefault("diagonal of E", {})
    if space.names not in known:
        known[space.names] = _tried(problem, space)
    return known[space.names]


def _tried(problem: Problem, space: ParamSpace) -> bool:
    try:
        tape = TapeBatch(problem, first_samples(next(iter(problem.data))))
        tape.record_backward(torch.ones_like(tape.output), second_order=True)
        weights = {name: p[None] for name, p in problem.variables().items()}
        with without_gradients():
            for layer in space.layers:
                own = [name for name in space.resolve(layer) if name in space.names]
                if tape.product(Mix(1.0, ()), {name: weights[name].detach() for name in own}):
                    return False
    except Untraceable:
        return False
    return True
