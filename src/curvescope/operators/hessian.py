"""The Hessian of the mean loss."""

from __future__ import annotations

from curvescope.operators.curvature import Curvature
from curvescope.problem import Problem
from curvescope.record.outputs import LossHessian, Mix
from curvescope.record.sweep import Options


class Hessian(Curvature):
    """``H = ∂²L/∂w²`` of the problem's mean loss, exactly (OP-2).

    Symmetric, in general indefinite. A streamed product costs about 2.5 gradients, a kept one about
    1.5; ``k`` columns share one pass over the data. Weight decay is not part of the loss.

    >>> import torch
    >>> from torch import nn
    >>> X, y = torch.tensor([[1.0, 2.0]]).double(), torch.zeros(1, 1).double()
    >>> problem = Problem(nn.Linear(2, 1, bias=False).double(), (X, y), loss="mse")
    >>> Hessian(problem).dense().round(decimals=9)  # 2 x xᵀ
    tensor([[2., 4.],
            [4., 8.]], dtype=torch.float64)
    """

    def __init__(
        self,
        problem: Problem,
        *,
        keep: str | bool = "auto",
        columns: int | None = None,
        cuda_graph: bool = False,
    ) -> None:
        mix = Mix(1.0, ((LossHessian(), 1.0),))
        super().__init__(problem, mix, options=Options(keep, columns, cuda_graph))
