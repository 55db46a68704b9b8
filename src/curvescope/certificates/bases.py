"""Orthonormal bases in which a posterior's covariance is diagonal, one pair for each layer.

For a layer's matrix ``W: [m, n]`` a pair ``(U, V)`` of orthogonal matrices gives the coordinates
``Uᵀ W V`` (DH eq. 64); in the eigenbasis of ``E[M] ⊗ E[xxᵀ]`` each coordinate belongs to one
eigenvector ``u_i v_jᵀ`` of the approximate layer Hessian, with the eigenvalue ``μ_i ν_j``.

References:
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from curvescope.certificates.blocks import Layout

Pair = tuple[Tensor, Tensor] | None
_NULL = 1e-10  # eigenvalues below this share of the largest are rounding


@dataclass(frozen=True)
class Bases:
    """A pair ``(U, V)`` for each block, or ``None`` where the standard basis is kept.

    >>> from torch import nn
    >>> layout = Layout.of(nn.Linear(2, 2, bias=False))
    >>> turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    >>> bases = Bases(layout, ((torch.eye(2), turn),))
    >>> bases.rotate(torch.tensor([1.0, 2.0, 3.0, 4.0])).tolist()
    [2.0, -1.0, 4.0, -3.0]
    """

    layout: Layout
    pairs: tuple[Pair, ...]

    @classmethod
    def standard(cls, layout: Layout) -> Bases:
        """The standard basis of every block (BASE)."""
        return cls(layout, (None,) * len(layout.blocks))

    def rotate(self, flat: Tensor) -> Tensor:
        """``Uᵀ W V`` for every block (DH eq. 64, TOHESSIAN)."""
        return self._join(
            W if pair is None else pair[0].T @ W @ pair[1] for W, pair in self._blocks(flat)
        )

    def restore(self, flat: Tensor) -> Tensor:
        """``U W Vᵀ`` for every block (DH eq. 65, TOSTANDARD); the inverse of :meth:`rotate`."""
        return self._join(
            W if pair is None else pair[0] @ W @ pair[1].T for W, pair in self._blocks(flat)
        )

    def carry(self, diagonal: Tensor, old: Bases) -> Tensor:
        """The diagonal, in these bases, of a matrix that is diagonal in the ``old`` ones.

        ``(Q Diag(s) Qᵀ)_ii = Σ_j Q_ij² s_j`` with ``Q = (U'ᵀU) ⊗ (V'ᵀV)``: how the variances of a
        posterior follow when the basis changes. Sums are kept; the off-diagonal part is dropped.
        """
        carried: list[Tensor] = []
        for (S, new), before in zip(self._blocks(diagonal), old.pairs, strict=True):
            if new is None and before is None:
                carried.append(S)
                continue
            carried.append(_squares(new, before, 0) @ S @ _squares(new, before, 1).T)
        return self._join(carried)

    def copy_(self, other: Bases) -> None:
        """Take over the numbers of other bases of the same kind, in place (for CUDA graphs)."""
        for mine, theirs in zip(self.pairs, other.pairs, strict=True):
            if mine is not None and theirs is not None:
                mine[0].copy_(theirs[0])
                mine[1].copy_(theirs[1])

    def clone(self) -> Bases:
        """A copy with its own memory."""
        pairs = tuple(None if p is None else (p[0].clone(), p[1].clone()) for p in self.pairs)
        return Bases(self.layout, pairs)

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Bases:
        """The bases on another device or in another precision."""
        pairs = tuple(
            None if p is None else (p[0].to(device, dtype), p[1].to(device, dtype))
            for p in self.pairs
        )
        return Bases(self.layout, pairs)

    def _blocks(self, flat: Tensor) -> Iterable[tuple[Tensor, Pair]]:
        return zip(self.layout.split(flat), self.pairs, strict=True)

    @staticmethod
    def _join(matrices: Iterable[Tensor]) -> Tensor:
        return torch.cat([matrix.reshape(-1) for matrix in matrices])


def _squares(new: Pair, old: Pair, side: int) -> Tensor:
    """``(U'ᵀ U)²`` entry by entry, where the standard basis stands for a missing pair."""
    if new is None:
        assert old is not None
        return old[side].square()
    if old is None:
        return new[side].T.square()
    return (new[side].T @ old[side]).square()


class Eigenbases:
    """Eigenbases of ``A_l ⊗ B_l`` for one layout, again and again.

    A factor that has not changed since the last call (the first layer's ``E[xxᵀ]`` never does) is
    not decomposed again. Where a factor has no curvature, every basis is an eigenbasis: first one
    close to the standard basis is taken, in which the units of a layer stay apart, and later one
    close to the last, so that variances that follow it are not mixed.

    >>> from torch import nn
    >>> layout = Layout.of(nn.Linear(2, 2, bias=False))
    >>> A, B = torch.diag(torch.tensor([1.0, 3.0])), torch.diag(torch.tensor([5.0, 2.0]))
    >>> bases, values = Eigenbases(layout)([(A, B)], like=torch.zeros(4))
    >>> values.tolist()
    [15.0, 6.0, 5.0, 2.0]
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._decompositions: dict[tuple[int, int], tuple[Tensor, Tensor, Tensor]] = {}

    def __call__(
        self, factors: Sequence[tuple[Tensor, Tensor] | None], *, like: Tensor
    ) -> tuple[Bases, Tensor]:
        """The bases, and the eigenvalues in the layout's order, falling in each block.

        Args:
            factors: For each block the symmetric positive ``A: [m, m]`` and ``B: [n, n]``, or None.
            like: Gives device and dtype of the results; decompositions are done in float64, and
                eigenvalues that rounding put below zero are zero.
        """
        pairs: list[Pair] = []
        values: list[Tensor] = []
        for i, factor in enumerate(factors):
            if factor is None:
                pairs.append(None)
                values.append(like.new_zeros(self._layout.sizes[i]))
                continue
            (mu, U), (nu, V) = (self._descending(i, side, m) for side, m in enumerate(factor))
            pairs.append((U.to(like).contiguous(), V.to(like).contiguous()))
            values.append(torch.outer(mu, nu).reshape(-1).to(like))
        return Bases(self._layout, tuple(pairs)), torch.cat(values)

    def tensors(self) -> dict[str, Tensor]:
        """What the next call builds on, by names."""
        return {
            f"decomposition.{block}.{side}.{part}": tensor
            for (block, side), tensors in self._decompositions.items()
            for part, tensor in enumerate(tensors)
        }

    def load(self, tensors: Mapping[str, Tensor], device: torch.device) -> None:
        """Go on from what :meth:`tensors` gave; other names are not looked at."""
        places: dict[tuple[int, int], dict[int, Tensor]] = {}
        for name, tensor in tensors.items():
            if name.startswith("decomposition."):
                block, side, part = (int(number) for number in name.split(".")[1:])
                places.setdefault((block, side), {})[part] = tensor.to(device)
        self._decompositions = {place: (t[0], t[1], t[2]) for place, t in places.items()}

    def _descending(self, block: int, side: int, matrix: Tensor) -> tuple[Tensor, Tensor]:
        last = self._decompositions.get((block, side))
        if last is None or not torch.equal(last[0], matrix):
            values, vectors = torch.linalg.eigh(matrix.double())
            values, vectors = values.flip(0).clamp_min(0), vectors.flip(1)
            rank = int((values > _NULL * values[0]).sum())
            if rank < len(values):
                top = vectors[:, :rank]
                vectors = _completed(top, _free_axes(top) if last is None else last[2][:, rank:])
            last = matrix, values, vectors
            self._decompositions[block, side] = last
        return last[1], last[2]


def _free_axes(vectors: Tensor) -> Tensor:
    """The unit vectors that have least to do with the given orthonormal ones, ``[d, d − k]``."""
    size, taken = vectors.shape
    loads = vectors.square().sum(1)
    axes = loads.argsort(stable=True)[: size - taken].sort().values
    return torch.eye(size, dtype=vectors.dtype, device=vectors.device)[:, axes]


def _completed(vectors: Tensor, near: Tensor) -> Tensor:
    """Orthonormal ``vectors``, completed to a basis that is close to the columns ``near``."""
    Q, R = torch.linalg.qr(torch.cat([vectors, near], 1))
    return Q * torch.where(R.diagonal() < 0, -1.0, 1.0)
