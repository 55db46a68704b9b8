"""The Hessian of the mean loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from curvescope.operators.curvature import Curvature, MatrixOptions, problem_and_options
from curvescope.problem import Problem
from curvescope.record.outputs import LossHessian, Mix

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Hessian(Curvature):
    """``H = ∂²L/∂w²`` of the problem's mean loss, exactly.

    Symmetric, in general indefinite. A streamed product costs about 2.5 gradients, a kept one about
    1.5; ``k`` columns share one pass over the data. Weight decay is not part of the loss.
    ``keep``, ``columns`` and ``cuda_graph`` say how products are made, see :class:`Curvature`.
    ``Hessian(model, data, loss=…)`` is short for ``Hessian(Problem(model, data, loss=…))``.

    >>> import torch
    >>> from torch import nn
    >>> X, y = torch.tensor([[1.0, 2.0]]).double(), torch.zeros(1, 1).double()
    >>> problem = Problem(nn.Linear(2, 1, bias=False).double(), (X, y), loss="mse")
    >>> Hessian(problem).dense().round(decimals=9)  # 2 x xᵀ
    tensor([[2., 4.],
            [4., 8.]], dtype=torch.float64)
    """

    def __init__(
        self, problem: Problem | nn.Module, *data: Any, **options: Unpack[MatrixOptions]
    ) -> None:
        problem, how = problem_and_options("Hessian", problem, data, options)
        super().__init__(problem, Mix(1.0, ((LossHessian(), 1.0),)), **how)
