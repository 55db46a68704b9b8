"""Rescaling consecutive layers: the function stays, every Hessian measure moves.

If ``σ(α x) = α σ(x)`` for ``α > 0`` (ReLU and everything else that is positively homogeneous),
``W₂ σ(W₁ x + b₁) + b₂`` is unchanged by ``W₁, b₁ → α W₁, α b₁`` and ``W₂ → W₂/α`` (Dinh et al.
2017; FF §2, PP §3). Let ``w' = D⁻¹ w`` be the new weights, ``D`` diagonal with ``1/α`` on the first
layer, ``α`` on the second weight and 1 elsewhere. Then ``L'(w') = L(D w')``, and

    ∇L' = D ∇L,      H' = D H D,      G' = D G D,

so that the diagonal block of a parameter, and its λ_max, is multiplied by ``α⁻²`` in the first
layer and by ``α²`` in the second.

References:
    FF: Granziol (2020), *Flatness is a False Friend*.
    PP: *A Practical PAC-Bayes Generalisation Bound for Deep Learning* (2020).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from curvescope import _checks
from curvescope._state import copied
from curvescope.errors import CurvescopeError
from curvescope.flatness.network_scores import on_other_data
from curvescope.layers import matrix_kind
from curvescope.operators.base import LinearOperator
from curvescope.problem import ParamSpace, Problem


@dataclass(frozen=True)
class Rescaled:
    """A problem with two layers rescaled by ``alpha``, and the effect on the curvature.

    ``shift`` is the largest change of an output on the first batch, relative to the outputs: of
    the size of rounding, else :func:`rescale` refuses.
    """

    problem: Problem
    first: str
    second: str
    alpha: float
    shift: float

    def block_factor(self, name: str) -> float:
        """The factor of the Hessian's diagonal block of one parameter, and of its eigenvalues."""
        (full,) = self.problem.params.resolve(name, "Rescaled.block_factor")
        return _factors(self.first, self.second, self.alpha).get(full, 1.0) ** 2

    def diagonal(self) -> Tensor:
        """``D`` of the module's docstring, in the order of the flat vector."""
        return _diagonal(self.problem.params, _factors(self.first, self.second, self.alpha)).to(
            self.problem.device, self.problem.dtype
        )

    def predicted(self, A: LinearOperator) -> Congruence:
        """``D A D``: the rescaled problem's matrix from that of the original, ``H`` or ``G``."""
        return Congruence(A, self.diagonal())


def rescale(problem: Problem, first: str, second: str, alpha: float) -> Rescaled:
    """``W₁, b₁ → α W₁, α b₁`` and ``W₂ → W₂ / α`` on a copy of the model.

    Cost: two forward passes of the first batch, which check that the function stays the same.

    Args:
        problem: A problem; its model is left as it is.
        first: A linear or convolutional layer.
        second: The one that follows it, with nothing but positively homogeneous functions between
            (ReLU, leaky ReLU, pooling, flattening, dropout).
        alpha: The factor, positive.

    Raises:
        CurvescopeError: If a layer is of another kind, a weight is shared, ``alpha`` is not
            positive, or the output changes.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)).double()
    >>> data = (torch.eye(2).double(), torch.ones(2, 1).double())
    >>> rescaled = rescale(Problem(model, data, loss="mse"), "0", "2", 10.0)
    >>> round(rescaled.block_factor("0.weight"), 9), round(rescaled.block_factor("2.weight"), 9)
    (0.01, 100.0)
    >>> bool((rescaled.problem.value() - Problem(model, data, loss="mse").value()).abs() < 1e-12)
    True
    """
    where = f"rescale(problem, {first!r}, {second!r})"
    alpha = _checks.finite_float(where, "alpha", alpha)
    if alpha <= 0:
        raise CurvescopeError(where, "`alpha` must be positive", given=f"{alpha:g}")
    model = copied(problem.model)
    for name in (first, second):
        _check_layer(where, model, name)
    with torch.no_grad():
        parameters = dict(model.named_parameters())
        for name, factor in _factors(first, second, alpha).items():
            if name in parameters:
                parameters[name].div_(factor)  # w' = D⁻¹ w
    after = on_other_data(problem, problem.data, model=model)
    shift = _shift(problem, after)
    if shift > 100 * torch.finfo(problem.dtype).eps ** 0.5:
        raise CurvescopeError(
            where,
            f"the output changes by {shift:.2g} of its size, so that the layers do not follow each "
            "other through positively homogeneous functions alone",
            remedy="choose layers with only ReLU, pooling or reshaping between them",
        )
    return Rescaled(after, first, second, alpha, shift)


def _factors(first: str, second: str, alpha: float) -> dict[str, float]:
    """The entries of ``D`` that are not 1."""
    return {
        f"{first}.weight": 1 / alpha,
        f"{first}.bias": 1 / alpha,
        f"{second}.weight": alpha,
    }


def _diagonal(space: ParamSpace, factors: dict[str, float]) -> Tensor:
    d = torch.ones(space.size, dtype=torch.float64)
    for name, factor in factors.items():
        if name in space.shapes:
            d[space.slice(name)] = factor
    return d


def _check_layer(where: str, model: nn.Module, name: str) -> None:
    modules = dict(model.named_modules())
    module = modules.get(name)
    layer = None if module is None else matrix_kind(module)
    if layer is None:
        raise CurvescopeError(
            where,
            f"{name!r} must be a linear or convolutional layer with a weight of its own",
            given="no such module" if module is None else type(module).__name__,
            remedy=f"those are {', '.join(n for n, m in modules.items() if matrix_kind(m))}",
        )
    names = [n for n, p in model.named_parameters(remove_duplicate=False) if p is layer.weight]
    if len(names) > 1:
        rule = (
            f"the weight of {name!r} is shared ({', '.join(names)}), and cannot be rescaled alone"
        )
        raise CurvescopeError(where, rule)


def _shift(before: Problem, after: Problem) -> float:
    batch = next(before.batches())
    outputs = []
    for problem in (before, after):
        with problem.evaluation():
            outputs.append(problem.output(problem.variables(), batch).detach())
    size = outputs[0].abs().max().clamp(min=torch.finfo(before.dtype).tiny)
    return float((outputs[0] - outputs[1]).abs().max() / size)


class Congruence(LinearOperator):
    """``D A D`` for a diagonal ``D``.

    >>> from curvescope.operators.simple import Diagonal
    >>> A = Diagonal(torch.tensor([1.0, 2.0]))
    >>> Congruence(A, torch.tensor([3.0, 0.5])).dense()
    tensor([[9.0000, 0.0000],
            [0.0000, 0.5000]])
    """

    def __init__(self, A: LinearOperator, diagonal: Tensor) -> None:
        if diagonal.shape != (A.shape[0],) or not A.symmetric:
            rule = "needs a symmetric operator and a diagonal of its size"
            raise CurvescopeError(f"Congruence({A}, diagonal)", rule, given=list(diagonal.shape))
        super().__init__(A.shape, dtype=A.dtype, device=A.device, symmetric=True, psd=A.psd)
        self._inner, self._d = A, diagonal.to(A.device, A.dtype)[:, None]

    def _decided_by(self) -> tuple[object, ...]:
        return "congruence", self._d, self._inner

    def _matmat(self, X: Tensor) -> Tensor:
        return self._d * (self._inner @ (self._d * X))
