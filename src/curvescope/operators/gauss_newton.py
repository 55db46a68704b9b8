"""Gauss–Newton and Fisher matrices: ``Jᵀ B J``, positive semi-definite.

All of them take ``keep``, ``columns`` and ``cuda_graph``, which say how products are made, see
:class:`curvescope.operators.curvature.Curvature`.

References:
    TR: Papyan (2020), *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra*.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from curvescope import _checks
from curvescope.errors import CurvescopeError
from curvescope.operators.curvature import Curvature, MatrixOptions, problem_and_options
from curvescope.problem import Problem
from curvescope.record.outputs import GradientOuter, LossHessian, Mix, SampledFisher

if TYPE_CHECKING:
    from typing_extensions import Unpack


class GaussNewton(Curvature):
    """``G = (1/N) Σ_n J_nᵀ (∂²ℓ/∂z²) J_n``.

    For cross-entropy ``∂²ℓ/∂z² = diag(p) − p pᵀ`` (TR 5.1). For the three standard losses
    G equals the Fisher information matrix. It is positive semi-definite when the loss is convex in
    the output, as those are. A streamed product costs about 1.6 gradients, a kept one about 1.1.

    >>> from torch import nn
    >>> model = nn.Linear(1, 1, bias=False).double()
    >>> with torch.no_grad():
    ...     _ = model.weight.zero_()
    >>> data = (torch.tensor([[2.0]]).double(), torch.tensor([1]))
    >>> GaussNewton(Problem(model, data, loss="binary_logistic")).dense()  # p (1 − p) x²
    tensor([[1.]], dtype=torch.float64)
    """

    def __init__(
        self, problem: Problem | nn.Module, *data: Any, **options: Unpack[MatrixOptions]
    ) -> None:
        problem, how = problem_and_options("GaussNewton", problem, data, options)
        super().__init__(problem, Mix(0.0, ((LossHessian(), 1.0),)), **how)


class MonteCarloFisher(Curvature):
    """``(1/N) Σ_n (1/S) Σ_s J_nᵀ g_ns g_nsᵀ J_n`` with targets drawn from the model itself.

    Its expectation is the Fisher matrix. The draws are decided once, by ``generator``, so that the
    operator is one fixed matrix; the data must come in a fixed order.
    """

    def __init__(
        self,
        problem: Problem | nn.Module,
        *data: Any,
        samples: int = 1,
        generator: torch.Generator,
        **options: Unpack[MatrixOptions],
    ) -> None:
        problem, how = problem_and_options("MonteCarloFisher", problem, data, options)
        _checks.positive_int("MonteCarloFisher", "samples", samples)
        source = _checks.generator("MonteCarloFisher", generator)
        if problem.data.shuffles:
            rule = "draws belong to samples, so the loader must not shuffle"
            raise CurvescopeError("MonteCarloFisher(problem)", rule, remedy="use `shuffle=False`")
        seed = int(torch.randint(2**62, (), generator=source, device=source.device))
        mix = Mix(0.0, ((SampledFisher(int(samples), seed), 1.0),))
        super().__init__(problem, mix, **how)


class EmpiricalFisher(Curvature):
    """``(1/N) Σ_n g_n g_nᵀ``, ``g_n`` the gradient of the n-th term of the loss at its own target.

    A term is a position for cross-entropy, a sample for every other loss. This is the second moment
    of the gradients, not the Fisher matrix: it vanishes where every sample is fitted.
    """

    def __init__(
        self, problem: Problem | nn.Module, *data: Any, **options: Unpack[MatrixOptions]
    ) -> None:
        problem, how = problem_and_options("EmpiricalFisher", problem, data, options)
        super().__init__(problem, Mix(0.0, ((GradientOuter(), 1.0),)), **how)
