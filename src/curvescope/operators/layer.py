"""When the block of a layer is applied in closed form, and what is kept for it (OP-5).

The closed form itself is in :mod:`curvescope.record.layer_factors`. It is exact for every
matrix ``Jᵀ B J`` with ``B`` positive semi-definite. The Hessian's block is such a matrix when the
network behind the layer is piecewise linear (DH eq. 23): its residual part ``E`` then has nothing
to propagate. That is read off the recorded operations, not the names of modules.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterator

import torch
from torch import Tensor

from curvescope.errors import CurvescopeError
from curvescope.operators.base import LinearOperator
from curvescope.problem import ParamSpace, Problem
from curvescope.problem.batches import Batch
from curvescope.record import memory
from curvescope.record.batch import TapeBatch
from curvescope.record.blocks import Sizes, factors_of, part_of
from curvescope.record.capture import Capture, capture
from curvescope.record.cuda import CapturedProducts
from curvescope.record.layer_factors import Factors, merged
from curvescope.record.outputs import Mix, OutputMatrix
from curvescope.record.roots import root
from curvescope.record.rules import Untraceable
from curvescope.record.samples import check_samples, first_samples, samples_given
from curvescope.record.selection import UnsupportedLayer
from curvescope.record.squeeze import Part
from curvescope.record.sweep import SHARE, Footprint, Options

log = logging.getLogger("curvescope")

PATIENCE = 12  # a direction is recorded in about a twelfth of the time of a streamed product


class LayerSweep:
    """The recorded layers of a problem, shared by all operators on it."""

    def __init__(self, problem: Problem) -> None:
        self._problem = weakref.ref(problem)  # weakly, so that both go at once, without a cycle
        self._parts: dict[tuple[str, ...], Part | None] = {}
        self._sizes: dict[tuple[str, OutputMatrix], Sizes | None] = {}
        self._vanishing: dict[str, dict[frozenset[str], bool]] = {}
        self._columns: dict[str, int] = {}
        self._kept: dict[tuple[str, OutputMatrix], tuple[list[Factors], float]] = {}
        self._graphs = CapturedProducts()
        self._keeping = threading.Lock()  # held by the thread that records what is kept
        self._planned: dict[tuple[str, Mix], bool] = {}  # whether it is kept
        self._samples: dict[str, int] = {}  # of the batch that a layer was tried out on

    @property
    def problem(self) -> Problem:
        """The problem that this sweep belongs to."""
        problem = self._problem()
        assert problem is not None, "operators hold their problem"
        return problem

    def product(self, mix: Mix, space: ParamSpace, X: Tensor, how: Options) -> Tensor | None:
        """``[P, k]`` to ``[P, k]``, or None where the closed form does not apply or not pay."""
        part = self.part(space)
        if part is None or not self.applies(part, mix):
            return None
        self.problem.check_unchanged()
        columns = self._columns[part.layer] = self._columns.get(part.layer, 0) + X.shape[1]
        directions = max(self._size(part.layer, matrix).k for matrix, _ in mix.outputs)  # type: ignore[union-attr]
        planned = self._planned.get((part.layer, mix))
        patient = planned is None and PATIENCE * columns < directions
        keep = how.keep is True or (how.keep == "auto" and self._kept_for(part.layer, mix))
        if X.shape[1] < directions and (not keep or (how.keep == "auto" and patient)):
            return None
        try:
            return self._product(part, mix, X, how, keep=keep)
        except UnsupportedLayer:  # a later batch took another path through the model
            self._sizes[part.layer, mix.outputs[0][0]] = None
            return None

    def plan(self, mix: Mix, space: ParamSpace, how: Options) -> bool:
        """Keep the factors for many products; whether that applies, and they fit."""
        part = self.part(space)
        if how.keep is False or part is None or not self.applies(part, mix):
            return False
        self.problem.check_unchanged()
        try:
            if how.keep is True or self._kept_for(part.layer, mix):
                self._planned[part.layer, mix] = True
                self._record(part.layer, mix, how)
                return True
        except UnsupportedLayer:  # a later batch took another path through the model
            self._sizes[part.layer, mix.outputs[0][0]] = None
        self._planned[part.layer, mix] = False
        return False

    def _kept_for(self, layer: str, mix: Mix) -> bool:
        planned = self._planned.get((layer, mix))
        return self._fits(layer, mix) if planned is None else planned

    def _product(self, part: Part, mix: Mix, X: Tensor, how: Options, *, keep: bool) -> Tensor:
        rows = part.enter(X.T.contiguous())
        if not keep or not self._record(part.layer, mix, how):
            return part.leave(self._stream(part, mix, rows, how.columns)).T
        if not how.cuda_graph:
            return part.leave(self._apply(part, mix, rows, how.columns)).T
        key = (part, mix, rows.shape[0], how.columns)
        apply = lambda rows: self._apply(part, mix, rows, how.columns)  # noqa: E731
        return part.leave(self._graphs.product(key, apply, rows)).T

    def _apply(self, part: Part, mix: Mix, rows: Tensor, columns: int | None) -> Tensor:
        total = torch.zeros_like(rows)
        for matrix, c in mix.outputs:
            pieces, terms = self._kept[part.layer, matrix]
            for factors in pieces:
                total.add_(factors.product(rows, part, columns), alpha=c / terms)
        return total

    def _stream(self, part: Part, mix: Mix, rows: Tensor, columns: int | None) -> Tensor:
        total = torch.zeros_like(rows)
        for matrix, c in mix.outputs:
            own, terms = torch.zeros_like(rows), 0.0
            for factors, count in self._walk(part.layer, matrix, mix):
                own += factors.product(rows, part, columns)
                terms += count
            total.add_(own, alpha=c / terms)
        return total

    def root(self, mix: Mix, space: ParamSpace, how: Options) -> LayerRoot | None:
        """``R`` with ``Rᵀ R`` the block, where the closed form applies and may be kept."""
        part = self.part(space)
        if part is None or len(mix.outputs) != 1 or not self.applies(part, mix):
            return None
        ((matrix, c),) = mix.outputs
        if c < 0 or how.keep is False or not self._fits(part.layer, mix):
            return None
        self.problem.check_unchanged()
        try:
            if not self._record(part.layer, mix, how):
                return None
        except UnsupportedLayer:
            self._sizes[part.layer, matrix] = None
            return None
        pieces, terms = self._kept[part.layer, matrix]
        return LayerRoot(self.problem, mix, part, pieces, space.size, (c / terms) ** 0.5)

    # Recording -----------------------------------------------------------------------------------

    def _record(self, layer: str, mix: Mix, how: Options) -> bool:
        """Keep the factors; False while another thread does, for which this one does not wait.

        Reading the data may need a lock that somebody holds who waits for us.
        """
        if not self._missing(layer, mix):
            return True
        if not self._keeping.acquire(blocking=False):
            return False
        try:
            self._record_missing(layer, mix, how)
        finally:
            self._keeping.release()
        return True

    def _missing(self, layer: str, mix: Mix) -> list[OutputMatrix]:
        return [m for m, _ in mix.outputs if (layer, m) not in self._kept]

    def _record_missing(self, layer: str, mix: Mix, how: Options) -> None:
        footprint = self.footprint(layer, mix)
        if how.keep is True and not self._fits(layer, mix):
            half = f"half of the free memory ({footprint})"
            rule = f"the factors of layer {layer!r} do not fit into {half}"
            raise CurvescopeError("keep=True", rule, remedy="use `keep=False` or less data")
        log.info("keeping the factors of layer %r: %s", layer, footprint)
        for matrix in self._missing(layer, mix):
            walked = list(self._walk(layer, matrix, mix, kept=True))
            terms = sum(count for _, count in walked)
            pieces = [factors for factors, _ in walked]
            del walked  # so that merging can let go of one after the other
            self._kept[layer, matrix] = (merged(pieces), terms)

    def _walk(
        self, layer: str, matrix: OutputMatrix, mix: Mix, *, kept: bool = False
    ) -> Iterator[tuple[Factors, float]]:
        """The factors of each batch and the weight of its loss terms."""
        total = 0.0
        for batch in self.problem.batches(own=kept):
            seen = capture(self.problem, batch, [layer])
            if mix.residual and not self._vanishes(layer, seen, batch):
                rule = f"the network behind layer {layer!r} is not piecewise linear"
                raise UnsupportedLayer("layers", rule)
            loss = self.problem.loss_at(seen.output, batch)
            total += loss.weight
            yield factors_of(seen, layer, root(matrix, loss, seen.output, batch.index)), loss.weight
        if total == 0:
            raise CurvescopeError("Problem(data)", "no target counts (all are ignored)")

    # Whether -------------------------------------------------------------------------------------

    def part(self, space: ParamSpace) -> Part | None:
        """The layer that a space belongs to."""
        if space.names not in self._parts:
            self._parts[space.names] = part_of(self.problem, space)
        return self._parts[space.names]

    def applies(self, part: Part, mix: Mix) -> bool:
        """Whether the closed form is exact for this block, and cheaper than differentiating."""
        if not mix.outputs:
            return False
        sizes = [self._size(part.layer, matrix) for matrix, _ in mix.outputs]
        if any(s is None or not s.worthwhile for s in sizes):
            return False
        if mix.residual and not self._vanishing.get(part.layer):
            few = first_samples(next(iter(self.problem.data)))
            self._vanishes(part.layer, capture(self.problem, few, [part.layer]), few)
        return not mix.residual or all(list(self._vanishing[part.layer].values()))

    def _size(self, layer: str, matrix: OutputMatrix) -> Sizes | None:
        """The shape of the record, tried out on a few samples; None if there can be none."""
        key = (layer, matrix)
        if key not in self._sizes:
            batch = next(iter(self.problem.data))
            few = first_samples(batch)
            try:
                check_samples(self.problem, batch, [layer])
                seen = capture(self.problem, few, [layer])
                loss = self.problem.loss_at(seen.output, few)
                directions = root(matrix, loss, seen.output, few.index)
                self._samples[layer] = seen.samples
                self._sizes[key] = Sizes.of(seen, layer, directions)
            except UnsupportedLayer:
                self._sizes[key] = None
        return self._sizes[key]

    def _vanishes(self, layer: str, seen: Capture, batch: Batch) -> bool:
        """Whether the residual part ``E`` has nothing to propagate behind the layer.

        Decided by pushing a tangent of the layer through the recorded backward pass: gates (ReLU,
        max-pooling) stop it, whatever the numbers. One trial serves all batches that run the same
        operations.
        """
        known = self._vanishing.setdefault(layer, {})
        if seen.operations not in known:
            own = self.problem.restrict(layer)
            try:
                tape = TapeBatch(own, first_samples(batch))
                tape.record_backward(torch.ones_like(tape.output), second_order=True)
                tangents = {n: p.detach()[None] for n, p in own.variables().items()}
                known[seen.operations] = not tape.product(Mix(1.0, ()), tangents)
            except Untraceable:
                known[seen.operations] = False
        return known[seen.operations]

    # Memory --------------------------------------------------------------------------------------

    def footprint(self, layer: str, mix: Mix) -> Footprint:
        """What keeping would take, from the shapes of the record."""
        sizes = [self._size(layer, matrix) for matrix, _ in mix.outputs]
        numbers = sum(s.numbers for s in sizes if s is not None)
        # Inputs of different first dimensions were not cut, so all samples have been seen.
        samples = samples_given(next(iter(self.problem.data))) or self._samples[layer]
        item = torch.empty(0, dtype=self.problem.dtype).element_size()
        free = memory.free(self.problem.device)
        return Footprint(samples * numbers * item, self.problem.data.length, free)

    def _fits(self, layer: str, mix: Mix) -> bool:
        if all((layer, matrix) in self._kept for matrix, _ in mix.outputs):
            return True
        footprint = self.footprint(layer, mix)
        total = footprint.total_bytes
        return total is not None and total <= SHARE * footprint.free_bytes


class LayerRoot(LinearOperator):
    """``R: [r, P]`` with a row for each sample and output direction, so that a block is ``Rᵀ R``.

    ``R Rᵀ`` has the same eigenvalues; where there are fewer rows than parameters its eigenvectors
    ``u`` are shorter, and those of the block are ``Rᵀ u``. A product with ``R`` costs half of one
    with the block.
    """

    def __init__(
        self,
        problem: Problem,
        mix: Mix,
        part: Part,
        pieces: list[Factors],
        size: int,
        scale: float,
    ) -> None:
        self._rows = [piece.rows for piece in pieces]
        shape = (sum(self._rows), size)
        super().__init__(shape, dtype=problem.dtype, device=problem.device)
        self._problem, self._mix, self._part = problem, mix, part
        self._pieces, self._scale = pieces, scale

    def _matmat(self, X: Tensor) -> Tensor:
        self._problem.check_unchanged()
        rows = self._part.enter(X.T.contiguous())
        return torch.cat([p.push(rows, self._part) for p in self._pieces], 1).mul_(self._scale).T

    def _decided_by(self) -> tuple[object, ...]:
        return "root", self._problem.identity_in_order, self._mix, self._part

    def gather(self, Y: Tensor) -> Tensor:
        """``Rᵀ Y`` in fewer numbers where the layer has constant inputs, as rows ``[k, q]``."""
        if len(self._pieces) > 1:
            return self._rmatmat(Y).T
        self._problem.check_unchanged()
        return self._pieces[0].gather(Y.T, self._part).mul_(self._scale)

    def scatter(self, gathered: Tensor) -> Tensor:
        """``Rᵀ Y: [P, k]`` from what was gathered, or of a combination of its rows."""
        if len(self._pieces) > 1:
            return gathered.T
        return self._part.leave(self._pieces[0].scatter(gathered, self._part)).T

    def spread(self, gathered: Tensor) -> Tensor:
        """``R Rᵀ Y: [r, k]`` from what was gathered."""
        if len(self._pieces) > 1:
            return self._matmat(gathered.T)
        return self._pieces[0].spread(gathered, self._part).mul_(self._scale).T

    def _rmatmat(self, Y: Tensor) -> Tensor:
        self._problem.check_unchanged()
        parts = zip(self._pieces, Y.T.split(self._rows, 1), strict=True)
        total = sum(piece.pull(u, self._part) for piece, u in parts)
        assert isinstance(total, Tensor)
        return self._part.leave(total.mul_(self._scale)).T


def layers_of(problem: Problem) -> LayerSweep:
    """The one layer sweep of a problem."""
    return problem.companion(LayerSweep)
