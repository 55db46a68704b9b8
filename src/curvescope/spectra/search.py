"""The search for extreme eigenpairs, step by step, with a test for overlooked eigenvalues.

``k`` Ritz pairs can converge although an eigenvalue is better than the last of them, by more than
its tolerance. That happens in two ways, whose probabilities are bounded by ``overlook / 2`` each.

*Hidden.* The component of the start vector along an eigenvector is so small that no Ritz value is
near its eigenvalue yet. This is not rare: of two eigenvalues ``h`` apart, one stays hidden behind
a residual ``r`` in about ``2r / πh`` of all cases. The decomposition itself bounds this component
(:func:`curvescope.spectra.overlooked.hidden`), and the search goes on until the bound is met.

*Copies.* A Krylov space of one vector holds one direction of every eigenspace: copies of a repeated
eigenvalue stay invisible, however long it grows. Therefore a fresh random vector ``z``, orthogonal
to the whole basis, starts another Krylov space. A missed eigenvector ``u`` whose eigenvalue is
at or beyond ``x`` would show as a mass ``(uᵀz)²`` there in the spectral measure of ``z``. (Copies
of ``θ_1 … θ_{k−1}`` matter, one more of ``θ_k`` does not: ``x`` is ``θ_{k−1}`` less its tolerance,
or ``θ_k`` plus its own where that is further out.) No measure with the ``2s`` moments that ``s``
products reveal has more mass there than :func:`curvescope.spectra.overlooked.christoffel` says,
while ``z`` is uniform on a sphere of dimension ``N``, so that ``P[(uᵀz)² ≤ C] ≤ √(2 N C / π)``.
A missed pair that appears takes part in the search, the examination with ``z`` continues until the
bound is met, and another vector then examines the larger basis. As ``z`` is orthogonal to the
earlier basis and its pending directions, it has no component of a copy in their span: a copy that
grows out of rounding, or one in a cluster narrower than the tolerance. So weakly coupled directions
are multiplied before, for as long as they improve the pairs, and the others afterwards, until at
most a tenth of a copy can lie in them.

For outliers either test takes a few products. Inside a dense bulk it would take many: unless the
caller sets ``overlook``, it is stopped, or not begun, when the rate of decrease so far predicts too
many, and ``missed`` has the bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from curvescope.spectra.criterion import Criterion, Ritz
from curvescope.spectra.krylov import Krylov
from curvescope.spectra.overlooked import christoffel, hidden, inside, products_to

_ROUNDING = {torch.float64: 32, torch.float32: 10}
"""A bound on the rounding of a decomposition in units of ``eps · ‖A‖``: the largest seen in trials
at 200,000 dimensions are 19 and 5. It is less in float32, where long sums are in float64."""
_PROMISING = 6
"""The most products of a test for overlooked eigenvalues, predicted from its rate of decrease."""
_INSIDE = 0.1
"""The largest share ``‖Pu‖²`` of a copy ``u`` accepted in the span of the basis before ``z``."""


class Search:
    """One search; :meth:`step` multiplies up to ``block`` columns, or one while examining.

    Attributes that change from step to step must be numbers or tuples of numbers: all such are
    saved, and nothing else but the decomposition and the generator.
    """

    def __init__(
        self,
        krylov: Krylov,
        k: int,
        criterion: Criterion,
        *,
        block: int,
        overlook: float | None,
        generator: torch.Generator,
    ) -> None:
        self.krylov, self.k, self.criterion = krylov, k, criterion
        self.block, self.generator = block, generator
        self._overlook, self._insists = (1e-3, False) if overlook is None else (overlook, True)
        self.finished = False
        self.converged_pairs = 0  # at the last test
        self._copies = 1.0  # the bound for copies
        self._hidden = 1.0  # the bound for single eigenvalues
        self._wait = 0  # products until the next test
        self._origin = -1  # row of z while examining, else -1
        self._dimension = 0  # of the sphere on which z is uniform
        self._prior_rows = (0, 0, 0)  # rows of the basis before z: [0, first) and [second, third)
        self._share = 0.0  # bound on the share of a copy in their span
        self._reveals_missed = False  # whether a missed pair has appeared in this examination
        self._first = 1.0  # the bound for copies after the first product of the examination
        self._edges = (0.0, 0.0)  # goodness of a missed single eigenvalue, of a copy: see _score
        self._total = -math.inf  # the sum of the pairs at the last test
        self._tried = False  # whether weakly coupled directions were multiplied since then
        self._begun = (-1, 1.0)  # products and bound when the pairs converged, −1 before
        self._examined = self._overlook >= 1

    def step(self, room: int) -> None:
        """Take one step of at most ``room`` products."""
        if self._origin >= 0:
            self._examine()
            return
        krylov = self.krylov
        if krylov.pending == 0 and krylov.size == 0:
            krylov.inject(self.block, self.generator)
        elif krylov.pending == 0:  # an invariant subspace: only an examination can find more
            self._begin_examination()
            return
        if krylov.used + self.block > krylov.capacity < krylov.dimension:
            self._restart()
        before = krylov.products
        krylov.extend(min(self.block, room))
        self._wait -= krylov.products - before
        if krylov.size >= self.k and (self._wait <= 0 or krylov.pending == 0):
            self._test()

    def ritz(self, count: int | None = None) -> Ritz:
        """The best ``count`` Ritz pairs (default ``k``), from the float64 projected problem."""
        krylov = self.krylov
        values, vectors = krylov.space.same(*torch.linalg.eigh(krylov.projected))
        norm = float(values.abs().max()) if len(values) else 0.0
        best = self.criterion.order(values)[: self.k if count is None else count]
        values, vectors = values[best], vectors[:, best]
        eps = torch.finfo(krylov.basis.dtype).eps
        leading = torch.linalg.vector_norm(krylov.coupling @ vectors, dim=0)
        tolerance = self.criterion.tolerance(values, norm, eps)
        floor = krylov.dropped + _ROUNDING[krylov.basis.dtype] * eps * norm
        failing = (leading + floor > tolerance) & (leading > floor / 4)
        return Ritz(values, vectors, leading + floor, tolerance, failing)

    def _test(self) -> None:
        """Count the converged pairs; continue the search, examine, or finish."""
        ritz = self._score()
        if self.converged_pairs < self.k:
            # A product adds one dimension, so that many failing pairs need about as many of them.
            self._wait = max(1, (self.k - self.converged_pairs) // 2)
            self.krylov.favor(self.krylov.coupling @ ritz.vectors[:, ritz.failing])
        elif self._overlook < 1 and self._may_hide():
            self._wait = 1
        elif self._examined and self._may_be_inside():
            self._wait = 1
        elif self._examined or self._futile(ritz):
            self.finished = True
        elif self._tried or not self._lead_with_weak(10 * float(ritz.tolerance[-1])):
            self._begin_examination()

    def _score(self) -> Ritz:
        """The Ritz pairs; updates the converged count and the goodness of a missed eigenvalue."""
        ritz = self.ritz()
        self.converged_pairs = self.k - int(ritz.failing.sum())
        goodness = self.criterion.goodness(ritz.values)
        better, copies = goodness[-1] + ritz.tolerance[-1], (goodness - ritz.tolerance)[-2:][0]
        self._edges = (float(better), float(torch.maximum(better, copies)))
        if float(goodness.sum()) > self._total + float(ritz.tolerance[-1]):
            self._tried = False
        self._total = float(goodness.sum())
        return ritz

    def _restart(self) -> None:
        """Restart from the best ``k`` pairs and as many more as fill half of the remaining rows."""
        krylov = self.krylov
        spare = max(0, (krylov.capacity - krylov.pending - self.k) // 2)
        pairs = self.ritz(min(self.k + spare, krylov.size))
        krylov.restart(pairs.values, pairs.vectors)
        # The bound of an earlier examination is lost: the rows it refers to are recombined.
        self._prior_rows, self._share = (0, 0, 0), 1.0

    # What may be overlooked -----------------------------------------------------------------------

    @property
    def missed(self) -> float:
        """A bound on the probability that a better eigenvalue was overlooked."""
        if self._share >= 1.0:
            return 1.0
        return min(1.0, self._copies / math.sqrt(1.0 - self._share) + self._hidden)

    def _lead_with_weak(self, size: float) -> bool:
        """Make the pending direction of least coupling the next; False if that exceeds ``size``."""
        rows = torch.linalg.vector_norm(self.krylov.coupling, dim=1)
        if self.krylov.pending == 0 or float(rows.min()) > size:
            return False
        self.krylov.promote(int(rows.argmin()))
        self._tried, self._wait = True, 1
        return True

    def _may_hide(self) -> bool:
        """Whether a hidden eigenvalue is too probable and a few products would lower that."""
        krylov = self.krylov
        self._hidden = hidden(krylov, [side * self._edges[0] for side in self.criterion.sides])
        if krylov.pending == 0 or self._hidden <= self._overlook / 2:
            return False
        if krylov.used + self.block > krylov.capacity < krylov.dimension:
            return False
        products, first = self._begun
        if products < 0:
            self._begun = (krylov.products, self._hidden)
            return not self._out_of_reach(self._edges[0], self._hidden)
        return not self._hopeless(first, self._hidden, krylov.products - products)

    def _may_be_inside(self) -> bool:
        """Whether a copy may lie in the span of the earlier basis and products can exclude it.

        The part of a copy in this span is missing in ``z``, which raises the bound.
        """
        krylov, (before, begin, end) = self.krylov, self._prior_rows
        rows = torch.cat([torch.arange(before), torch.arange(begin, end)])
        if krylov.pending == 0 or begin == end:
            return False
        values = torch.linalg.eigvalsh(krylov.projected)
        best = self.criterion.order(values)[: self.k]
        points = [side * self._edges[1] for side in self.criterion.sides]
        share = max(inside(krylov, point, best, rows) for point in points)
        self._share = min(share, 1.0)
        full = krylov.used + self.block > krylov.capacity < krylov.dimension
        return share > _INSIDE and not full

    def _begin_examination(self) -> None:
        krylov, n = self.krylov, self.krylov.dimension
        if krylov.used + 16 > krylov.capacity < n and krylov.size > self.k:
            self._restart()
        self._origin, self._dimension = krylov.size, n - krylov.used
        self._prior_rows, self._share = (krylov.size, krylov.size, krylov.used), 0.0
        if krylov.inject(1, self.generator) == 0:
            # The basis spans the whole space, or has no row left for an examination.
            if krylov.used == n:
                self._copies = self._hidden = 0.0
            self._origin, self.finished = -1, True

    def _examine(self) -> None:
        """One product in the Krylov space of ``z``; its next direction is the last pending one."""
        krylov, n = self.krylov, self.krylov.dimension
        waiting = krylov.pending
        krylov.promote(waiting - 1)
        krylov.extend(1)
        exhausted = krylov.pending < waiting
        if krylov.size < self.k:  # fewer than k Ritz pairs: z serves the search
            self._origin = -1 if exhausted else self._origin
            return
        ritz = self._score()
        rows = slice(self._origin, krylov.size)
        T = krylov.projected[rows, rows]
        nodes = torch.linalg.eigvalsh(T)
        better, copies = self._edges
        self._reveals_missed |= any(
            float((side * nodes).max()) > better for side in self.criterion.sides
        )
        full = krylov.used + 1 > krylov.capacity < n
        if self.converged_pairs < self.k:  # z serves the search while it lowers the residuals most
            rest = torch.linalg.vector_norm(krylov.coupling @ ritz.vectors[:, ritz.failing], dim=1)
            if exhausted or full or float(rest[-1]) < float(rest[:-1].sum()):
                self._leave_examination()
            return
        last = 0.0 if exhausted else float(krylov.matrix[krylov.used - 1, krylov.size - 1])
        mass = max(christoffel(T, last, side * copies) for side in self.criterion.sides)
        self._copies = math.sqrt(2 * self._dimension * mass / math.pi)
        steps = krylov.size - self._origin
        if steps == 1:
            self._first = self._copies
        abandoned = full or self._hopeless(self._first, self._copies, steps - 1)
        if exhausted or abandoned or self._copies <= self._overlook / 2:
            # If a missed pair appeared, another examination of the larger basis has to follow.
            self._examined = abandoned or not self._reveals_missed
            self._leave_examination()
            self._test()

    def _leave_examination(self) -> None:
        """Count ``z`` as one of the start vectors; its directions take part in the search."""
        # the directions pending when z was drawn are the first of those pending now
        before, begin, end = self._prior_rows
        self._prior_rows = (before, self.krylov.size, self.krylov.size + end - begin)
        if self._reveals_missed:
            self._copies, self._begun = 1.0, (-1, 1.0)
        self._origin, self._reveals_missed = -1, False

    @property
    def _cheap(self) -> int:
        """Products that a test may take whatever its rate: many if requested, few if expensive."""
        return max(64, self.krylov.size) if self._insists else 100_000 // self.krylov.dimension

    def _hopeless(self, first: float, bound: float, steps: int) -> bool:
        """Whether going from ``first`` to ``bound`` in ``steps`` products is too slow."""
        if steps < max(1, self._cheap):
            return False
        pace = math.log(first / bound) / steps if bound < first else 0.0
        left = math.log(2 * bound / self._overlook) / pace if pace > 0 else math.inf
        return steps + left > max(_PROMISING, self._cheap)

    def _futile(self, ritz: Ritz) -> bool:
        """Whether an examination would be stopped early, so that it need not begin.

        It begins in any case when the pairs agree within the tolerance, because then pairs may
        converge before better ones appear.
        """
        goodness = self.criterion.goodness(ritz.values)
        half, last = (self.k - 1) // 2, self.k - 1
        spread = float(goodness[half] - goodness[last])
        distinct = spread > float(ritz.tolerance[-1]) * (last - half)
        first = math.sqrt(2 * self.krylov.dimension / math.pi)
        return distinct and self._out_of_reach(self._edges[1], first)

    def _out_of_reach(self, edge: float, bound: float) -> bool:
        """Whether a bound at an edge would take too many products.

        The (k+1)-th Ritz value overestimates the rest of the spectrum: half of the predicted
        products are usual.
        """
        goodness = self.criterion.goodness(torch.linalg.eigvalsh(self.krylov.projected))
        goodness = goodness.sort(descending=True).values
        if self._cheap >= _PROMISING or len(goodness) <= self.k:
            return False
        rest = float(goodness[self.k])
        low = -rest if self.criterion.which == "magnitude" else float(goodness[-1])
        return products_to(edge, (low, rest), 2 * bound / self._overlook) > 2 * _PROMISING

    # Saving -------------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """The tensors that :meth:`load` needs; the generator's state is saved elsewhere."""
        numbers = torch.tensor(pytree.tree_leaves(self._numbers()), dtype=torch.float64)
        return {**self.krylov.state(), "search": numbers}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore a saved state."""
        self.krylov.load(state)
        before, places = pytree.tree_flatten(self._numbers())
        saved = zip(before, state["search"].tolist(), strict=True)
        vars(self).update(pytree.tree_unflatten([type(a)(b) for a, b in saved], places))

    def _numbers(self) -> dict[str, Any]:
        """All attributes that are numbers or tuples of numbers, by name."""
        return {
            name: value
            for name, value in vars(self).items()
            if isinstance(value, bool | int | float | tuple)
        }
