"""Khatri–Rao products ``M ⊙ A`` of matrices in blocks, as operators over all layers together.

With ``M`` cut into blocks ``M^{ll'}: [m_l, m_l']`` and ``A`` into ``A^{ll'}: [n_l, n_l']``, one row
and column of blocks for each layer, the product has the blocks ``M^{ll'} ⊗ A^{ll'}``: a section of
the Kronecker product ``M ⊗ A``, and like it positive semi-definite where both factors are. On one
layer it is the Kronecker product.

**Gram form.** ``M = B Bᵀ`` and ``A = F Fᵀ`` with columns ``b_j`` and ``f_i`` give

    M ⊙ A = Σ_{ij} (b_j ⊙ f_i)(b_j ⊙ f_i)ᵀ,
    ⟨b_j ⊙ f_i, b_j' ⊙ f_i'⟩ = Σ_l ⟨b_j^l, b_j'^l⟩ ⟨f_i^l, f_i'^l⟩,

a Gram matrix with a row for each pair of columns, at any number of parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from curvescope.errors import CurvescopeError
from curvescope.operators.algebra import Sum
from curvescope.operators.base import LinearOperator
from curvescope.operators.kronecker import KroneckerOperator


@dataclass(frozen=True)
class LayerPlace:
    """A layer's name and the shape ``[m, n]`` of its weight, stored as ``[n, m]`` or not."""

    name: str
    outputs: int
    inputs: int
    transposed: bool = False


Term = tuple[float, Tensor, Tensor]


class KhatriRaoOperator(LinearOperator):
    """``Σ_c s_c M_c ⊙ A_c`` for positive semi-definite factors, on the layers' flat weights.

    A product with ``k`` columns costs ``k (Σ_l m_l n_l Σ_l n_l + (Σ_l m_l)² Σ_l n_l)``
    multiplications at most for each term, and ``k Σ_l m_l Σ_l n_l`` numbers of memory.

    Args:
        terms: weights ``s ≥ 0`` with ``M: [Σ m_l, Σ m_l]`` and ``A: [Σ n_l, Σ n_l]``.
        layers: the layers, in the order of the flat vector.

    >>> M, A = torch.tensor([[2.0, 1.0], [1.0, 3.0]]), torch.tensor([[1.0, 1.0], [1.0, 5.0]])
    >>> places = [LayerPlace("a", 1, 1), LayerPlace("b", 1, 1)]  # on 1 × 1 weights it is M ∘ A
    >>> KhatriRaoOperator([(1.0, M, A)], places).dense()
    tensor([[ 2.,  1.],
            [ 1., 15.]])
    """

    def __init__(self, terms: Sequence[Term], layers: Sequence[LayerPlace]) -> None:
        m, n = sum(place.outputs for place in layers), sum(place.inputs for place in layers)
        if not terms or not layers:
            raise CurvescopeError("KhatriRaoOperator", "needs a term and a layer")
        for weight, M, A in terms:
            if weight < 0:
                rule = "weights must not be negative"
                raise CurvescopeError("KhatriRaoOperator", rule, given=weight)
            if tuple(M.shape) != (m, m) or tuple(A.shape) != (n, n):
                rule = f"the layers need factors [{m}, {m}] and [{n}, {n}]"
                raise CurvescopeError(
                    "KhatriRaoOperator", rule, given=f"{list(M.shape)} and {list(A.shape)}"
                )
        first = terms[0][1]
        size = sum(place.outputs * place.inputs for place in layers)
        super().__init__((size, size), dtype=first.dtype, device=first.device, psd=True)
        self.terms, self.layers = list(terms), tuple(layers)

    def _decided_by(self) -> tuple[object, ...]:
        places = [(p.outputs, p.inputs, p.transposed) for p in self.layers]
        return "khatri-rao", places, *(part for term in self.terms for part in term)

    @cached_property
    def _slices(self) -> tuple[list[slice], list[slice], list[slice]]:
        """Where each layer lies in the flat vector, in ``M`` and in ``A``."""
        outputs, inputs = [p.outputs for p in self.layers], [p.inputs for p in self.layers]
        sizes = [m * n for m, n in zip(outputs, inputs, strict=True)]
        flat, rows, columns = (
            [slice(a, b) for a, b in pairwise([0, *accumulate(lengths)])]
            for lengths in (sizes, outputs, inputs)
        )
        return flat, rows, columns

    def _matmat(self, X: Tensor) -> Tensor:
        flat, rows, columns = self._slices
        V = [_outputs_first(X[s], p) for s, p in zip(flat, self.layers, strict=True)]
        Y = [torch.zeros_like(v) for v in V]
        for weight, M, A in self.terms:
            right = torch.cat([v @ A[c] for v, c in zip(V, columns, strict=True)], 1)  # [k, Σm, Σn]
            for y, r, c in zip(Y, rows, columns, strict=True):
                y.add_(M[r] @ right[:, :, c], alpha=weight)
        return torch.cat([_flat(y, p) for y, p in zip(Y, self.layers, strict=True)])

    def block(self, name: str) -> LinearOperator:
        """The diagonal block of a layer, ``Σ_c s_c M_c^{ll} ⊗ A_c^{ll}``."""
        _, rows, columns = self._slices
        for place, r, c in zip(self.layers, rows, columns, strict=True):
            if name in (place.name, f"{place.name}.weight" if place.name else "weight"):
                factors = [(w, M[r, r], A[c, c]) for w, M, A in self.terms]
                pairs = [(w, (A, M) if place.transposed else (M, A)) for w, M, A in factors]
                blocks = [(w, KroneckerOperator(*pair, psd=True)) for w, pair in pairs]
                if len(blocks) == 1:
                    return blocks[0][0] * blocks[0][1]
                return Sum([(w, block) for w, block in blocks])
        layers = ", ".join(place.name for place in self.layers)
        rule = f"layer {name!r} is not among the layers"
        raise CurvescopeError("KhatriRaoOperator.block", rule, remedy=f"they are {layers}")

    def _scaled(self, factor: float) -> LinearOperator | None:
        if factor < 0:
            return None
        return KhatriRaoOperator([(factor * w, M, A) for w, M, A in self.terms], self.layers)

    def dual(self) -> KhatriRaoGram:
        """The Gram form, which gives the exact spectrum where the factors have low ranks."""
        return KhatriRaoGram(self)


def _outputs_first(x: Tensor, place: LayerPlace) -> Tensor:
    """Columns over a layer's weight as ``[k, m, n]``."""
    shape = (place.inputs, place.outputs) if place.transposed else (place.outputs, place.inputs)
    V = x.T.reshape(-1, *shape)
    return V.mT if place.transposed else V


def _flat(y: Tensor, place: LayerPlace) -> Tensor:
    return (y.mT if place.transposed else y).reshape(len(y), -1).T


class KhatriRaoGram:
    """The dual of a :class:`KhatriRaoOperator`: ``Σ_c rank M_c · rank A_c`` rows.

    Ranks count eigenvalues above the rounding of the factors' type.
    """

    def __init__(self, operator: KhatriRaoOperator) -> None:
        self._operator = operator

    @cached_property
    def _roots(self) -> list[tuple[Tensor, Tensor]]:
        """``B`` and ``F`` of every term, the weight in ``B``; float64."""
        terms = [(w, M, A) for w, M, A in self._operator.terms if w > 0]
        return [(w**0.5 * _root(M), _root(A)) for w, M, A in terms]

    @property
    def size(self) -> int:
        """Rows of the Gram matrix; asking costs the factors' eigenvalues, once."""
        return sum(B.shape[1] * F.shape[1] for B, F in self._roots)

    def matrix(self) -> Tensor:
        """See :class:`curvescope.operators.base.Dual`."""
        _, rows, columns = self._operator._slices
        K = torch.zeros(self.size, self.size, dtype=torch.float64, device=self._operator.device)
        ends = [0, *accumulate(B.shape[1] * F.shape[1] for B, F in self._roots)]
        places = [slice(a, b) for a, b in pairwise(ends)]
        for i, (B, F) in zip(places, self._roots, strict=True):
            for j, (other_B, other_F) in zip(places, self._roots, strict=True):
                for r, c in zip(rows, columns, strict=True):
                    K[i, j] += torch.kron(B[r].T @ other_B[r], F[c].T @ other_F[c])
        return K


def _root(matrix: Tensor) -> Tensor:
    """``R: [d, r]`` with ``R Rᵀ`` the matrix, its rank decided by rounding."""
    values, vectors = torch.linalg.eigh(matrix.double())
    floor = len(values) * torch.finfo(matrix.dtype).eps * values[-1].clamp(min=0)
    positive = values > floor
    return vectors[:, positive] * values[positive].sqrt()
