"""Kronecker products ``A ⊗ B`` as operators: products, eigenpairs and damped inverses.

With the row-major flattening ``vec(V)[i·n + j] = V[i, j]`` of ``V: [m, n]``, the index of a linear
layer's weight, ``(A ⊗ B) vec(V) = vec(A V Bᵀ)``. The eigenpairs of a symmetric product are all
``(α_i β_j, a_i ⊗ b_j)``, so that two small eigendecompositions give everything and no
``mn × mn`` matrix is formed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from curvescope import _checks
from curvescope.errors import CurvescopeError
from curvescope.operators.base import LinearOperator


class KroneckerOperator(LinearOperator):
    """``A ⊗ B`` for square ``A: [m, m]`` and ``B: [n, n]``, on row-major ``vec`` of ``[m, n]``.

    A product with ``k`` columns costs ``k·m·n·(m + n)`` multiplications. Two positive semi-definite
    factors are declared with ``psd=True``; symmetry is seen from the numbers.

    >>> A, B = torch.diag(torch.tensor([1.0, 2.0])), torch.tensor([[2.0, 1.0], [1.0, 2.0]])
    >>> K = KroneckerOperator(A, B, psd=True)
    >>> K @ torch.tensor([1.0, 0.0, 1.0, 0.0])
    tensor([2., 1., 4., 2.])
    >>> K.eigenvalues()
    tensor([6., 3., 2., 1.])
    """

    def __init__(self, A: Tensor, B: Tensor, *, psd: bool = False) -> None:
        for name, X in (("A", A), ("B", B)):
            if X.ndim != 2 or X.shape[0] != X.shape[1] or not X.is_floating_point():
                rule = "needs a real square matrix"
                raise CurvescopeError(
                    f"KroneckerOperator({name})", rule, given=f"{X.dtype} {list(X.shape)}"
                )
        if A.dtype != B.dtype or A.device != B.device:
            raise CurvescopeError(
                "KroneckerOperator(A, B)",
                "the factors must share dtype and device",
                given=f"{A.dtype} on {A.device} and {B.dtype} on {B.device}",
            )
        self.A, self.B = A.detach().clone(), B.detach().clone()
        size = A.shape[0] * B.shape[0]
        symmetric = psd or (torch.equal(A, A.T) and torch.equal(B, B.T))
        super().__init__((size, size), dtype=A.dtype, device=A.device, symmetric=symmetric, psd=psd)

    def _decided_by(self) -> tuple[object, ...]:
        return "kronecker", self.A, self.B

    def _matmat(self, X: Tensor) -> Tensor:
        return _sandwich(self.A, self.B, X)

    def _rmatmat(self, Y: Tensor) -> Tensor:
        return _sandwich(self.A.T, self.B.T, Y)

    def dense(self) -> Tensor:
        """The whole matrix."""
        return torch.kron(self.A, self.B)

    def _scaled(self, factor: float) -> LinearOperator:
        return KroneckerOperator(self.A * factor, self.B, psd=self.psd and factor >= 0)

    # Eigenpairs ----------------------------------------------------------------------------------

    @cached_property
    def _eigen(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """``α, a, β, b`` of the two factors, largest first, in float64."""
        if not self.symmetric:
            raise CurvescopeError(str(self), "eigenpairs need symmetric factors")
        pairs = []
        for X in (self.A, self.B):
            values, vectors = torch.linalg.eigh(X.double())
            if self.psd:
                values = values.clamp_min(0)
            pairs += [values.flip(0), vectors.flip(1)]
        alpha, a, beta, b = pairs
        return alpha, a, beta, b

    def eigenvalues(self) -> Tensor:
        """All ``m·n`` eigenvalues, largest first; ``O(m³ + n³)`` work."""
        alpha, _, beta, _ = self._eigen
        return torch.outer(alpha, beta).flatten().sort(descending=True).values.to(self.dtype)

    def top(self, k: int) -> KroneckerPairs:
        """The ``k`` largest eigenpairs, with the positions ``(i, j)`` of their factors."""
        where = f"{self}.top"
        k = _checks.positive_int(where, "k", k)
        if k > self.shape[0]:
            rule = f"`k` must be at most the dimension {self.shape[0]}"
            raise CurvescopeError(where, rule, given=k)
        alpha, a, beta, b = self._eigen
        values, index = torch.outer(alpha, beta).flatten().topk(k)
        i, j = index // len(beta), index % len(beta)
        vectors = torch.einsum("mk,nk->mnk", a[:, i], b[:, j]).flatten(0, 1)
        return KroneckerPairs(values.to(self.dtype), vectors.to(self.dtype), i, j)

    def inverse(self, damping: float = 0.0) -> KroneckerFunction:
        """``(A ⊗ B + damping · I)⁻¹`` exactly, in the eigenbasis.

        Raises:
            CurvescopeError: when an eigenvalue plus the damping is not clearly positive.
        """
        damping = _checks.finite_float(f"{self}.inverse", "damping", damping, minimum=0.0)
        alpha, a, beta, b = self._eigen
        shifted = torch.outer(alpha, beta) + damping
        floor = torch.finfo(self.dtype).eps * shifted.abs().amax()
        if bool((shifted <= floor).any()):
            least = f"the smallest eigenvalue with `damping={damping:g}` is {shifted.amin():.3g}"
            rule = f"{least}, too small to divide by"
            raise CurvescopeError(f"{self}.inverse", rule, remedy="use a larger `damping`")
        return KroneckerFunction(a.to(self.dtype), b.to(self.dtype), (1 / shifted).to(self.dtype))

    def solve(self, y: Tensor, damping: float = 0.0) -> Tensor:
        """``x`` with ``(A ⊗ B + damping · I) x = y`` for a vector or a block of columns."""
        return self.inverse(damping) @ y


@dataclass(frozen=True)
class KroneckerPairs:
    """Eigenvalues, largest first, their eigenvectors ``a_i ⊗ b_j``, and the positions ``i, j``.

    ``first`` counts the eigenvectors of ``A``, ``second`` those of ``B``, each largest first.
    """

    values: Tensor  # [k]
    vectors: Tensor  # [mn, k]
    first: Tensor  # [k]: i
    second: Tensor  # [k]: j


class KroneckerFunction(LinearOperator):
    """``(a ⊗ b) diag(d) (a ⊗ b)ᵀ`` with orthogonal ``a: [m, m]``, ``b: [n, n]``, ``d: [m, n]``.

    What a function of ``A ⊗ B`` looks like in its eigenbasis, and also a matrix with the same
    eigenvectors and freely chosen eigenvalues.

    >>> eye = torch.eye(2)
    >>> KroneckerFunction(eye, eye, torch.tensor([[1.0, 2.0], [3.0, 4.0]])) @ torch.ones(4)
    tensor([1., 2., 3., 4.])
    """

    def __init__(self, a: Tensor, b: Tensor, entries: Tensor) -> None:
        if entries.shape != (a.shape[0], b.shape[0]):
            rule = f"needs entries [{a.shape[0]}, {b.shape[0]}]"
            raise CurvescopeError(
                "KroneckerFunction(a, b, entries)", rule, given=list(entries.shape)
            )
        size = entries.numel()
        super().__init__(
            (size, size), dtype=a.dtype, device=a.device, symmetric=True,
            psd=bool((entries >= 0).all()),
        )  # fmt: skip
        self.a, self.b, self.entries = a.detach(), b.detach(), entries.detach()

    def _decided_by(self) -> tuple[object, ...]:
        return "kronecker function", self.a, self.b, self.entries

    def _matmat(self, X: Tensor) -> Tensor:
        rotated = _sandwich(self.a.T, self.b.T, X) * self.entries.reshape(-1, 1)
        return _sandwich(self.a, self.b, rotated)


def _sandwich(A: Tensor, B: Tensor, X: Tensor) -> Tensor:
    """``vec(A V Bᵀ)`` for each column ``vec(V)`` of ``X``."""
    m, n, k = A.shape[0], B.shape[0], X.shape[1]
    V = X.T.reshape(k * m, n) @ B.T
    V = torch.matmul(A, V.view(k, m, n))
    return V.reshape(k, m * n).T
