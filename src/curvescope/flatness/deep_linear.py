"""A deep linear network with one weight per layer and the exponential loss, in closed form (FF §2).

``L(w) = exp(p X)`` with ``p = w₁ w₂ ⋯ w_n``. With ``q_i = ∂p/∂w_i``, the product of the other
weights, and ``C_ij = ∂²p/∂w_i∂w_j``, the product of all but two (zero on the diagonal),

    ∇L = X e^{pX} q,      G = X² e^{pX} q qᵀ,      H = G + X e^{pX} C.

``G`` has rank one and ``tr G = λ_max(G) = X² e^{pX} ‖q‖²``. FF's eq. 2 and 3 print this matrix,
with ``|X|`` for ``X²``, as the Hessian; it is the Gauss–Newton part. The trace is that of both,
since ``C`` has no diagonal, but ``H`` has full rank in general and another λ_max. What FF conclude
holds for both: each is a polynomial in the weights times the loss, so that both vanish with it.

References:
    FF: Granziol (2020), *Flatness is a False Friend*.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from curvescope import _checks
from curvescope.errors import CurvescopeError


@dataclass(frozen=True)
class DeepLinear:
    """The closed forms at one point, in float64.

    >>> at = DeepLinear((1.0, 2.0, 0.5), -1.0)
    >>> at.loss == math.exp(-1.0), at.gradient.tolist() == [-at.loss * q for q in (1.0, 0.5, 2.0)]
    (True, True)
    >>> abs(at.rescaled(0, 1, 10.0).loss - at.loss) < 1e-12
    True
    """

    weights: tuple[float, ...]
    X: float

    def __post_init__(self) -> None:
        if len(self.weights) < 2:
            rule = "needs at least two weights"
            raise CurvescopeError("DeepLinear(weights)", rule, given=len(self.weights))
        for value in (*self.weights, self.X):
            _checks.finite_float("DeepLinear", "every number", value)

    def _others(self, *left_out: int) -> float:
        return math.prod(w for i, w in enumerate(self.weights) if i not in left_out)

    @property
    def loss(self) -> float:
        """``exp(p X)``."""
        return math.exp(self._others() * self.X)

    @property
    def _q(self) -> Tensor:
        return _vector([self._others(i) for i in range(len(self.weights))])

    @property
    def gradient(self) -> Tensor:
        """``X e^{pX} q`` (FF eq. 1)."""
        return self.X * self.loss * self._q

    @property
    def gauss_newton(self) -> Tensor:
        """``X² e^{pX} q qᵀ``: the matrix of FF eq. 2, with ``X²``."""
        return self.X**2 * self.loss * torch.outer(self._q, self._q)

    @property
    def hessian(self) -> Tensor:
        """``X² e^{pX} q qᵀ + X e^{pX} C``."""
        n = range(len(self.weights))
        C = torch.stack([_vector([0.0 if i == j else self._others(i, j) for j in n]) for i in n])
        return self.gauss_newton + self.X * self.loss * C

    @property
    def trace(self) -> float:
        """``tr H = tr G = λ_max(G) = X² e^{pX} ‖q‖²`` (FF eq. 3, with ``X²``)."""
        return self.X**2 * self.loss * float(self._q @ self._q)

    def rescaled(self, i: int, j: int, alpha: float) -> DeepLinear:
        """``w_i → α w_i``, ``w_j → w_j / α``: the loss stays, gradient and Hessian do not."""
        if i == j or alpha == 0 or not {i, j} <= set(range(len(self.weights))):
            raise CurvescopeError(
                f"DeepLinear.rescaled({i}, {j}, {alpha})",
                f"needs two different layers of {len(self.weights)} and a factor that is not zero",
            )
        factors = {i: alpha, j: 1 / alpha}
        changed = (w * factors.get(k, 1.0) for k, w in enumerate(self.weights))
        return DeepLinear(tuple(changed), self.X)


def _vector(numbers: Sequence[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)
