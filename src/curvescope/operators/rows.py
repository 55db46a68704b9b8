"""Rows of a Gauss–Newton root and their inner products, without writing the rows out.

A curvature matrix ``G = Rᵀ R`` has one row for each sample and output direction. For a linear layer
the row of sample ``b`` and direction ``k`` is ``Σ_t e[b,k,t] ⊗ x[b,t]`` (TR 7.4; ``T`` positions,
one unless the layer is a convolution or runs along a sequence), so that

    ⟨row(b,k), row(b',k')⟩ = Σ_{t,t'} ⟨e[b,k,t], e[b',k',t']⟩ ⟨x[b,t], x[b',t']⟩,

a sum of ``T²`` Hadamard products of two small Gram matrices: ``T² (m + n/K²)`` operations instead
of the ``m·n`` of the written row. Few positions (deep or plain layers) take this form; many (the
first layers of a convolutional network, whose weights are small) are written out.

Products are made in float64 whatever the dtype of the rows. A row that is known to a relative error
``ε`` then gives eigenvalues with an absolute error of ``ε² λ_max``; float32 products would leave
``ε λ_max``, which is where the bulk of a trained network lies.

References:
    TR: Papyan (2020), *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra*.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from curvescope.record import memory

_TILE = 2048  # rows; larger symmetric products are cut so that only one half is computed
_SHARE = 0.1  # of the free memory that written-out rows may take at once


class Rows(ABC):
    """Some rows of one group of parameters."""

    samples: int
    per_sample: int

    @property
    def count(self) -> int:
        """How many rows: ``per_sample`` for each of the ``samples``."""
        return self.samples * self.per_sample

    @abstractmethod
    def part(self, start: int, stop: int) -> Rows:
        """The rows of samples ``start:stop``."""

    @abstractmethod
    def add_products(self, other: Rows, out: Tensor) -> None:
        """``out[i, j] += ⟨row i of self, row j of other⟩``, in float64."""

    @abstractmethod
    def squared_norms(self) -> Tensor:
        """``[count]``, float64."""

    @abstractmethod
    def written(self) -> WrittenRows:
        """The rows written out."""

    @abstractmethod
    def tensors(self) -> tuple[Tensor, ...]:
        """What is held."""

    @abstractmethod
    def of(self, tensors: Sequence[Tensor]) -> Rows:
        """Rows of the same parameters from what is held of other samples."""

    def compact(self) -> Rows:
        """The same rows, written out where that is both how they are used and smaller."""
        return self

    def nbytes(self) -> int:
        """Bytes held."""
        return sum(t.numel() * t.element_size() for t in self.tensors())

    def add_gram(self, out: Tensor) -> None:
        """The lower triangle of ``out += R Rᵀ``; what lies above it may be left out."""
        step = max(1, _TILE // self.per_sample)
        if self.samples <= step:
            self.add_products(self, out)
            return
        for start in range(0, self.samples, step):
            stop = min(start + step, self.samples)
            rows = slice(start * self.per_sample, stop * self.per_sample)
            before = self.part(0, stop)
            self.part(start, stop).add_products(before, out[rows, : before.count])


class WrittenRows(Rows):
    """Rows as they are: ``[samples · per_sample, P]``."""

    def __init__(self, rows: Tensor, per_sample: int) -> None:
        self.rows, self.per_sample = rows, per_sample
        self.samples = rows.shape[0] // per_sample

    def part(self, start: int, stop: int) -> WrittenRows:
        """See :class:`Rows`."""
        k = self.per_sample
        return WrittenRows(self.rows[start * k : stop * k], k)

    def add_products(self, other: Rows, out: Tensor) -> None:
        """See :class:`Rows`; columns in slices, to bound the float64 copies."""
        rows, others = self.rows, other.written().rows
        width = _columns(out.device, self.count + other.count)
        for start in range(0, rows.shape[1], width):
            piece = slice(start, start + width)
            out.addmm_(rows[:, piece].double(), others[:, piece].double().T)

    def squared_norms(self) -> Tensor:
        """See :class:`Rows`."""
        return torch.cat([rows.double().square().sum(1) for rows in self.rows.split(64)])

    def written(self) -> WrittenRows:
        """See :class:`Rows`."""
        return self

    def tensors(self) -> tuple[Tensor, ...]:
        """See :class:`Rows`."""
        return (self.rows,)

    def of(self, tensors: Sequence[Tensor]) -> WrittenRows:
        """See :class:`Rows`."""
        return WrittenRows(tensors[0], self.per_sample)


class LayerRows(Rows):
    """Rows of a layer with a matrix: ``errors: [N, K, T, m]``, ``inputs: [N, T, n]``."""

    def __init__(self, errors: Tensor, inputs: Tensor) -> None:
        self.errors, self.inputs = errors, inputs
        self.samples, self.per_sample = errors.shape[0], errors.shape[1]

    @property
    def _sizes(self) -> tuple[int, int, int, int]:
        _, K, T, m = self.errors.shape
        return K, T, m, self.inputs.shape[2]

    @property
    def by_positions(self) -> bool:
        """Whether ``T²`` Hadamard products are cheaper than products of written-out rows."""
        K, T, m, n = self._sizes
        return T * T * (m + 1 + n / K**2) <= m * n or T == 1

    def compact(self) -> Rows:
        """See :class:`Rows`."""
        K, T, m, n = self._sizes
        if self.by_positions or K * m * n > T * (K * m + n):
            return self
        return self.written()

    def written(self) -> WrittenRows:
        """See :class:`Rows`."""
        return WrittenRows(self._written(slice(None)), self.per_sample)

    def _written(self, channels: slice) -> Tensor:
        """``[N·K, |channels|·n]``: the rows restricted to some output channels."""
        e = self.errors[..., channels]
        N, K, T, m = e.shape
        left = e.movedim(2, -1).reshape(N, K * m, T)
        return torch.bmm(left, self.inputs).reshape(N * K, m * self.inputs.shape[2])

    def part(self, start: int, stop: int) -> LayerRows:
        """See :class:`Rows`."""
        return LayerRows(self.errors[start:stop], self.inputs[start:stop])

    def add_products(self, other: Rows, out: Tensor) -> None:
        """See :class:`Rows`."""
        if not isinstance(other, LayerRows):  # batches of other lengths may take another form
            self.written().add_products(other, out)
            return
        if self.by_positions:
            self._add_by_positions(other, out)
            return
        m, n = self._sizes[2:]
        width = max(1, _columns(out.device, self.count + other.count) // n)
        for start in range(0, m, width):
            piece = slice(start, start + width)
            out.addmm_(self._written(piece).double(), other._written(piece).double().T)

    def _add_by_positions(self, other: LayerRows, out: Tensor) -> None:
        view = out.unflatten(0, (self.samples, self.per_sample))
        view = view.unflatten(-1, (other.samples, other.per_sample))
        right = [(e.double(), x.double()) for e, x in other._positions()]
        for e, x in self._positions():
            e, x = e.double(), x.double()
            for e2, x2 in right:
                outer = (e @ e2.T).view(view.shape)
                view.addcmul_(outer, (x @ x2.T)[:, None, :, None])

    def _positions(self) -> Sequence[tuple[Tensor, Tensor]]:
        return [
            (self.errors[:, :, t].flatten(0, 1), self.inputs[:, t])
            for t in range(self.errors.shape[2])
        ]

    def squared_norms(self) -> Tensor:
        """See :class:`Rows`."""
        K, T, m, n = self._sizes
        if T * T * (K * m + n) > K * T * m * n:
            written = [self.part(i, i + 1)._written(slice(None)) for i in range(self.samples)]
            return torch.cat([row.double().square().sum(1) for row in written])
        e, x = self.errors.double(), self.inputs.double()
        return torch.einsum("bkst,bst->bk", e @ e.mT, x @ x.mT).flatten()

    def tensors(self) -> tuple[Tensor, ...]:
        """See :class:`Rows`."""
        return self.errors, self.inputs

    def of(self, tensors: Sequence[Tensor]) -> LayerRows:
        """See :class:`Rows`."""
        return LayerRows(tensors[0], tensors[1])


def join(parts: Sequence[Rows]) -> Rows:
    """Rows of several groups of samples, one after the other."""
    first = parts[0]
    if len(parts) == 1:
        return first
    joined = [torch.cat(pieces) for pieces in zip(*(p.tensors() for p in parts), strict=True)]
    return first.of(joined)


def _columns(device: torch.device, rows: int) -> int:
    """How many float64 columns of so many rows may be written out at once."""
    return max(1, int(_SHARE * memory.free(device)) // (8 * max(1, rows)))
