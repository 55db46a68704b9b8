"""Second moments of what goes into layers and of what comes back to them, over batches.

How the moments of one batch are made is for the kind of the layer to say,
:mod:`curvescope.layers`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from curvescope.layers import LayerKind, mirror
from curvescope.record.capture import Capture


class LayerMoments:
    """Running sums of one layer over batches, in float64; each batch in the model's precision."""

    def __init__(self, record: Capture, name: str) -> None:
        layer = record.layers[name]
        assert isinstance(layer, LayerKind)
        self._layer, self.positions = layer, record.positions[name]
        m, n = self._layer.matrix_shape
        shapes = ((m, m), (n, n), (n, self.positions))
        self._batch = tuple(record.output.new_zeros(shape).detach() for shape in shapes)
        self._total: tuple[Tensor, ...] | None = None
        self._batches = 0
        self.samples, self.weight = 0, 0.0

    def add_inputs(self, x: Tensor, samples: int, weight: float) -> None:
        """The inputs of some samples, in the layer's own layout."""
        self._begin()
        self.samples += samples
        self.weight += weight
        self._layer.add_input_moments(x, samples, self._batch[1], self._batch[2])

    def add_errors(self, e: Tensor, samples: int) -> None:
        """One pulled-back direction of some samples, in the layer's own layout."""
        self._layer.add_error_moment(e, samples, self._batch[0])

    def end_batch(self) -> None:
        """The batch is complete."""
        for moment in self._batch[:2]:
            mirror(moment)
        self._batches += 1

    def _begin(self) -> None:
        """Add what is complete to the running sums; a batch that remains the only one is not."""
        if not self._batches:
            return
        if self._total is None:
            self._total = tuple(moment.to(torch.float64, copy=True) for moment in self._batch)
        else:
            for total, moment in zip(self._total, self._batch, strict=True):
                total += moment
        for moment in self._batch:
            moment.zero_()
        self._batches = 0

    def means(self) -> tuple[Tensor, Tensor, Tensor]:
        """``E[Σ_t e eᵀ] / T``, ``E[X Xᵀ]`` and ``E[X]``; zeros without samples."""
        if self._total is not None:
            self._begin()
        errors, inputs, mean = self._total or self._batch
        samples, weight = max(self.samples, 1), self.weight or 1.0
        return errors / (weight * self.positions), inputs / samples, mean / samples
