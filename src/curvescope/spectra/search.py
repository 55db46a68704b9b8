"""The search for extreme eigenpairs, step by step, and the look for what it may have overlooked.

``k`` Ritz pairs can pass although an eigenvalue is better than the last of them, by more than its
tolerance. That happens in two ways, and each has a bound on its probability, half of ``overlook``.

*Hidden.* The start vector has so little of an eigenvector that it has not shown yet, which is not
rare: of two eigenvalues ``h`` apart, one stays hidden behind a residual ``r`` in about ``2r / πh``
of all cases. The decomposition itself bounds how little that is
(:func:`curvescope.spectra.overlooked.hidden`), and the search goes on until the bound is met.

*Copies.* A Krylov space of one vector holds one direction of every eigenspace: copies of a repeated
eigenvalue stay invisible, however long it grows. Therefore a fresh random vector ``z``, orthogonal
to everything known, grows a Krylov space of its own. A missed eigenvector ``u`` whose eigenvalue is
at or beyond ``x`` would show as a mass ``(uᵀz)²`` there in the spectral measure of ``z``. (Copies
of ``θ_1 … θ_{k−1}`` matter, one more of ``θ_k`` does not: ``x`` is ``θ_{k−1}`` less its tolerance,
or ``θ_k`` plus its own where that is further out.) No measure with the ``2s`` moments that ``s``
products reveal has more mass there than :func:`curvescope.spectra.overlooked.christoffel` says,
while ``z`` is uniform on a sphere of dimension ``N``, so that ``P[(uᵀz)² ≤ C] ≤ √(2 N C / π)``.
A missed pair that shows takes part in the search, ``z`` goes on until the bound is met all the
same, and another vector examines what is known then. As ``z`` is orthogonal to what was known, it
has nothing of a copy that lies there: one that has grown out of rounding is about to show, or lies
in a cluster that is narrower than the tolerance. So weakly coupled directions are multiplied
before, for as long as they improve the pairs, and the others afterwards, until at most a tenth of
a copy can lie in them.

For outliers either takes a few products. Inside a dense bulk it would take many: unless the caller
insists, it is given up, or not begun, as soon as its pace says so, and ``missed`` tells.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from curvescope.spectra.krylov import Krylov
from curvescope.spectra.overlooked import christoffel, hidden, inside, products_to
from curvescope.spectra.wanted import Ritz, Wanted

_ROUNDING = {torch.float64: 32, torch.float32: 10}
"""Rounding of a decomposition in units of ``eps · ‖A‖``: measured are at most 19 and 5 at 200,000
dimensions. It is less in float32, whose long sums are in float64."""
_PROMISING = 6
"""Products that an examination may take when its pace promises to end within them."""
_INSIDE = 0.1
"""The share of a copy that may lie in what was known before its examination."""


class Search:
    """One search; :meth:`step` multiplies up to ``block`` columns, or one while examining."""

    def __init__(
        self,
        krylov: Krylov,
        k: int,
        wanted: Wanted,
        *,
        block: int,
        overlook: float | None,
        generator: torch.Generator,
    ) -> None:
        self.krylov, self.k, self.wanted = krylov, k, wanted
        self.block, self.generator = block, generator
        self._overlook, self._insists = (1e-3, False) if overlook is None else (overlook, True)
        self.finished = False
        self.passed = 0  # pairs that passed at the last test
        self._copies = 1.0  # the bound for copies
        self._hidden = 1.0  # the bound for single eigenvalues
        self._wait = 0  # products until the next test
        self._origin = -1  # row of z while examining, else -1
        self._dimension = 0  # of the sphere on which z is uniform
        self._known = (0, 0, 0)  # rows known before it: up to the first, and between the others
        self._share = 0.0  # how much of a copy may lie in them
        self._shown = False  # whether this examination has shown a missed pair
        self._first = 1.0  # the bound after one product of the examination
        self._edges = (0.0, 0.0)  # how good an eigenvalue must be to count as missed: see _test
        self._total = -math.inf  # the sum of the pairs at the last test
        self._tried = False  # weakly coupled directions since the pairs last improved
        self._begun: tuple[int, float] | None = None  # products and bound when the pairs passed
        self._examined = self._overlook >= 1

    def step(self, room: int) -> None:
        """Take one step of at most ``room`` products."""
        if self._origin >= 0:
            self._examine()
            return
        krylov = self.krylov
        if krylov.pending == 0 and krylov.size == 0:
            krylov.inject(self.block, self.generator)
        elif krylov.pending == 0:  # an invariant subspace: what comes next is examined at once
            self._begin_examination()
            return
        if krylov.used + self.block > krylov.capacity < krylov.basis.shape[1]:
            self._restart()
        before = krylov.products
        krylov.extend(min(self.block, room))
        self._wait -= krylov.products - before
        if krylov.size >= self.k and (self._wait <= 0 or krylov.pending == 0):
            self._test()

    def ritz(self, count: int | None = None) -> Ritz:
        """The best ``count`` Ritz pairs (default ``k``), from the float64 projected problem."""
        krylov = self.krylov
        values, vectors = torch.linalg.eigh(krylov.projected)
        norm = float(values.abs().max()) if len(values) else 0.0
        best = self.wanted.order(values)[: self.k if count is None else count]
        values, vectors = values[best], vectors[:, best]
        eps = torch.finfo(krylov.basis.dtype).eps
        leading = torch.linalg.vector_norm(krylov.coupling @ vectors, dim=0)
        tolerance = self.wanted.tolerance(values, norm, eps)
        floor = krylov.dropped + _ROUNDING[krylov.basis.dtype] * eps * norm
        failing = (leading + floor > tolerance) & (leading > floor / 4)
        return Ritz(values, vectors, leading + floor, tolerance, failing)

    def _test(self) -> None:
        """Count the pairs that pass; go on searching, or start to examine."""
        ritz = self._score()
        if self.passed < self.k:
            # A product adds one dimension, so that many failing pairs need about as many of them.
            self._wait = max(1, (self.k - self.passed) // 2)
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
        """The pairs, how many pass, and from when on an eigenvalue counts as missed."""
        ritz = self.ritz()
        self.passed = self.k - int(ritz.failing.sum())
        good = self.wanted.goodness(ritz.values)
        better, copies = good[-1] + ritz.tolerance[-1], (good - ritz.tolerance)[-2:][0]
        self._edges = (float(better), float(torch.maximum(better, copies)))
        if float(good.sum()) > self._total + float(ritz.tolerance[-1]):
            self._tried = False
        self._total = float(good.sum())
        return ritz

    def _restart(self) -> None:
        """Keep the wanted pairs and half of the room beside them."""
        krylov = self.krylov
        spare = max(0, (krylov.capacity - krylov.pending - self.k) // 2)
        kept = self.ritz(min(self.k + spare, krylov.size))
        krylov.restart(kept.values, kept.vectors)
        # An earlier examination says nothing any more: what it was orthogonal to is mixed up.
        self._known, self._share = (0, 0, 0), 1.0

    # What may be overlooked -----------------------------------------------------------------------

    @property
    def missed(self) -> float:
        """A bound on the probability that a better eigenvalue was overlooked."""
        if self._share >= 1.0:
            return 1.0
        return min(1.0, self._copies / math.sqrt(1.0 - self._share) + self._hidden)

    def _lead_with_weak(self, size: float) -> bool:
        """Put a pending direction of coupling up to ``size`` first in line; False if none is."""
        rows = torch.linalg.vector_norm(self.krylov.coupling, dim=1)
        if self.krylov.pending == 0 or float(rows.min()) > size:
            return False
        self.krylov.promote(int(rows.argmin()))
        self._tried, self._wait = True, 1
        return True

    def _may_hide(self) -> bool:
        """Whether a single eigenvalue may hide, and a few products more would tell."""
        krylov = self.krylov
        self._hidden = hidden(krylov, [side * self._edges[0] for side in self.wanted.sides])
        if krylov.pending == 0 or self._hidden <= self._overlook / 2:
            return False
        if krylov.used + self.block > krylov.capacity < krylov.basis.shape[1]:
            return False
        if self._begun is None:
            self._begun = (krylov.products, self._hidden)
            return not self._out_of_reach(self._edges[0], self._hidden)
        products, first = self._begun
        return not self._hopeless(first, self._hidden, krylov.products - products)

    def _may_be_inside(self) -> bool:
        """Whether a copy may lie in what was known before the examination, and products can tell.

        A share of it there lessens what ``z`` has of it, by which the bound grows.
        """
        krylov, (before, begin, end) = self.krylov, self._known
        rows = torch.cat([torch.arange(before), torch.arange(begin, end)])
        if krylov.pending == 0 or begin == end:
            return False
        values = torch.linalg.eigvalsh(krylov.projected)
        best = self.wanted.order(values)[: self.k]
        points = [side * self._edges[1] for side in self.wanted.sides]
        share = max(inside(krylov, point, best, rows) for point in points)
        self._share = min(share, 1.0)
        full = krylov.used + self.block > krylov.capacity < krylov.basis.shape[1]
        return share > _INSIDE and not full

    def _begin_examination(self) -> None:
        krylov, n = self.krylov, self.krylov.basis.shape[1]
        if krylov.used + 16 > krylov.capacity < n and krylov.size > self.k:
            self._restart()
        self._origin, self._dimension = krylov.size, n - krylov.used
        self._known, self._share = (krylov.size, krylov.size, krylov.used), 0.0
        if krylov.inject(1, self.generator) == 0:
            # The whole space is known, or the basis has no room for an examination.
            if krylov.used == n:
                self._copies = self._hidden = 0.0
            self._origin, self.finished = -1, True

    def _examine(self) -> None:
        """One product in the Krylov space of ``z``, whose next direction waits last in line."""
        krylov, n = self.krylov, self.krylov.basis.shape[1]
        waiting = krylov.pending
        krylov.promote(waiting - 1)
        krylov.extend(1)
        exhausted = krylov.pending < waiting
        if krylov.size < self.k:  # there is nothing to compare with yet: z serves the search
            self._origin = -1 if exhausted else self._origin
            return
        ritz = self._score()
        rows = slice(self._origin, krylov.size)
        T = krylov.projected[rows, rows]
        nodes = torch.linalg.eigvalsh(T)
        better, copies = self._edges
        self._shown |= any(float((side * nodes).max()) > better for side in self.wanted.sides)
        full = krylov.used + 1 > krylov.capacity < n
        if self.passed < self.k:  # z serves the search, as long as it is what the search needs
            rest = torch.linalg.vector_norm(krylov.coupling @ ritz.vectors[:, ritz.failing], dim=1)
            if exhausted or full or float(rest[-1]) < float(rest[:-1].sum()):
                self._leave_examination()
            return
        last = 0.0 if exhausted else float(krylov.matrix[krylov.used - 1, krylov.size - 1])
        mass = max(christoffel(T, last, side * copies) for side in self.wanted.sides)
        self._copies = math.sqrt(2 * self._dimension * mass / math.pi)
        steps = krylov.size - self._origin
        if steps == 1:
            self._first = self._copies
        given_up = full or self._hopeless(self._first, self._copies, steps - 1)
        if exhausted or given_up or self._copies <= self._overlook / 2:
            # Where z has shown something, another one has to look at what is known now.
            self._examined = given_up or not self._shown
            self._leave_examination()
            self._test()

    def _leave_examination(self) -> None:
        """Count ``z`` as one of the start vectors; what it has shown takes part in the search."""
        # the directions that waited when z was drawn are the first of those that wait now
        before, begin, end = self._known
        self._known = (before, self.krylov.size, self.krylov.size + end - begin)
        if self._shown:
            self._copies, self._begun = 1.0, None
        self._origin, self._shown = -1, False

    @property
    def _cheap(self) -> int:
        """Products that a look may take without promise: they are cheap, or insisted on."""
        return max(64, self.krylov.size) if self._insists else 100_000 // self.krylov.basis.shape[1]

    def _hopeless(self, first: float, bound: float, steps: int) -> bool:
        """Whether a bound that fell from ``first`` in ``steps`` products would take too many."""
        if steps < max(1, self._cheap):
            return False
        pace = math.log(first / bound) / steps if bound < first else 0.0
        left = math.log(2 * bound / self._overlook) / pace if pace > 0 else math.inf
        return steps + left > max(_PROMISING, self._cheap)

    def _futile(self, ritz: Ritz) -> bool:
        """Whether an examination would be given up, so that it need not begin.

        It begins in any case when the tolerance does not tell the pairs apart, because then pairs
        may pass before better ones have shown.
        """
        good = self.wanted.goodness(ritz.values)
        half, last = (self.k - 1) // 2, self.k - 1
        told_apart = float(good[half] - good[last]) > float(ritz.tolerance[-1]) * (last - half)
        first = math.sqrt(2 * self.krylov.basis.shape[1] / math.pi)
        return told_apart and self._out_of_reach(self._edges[1], first)

    def _out_of_reach(self, edge: float, bound: float) -> bool:
        """Whether a bound at an edge would take more products than it may.

        The (k+1)-th Ritz value overestimates what is left of the spectrum: half as many products
        as it foretells are usual.
        """
        good = self.wanted.goodness(torch.linalg.eigvalsh(self.krylov.projected))
        good = good.sort(descending=True).values
        if self._cheap >= _PROMISING or len(good) <= self.k:
            return False
        rest = float(good[self.k])
        low = -rest if self.wanted.which == "magnitude" else float(good[-1])
        return products_to(edge, (low, rest), 2 * bound / self._overlook) > 2 * _PROMISING

    # Saving -------------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """Everything that :meth:`load` needs, but for the state of the generator."""
        counts = [self.finished, self.passed, self._wait, self._origin, self._dimension]
        flags = [self._examined, self._tried, self._shown, *self._known]
        reals = [*self._edges, self._total, self._first, self._copies, self._hidden, self._share]
        begun = (-1, 1.0) if self._begun is None else self._begun
        return {
            **self.krylov.state(),
            "search": torch.tensor([*counts, *flags], dtype=torch.int64),
            "edges": torch.tensor([*reals, *begun], dtype=torch.float64),
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take up a saved state."""
        self.krylov.load(state)
        counts = [int(x) for x in state["search"]]
        self.finished = bool(counts[0])
        self._examined, self._tried, self._shown = (bool(x) for x in counts[5:8])
        self._known = (counts[8], counts[9], counts[10])
        self.passed, self._wait, self._origin, self._dimension = counts[1:5]
        better, copies, *reals, products, bound = (float(x) for x in state["edges"])
        self._total, self._first, self._copies, self._hidden, self._share = reals
        self._edges = (better, copies)
        self._begun = None if products < 0 else (int(products), bound)
