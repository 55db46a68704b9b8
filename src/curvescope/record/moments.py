"""Second moments of what goes into layers and of what comes back to them.

Both are sums of symmetric products ``U Uᵀ`` over samples and positions. Only the part on and above
the diagonal is computed, in strips, and patches are unfolded for a few samples at a time, with the
positions innermost, so that they never leave the cache.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from curvescope.record.layers import Capture
from curvescope.record.patches import Layer, matrix_shape, windows

_STRIP = 100  # rows of the result that are computed at once
_CHUNK = {"cpu": 4 << 20, "cuda": 1 << 28}  # bytes of unfolded inputs
_FEW = 64  # positions below which samples are gathered into one product


def add_gram(total: Tensor, U: Tensor) -> None:
    """``total += U Uᵀ`` for ``U: [n, L]``, as far as :func:`mirror` needs it.

    >>> total = torch.zeros(2, 2)
    >>> add_gram(total, torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    >>> mirror(total)
    tensor([[ 5., 11.],
            [11., 25.]])
    """
    for start, stop in _strips(U.shape[0]):
        total[start:stop, start:].addmm_(U[start:stop], U[start:].T)


def mirror(total: Tensor) -> Tensor:
    """The symmetric matrix that :func:`add_gram` computed one half of; in place."""
    for start, stop in _strips(total.shape[0]):
        total[stop:, start:stop] = total[start:stop, stop:].T
    return total


def _strips(n: int) -> Iterator[tuple[int, int]]:
    width = -(-n // max(1, round(n / _STRIP)))
    for start in range(0, n, width):
        yield start, min(start + width, n)


def add_input_moments(layer: Layer, x: Tensor, samples: int, second: Tensor, first: Tensor) -> None:
    """Add ``Σ_b X_b X_bᵀ`` to ``second: [n, n]`` (upper part) and ``Σ_b X_b`` to ``first: [n, T]``.

    ``X_b: [n, T]`` is the input of a sample at its positions, those of all groups side by side.
    """
    if isinstance(layer, nn.Linear):
        rows = x.reshape(-1, x.shape[-1])
        add_gram(second, rows.T)
        first += rows.reshape(samples, -1, rows.shape[-1]).sum(0).T
        return
    dims = len(layer.kernel_size)
    x = x if x.ndim == dims + 2 else x[None]
    folded = x.shape[0] // samples  # images that belong to one sample
    n, positions = matrix_shape(layer)[1], first.shape[1]
    size = max(1, _CHUNK.get(x.device.type, 1 << 28) // (n * positions * x.element_size()))
    for piece in x.split(size * folded):
        U = _patches(layer, piece, dims)  # [n, samples here, positions]
        U = U.reshape(n, piece.shape[0] // folded, positions)
        add_gram(second, U.flatten(1))
        first += U.sum(1)


def _patches(layer: Layer, x: Tensor, dims: int) -> Tensor:
    """``[n, images, groups, *positions]``, unfolded."""
    assert not isinstance(layer, nn.Linear)
    view = windows(layer, x)
    g = layer.groups
    view = view.reshape(view.shape[0], g, view.shape[1] // g, *view.shape[2:])
    kernel = range(3 + dims, 3 + 2 * dims)
    return view.permute(2, *kernel, 0, 1, *range(3, 3 + dims)).flatten(0, dims)


def add_error_moment(layer: Layer, e: Tensor, second: Tensor) -> None:
    """Add ``Σ e eᵀ`` over samples and positions to ``second: [m, m]`` (upper part).

    With groups, the errors of different groups belong to different positions and do not meet.
    """
    if isinstance(layer, nn.Linear):
        add_gram(second, e.reshape(-1, e.shape[-1]).T)
        return
    e = e if e.ndim == len(layer.kernel_size) + 2 else e[None]
    own = e.shape[1] // layer.groups
    if layer.groups == 1 and (e[0, 0].numel() < _FEW or own > 2 * _STRIP):
        add_gram(second, e.transpose(0, 1).reshape(own, -1))
        return
    for start in range(0, e.shape[1], own):
        part = e[:, start : start + own].flatten(2)
        second[start : start + own, start : start + own] += torch.bmm(part, part.mT).sum(0)


class LayerMoments:
    """Running sums of one layer over batches, in float64; each batch in the model's precision."""

    def __init__(self, seen: Capture, name: str) -> None:
        self._layer, self.positions = seen.modules[name], seen.positions[name]
        m, n = matrix_shape(self._layer)
        shapes = ((m, m), (n, n), (n, self.positions))
        self._batch = tuple(seen.output.new_zeros(shape).detach() for shape in shapes)
        self._total: tuple[Tensor, ...] | None = None
        self._ended = 0
        self.samples, self.weight = 0, 0.0

    def add_inputs(self, x: Tensor, samples: int, weight: float) -> None:
        """The inputs of some samples, in the layer's own layout."""
        self._begin()
        self.samples += samples
        self.weight += weight
        add_input_moments(self._layer, x, samples, self._batch[1], self._batch[2])

    def add_errors(self, e: Tensor) -> None:
        """One pulled-back direction of some samples, in the layer's own layout."""
        add_error_moment(self._layer, e, self._batch[0])

    def end_batch(self) -> None:
        """The batch is complete."""
        for own in self._batch[:2]:
            mirror(own)
        self._ended += 1

    def _begin(self) -> None:
        """Add what is complete to the running sums; a batch that remains the only one is not."""
        if not self._ended:
            return
        if self._total is None:
            self._total = tuple(own.to(torch.float64, copy=True) for own in self._batch)
        else:
            for total, own in zip(self._total, self._batch, strict=True):
                total += own
        for own in self._batch:
            own.zero_()
        self._ended = 0

    def means(self) -> tuple[Tensor, Tensor, Tensor]:
        """``E[Σ_t e eᵀ] / T``, ``E[X Xᵀ]`` and ``E[X]``; zeros without samples."""
        if self._total is not None:
            self._begin()
        errors, inputs, mean = self._total or self._batch
        samples, weight = max(self.samples, 1), self.weight or 1.0
        return errors / (weight * self.positions), inputs / samples, mean / samples
