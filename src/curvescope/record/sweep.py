"""A sweep over the data: which batches are kept linearized, how many columns go at once.

Linearizing a batch costs about one gradient, and applying it about one more. A lone product
therefore streams: each batch is linearized, applied and dropped, with the memory of one batch.
For many products the linearized batches are kept when they fit into half of the free memory, and a
product costs only the application. Whoever is going to take many asks for a plan first, which is
decided once, so that products do not depend on how many were made before; from the second lone
product on a plan is made unasked.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from curvescope import _checks
from curvescope._state import tuned_kernels
from curvescope.errors import CurvescopeError, MemoryLimitError
from curvescope.problem.batches import Batch
from curvescope.problem.params import ParamSpace
from curvescope.problem.problem import Problem
from curvescope.record import memory
from curvescope.record.batch import Columns, GraphBatch, LinearizedBatch, TapeBatch
from curvescope.record.cuda import CapturedProducts
from curvescope.record.diagnosis import explain_failure
from curvescope.record.outputs import Mix
from curvescope.record.rules import Untraceable

log = logging.getLogger("curvescope")

Kept = tuple[LinearizedBatch, ...]

SHARE = 0.5  # of the free memory that kept batches, or the columns of one product, may take
COLUMNS_BYTES = 36 << 20  # on the CPU, tangents that leave the last cache cost more than they save


@dataclass(frozen=True)
class Options:
    """How products are made; see :class:`curvescope.operators.curvature.Curvature`."""

    keep: str | bool = "auto"
    columns: int | None = None
    cuda_graph: bool = False

    def check(self, where: str, problem: Problem) -> None:
        """Refuse options that do not fit each other or the problem."""
        if self.keep not in ("auto", True, False):
            rule = "`keep` must be 'auto', True or False"
            raise CurvescopeError(where, rule, given=repr(self.keep))
        if self.columns is not None:
            _checks.positive_int(where, "columns", self.columns)
        if not self.cuda_graph:
            return
        if problem.device.type != "cuda" or self.keep is not True:
            rule = "`cuda_graph=True` needs a model on a CUDA device and `keep=True`"
            raise CurvescopeError(where, rule)
        if not problem.loss.closed_form:
            rule = "`cuda_graph=True` needs a loss in closed form"
            raise CurvescopeError(where, rule, given="a callable")


@dataclass(frozen=True)
class Footprint:
    """What keeping the linearization of all batches takes."""

    batch_bytes: int
    batches: int | None
    free_bytes: int

    @property
    def total_bytes(self) -> int | None:
        """Bytes for all batches, or None if their number is not known beforehand."""
        return None if self.batches is None else self.batch_bytes * self.batches

    def __str__(self) -> str:
        total = "unknown" if self.total_bytes is None else memory.readable(self.total_bytes)
        return (
            f"{total} for {self.batches} batches of {memory.readable(self.batch_bytes)}, "
            f"{memory.readable(self.free_bytes)} free"
        )


class Sweep:
    """The linearized batches of a problem, shared by all operators on it."""

    def __init__(self, problem: Problem) -> None:
        self._problem = weakref.ref(problem)  # weakly, so that both go at once, without a cycle
        self._graphs = CapturedProducts()
        self._kept: Kept = ()  # replaced as a whole: threads share it
        self._keeping = threading.Lock()  # held by the thread that fills what is kept
        self._streams: set[bool] = set()  # the orders that were found not to fit
        self._products = 0
        self._engine = "tape"
        self._said = False

    @property
    def problem(self) -> Problem:
        """The problem that this sweep belongs to."""
        problem = self._problem()
        assert problem is not None, "operators hold their problem"
        return problem

    # Linearizing --------------------------------------------------------------------------------

    def _linearize(self, batch: Batch, *, second_order: bool, kept: bool = True) -> LinearizedBatch:
        """A batch ready for products, many of them if it is ``kept``."""
        if self._engine == "tape":
            tape = TapeBatch(self.problem, batch)
            u = None if second_order else torch.ones_like(tape.output)
            tape.record_backward(u, second_order=second_order)
            if kept:
                tape.condense()
            return tape
        with explain_failure(self.problem, batch):
            return GraphBatch(self.problem, batch)

    def _give_up_tape(self, reason: str) -> None:
        self._engine = "graph"
        if not self._said:
            self._said = True
            log.warning(
                "the model is differentiated by autograd graphs, which is slower: %s", reason
            )

    def footprint(self, *, second_order: bool = True) -> Footprint:
        """What keeping would take, measured on the first batch."""
        return self._footprint(self._first(next(iter(self.problem.data)), second_order))

    def _first(self, batch: Batch, second_order: bool) -> LinearizedBatch:
        """The first batch, by the engine that it can be linearized with."""
        try:
            return self._linearize(batch, second_order=second_order)
        except Untraceable as reason:
            self._give_up_tape(str(reason))
            return self._linearize(batch, second_order=second_order)

    def _footprint(self, first: LinearizedBatch) -> Footprint:
        return Footprint(
            self._bytes(first), self.problem.data.length, memory.free(self.problem.device)
        )

    def _bytes(self, batch: LinearizedBatch) -> int:
        own = {memory.address(p) for p in self.problem.model.parameters()}
        with self._rerun(batch):
            tensors = batch.residuals()
        return memory.size(t for t in tensors if memory.address(t) not in own)

    # Products -----------------------------------------------------------------------------------

    def product(self, mix: Mix, space: ParamSpace, X: Tensor, how: Options) -> Tensor:
        """``[P, k]`` to ``[P, k]``: the weighted mean over all terms."""
        self.problem.check_unchanged()
        rows = X.T.contiguous()
        try:
            total, weight = self._pass(mix, space, rows, how)
        except Untraceable as reason:  # a step without a derivative shows only when it is applied
            self._give_up_tape(str(reason))
            self.release()
            total, weight = self._pass(mix, space, rows, how)
        self._products += 1
        if weight == 0:
            raise _nothing()
        return total.div_(weight).T

    def quadratic(self, mix: Mix, space: ParamSpace, X: Tensor, how: Options) -> Tensor | None:
        """``xᵀ Jᵀ B J x`` for the columns of ``[P, k]``, without backward passes.

        Kept batches are used where there are any, and none are kept for this. None where the model
        has no tape.
        """
        self.problem.check_unchanged()
        rows = X.T.contiguous()
        total = torch.zeros(rows.shape[0], dtype=torch.float64, device=rows.device)
        weight = 0.0
        try:
            for tape in self._kept or self._forward_tapes():
                if not isinstance(tape, TapeBatch):
                    return None
                size = how.columns or self._forward_chunk(tape, space)
                for piece, out in zip(rows.split(size), total.split(size), strict=True):
                    out += tape.quadratic(mix, space.columns(piece))
                weight += tape.weight
        except Untraceable as reason:
            self._give_up_tape(str(reason))
            return None
        if weight == 0:
            raise _nothing()
        return total / weight

    def _forward_tapes(self) -> Iterator[LinearizedBatch | None]:
        """Batches recorded forwards only, one at a time; None for another engine."""
        if self._engine != "tape":
            yield None
            return
        for batch in self.problem.batches():
            yield TapeBatch(self.problem, batch)

    def _forward_chunk(self, tape: TapeBatch, space: ParamSpace) -> int:
        return self._columns_for(tape.push_width(space.names), convolves=tape.convolves)

    def _pass(
        self, mix: Mix, space: ParamSpace, rows: Tensor, how: Options
    ) -> tuple[Tensor, float]:
        second_order = mix.residual != 0.0
        if how.keep is False:
            return self._stream(mix, space, rows, how.columns)
        alone = how.keep == "auto" and self._products == 0
        kept = self._suitable(second_order)
        if not kept and not alone:
            kept = self._keep_all(how.keep, second_order)
        if not kept:
            return self._stream(mix, space, rows, how.columns)
        if how.cuda_graph:
            return self._replayed(kept, mix, space, rows, how)
        with tuned_kernels(self.problem.device):
            return self._apply_kept(kept, mix, space, rows, how.columns)

    def _apply_kept(
        self, kept: Kept, mix: Mix, space: ParamSpace, rows: Tensor, columns: int | None
    ) -> tuple[Tensor, float]:
        total = torch.empty_like(rows)
        for i, batch in enumerate(kept):
            self._accumulate(batch, mix, space, rows, total, columns, write=i == 0)
        return total, sum(batch.weight for batch in kept)

    def _replayed(
        self, kept: Kept, mix: Mix, space: ParamSpace, rows: Tensor, how: Options
    ) -> tuple[Tensor, float]:
        columns = how.columns or self._chunk(kept[0], mix, space)

        def apply(rows: Tensor) -> Tensor:
            with tuned_kernels(self.problem.device):
                return self._apply_kept(kept, mix, space, rows, columns)[0]

        key = (mix, space.names, rows.shape[0], columns)
        return self._graphs.product(key, apply, rows), sum(batch.weight for batch in kept)

    def _suitable(self, second_order: bool) -> Kept:
        """The kept batches, if there are any that serve this product."""
        kept = self._kept
        return kept if not second_order or all(batch.second_order for batch in kept) else ()

    def plan(self, keep: str | bool, *, second_order: bool) -> str:
        """Decide how the products to come are made, once, and keep what they need."""
        if keep is False:
            return "streamed"
        self.problem.check_unchanged()
        try:
            kept = self._suitable(second_order) or self._keep_all(keep, second_order)
        except Untraceable as reason:  # in a later batch
            self._give_up_tape(str(reason))
            self.release()
            kept = self._keep_all(keep, second_order)
        return "kept" if kept else "streamed"

    def _keep_all(self, keep: str | bool, second_order: bool) -> Kept:
        """All batches linearized if they fit, none otherwise, which is found out once.

        One thread at a time does it. The others do not wait for it, since reading the data may
        need a lock that somebody holds who waits for them: they stream.
        """
        if keep == "auto" and second_order in self._streams:
            return ()
        if not self._keeping.acquire(blocking=False):
            return ()
        try:
            return self._suitable(second_order) or self._linearize_all(keep, second_order)
        finally:
            self._keeping.release()

    def _linearize_all(self, keep: str | bool, second_order: bool) -> Kept:
        batches = self.problem.batches(own=True)
        first = self._first(next(batches), second_order)
        footprint = self._footprint(first)
        total = footprint.total_bytes
        if total is None or total > SHARE * footprint.free_bytes:
            if keep is True:
                rule = f"the linearization does not fit into half of the free memory ({footprint})"
                raise MemoryLimitError("keep=True", rule, remedy="use `keep=False` or less data")
            log.info("streaming, the linearization does not fit: %s", footprint)
            self._streams.add(second_order)
            return ()
        log.info("keeping the linearization: %s", footprint)
        self.release()
        rest = (self._linearize(batch, second_order=second_order) for batch in batches)
        self._kept = kept = (first, *rest)
        return kept

    def _stream(
        self, mix: Mix, space: ParamSpace, rows: Tensor, columns: int | None
    ) -> tuple[Tensor, float]:
        total = torch.zeros_like(rows)
        weight = 0.0
        for batch in self.problem.batches():
            if mix.residual == 0.0 and self._engine == "tape":
                weight += self._stream_pull_back(batch, mix, space, rows, total, columns)
                continue
            linearized = self._linearize(batch, second_order=mix.residual != 0.0, kept=False)
            self._accumulate(linearized, mix, space, rows, total, columns)
            weight += linearized.weight
        return total, weight

    def _stream_pull_back(
        self, batch: Batch, mix: Mix, space: ParamSpace, rows: Tensor, total: Tensor,
        columns: int | None,
    ) -> float:  # fmt: skip
        """A Gauss–Newton product on a batch that is used once.

        The backward pass of the first column is autograd's own; it is recorded only if there are
        more columns to come.
        """
        tape = TapeBatch(self.problem, batch)
        first = space.columns(rows[:1])
        u = tape.middle(mix, tape.push_forward(first))[0]
        if rows.shape[0] == 1:
            pulled = tape.pull_back(u)
        else:
            pulled = tape.record_backward(u, second_order=False)
        _add(total[:1], space, {n: pulled[n][None] for n in first if n in pulled})
        if rows.shape[0] > 1:
            self._accumulate(tape, mix, space, rows[1:], total[1:], columns)
        return tape.weight

    def _accumulate(
        self, batch: LinearizedBatch, mix: Mix, space: ParamSpace, rows: Tensor, total: Tensor,
        columns: int | None, *, write: bool = False,
    ) -> None:  # fmt: skip
        """Add one batch's products, in chunks of columns, or ``write`` them over what is there."""
        size = columns or (1 if rows.shape[0] == 1 else self._chunk(batch, mix, space))
        for start in range(0, rows.shape[0], size):
            piece = slice(start, start + size)
            with explain_failure(self.problem, None), self._rerun(batch):
                result = batch.product(mix, space.columns(rows[piece]))
            _add(total[piece], space, result, write=write)

    def _rerun(self, batch: LinearizedBatch) -> AbstractContextManager[None]:
        """The model as it was, for graphs in which a checkpoint runs its forward pass again."""
        return self.problem.evaluation() if isinstance(batch, GraphBatch) else nullcontext()

    def _chunk(self, batch: LinearizedBatch, mix: Mix, space: ParamSpace) -> int:
        """Columns at once: as many as pay, within the memory that is free."""
        if isinstance(batch, GraphBatch):
            return 1 << 30  # goes column by column by itself
        convolves = isinstance(batch, TapeBatch) and batch.convolves
        return self._columns_for(batch.width(mix, space.names), convolves=convolves)

    def _columns_for(self, width: int, *, convolves: bool) -> int:
        """How many columns of ``width`` numbers each go together."""
        item = torch.empty(0, dtype=self.problem.dtype).element_size()
        width = max(1, width * item)
        if self.problem.device.type == "cpu":
            # a power of two, within the last cache
            return 1 if convolves else 1 << max(0, (COLUMNS_BYTES // width).bit_length() - 1)
        return max(1, int(SHARE * memory.free(self.problem.device)) // width)

    def release(self) -> None:
        """Forget the kept batches."""
        self._kept = ()
        self._graphs.clear()


def _nothing() -> CurvescopeError:
    return CurvescopeError("Problem(data)", "no target counts (all are ignored)")


def _add(total: Tensor, space: ParamSpace, result: Columns, *, write: bool = False) -> None:
    if write:
        for name in space.names:
            target = total[:, space.slice(name)]
            if name in result:
                target.copy_(result[name].reshape(target.shape))
            else:
                target.zero_()
        return
    for name, piece in result.items():
        target = total[:, space.slice(name)]
        target.add_(piece.reshape(target.shape))


def sweep_of(problem: Problem) -> Sweep:
    """The one sweep of a problem."""
    return problem.companion(Sweep)
