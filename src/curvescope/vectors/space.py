"""Where the numbers of a vector are, and what takes all of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from curvescope import _checks
from curvescope.errors import CurvescopeError
from curvescope.ranks import Group
from curvescope.vectors import sums
from curvescope.vectors.drawn import KINDS, drawn
from curvescope.vectors.orthonormal import gram_schmidt, qr

Parts = tuple[tuple[int, int], ...]
"""Ranges of indices, each from its begin to before its end."""


class Space:
    """The vectors of one length, and which of their numbers each rank holds.

    A block of vectors is a tensor of rows ``[k, count]`` with the numbers of this rank, those of
    ``parts`` one after the other. All ranks call the same methods in the same order. In one process
    every number is here, and each method is the tensor operation that it stands for.

    Args:
        size: The length ``n``.
        dtype: Of all numbers.
        device: Where those of this rank are.
        group: The ranks; by default this process alone.
        parts: The ranges of indices of every rank, which together are ``0 … n − 1``; by default
            ranges of equal length, up to one.

    Attributes:
        parts: The ranges of this rank.
        count: How many numbers of each vector are here.

    >>> space = Space(5, dtype=torch.float64, device="cpu")
    >>> rows = space.units(1, 2)
    >>> rows.tolist()
    [[0.0, 1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0, 0.0]]
    >>> space.inner(rows, rows + 1), space.parts
    (tensor([[2., 1.],
            [1., 2.]], dtype=torch.float64), ((0, 5),))
    """

    def __init__(
        self,
        size: int,
        *,
        dtype: torch.dtype,
        device: torch.device | str,
        group: Group | None = None,
        parts: Sequence[Sequence[tuple[int, int]]] | None = None,
    ) -> None:
        self.size, self.dtype = size, dtype
        self.device = torch.device(device)
        self.group = Group.of(None) if group is None else group
        self.of_ranks = _even(size, self.group.size) if parts is None else _checked(size, parts)
        if len(self.of_ranks) != self.group.size:
            given = f"{len(self.of_ranks)} for {self.group.size} ranks"
            raise CurvescopeError("Space", "`parts` must have one entry for each rank", given=given)
        if self.alone:  # everything, in its own order
            self.of_ranks = (((0, size),),)
        self.parts = self.of_ranks[self.group.rank]
        self.counts = [sum(end - begin for begin, end in parts) for parts in self.of_ranks]
        self.count = self.counts[self.group.rank]

    @property
    def alone(self) -> bool:
        """Whether every number is here."""
        return self.group.alone

    def like(self, other: Space) -> bool:
        """Whether the vectors of both lie in the same way, so that rows of one are of the other."""
        return (
            self.group is other.group
            and (self.size, self.dtype, self.device) == (other.size, other.dtype, other.device)
            and self.of_ranks == other.of_ranks
        )

    # Small numbers ------------------------------------------------------------------------------

    def total(self, share: Tensor) -> Tensor:
        """The sum over all ranks of what each has computed from its own numbers."""
        return self.group.sum(share)

    def inner(self, X: Tensor, Y: Tensor) -> Tensor:
        """``X Yᵀ: [a, b]`` of two blocks, in float64; one collective."""
        return self.group.sum(sums.inner(X, Y))

    def dots(self, X: Tensor, Y: Tensor) -> Tensor:
        """The inner products row by row ``[k]``, in float64; one collective."""
        return self.group.sum(sums.dots(X, Y))

    def norms(self, X: Tensor) -> Tensor:
        """The norm of every row ``[k]``, in float64; one collective."""
        lengths = sums.lengths(X)
        return lengths if self.alone else self.group.sum(lengths.square()).sqrt()

    def same(self, *small: Tensor) -> tuple[Tensor, ...]:
        """The tensors of the first rank, on all.

        What LAPACK computes of a small matrix has signs and roundings that may differ from one kind
        of processor to another: before vectors are combined by it, all ranks take the first one's.
        """
        if self.alone:
            return small
        moved = (self.group.broadcast(each.to(self.device)).to(each.device) for each in small)
        return tuple(moved)

    # Blocks of vectors --------------------------------------------------------------------------

    def zeros(self, count: int) -> Tensor:
        """``count`` vectors of zeros."""
        return torch.zeros(count, self.count, dtype=self.dtype, device=self.device)

    def random(self, count: int, *, generator: torch.Generator, kind: str = "rademacher") -> Tensor:
        """``count`` isotropic random vectors, ``E[ω ωᵀ] = I``: signs, Gaussian, or on a sphere.

        The numbers are those of one process, however many ranks there are: each goes through all of
        them and takes its own. Each vector is drawn on its own, so that the numbers do not depend
        on how many are drawn at a time. Rademacher signs have the least variance in Hutchinson's
        estimator among vectors of independent entries; Gaussian vectors are invariant under
        rotation, which Lanczos quadrature on a spectrum and XTrace's resphering use; spherical ones
        are Gaussian ones scaled to length ``√n``.

        >>> space = Space(4, dtype=torch.float64, device="cpu")
        >>> rows = space.random(3, generator=torch.Generator().manual_seed(0))
        >>> rows.shape, (rows**2).sum(1)
        (torch.Size([3, 4]), tensor([4., 4., 4.], dtype=torch.float64))
        """
        _checks.one_of("Space.random(count)", "kind", kind, KINDS)
        rows = [drawn(self.size, self.parts, kind, generator, self.dtype, self.device)
                for _ in range(count)]  # fmt: skip
        block = torch.stack(rows) if rows else self.zeros(0)
        if kind == "sphere":
            lengths = (
                torch.linalg.vector_norm(block, dim=1)
                if self.alone
                else self.norms(block).to(block)
            )
            block *= self.size**0.5 / lengths[:, None]
        return block

    def units(self, first: int, count: int) -> Tensor:
        """The unit vectors ``e_first … e_(first + count − 1)``."""
        rows, place = self.zeros(count), 0
        for begin, end in self.parts:
            low, high = max(begin, first), min(end, first + count)
            if low < high:
                here = torch.arange(low, high)
                rows[here - first, here - begin + place] = 1
            place += end - begin
        return rows

    def orthonormalize(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """``rows = factorᵀ · unit`` by Gram–Schmidt: ``unit: [k, count]``, float64 ``[k, k]``.

        For a few rows: ``2 k`` to ``4 k`` collectives of ``k`` numbers. A row of zeros stays one.
        """
        return gram_schmidt(self, rows)

    def qr(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """``rows = Rᵀ Q`` with orthonormal rows ``Q: [r, count]`` and ``R: [r, k]``.

        ``r = min(k, n)``. LAPACK's Householder reflections here, then those of the ranks' factors
        (Demmel et al. 2012), with the signs that one process has: three collectives of ``k²``
        numbers, whatever the rank of the rows.
        """
        return qr(self, rows)

    # Whole vectors ------------------------------------------------------------------------------

    def gather(self, rows: Tensor) -> Tensor:
        """Whole vectors ``[k, n]`` on every rank: ``k n`` numbers of memory on each."""
        if self.alone:
            return rows
        columns = self.group.concatenate(rows.T.contiguous(), self.counts)
        if self._ordered:
            return columns.T
        whole = torch.empty_like(columns)
        place = 0
        for begin, end in (part for parts in self.of_ranks for part in parts):
            whole[begin:end] = columns[place : place + end - begin]
            place += end - begin
        return whole.T

    def local(self, whole: Tensor) -> Tensor:
        """This rank's part of whole vectors ``[k, n]``."""
        return whole if self.alone else _cut(whole, self.parts)

    def scatter_sum(self, shares: Tensor) -> Tensor:
        """This rank's part of the sum over the ranks of whole vectors ``[k, n]``.

        With the :meth:`gather` before it, it sends as much as one sum of whole vectors does.
        """
        if self.alone:
            return shares
        every = tuple(part for parts in self.of_ranks for part in parts)
        ordered = shares if self._ordered else _cut(shares, every)
        return self.group.scatter_sum(ordered.T, self.counts).T

    @property
    def _ordered(self) -> bool:
        """Whether the parts of all ranks one after the other are the vector."""
        every = [part for parts in self.of_ranks for part in parts]
        return all(a[1] == b[0] for a, b in pairwise(every))


def _even(size: int, ranks: int) -> tuple[Parts, ...]:
    """A range for each rank.

    >>> _even(7, 3), _even(1, 2)
    ((((0, 3),), ((3, 5),), ((5, 7),)), (((0, 1),), ((1, 1),)))
    """
    each, more = divmod(size, ranks)
    begins = [rank * each + min(rank, more) for rank in range(ranks + 1)]
    return tuple(((a, b),) for a, b in pairwise(begins))


def _checked(size: int, parts: Sequence[Sequence[tuple[int, int]]]) -> tuple[Parts, ...]:
    """The parts, if every index is in exactly one of them."""
    every = tuple(tuple((int(a), int(b)) for a, b in each) for each in parts)
    place = 0
    for begin, end in sorted(part for each in every for part in each if part[0] != part[1]):
        if begin != place or end < begin:
            rule = f"`parts` must have every index below {size} once"
            raise CurvescopeError("Space", rule, given=f"a part from {begin} to {end}")
        place = end
    if place != size:
        rule = f"`parts` must have every index below {size} once"
        raise CurvescopeError("Space", rule, given=f"the last part ends at {place}")
    return every


def _cut(whole: Tensor, parts: Parts) -> Tensor:
    """The numbers of some ranges, in memory of their own."""
    pieces = [whole[..., begin:end] for begin, end in parts]
    return torch.cat([whole[..., :0], *pieces], dim=-1)
