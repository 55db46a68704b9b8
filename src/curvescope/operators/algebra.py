"""New operators from old ones: sums, multiples, products, projections, deflation, knockouts.

References:
    TR: Papyan (2020), *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra*.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from curvescope import _checks
from curvescope.errors import CurvescopeError
from curvescope.operators.base import LinearOperator
from curvescope.operators.simple import Dense, Identity, LowRank


class HasEigenPairs(Protocol):
    """Anything with eigenvalues ``[k]`` and orthonormal eigenvectors ``[n, k]``."""

    @property
    def values(self) -> Tensor:
        """Eigenvalues ``[k]``."""

    @property
    def vectors(self) -> Tensor:
        """Eigenvectors ``[n, k]``."""


def _common(where: str, a: LinearOperator, b: object) -> None:
    if not isinstance(b, LinearOperator):
        remedy = "wrap a matrix in Dense(matrix)"
        raise CurvescopeError(where, "needs an operator", given=type(b).__name__, remedy=remedy)
    if a.dtype != b.dtype or a.device != b.device:
        raise CurvescopeError(where, "operators must share dtype and device", given=f"{a} and {b}")


def scale(A: LinearOperator, factor: float) -> LinearOperator:
    """``factor · A``; a multiple of a multiple stays one multiple."""
    factor = _checks.finite_float(f"{A} * factor", "factor", factor)
    return A._scaled(factor) or Sum([(factor, A)])


def add(A: LinearOperator, B: LinearOperator | float) -> LinearOperator:
    """``A + B`` as one flat sum in which operators that can share their work are merged.

    ``Hessian(p) - GaussNewton(p)`` becomes one curvature operator: a single sweep over the data. A
    number stands for that multiple of the identity.

    >>> (2 * Dense(torch.eye(2)) + 0.5).dense()
    tensor([[2.5000, 0.0000],
            [0.0000, 2.5000]])
    """
    if not isinstance(B, LinearOperator) and _checks.is_number(B):
        if A.shape[0] != A.shape[1]:
            rule = "a number can be added to a square operator only"
            raise CurvescopeError(f"{A} + number", rule, given=f"shape {A.shape}")
        damping = _checks.finite_float(f"{A} + number", "number", B)
        B = damping * Identity(A.shape[0], dtype=A.dtype, device=A.device)
    _common(f"{A} + B", A, B)
    assert isinstance(B, LinearOperator), "checked above"
    if A.shape != B.shape:
        raise CurvescopeError("A + B", "shapes must agree", given=f"{A.shape} and {B.shape}")
    merged: list[tuple[float, LinearOperator]] = []
    for coefficient, term in _terms(A) + _terms(B):
        for i, (other_coefficient, other) in enumerate(merged):
            both = other._merged(other_coefficient, coefficient, term)
            if both is not None:
                merged[i] = (1.0, both)
                break
        else:
            merged.append((coefficient, term))
    if len(merged) == 1 and merged[0][0] == 1.0:
        return merged[0][1]
    return Sum(merged)


def _terms(A: LinearOperator) -> list[tuple[float, LinearOperator]]:
    return A.terms if isinstance(A, Sum) else [(1.0, A)]


class Sum(LinearOperator):
    """``Σ c_i A_i``. Made by ``+``, ``-`` and ``*``; the terms are applied one after the other."""

    def __init__(self, terms: list[tuple[float, LinearOperator]]) -> None:
        first = terms[0][1]
        super().__init__(
            first.shape,
            dtype=first.dtype,
            device=first.device,
            symmetric=all(A.symmetric for _, A in terms),
            psd=all(A.psd and c >= 0 for c, A in terms),
        )
        self.terms = list(terms)

    def _decided_by(self) -> tuple[object, ...]:
        return "sum", [c for c, _ in self.terms], *(A for _, A in self.terms)

    def _matmat(self, X: Tensor) -> Tensor:
        total = self.terms[0][0] * self.terms[0][1]._matmat(X)
        for c, A in self.terms[1:]:
            total.add_(A._matmat(X), alpha=c)
        return total

    def _on_rows(self, rows: Tensor) -> Tensor:
        total = self.terms[0][0] * self._part_on_rows(self.terms[0][1], rows)
        for c, A in self.terms[1:]:
            total.add_(self._part_on_rows(A, rows), alpha=c)
        return total

    def _rmatmat(self, Y: Tensor) -> Tensor:
        return torch.stack([c * A._rmatmat(Y) for c, A in self.terms]).sum(0)

    def _scaled(self, factor: float) -> LinearOperator:
        return Sum([(factor * c, A) for c, A in self.terms])

    def block(self, name: str) -> LinearOperator:
        """The same sum of the terms' blocks."""
        blocks = [(c, A.block(name)) for c, A in self.terms]
        total = blocks[0][0] * blocks[0][1]
        for c, A in blocks[1:]:
            total = total + c * A
        return total


class Product(LinearOperator):
    """``A B``: first ``B``, then ``A``. Not symmetric in general, even for symmetric factors."""

    def __init__(self, A: LinearOperator, B: LinearOperator) -> None:
        _common("A @ B", A, B)
        if A.shape[1] != B.shape[0]:
            rule = "inner dimensions must agree"
            raise CurvescopeError("A @ B", rule, given=f"{A.shape} and {B.shape}")
        super().__init__((A.shape[0], B.shape[1]), dtype=A.dtype, device=A.device)
        self._factors = (A, B)

    def _decided_by(self) -> tuple[object, ...]:
        return "product", *self._factors

    def _matmat(self, X: Tensor) -> Tensor:
        A, B = self._factors
        return A._matmat(B._matmat(X))

    def _rmatmat(self, Y: Tensor) -> Tensor:
        A, B = self._factors
        return B._rmatmat(A._rmatmat(Y))


class Transpose(LinearOperator):
    """``Aᵀ`` of an operator that is not symmetric."""

    def __init__(self, A: LinearOperator) -> None:
        super().__init__((A.shape[1], A.shape[0]), dtype=A.dtype, device=A.device)
        self._original = A

    def _decided_by(self) -> tuple[object, ...]:
        return "transpose", self._original

    def _matmat(self, X: Tensor) -> Tensor:
        return self._original._rmatmat(X)

    def _rmatmat(self, Y: Tensor) -> Tensor:
        return self._original._matmat(Y)

    @property
    def T(self) -> LinearOperator:
        """The operator itself."""
        return self._original


class Projected(LinearOperator):
    """``(I − Q Qᵀ) A (I − P Pᵀ)`` with orthonormal columns ``Q: [m, r]`` and ``P: [n, s]``."""

    def __init__(self, A: LinearOperator, left: Tensor, right: Tensor | None = None) -> None:
        both_sides = right is None
        super().__init__(
            A.shape,
            dtype=A.dtype,
            device=A.device,
            symmetric=A.symmetric and both_sides,
            psd=A.psd and both_sides,
        )
        self._original, self._left = A, left
        self._right = left if right is None else right

    def _decided_by(self) -> tuple[object, ...]:
        return "projected", self._left, self._right, self._original

    def _matmat(self, X: Tensor) -> Tensor:
        return _reject(self._left, self._original._matmat(_reject(self._right, X)))

    def _rmatmat(self, Y: Tensor) -> Tensor:
        return _reject(self._right, self._original._rmatmat(_reject(self._left, Y)))


def _reject(Q: Tensor, X: Tensor) -> Tensor:
    """``X − Q (Qᵀ X)``."""
    return X - Q @ (Q.T @ X)


def deflate(A: LinearOperator, pairs: HasEigenPairs) -> LinearOperator:
    """``A − V diag(θ) Vᵀ``: the operator without known eigenpairs (TR fig. 17).

    ``pairs`` has ``values`` and ``vectors``, as :func:`curvescope.eigenpairs` returns them. One
    product costs one product with ``A`` and ``O(n k)``.

    >>> from types import SimpleNamespace
    >>> A = Dense(torch.diag(torch.tensor([5.0, 1.0])))
    >>> e1 = SimpleNamespace(values=torch.tensor([5.0]), vectors=torch.tensor([[1.0], [0.0]]))
    >>> deflate(A, e1).dense()
    tensor([[0., 0.],
            [0., 1.]])
    """
    values, vectors = pairs.values, pairs.vectors
    if not A.symmetric:
        raise CurvescopeError(f"deflate({A}, pairs)", "needs a symmetric operator")
    if vectors.ndim != 2 or vectors.shape != (A.shape[0], values.shape[0]):
        rule = f"vectors must be [{A.shape[0]}, k] with k values"
        raise CurvescopeError(
            f"deflate({A}, pairs)", rule, given=f"{list(vectors.shape)} and {list(values.shape)}"
        )
    return A - LowRank(vectors.to(A.device, A.dtype), values.to(A.device, A.dtype))


def knockout(
    A: LinearOperator, B: LinearOperator | Tensor, how: str = "subtract"
) -> LinearOperator:
    """Remove a component ``B`` from ``A`` (TR def. 3.1, 3.2), rectangular matrices included.

    ``how="subtract"``: ``A − B``. ``how="project"``: ``(I − B B⁺) A (I − B⁺ B)``, which for a
    symmetric ``B`` is the paper's ``(I − B B⁺) A (I − B B⁺)``; for a rectangular one it removes
    the column space of ``B`` on the left and its row space on the right. The projectors come from
    a singular value decomposition of ``B``'s factors, never of an ``n × n`` matrix when ``B`` is
    :class:`LowRank`; the rank is counted down to ``max(m, n) · eps`` times the largest singular
    value.

    >>> A = Dense(torch.tensor([[2.0, 1.0], [1.0, 3.0]]))
    >>> knockout(A, Dense(torch.diag(torch.tensor([7.0, 0.0]))), how="project").dense()
    tensor([[0., 0.],
            [0., 3.]])
    """
    _checks.one_of(f"knockout({A}, B)", "how", how, ("subtract", "project"))
    B = Dense(B) if isinstance(B, Tensor) else B
    _common(f"knockout({A}, B)", A, B)
    if B.shape != A.shape:
        raise CurvescopeError(f"knockout({A}, B)", "`B` must have the shape of A", given=B.shape)
    if how == "subtract":
        return A - B
    left, right = _column_and_row_space(B)
    return Projected(A, left, None if A.symmetric and B.symmetric else right)


def _column_and_row_space(B: LinearOperator) -> tuple[Tensor, Tensor]:
    """Orthonormal bases of the column and row space of ``B``."""
    if isinstance(B, LowRank):
        # B = U S Wᵀ with U = Q R and W = P T, so its singular vectors are those of R S Tᵀ, rotated.
        Q, R = torch.linalg.qr(B.left)
        P, T = torch.linalg.qr(B.right)
        u, s, vh = torch.linalg.svd((R * B.scales) @ T.T)
        u, v = Q @ u, P @ vh.T
    else:
        u, s, vh = torch.linalg.svd(B.dense(), full_matrices=False)
        v = vh.T
    cutoff = max(B.shape) * torch.finfo(B.dtype).eps * (s[0] if s.numel() else 0.0)
    rank = int((s > cutoff).sum())
    return u[:, :rank], v[:, :rank]
