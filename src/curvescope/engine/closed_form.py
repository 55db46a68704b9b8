"""The closed form of a layer's block: when it applies, and what is kept for it.

The closed form itself is in :mod:`curvescope.engine.layer_factors`. It is exact for every matrix
``Jᵀ B J`` with ``B`` positive semi-definite. The Hessian's block is such a matrix when the network
behind the layer is piecewise linear (DH eq. 23): its residual part ``E`` then has nothing to
propagate. That is read off the recorded operations, not the names of modules.

References:
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from curvescope.engine.blocks import Sizes, factors_of, part_of
from curvescope.engine.layer_factors import Factors, merged
from curvescope.engine.matrix import Matrix
from curvescope.engine.squeeze import Part
from curvescope.problem.batches import Batch
from curvescope.problem.losses import LossAt
from curvescope.record import memory
from curvescope.record.capture import Capture, capture, samples_given
from curvescope.record.outputs import OutputMatrix
from curvescope.record.piecewise import PiecewiseLinear
from curvescope.record.roots import directions_of, root
from curvescope.record.samples import check_samples, first_samples, terms_apart
from curvescope.record.selection import UnsupportedLayer

Pieces = tuple[list[Factors], float]  # of all batches, and the weight of all terms of the loss
Scaled = list[tuple[float, list[Factors]]]  # the coefficient of each output matrix's factors
Sums = tuple[Tensor, float]  # over the terms of the loss, and the weight of these terms


class ClosedForm:
    """The recorded layers of a problem, shared by all operators on it."""

    def __init__(self) -> None:
        self._parts: dict[tuple[str, ...], Part | None] = {}
        self._sizes: dict[tuple[str, OutputMatrix], Sizes | None] = {}
        self._samples: dict[str, int] = {}  # of the batch that a layer was tried out on
        self._exact: dict[str, bool] = {}  # without a residual part, as far as was looked
        self._factors: dict[tuple[str, OutputMatrix], Pieces] = {}
        self._filling = threading.Lock()  # held by the thread that records what is kept

    # Whether ------------------------------------------------------------------------------------

    def applies(self, matrix: Matrix) -> bool:
        """Whether the closed form is exact for this block, and cheaper than differentiating.

        Tried out on a few samples, once for each layer.
        """
        part = self.part(matrix)
        if part is None or not matrix.mix.outputs:
            return False
        sizes = [self._size(matrix, part.layer, output) for output, _ in matrix.mix.outputs]
        if any(s is None or not s.worthwhile for s in sizes):
            return False
        return not matrix.second_order or self._without_residual(matrix, part.layer)

    def rule_out(self, matrix: Matrix) -> None:
        """It does not apply after all: a later batch took another path through the model."""
        layer = self._layer(matrix).layer
        if not matrix.second_order or self._exact[layer]:
            self._sizes[layer, matrix.mix.outputs[0][0]] = None

    def directions(self, matrix: Matrix) -> int:
        """How many directions of each sample are recorded, where it applies."""
        return max(size.k for size in self._sizes_of(matrix))

    def part(self, matrix: Matrix) -> Part | None:
        """The layer that the matrix is a block of."""
        names = matrix.space.names
        if names not in self._parts:
            self._parts[names] = part_of(matrix.problem, matrix.space)
        return self._parts[names]

    def _layer(self, matrix: Matrix) -> Part:
        part = self.part(matrix)
        assert part is not None, "asked only where it applies"
        return part

    def _size(self, matrix: Matrix, layer: str, output: OutputMatrix) -> Sizes | None:
        """The shape of the record, tried out on a few samples; None if there can be none."""
        key = (layer, output)
        if key not in self._sizes:
            problem = matrix.problem
            batch = next(iter(problem.data))
            few = first_samples(batch)
            try:
                check_samples(problem, batch, [layer])
                by_term = bool(terms_apart(problem, batch, [layer]))
                record = capture(problem, few, [layer])
                loss = problem.loss_at(record.output, few)
                each = 1 if by_term else _terms(loss, record)
                directions = each * directions_of(output, loss)
                self._samples[layer] = record.samples
                self._sizes[key] = Sizes.of(record, layer, directions, by_term=by_term)
            except UnsupportedLayer:
                self._sizes[key] = None
        return self._sizes[key]

    def _sizes_of(self, matrix: Matrix) -> list[Sizes]:
        layer = self._layer(matrix).layer
        sizes = [self._sizes[layer, output] for output, _ in matrix.mix.outputs]
        return [size for size in sizes if size is not None]

    def _without_residual(self, matrix: Matrix, layer: str) -> bool:
        """Whether ``E`` vanishes in the layer's block, for all batches that were looked at."""
        if layer not in self._exact:
            few = first_samples(next(iter(matrix.problem.data)))
            self._look(matrix, layer, capture(matrix.problem, few, [layer]), few)
        return self._exact[layer]

    def _look(self, matrix: Matrix, layer: str, record: Capture, batch: Batch) -> None:
        piecewise = matrix.problem.companion(PiecewiseLinear)
        exact = piecewise.behind(matrix.problem, layer, record.operations, batch)
        self._exact[layer] = exact and self._exact.get(layer, True)

    # Products -----------------------------------------------------------------------------------

    def product(self, scaled: Scaled, matrix: Matrix, rows: Tensor, columns: int | None) -> Tensor:
        """``[k, P]`` to ``[k, P]`` from what is kept, as a sum over the terms of the loss."""
        part = self._layer(matrix)
        rows = part.enter(rows)
        total = torch.zeros_like(rows)
        for scale, pieces in scaled:
            for factors in pieces:
                total.add_(factors.product(rows, part, columns), alpha=scale)
        return part.leave(total)

    def stream(self, matrix: Matrix, rows: Tensor, columns: int | None) -> Sums:
        """``[k, P]`` to ``[k, P]``, recording one batch after the other."""
        part = self._layer(matrix)
        rows = part.enter(rows)
        total, terms = torch.zeros_like(rows), 0.0
        for output, c in matrix.mix.outputs:
            terms = 0.0
            for factors, weight in self._walk(matrix, part.layer, output):
                total.add_(factors.product(rows, part, columns), alpha=c)
                terms += weight
        return part.leave(total), terms

    # Keeping ------------------------------------------------------------------------------------

    def serving(self, matrix: Matrix) -> Scaled:
        """What is kept for each of the output matrices; none if one is missing."""
        layer = self._layer(matrix).layer
        entries = [(c, self._factors.get((layer, output))) for output, c in matrix.mix.outputs]
        scaled = [(c, entry[0]) for c, entry in entries if entry is not None]
        return scaled if len(scaled) == len(entries) else []

    def weight(self, matrix: Matrix) -> float:
        """The weight of the terms of the loss, of what is kept."""
        _, weight = self._factors[self._layer(matrix).layer, matrix.mix.outputs[0][0]]
        return weight

    def fill(self, matrix: Matrix, allowed: Callable[[int | None], bool]) -> bool:
        """Keep the factors if that is ``allowed`` for the bytes that it takes; whether it is.

        One thread at a time does it; the others stream meanwhile, see :meth:`KeptBatches.fill`.
        """
        if self.serving(matrix):
            return True
        if not allowed(self.needed(matrix)):
            return False
        if not self._filling.acquire(blocking=False):
            return True
        try:
            layer = self._layer(matrix).layer
            for output in self._missing(matrix):
                batches = list(self._walk(matrix, layer, output, keep=True))
                terms = sum(weight for _, weight in batches)
                pieces = [factors for factors, _ in batches]
                del batches  # so that merging can let go of one after the other
                self._factors[layer, output] = (merged(pieces), terms)
        finally:
            self._filling.release()
        return True

    def _missing(self, matrix: Matrix) -> list[OutputMatrix]:
        layer = self._layer(matrix).layer
        return [output for output, _ in matrix.mix.outputs if (layer, output) not in self._factors]

    def _walk(
        self, matrix: Matrix, layer: str, output: OutputMatrix, *, keep: bool = False
    ) -> Iterator[tuple[Factors, float]]:
        """The factors of each batch and the weight of its loss terms."""
        for batch in matrix.problem.batches(copied=keep):
            yield self._of_batch(matrix, layer, output, batch)

    def _of_batch(
        self, matrix: Matrix, layer: str, output: OutputMatrix, batch: Batch
    ) -> tuple[Factors, float]:
        problem = matrix.problem
        record = capture(problem, batch, [layer])
        if matrix.second_order:
            self._look(matrix, layer, record, batch)
            if not self._exact[layer]:
                rule = f"the network behind layer {layer!r} is not piecewise linear"
                raise UnsupportedLayer("layers", rule)
        loss = problem.loss_at(record.output, batch)
        by_term = (
            bool(terms_apart(problem, batch, [layer]))
            and _terms(loss, record) == record.positions[layer]
        )
        directions = root(output, loss, record.output, batch.index, by_term=by_term)
        return factors_of(record, layer, directions, by_term=by_term), loss.weight

    def trial(
        self, matrix: Matrix, few: Batch, rows: Tensor, *, keep: bool
    ) -> Callable[[], object]:
        """A product of a few samples, for counting its work; recorded before with ``keep``."""
        part = self._layer(matrix)

        def make() -> list[Factors]:
            outputs = [output for output, _ in matrix.mix.outputs]
            return [self._of_batch(matrix, part.layer, output, few)[0] for output in outputs]

        factors = make() if keep else None
        return lambda: [f.product(rows, part, None) for f in factors or make()]

    def needed(self, matrix: Matrix) -> int | None:
        """Bytes that keeping takes, from the shapes of the record; None: of unknown number."""
        problem = matrix.problem
        layer = self._layer(matrix).layer
        numbers = sum(size.numbers for size in self._sizes_of(matrix))
        # Inputs of different first dimensions were not cut, so all samples have been seen.
        samples = samples_given(next(iter(problem.data))) or self._samples[layer]
        item = torch.empty(0, dtype=problem.dtype).element_size()
        count = problem.data.length
        return None if count is None else count * samples * numbers * item

    def bytes(self, matrix: Matrix) -> int:
        """What is held for this block."""
        layer = self._layer(matrix).layer
        entries = [self._factors.get((layer, output)) for output, _ in matrix.mix.outputs]
        factors = [piece for entry in entries if entry is not None for piece in entry[0]]
        return memory.size(memory.held(t for piece in factors for t in piece.tensors()))

    def release(self) -> None:
        """Let everything go that is kept."""
        self._factors = {}


def _terms(loss: LossAt, record: Capture) -> int:
    """How many terms of the loss a sample has."""
    return loss.terms(record.output.detach()[None]).shape[1] // record.samples
