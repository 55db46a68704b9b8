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

    A product with ``k`` columns costs ``k·m·n·(m + n)`` multiplications. A factor ``[m]`` stands
    for ``diag`` of it and costs one multiplication for each entry. Two positive semi-definite
    factors are declared with ``psd=True``; symmetry is seen from the numbers.

    >>> A, B = torch.diag(torch.tensor([1.0, 2.0])), torch.tensor([[2.0, 1.0], [1.0, 2.0]])
    >>> K = KroneckerOperator(A, B, psd=True)
    >>> K @ torch.tensor([1.0, 0.0, 1.0, 0.0])
    tensor([2., 1., 4., 2.])
    >>> K.eigenvalues()
    tensor([6., 3., 2., 1.])
    >>> KroneckerOperator(torch.tensor([1.0, 2.0]), B) @ torch.tensor([1.0, 0.0, 1.0, 0.0])
    tensor([2., 1., 4., 2.])
    """

    def __init__(self, A: Tensor, B: Tensor, *, psd: bool = False) -> None:
        for name, X in (("A", A), ("B", B)):
            square = X.ndim == 1 or (X.ndim == 2 and X.shape[0] == X.shape[1])
            if not square or not X.is_floating_point():
                rule = "needs a real square matrix, or a diagonal [m]"
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
        symmetric = psd or all(X.ndim == 1 or torch.equal(X, X.T) for X in (A, B))
        super().__init__((size, size), dtype=A.dtype, device=A.device, symmetric=symmetric, psd=psd)

    def _decided_by(self) -> tuple[object, ...]:
        return "kronecker", self.A, self.B

    def _matmat(self, X: Tensor) -> Tensor:
        return _sandwich(self.A, self.B, X)

    def _rmatmat(self, Y: Tensor) -> Tensor:
        return _sandwich(_transposed(self.A), _transposed(self.B), Y)

    def dense(self) -> Tensor:
        """The whole matrix."""
        return torch.kron(*(torch.diag(X) if X.ndim == 1 else X for X in (self.A, self.B)))

    def _scaled(self, factor: float) -> LinearOperator:
        return KroneckerOperator(self.A * factor, self.B, psd=self.psd and factor >= 0)

    # Eigenpairs ----------------------------------------------------------------------------------

    @cached_property
    def _eigen(self) -> tuple[Eigen, Eigen]:
        """The eigenpairs of the two factors, in float64."""
        if not self.symmetric:
            raise CurvescopeError(str(self), "eigenpairs need symmetric factors")
        return Eigen.of(self.A, psd=self.psd), Eigen.of(self.B, psd=self.psd)

    def eigenvalues(self) -> Tensor:
        """All ``m·n`` eigenvalues, largest first; ``O(m³ + n³)`` work, less for a diagonal."""
        a, b = self._eigen
        return torch.outer(a.values, b.values).flatten().sort(descending=True).values.to(self.dtype)

    def top(self, k: int) -> KroneckerPairs:
        """The ``k`` largest eigenpairs, with the positions ``(i, j)`` of their factors."""
        where = f"{self}.top"
        k = _checks.positive_int(where, "k", k)
        if k > self.shape[0]:
            rule = f"`k` must be at most the dimension {self.shape[0]}"
            raise CurvescopeError(where, rule, given=k)
        a, b = self._eigen
        values, index = torch.outer(a.values, b.values).flatten().topk(k)
        i, j = index // len(b.values), index % len(b.values)
        vectors = torch.einsum("mk,nk->mnk", a.vectors(i), b.vectors(j)).flatten(0, 1)
        return KroneckerPairs(values.to(self.dtype), vectors.to(self.dtype), i, j)

    def inverse(self, damping: float = 0.0) -> KroneckerFunction:
        """``(A ⊗ B + damping · I)⁻¹`` exactly, in the eigenbasis.

        Raises:
            CurvescopeError: when an eigenvalue plus the damping is not clearly positive.
        """
        damping = _checks.finite_float(f"{self}.inverse", "damping", damping, minimum=0.0)
        (alpha, a), (beta, b) = (pairs.as_stored() for pairs in self._eigen)
        shifted = torch.outer(alpha, beta) + damping
        floor = torch.finfo(self.dtype).eps * shifted.abs().amax()
        if bool((shifted <= floor).any()):
            least = f"the smallest eigenvalue with `damping={damping:g}` is {shifted.amin():.3g}"
            rule = f"{least}, too small to divide by"
            raise CurvescopeError(f"{self}.inverse", rule, remedy="use a larger `damping`")
        a, b = (None if basis is None else basis.to(self.dtype) for basis in (a, b))
        return KroneckerFunction(a, b, (1 / shifted).to(self.dtype))

    def solve(self, y: Tensor, damping: float = 0.0) -> Tensor:
        """``x`` with ``(A ⊗ B + damping · I) x = y`` for a vector or a block of columns."""
        return self.inverse(damping) @ y


@dataclass(frozen=True)
class Eigen:
    """Eigenpairs of a symmetric factor, largest first; those of a diagonal are unit vectors.

    >>> pairs = Eigen.of(torch.tensor([1.0, 5.0, 3.0]))
    >>> pairs.values, pairs.vectors(torch.tensor([0]))[:, 0]
    (tensor([5., 3., 1.], dtype=torch.float64), tensor([0., 1., 0.], dtype=torch.float64))
    """

    values: Tensor  # [n], float64
    basis: Tensor | None  # [n, n] in columns; None for a diagonal
    order: Tensor  # [n]: the entries of a diagonal, largest first

    @classmethod
    def of(cls, factor: Tensor, *, psd: bool = False) -> Eigen:
        """Of a symmetric matrix ``[n, n]``, or of a diagonal ``[n]``."""
        if factor.ndim == 1:
            values, order = factor.double().sort(descending=True)
            return cls(values.clamp_min(0) if psd else values, None, order)
        values, vectors = torch.linalg.eigh(factor.double())
        order = torch.arange(len(values), device=values.device)
        values = values.clamp_min(0) if psd else values
        return cls(values.flip(0), vectors.flip(1), order)

    def vectors(self, which: Tensor) -> Tensor:
        """Some of the eigenvectors, ``[n, k]``, by their number."""
        if self.basis is not None:
            return self.basis[:, which]
        columns = self.values.new_zeros(len(self.values), len(which))
        columns[self.order[which], torch.arange(len(which), device=which.device)] = 1.0
        return columns

    def first(self, k: int) -> Tensor:
        """The first ``k`` eigenvectors, ``[n, k]``."""
        return self.vectors(torch.arange(min(k, len(self.values)), device=self.values.device))

    def as_stored(self) -> tuple[Tensor, Tensor | None]:
        """Values and basis; for a diagonal its entries in their own order, and no basis."""
        if self.basis is not None:
            return self.values, self.basis
        values = torch.empty_like(self.values)
        values[self.order] = self.values
        return values, None


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
    eigenvectors and freely chosen eigenvalues. None stands for the identity.

    >>> eye = torch.eye(2)
    >>> KroneckerFunction(eye, None, torch.tensor([[1.0, 2.0], [3.0, 4.0]])) @ torch.ones(4)
    tensor([1., 2., 3., 4.])
    """

    def __init__(self, a: Tensor | None, b: Tensor | None, entries: Tensor) -> None:
        fits = entries.ndim == 2 and all(
            basis is None or len(basis) == length
            for basis, length in zip((a, b), entries.shape, strict=True)
        )
        if not fits:
            lengths = ", ".join("…" if basis is None else str(len(basis)) for basis in (a, b))
            rule = f"needs entries [{lengths}]"
            raise CurvescopeError(
                "KroneckerFunction(a, b, entries)", rule, given=list(entries.shape)
            )
        size = entries.numel()
        super().__init__(
            (size, size), dtype=entries.dtype, device=entries.device, symmetric=True,
            psd=bool((entries >= 0).all()),
        )  # fmt: skip
        self.a, self.b = (None if basis is None else basis.detach() for basis in (a, b))
        self.entries = entries.detach()

    def _decided_by(self) -> tuple[object, ...]:
        return "kronecker function", self.a, self.b, self.entries

    def _matmat(self, X: Tensor) -> Tensor:
        a, b = (
            X.new_ones(length) if basis is None else basis
            for basis, length in zip((self.a, self.b), self.entries.shape, strict=True)
        )
        rotated = _sandwich(_transposed(a), _transposed(b), X) * self.entries.reshape(-1, 1)
        return _sandwich(a, b, rotated)


def _transposed(factor: Tensor) -> Tensor:
    return factor if factor.ndim == 1 else factor.T


def _sandwich(A: Tensor, B: Tensor, X: Tensor) -> Tensor:
    """``vec(A V Bᵀ)`` for each column ``vec(V)`` of ``X``."""
    m, n, k = A.shape[0], B.shape[0], X.shape[1]
    V = X.T.reshape(k * m, n)
    V = (V * B if B.ndim == 1 else V @ B.T).view(k, m, n)
    V = A[:, None] * V if A.ndim == 1 else torch.matmul(A, V)
    return V.reshape(k, m * n).T
