"""Batches ready for products, and one batch's share of a product.

Linearizing a batch costs about one gradient, and applying it about one more.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from curvescope._state import exclusive
from curvescope.engine.graph import GraphBatch
from curvescope.engine.matrix import DEPTHS, Depth, Matrix
from curvescope.problem.batches import Batch
from curvescope.problem.problem import Problem
from curvescope.record import memory
from curvescope.record.batch import LinearizedBatch, TapeBatch
from curvescope.record.diagnosis import explain_failure
from curvescope.record.rules import Untraceable

log = logging.getLogger("curvescope")

SHARE = 0.5  # of the free memory that what is kept, or the columns of one product, may take
COLUMNS_BYTES = 36 << 20  # on the CPU, tangents that leave the last cache cost more than they save
ALL = 1 << 30  # columns: no limit


class Linearizer:
    """Linearizes the batches of one problem: on tapes, or as graphs where a tape cannot be made.

    A tape is recorded to a depth: forwards only, backwards as a linear map of the cotangent (first
    order), or backwards with its own derivative (second order). Whether a model can be recorded is
    found out for each depth by itself, so that one matrix does not decide it for another.
    """

    def __init__(self) -> None:
        self._why: dict[Depth, str] = {}  # the depths that cannot be recorded
        self._recorded: set[Depth] = set()  # those to which single directions need a tape
        # By matrix: samples at once in a streamed product; None: whole batches.
        self.sizes: dict[tuple[bool, tuple[str, ...]], int | None] = {}
        self._bytes: dict[tuple[bool, Depth], int] = {}  # of the first batch

    def tapes(self, depth: Depth) -> bool:
        """Whether batches are recorded to this depth, as far as is known."""
        return depth not in self._why

    def pushes(self, depth: Depth) -> bool:
        """Whether a single direction can go through while a batch is computed."""
        return self.tapes(depth) and depth not in self._recorded

    def record_instead(self, depth: Depth) -> None:
        """Single directions take a tape from now on."""
        self._recorded.add(depth)

    def why(self, depth: Depth) -> str:
        """Why they are not."""
        return self._why[depth]

    @contextmanager
    def trying(self, depth: Depth) -> Iterator[None]:
        """Recording and playing; where that fails, it is given up for the next attempt."""
        try:
            yield
        except Untraceable as reason:
            if not self._why:
                log.warning(
                    "the model is differentiated by autograd graphs, which is slower: %s", reason
                )
            stopped = DEPTHS if depth == "forward" else (depth,)  # all begin with the forward
            for other in stopped:
                self._why.setdefault(other, str(reason))
            raise

    def linearize(
        self, problem: Problem, batch: Batch, *, depth: Depth, keep: bool
    ) -> LinearizedBatch:
        """A batch ready for products, many of them with ``keep``."""
        if self.tapes(depth):
            tape = TapeBatch(problem, batch)
            second_order = depth == "second order"
            u = None if second_order else torch.ones_like(tape.output)
            tape.record_backward(u, second_order=second_order)
            if keep:
                tape.condense()
            return tape
        with explain_failure(problem, batch):
            return GraphBatch(problem, batch)

    def first(self, problem: Problem, batch: Batch, depth: Depth) -> LinearizedBatch:
        """The first batch of those that are kept, by the way that can be taken."""
        try:
            with self.trying(depth):
                ready = self.linearize(problem, batch, depth=depth, keep=True)
        except Untraceable:
            ready = self.linearize(problem, batch, depth=depth, keep=True)
        self._bytes[self.tapes(depth), depth] = _size(problem, ready)
        return ready

    def measured(self, matrix: Matrix) -> bool:
        """Whether :meth:`needed` takes no pass any more."""
        return (self.tapes(matrix.depth), matrix.depth) in self._bytes

    def needed(self, matrix: Matrix) -> int | None:
        """Bytes that keeping all batches takes, None if their number is not known beforehand.

        Measured on the first batch, once, which costs about a gradient on it.
        """
        problem = matrix.problem
        if not self.measured(matrix):
            self.first(problem, next(iter(problem.data)), matrix.depth)
        count = problem.data.length
        return (
            None if count is None else count * self._bytes[self.tapes(matrix.depth), matrix.depth]
        )


def _size(problem: Problem, batch: LinearizedBatch) -> int:
    """Bytes that a batch holds besides the model's own."""
    with exclusive(problem.model):
        parameters = {memory.address(p) for p in problem.model.parameters()}
    with _rerun(problem, batch):
        tensors = batch.residuals()
    return memory.size(t for t in tensors if memory.address(t) not in parameters)


def held_by(problem: Problem, batches: Iterable[LinearizedBatch]) -> int:
    """Bytes that several batches hold besides the model's own."""
    return sum(_size(problem, batch) for batch in batches)


def add_product(
    batch: LinearizedBatch, matrix: Matrix, rows: Tensor, total: Tensor, columns: int | None,
    *, write: bool = False,
) -> None:  # fmt: skip
    """Add one batch's products, in groups of columns, or ``write`` them over what is there."""
    size = columns or (1 if len(rows) == 1 else group(batch, matrix))
    for piece, out in zip(rows.split(size), total.split(size), strict=True):
        with explain_failure(matrix.problem, None), _rerun(matrix.problem, batch):
            batch.product(matrix.mix, matrix.space, piece, out, write=write)


def _rerun(problem: Problem, batch: LinearizedBatch) -> AbstractContextManager[None]:
    """The model as it was, for graphs in which a checkpoint runs its forward pass again."""
    return problem.evaluation() if isinstance(batch, GraphBatch) else nullcontext()


def group(batch: LinearizedBatch, matrix: Matrix) -> int:
    """Columns at once: as many as pay, within the memory that is free."""
    if isinstance(batch, GraphBatch):
        return ALL  # goes column by column by itself
    convolves = isinstance(batch, TapeBatch) and batch.convolves
    return columns_for(matrix.problem, batch.width(matrix.mix, matrix.space), convolves=convolves)


def columns_for(problem: Problem, width: int, *, convolves: bool) -> int:
    """How many columns of ``width`` numbers each go together."""
    item = torch.empty(0, dtype=problem.dtype).element_size()
    width = max(1, width * item)
    if problem.device.type == "cpu":
        # a power of two, within the last cache
        return 1 if convolves else 1 << max(0, (COLUMNS_BYTES // width).bit_length() - 1)
    return max(1, int(SHARE * memory.free(problem.device)) // width)
