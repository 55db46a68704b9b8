"""A matrix with its spectrum moved into [−1, 1], so that one width fits every spectrum.

Algorithm 4 of Papyan, *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra* (TR,
C.6, after Lin, Saad and Yang 2016). With the outermost Ritz values ``θ`` of ``M₀`` Lanczos steps
and their residuals ``r``

    λ_min = θ_1 − r_1,   λ_max = θ_M₀ + r_M₀,   each moved out by Δ = τ (λ_max − λ_min),
    c = (λ_min + λ_max) / 2,   d = (λ_max − λ_min) / 2,   Ã = (A − c I) / d.

The paper applies ``A − θ I`` to an eigenvector of the tridiagonal matrix; the residual of the Ritz
vector, ``β_M₀ |y_m[M₀]|``, is meant and costs no product.

References:
    TR: Papyan (2020), *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra*.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from curvescope import _checks
from curvescope.errors import CurvescopeError
from curvescope.operators.base import LinearOperator
from curvescope.spectra.tridiagonal import lanczos


class NormalizedOperator(LinearOperator):
    """``(A − c I) / d``; a product costs one product with ``A``.

    Args:
        A: A symmetric operator.
        center: ``c``.
        half_width: ``d > 0``.

    >>> from curvescope.operators.simple import Diagonal
    >>> A = Diagonal(torch.tensor([1.0, 5.0]))
    >>> NormalizedOperator(A, center=3.0, half_width=2.0).dense()
    tensor([[-1.,  0.],
            [ 0.,  1.]])
    """

    def __init__(self, A: LinearOperator, center: float, half_width: float) -> None:
        where = "NormalizedOperator"
        self.center = _checks.finite_float(where, "center", center)
        self.half_width = _checks.finite_float(where, "half_width", half_width, 0.0)
        if self.half_width == 0.0:
            raise CurvescopeError(where, "`half_width` must be positive", given=half_width)
        if not A.symmetric:
            raise CurvescopeError(where, "needs a symmetric operator", given=A)
        super().__init__(A.shape, dtype=A.dtype, device=A.device, symmetric=True)
        self.original = A

    def _decided_by(self) -> tuple[object, ...]:
        return "normalized", self.center, self.half_width, self.original

    def _matmat(self, X: Tensor) -> Tensor:
        return (self.original._matmat(X) - self.center * X) / self.half_width

    def _on_rows(self, rows: Tensor) -> Tensor:
        return (self._part_on_rows(self.original, rows) - self.center * rows) / self.half_width

    def restored(self, values: Tensor) -> Tensor:
        """Eigenvalues of ``A`` from those of this operator, ``d λ̃ + c``."""
        return self.half_width * values + self.center


@dataclass(frozen=True)
class Normalization:
    """The normalized operator, the interval that was mapped onto [−1, 1], and the cost."""

    operator: NormalizedOperator
    interval: tuple[float, float]  # λ_min − Δ, λ_max + Δ
    products: int


def normalized(
    A: LinearOperator, *, generator: torch.Generator, steps: int = 32, margin: float = 0.05
) -> Normalization:
    """``(A − c I) / d`` with its spectrum in [−1, 1] (TR alg. 4).

    The interval holds the spectrum unless the start vector misses an outer eigenvector almost
    entirely. Lanczos re-orthogonalizes, so that the residuals are those of the Ritz vectors.

    Cost: ``steps`` products (fewer where the Krylov space is smaller) and ``steps + 1`` vectors.

    Args:
        A: A symmetric operator; a multiple of the identity has no width and is refused.
        generator: The source of the start vector.
        steps: ``M₀``, the paper's 32.
        margin: ``τ``, the paper's 0.05.

    >>> from curvescope.operators.simple import Diagonal
    >>> A = Diagonal(torch.tensor([2.0, 4.0, 12.0], dtype=torch.float64))
    >>> found = normalized(A, generator=torch.Generator().manual_seed(0))
    >>> [round(x, 9) for x in found.interval]  # 2 and 12, moved out by 0.05 · 10
    [1.5, 12.5]
    >>> [round(x, 6) for x in found.operator.dense().diagonal().tolist()]
    [-0.909091, -0.545455, 0.909091]
    """
    where = f"normalized({A})"
    margin = _checks.finite_float(where, "margin", margin, minimum=0.0)
    T = lanczos(A, steps, generator=generator)
    values, residuals = T.ritz()
    low, high = float(values[0] - residuals[0]), float(values[-1] + residuals[-1])
    width = high - low
    if not width > 1e-12 * max(abs(low), abs(high)):
        raise CurvescopeError(
            where,
            "the spectrum must have some width",
            given=f"the single eigenvalue {high:.6g}",
            remedy="there is nothing to normalize",
        )
    low, high = low - margin * width, high + margin * width
    operator = NormalizedOperator(A, center=(low + high) / 2, half_width=(high - low) / 2)
    return Normalization(operator, (low, high), T.products)
