"""The engine of a problem: it makes every product, by the strategy that its plan names.

An operator either keeps what its products need or streams. Its options say which: how many products
were made before, and by whom, does not matter. What is kept belongs to the problem, so that all
operators on it share it, and goes with the problem or when somebody releases it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from curvescope.engine import cost, kept, streamed
from curvescope.engine.captured import CapturedProducts
from curvescope.engine.closed_form import ClosedForm, Scaled, Sums
from curvescope.engine.linearize import SHARE, Linearizer, add_product, group
from curvescope.engine.matrix import DEPTHS, Depth, Matrix, Options
from curvescope.engine.plan import Plan
from curvescope.engine.squeeze import Part
from curvescope.errors import MemoryLimitError
from curvescope.problem.problem import Problem
from curvescope.ranks.traffic import all_reduce
from curvescope.record import memory
from curvescope.record.rules import Untraceable
from curvescope.record.samples import first_samples
from curvescope.record.selection import UnsupportedLayer

T = TypeVar("T")


class Engine:
    """Products with the curvature matrices of one problem; ``problem.companion(Engine)``."""

    def __init__(self, problem: Problem | None, linearizer: Linearizer | None = None) -> None:
        self._linearizer = linearizer or Linearizer()
        self._batches = kept.KeptBatches(self._linearizer)
        self._closed = ClosedForm()
        self._graphs = CapturedProducts()

    def renewed(self) -> Engine:
        """An engine for other weights: it knows what can be recorded and what fits, no more."""
        return Engine(None, self._linearizer)

    # Products -----------------------------------------------------------------------------------

    def product(self, matrix: Matrix, rows: Tensor, how: Options) -> Tensor:
        """``[k, P]`` to ``[k, P]``: the weighted mean over all terms, one collective in a group."""
        return matrix.problem.mean_(*self._sums(matrix, rows, how))

    def share(self, matrix: Matrix, rows: Tensor, how: Options) -> Tensor:
        """This rank's share of a product: those of all ranks add up to it."""
        return matrix.problem.share_(*self._sums(matrix, rows, how))

    def _sums(self, matrix: Matrix, rows: Tensor, how: Options) -> Sums:
        """The sum over this rank's terms, and their weight."""
        problem = matrix.problem
        with problem.group.together():
            problem.check_unchanged()
            return self._trying(matrix, lambda: self._product(matrix, rows, how))

    def _product(self, matrix: Matrix, rows: Tensor, how: Options) -> Sums:
        if self._in_closed_form(matrix, how, len(rows)):
            scaled = self._recorded(matrix) if how.keep is True else []
            if not scaled:
                return self._closed.stream(matrix, rows, how.columns)
            apply = partial(self._closed.product, scaled, matrix)
            total = self._captured("closed form", apply, matrix, rows, how)
            return total, self._closed.weight(matrix)
        batches = self._linearized(matrix) if how.keep is True else ()
        depth = matrix.depth if batches else matrix.streamed_depth(len(rows))
        with self._linearizer.trying(depth):
            if batches and how.cuda_graph:
                return self._replayed(batches, matrix, rows, how)
            if batches:
                return kept.product(batches, matrix, rows, how.columns)
            return streamed.product(self._linearizer, matrix, rows, how.columns)

    def _in_closed_form(self, matrix: Matrix, how: Options, columns: int) -> bool:
        """Recording ``K`` directions pays for many products, or for ``K`` columns at least."""
        if not self._closed.applies(matrix):
            return False
        return how.keep is True or columns >= self._closed.directions(matrix)

    def _replayed(self, batches: kept.Batches, matrix: Matrix, rows: Tensor, how: Options) -> Sums:
        how = replace(how, columns=how.columns or group(batches[0], matrix))

        def apply(rows: Tensor, columns: int | None) -> Tensor:
            return kept.product(batches, matrix, rows, columns)[0]

        total = self._captured("tape", apply, matrix, rows, how)
        return total, sum(batch.weight for batch in batches)

    def _captured(
        self, strategy: str, apply: Callable[[Tensor, int | None], Tensor], matrix: Matrix,
        rows: Tensor, how: Options,
    ) -> Tensor:  # fmt: skip
        """``apply`` as it is, or replayed as a graph."""
        if not how.cuda_graph:
            return apply(rows, how.columns)
        key = (strategy, matrix.mix, matrix.space.names, len(rows), how.columns)
        return self._graphs.product(key, lambda rows: apply(rows, how.columns), rows)

    def forms(self, matrix: Matrix, rows: Tensor, how: Options) -> Tensor:
        """``xᵀ A x`` for the rows, ``[k]``, in float64; for ``Jᵀ B J`` without backward passes."""
        problem = matrix.problem
        with problem.group.together():
            problem.check_unchanged()
            total, weight = self._trying(matrix, lambda: self._forms(matrix, rows, how))
        return problem.mean_(total, weight)

    def _forms(self, matrix: Matrix, rows: Tensor, how: Options) -> Sums:
        keeps = how.keep is True
        depth: Depth = matrix.depth if keeps else "forward"
        closed = keeps and self._closed.applies(matrix)
        if matrix.second_order or closed or not self._linearizer.tapes(depth):
            total, weight = self._product(matrix, rows, how)
            return (rows.double() * total).sum(1), weight
        batches = self._linearized(matrix) if keeps else ()
        with self._linearizer.trying(depth if batches else "forward"):
            if batches and self._linearizer.tapes(depth):
                return kept.forms(batches, matrix, rows, how.columns)
            return streamed.forms(matrix, rows, how.columns)

    def _trying(self, matrix: Matrix, act: Callable[[], T]) -> T:
        """``act()``, anew where a strategy turns out not to apply: the next one takes its place."""
        for _ in range(1 + len(DEPTHS)):
            try:
                return act()
            except UnsupportedLayer:  # a later batch took another path through the model
                self._closed.rule_out(matrix)
            except Untraceable:  # noted where it happened: graphs take the place of tapes
                self._let_batches_go()
        return act()

    # Keeping ------------------------------------------------------------------------------------

    def keep(self, matrix: Matrix, how: Options) -> bool:
        """Keep what products need, as far as the options and the memory allow; whether it is."""
        if how.keep is False:
            return False
        allowed = _must_fit if how.keep is True else _fits
        return self._agreed(
            matrix, lambda: self._hold(matrix, self._closed.applies(matrix), allowed)
        )

    def _agreed(self, matrix: Matrix, hold: Callable[[], bool]) -> bool:
        """Whether what is to be kept is, on every rank; else nothing is."""
        ranks = matrix.problem.group
        with ranks.together():
            matrix.problem.check_unchanged()
            kept_here = self._trying(matrix, hold)
        agreed = ranks.agree(kept_here)
        if kept_here and not agreed:
            self.release()
        return agreed

    def _linearized(self, matrix: Matrix) -> kept.Batches:
        """What is kept for an operator that keeps; none while another thread fills it."""
        if not self._batches.serving(matrix):
            self._hold(matrix, False, _must_fit)
        return self._batches.serving(matrix)

    def _recorded(self, matrix: Matrix) -> Scaled:
        """The same for the closed form."""
        if not self._closed.serving(matrix):
            self._hold(matrix, True, _must_fit)
        return self._closed.serving(matrix)

    def _hold(
        self, matrix: Matrix, closed: bool, allowed: Callable[[Matrix, int | None, int], bool]
    ) -> bool:
        if closed:
            return self._closed.fill(matrix, lambda needed: allowed(matrix, needed, 0))

        serves = bool(self._batches.serving(matrix))
        if not serves and streamed.samples_at_once(self._linearizer, matrix) is not None:
            return allowed(matrix, self._needed(matrix), 0)  # not even one product fits

        def fits(needed: int | None) -> bool:
            return allowed(matrix, needed, self._batches.replaceable(matrix))

        return self._batches.fill(matrix, fits, self._graphs.clear)

    def root(self, matrix: Matrix, how: Options) -> tuple[Part, Scaled] | None:
        """The layer and the factors of ``Σ Rᵀ R``, where the matrix has such a form to keep."""
        outputs = matrix.mix.outputs
        if len(outputs) != 1 or outputs[0][1] < 0 or how.keep is False:
            return None
        part = self._closed.part(matrix)
        if part is None or not self._agreed(matrix, lambda: self._holds_root(matrix)):
            return None
        return part, self._closed.serving(matrix)

    def _holds_root(self, matrix: Matrix) -> bool:
        if not self._closed.applies(matrix) or not self._hold(matrix, True, _fits):
            return False
        return bool(self._closed.serving(matrix))

    def weight(self, matrix: Matrix) -> float:
        """The weight of the terms that the factors of :meth:`root` belong to."""
        return self._closed.weight(matrix)

    def release(self) -> None:
        """Let everything go that is kept."""
        self._let_batches_go()
        self._closed.release()

    def _let_batches_go(self) -> None:
        self._graphs.clear()  # they read the memory of what was kept
        self._batches.release()

    # The plan -----------------------------------------------------------------------------------

    def plan(self, matrix: Matrix, how: Options) -> Plan:
        """What products do; costs about a gradient on the first batch."""
        matrix.problem.check_unchanged()
        return self._trying(matrix, lambda: self._plan(matrix, how))

    def _plan(self, matrix: Matrix, how: Options) -> Plan:
        if self._closed.applies(matrix):
            serves, held, spare = bool(self._closed.serving(matrix)), self._closed.bytes(matrix), 0
            needed = self._closed.needed(matrix)
        else:
            needed, spare = self._needed(matrix), self._batches.replaceable(matrix)
            batches = self._batches.serving(matrix)
            serves, held = bool(batches), self._batches.bytes(matrix.problem, batches)
        plan = Plan("", "", needed=needed, held=held, free=memory.free(matrix.problem.device))
        ranks, item = matrix.problem.group.size, torch.finfo(matrix.problem.dtype).bits // 8
        shared = replace(plan, ranks=ranks, sent=all_reduce(ranks, matrix.space.size * item))
        if how.keep != "auto":
            return self._filled(shared, matrix, how, f"keep={how.keep}")
        lone = self._filled(
            shared, matrix, replace(how, keep=False), "a lone product keeps nothing"
        )
        keep, reason = _decided(serves, _fits(matrix, needed, spare), needed)
        return replace(lone, many=self._filled(plan, matrix, replace(how, keep=keep), reason))

    def _needed(self, matrix: Matrix) -> int | None:
        """Bytes that keeping takes; no batch is recorded that does not even fit for one product."""
        if streamed.samples_at_once(self._linearizer, matrix) is None:
            return self._linearizer.needed(matrix)
        count, whole = (
            matrix.problem.data.length,
            streamed.peak(self._linearizer, matrix, cut=False),
        )
        return None if count is None or whole is None else count * whole

    def _filled(self, plan: Plan, matrix: Matrix, how: Options, reason: str) -> Plan:
        """The plan with the strategy of a product with one column."""
        closed = self._in_closed_form(matrix, how, 1)
        if not closed and self._closed.applies(matrix):
            reason += f"; {self._closed.directions(matrix)} columns or more go in closed form"
        depth = matrix.depth if how.keep else matrix.streamed_depth(1)
        tapes = self._linearizer.tapes(depth)
        if not closed and not tapes:
            reason += f"; no tape: {self._linearizer.why(depth)}"
        pushes = not how.keep and self._linearizer.pushes(depth)
        by = "tangents" if pushes else "tape" if tapes else "autograd graphs"
        by = "closed form" if closed else by
        strategy = f"{'kept' if how.keep else 'streamed'} {by}"
        if how.cuda_graph:
            strategy += " as a captured graph"
        columns = how.columns if closed else self._group(matrix, how)
        gradients = self._cost(matrix, closed=closed, keeps=how.keep is True)
        plan = replace(plan, strategy=strategy, reason=reason, columns=columns, gradients=gradients)
        if closed or how.keep or not tapes:
            return plan
        samples = streamed.samples_at_once(self._linearizer, matrix)
        return replace(plan, peak=streamed.peak(self._linearizer, matrix), samples=samples)

    def _group(self, matrix: Matrix, how: Options) -> int:
        if how.columns is not None:
            return how.columns
        problem = matrix.problem
        if not self._linearizer.tapes(matrix.depth):
            return 1
        batches = self._batches.serving(matrix)
        if batches:
            batch = batches[0]
        else:
            first = next(iter(problem.data))
            size = streamed.samples_at_once(self._linearizer, matrix)
            first = first if size is None else first_samples(first, size)
            batch = self._linearizer.first(problem, first, matrix.depth)
        return min(group(batch, matrix), matrix.space.size)

    def _cost(self, matrix: Matrix, *, closed: bool, keeps: bool) -> float | None:
        """Of one column, counted on a few samples."""
        problem = matrix.problem
        few = first_samples(next(iter(problem.data)))
        row = torch.ones(1, matrix.space.size, dtype=problem.dtype, device=problem.device)
        total = torch.zeros_like(row)
        if closed:
            act = self._closed.trial(matrix, few, row, keep=keeps)
        elif keeps:
            batch = self._linearizer.linearize(problem, few, depth=matrix.depth, keep=True)
            act = partial(add_product, batch, matrix, row, total, None)
        else:
            act = partial(streamed.add_batch, self._linearizer, matrix, few, row, total, None)
        with self._linearizer.trying(matrix.depth if keeps else matrix.streamed_depth(1)):
            return cost.in_gradients(problem, few, act)


def _decided(serves: bool, fits: bool, needed: int | None) -> tuple[bool, str]:
    """Whether many products keep what they need, and why."""
    if serves:
        return True, "held already"
    if fits:
        return True, "fits into half of the free memory"
    if needed is None:
        return False, "the number of batches is not known beforehand"
    return False, "keeping does not fit into half of the free memory"


def _fits(matrix: Matrix, needed: int | None, held: int) -> bool:
    """Whether keeping takes at most half of what is free, or will be when ``held`` is let go."""
    free = memory.free(matrix.problem.device) + held
    return needed is not None and needed <= SHARE * free


def _must_fit(matrix: Matrix, needed: int | None, held: int) -> bool:
    if not _fits(matrix, needed, held):
        size = "an unknown number of batches" if needed is None else memory.readable(needed)
        free = memory.readable(memory.free(matrix.problem.device))
        rule = f"`keep=True` does not fit into half of the free memory ({size}, {free} free)"
        remedy = "use `keep=False` or less data"
        raise MemoryLimitError("products", rule, remedy=remedy)
    return True
