"""The kept strategy: all batches stay linearized, and a product costs only their application."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch import Tensor

from curvescope._state import tuned_kernels
from curvescope.engine.closed_form import Sums
from curvescope.engine.linearize import Linearizer, add_product, held_by
from curvescope.engine.matrix import DEPTHS, Depth, Matrix
from curvescope.engine.streamed import add_forms
from curvescope.problem.problem import Problem
from curvescope.record.batch import LinearizedBatch, TapeBatch

Batches = tuple[LinearizedBatch, ...]


class KeptBatches:
    """The linearized batches of a problem, shared by all operators on it.

    One set serves all matrices where it can: what a Hessian needs serves a Gauss–Newton matrix as
    well, with the same numbers to the last bit.
    """

    def __init__(self, linearizer: Linearizer) -> None:
        self._linearizer = linearizer
        self._sets: dict[Depth, Batches] = {}  # each replaced as a whole: threads share them
        self._filling = threading.Lock()  # held by the thread that fills

    def serving(self, matrix: Matrix) -> Batches:
        """What is kept, where the matrix can be multiplied with it; else none."""
        depth = matrix.depth
        for other in (depth, *DEPTHS):
            batches = self._sets.get(other, ())
            alike = self._linearizer.tapes(other) == self._linearizer.tapes(depth)
            if batches and alike and (batches[0].second_order or not matrix.second_order):
                return batches
        return ()

    def bytes(self, problem: Problem, batches: Batches | None = None) -> int:
        """What is held, by some batches or by all."""
        everything = [batch for batches in [*self._sets.values()] for batch in batches]
        return held_by(problem, everything if batches is None else batches)

    def fill(
        self, matrix: Matrix, allowed: Callable[[int | None], bool], replace: Callable[[], None]
    ) -> bool:
        """Keep all batches if that is ``allowed`` for the bytes that it takes; whether it is.

        One thread at a time does it. The others do not wait for it, since reading the data may
        need a lock that somebody holds who waits for them: they stream meanwhile. Batches of first
        order that a Hessian cannot use are let go, of which ``replace`` is told.
        """
        if self.serving(matrix):
            return True
        if not self._filling.acquire(blocking=False):
            return allowed(self._linearizer.needed(matrix))
        try:
            return bool(self.serving(matrix)) or self._fill(matrix, allowed, replace)
        finally:
            self._filling.release()

    def _fill(
        self, matrix: Matrix, allowed: Callable[[int | None], bool], replace: Callable[[], None]
    ) -> bool:
        problem, depth, linearizer = matrix.problem, matrix.depth, self._linearizer
        if linearizer.measured(matrix) and not allowed(linearizer.needed(matrix)):
            return False
        batches = problem.batches(copied=True)  # nobody else writes to what is kept
        with linearizer.trying(depth):
            first = linearizer.first(problem, next(batches), depth)
            if not allowed(linearizer.needed(matrix)):
                return False
            for other in self._replaced(matrix):
                self._sets.pop(other)
                replace()
            rest = (linearizer.linearize(problem, b, depth=depth, keep=True) for b in batches)
            self._sets[depth] = (first, *rest)
        return True

    def _replaced(self, matrix: Matrix) -> list[Depth]:
        """The sets that what is kept for a matrix makes superfluous."""
        tapes = self._linearizer.tapes
        return [other for other in self._sets if tapes(other) == tapes(matrix.depth)]

    def replaceable(self, matrix: Matrix) -> int:
        """The bytes that these hold."""
        problem, sets = matrix.problem, [self._sets[other] for other in self._replaced(matrix)]
        return sum(held_by(problem, batches) for batches in sets)

    def release(self) -> None:
        """Let the batches go."""
        self._sets = {}


def product(batches: Batches, matrix: Matrix, rows: Tensor, columns: int | None) -> Sums:
    """``[k, P]`` to ``[k, P]``."""
    total, weight = torch.empty_like(rows), 0.0
    with tuned_kernels(matrix.problem.device):
        for batch in batches:
            add_product(batch, matrix, rows, total, columns, write=batch is batches[0])
            weight += batch.weight
    return total, weight


def forms(batches: Batches, matrix: Matrix, rows: Tensor, columns: int | None) -> Sums:
    """``xᵀ Jᵀ B J x`` for the rows, ``[k]``, of batches that are tapes."""
    total, weight = torch.zeros(len(rows), dtype=torch.float64, device=rows.device), 0.0
    for tape in batches:
        assert isinstance(tape, TapeBatch)
        add_forms(tape, matrix, rows, total, columns)
        weight += tape.weight
    return total, weight
