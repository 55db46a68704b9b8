"""The search for extreme eigenpairs, step by step, and the examination for missed copies.

A Krylov space of one vector holds one direction of every eigenspace: copies of a repeated
eigenvalue stay invisible, however long it grows. Therefore, once the ``k`` pairs have passed, a
fresh random vector ``z``, orthogonal to everything known, grows a Krylov space of its own. A missed
eigenvector ``u`` whose eigenvalue is at or beyond ``x`` would show as a mass ``(uᵀz)²`` there in
the spectral measure of ``z``. (Copies of ``θ_1 … θ_{k−1}`` matter, one more of ``θ_k`` does not:
``x`` is ``θ_{k−1}`` less its tolerance, or ``θ_k`` plus its own where that is further out.) No
measure with the ``2s`` moments that ``s`` products reveal has more mass at ``x`` or at any point
further out, when ``x`` lies outside its Ritz values, than the Christoffel function
(Chebyshev–Markov–Stieltjes; Akhiezer 1965, ch. 2)

    C_s(x) = 1 / Σ_{j ≤ s} p_j(x)²        (p_j: the orthonormal polynomials of these moments)

while ``z`` is uniform on a sphere of dimension ``N``, so that ``P[(uᵀz)² ≤ C] ≤ √(2 N C / π)``.
The examination goes on until this probability, ``missed``, is at most ``overlook``, or until a Ritz
value better than ``θ_k`` shows a missed pair, which then takes part in the search. For outliers it
takes a few products. Inside a dense bulk it would take many: unless the caller insists, it is
given up, or not begun, as soon as its pace says so, and ``missed`` tells.

The bound is rigorous for exact copies, whose missed part is orthogonal to everything known. The
missed part of a cluster that is narrower than the tolerance may be a pending direction, which its
narrowness leaves with a coupling below the tolerance too. Couplings far below it are therefore cut,
as if the space were invariant, and directions of weak coupling are multiplied before an
examination, for as long as they improve the pairs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from curvescope.spectra.krylov import Krylov

_ROUNDING = {torch.float64: 32, torch.float32: 10}
"""Rounding of a decomposition in units of ``eps · ‖A‖``: measured are at most 19 and 5 at 200,000
dimensions. It is less in float32, whose long sums are in float64."""
_PROMISING = 6
"""Products that an examination may take when its pace promises to end within them."""


@dataclass(frozen=True)
class Wanted:
    """Which end of the spectrum, and what a residual is measured against."""

    which: str
    tol: float
    relative: str

    def order(self, values: Tensor) -> Tensor:
        """Indices of ``values``, best first."""
        return torch.argsort(self.goodness(values), descending=True, stable=True)

    def tolerance(self, values: Tensor, norm: float, eps: float) -> Tensor:
        """The largest residual with which each value passes."""
        if self.relative == "norm":
            return torch.full_like(values, self.tol * norm)
        return self.tol * values.abs().clamp(min=eps ** (2 / 3) * norm)

    @property
    def sides(self) -> tuple[int, ...]:
        """The wanted ends: 1 above, −1 below; an eigenvalue ``λ`` is as good as ``side · λ``."""
        return {"largest": (1,), "smallest": (-1,), "magnitude": (1, -1)}[self.which]

    def goodness(self, value: Tensor) -> Tensor:
        """``λ``, ``−λ`` or ``|λ|``: larger is better."""
        return value.abs() if len(self.sides) == 2 else self.sides[0] * value


@dataclass(frozen=True)
class Ritz:
    """The best Ritz pairs: ``vectors`` are coefficients in the basis, ``[m, k]``.

    ``residuals`` include the rounding and the cuts of the decomposition. ``failing`` marks those
    above the tolerance that more products would lower, not those that are nearly all rounding.
    """

    values: Tensor
    vectors: Tensor
    residuals: Tensor
    tolerance: Tensor
    failing: Tensor


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
        self._overlook, self._insists = (0.01, False) if overlook is None else (overlook, True)
        self.finished = False
        self.passed = 0  # pairs that passed at the last test
        self.missed = 1.0
        self._wait = 0  # products until the next test
        self._origin = -1  # row of z while examining, else -1
        self._dimension = 0  # of the sphere on which z is uniform
        self._first = 1.0  # the bound after one product of the examination
        self._edges = (0.0, 0.0)  # how good an eigenvalue must be to count as missed: see _test
        self._total = -math.inf  # the sum of the pairs at the last test
        self._tried = False  # weakly coupled directions since the pairs last improved
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
            self.krylov.favour(ritz.vectors[:, ritz.failing])
        elif self._examined:
            self.finished = True
        elif self._futile(ritz):
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

    # Copies -------------------------------------------------------------------------------------

    def _lead_with_weak(self, size: float) -> bool:
        """Put a pending direction of coupling up to ``size`` first in line; False if none is."""
        rows = torch.linalg.vector_norm(self.krylov.coupling, dim=1)
        if self.krylov.pending == 0 or float(rows.min()) > size:
            return False
        self.krylov.promote(int(rows.argmin()))
        self._tried, self._wait = True, 1
        return True

    def _begin_examination(self) -> None:
        krylov, n = self.krylov, self.krylov.basis.shape[1]
        if krylov.used + 16 > krylov.capacity < n and krylov.size > self.k:
            self._restart()
        self._origin, self._dimension = krylov.size, n - krylov.used
        if krylov.inject(1, self.generator) == 0:
            # The whole space is known, or the basis has no room for an examination.
            self.missed = 0.0 if krylov.used == n else self.missed
            self._origin, self.finished = -1, True

    def _examine(self) -> None:
        """One product in the Krylov space of ``z``, whose next direction waits last in line."""
        krylov, n = self.krylov, self.krylov.basis.shape[1]
        waiting = krylov.pending
        krylov.promote(waiting - 1)
        krylov.extend(1)
        exhausted = krylov.pending < waiting
        if krylov.size >= self.k > self.passed:
            self._score()
        if self.passed < self.k:  # there is nothing to compare with yet: z serves the search
            self._origin = -1 if exhausted else self._origin
            return
        rows = slice(self._origin, krylov.size)
        T = krylov.projected[rows, rows]
        nodes = torch.linalg.eigvalsh(T)
        better, copies = self._edges
        if any(float((side * nodes).max()) > better for side in self.wanted.sides):
            self.missed, self._origin = 1.0, -1  # a missed pair shows: it joins the search
            self._test()
            return
        last = 0.0 if exhausted else float(krylov.matrix[krylov.used - 1, krylov.size - 1])
        mass = max(christoffel(T, last, side * copies) for side in self.wanted.sides)
        bound = math.sqrt(2 * self._dimension * mass / math.pi)
        self.missed = min(1.0, bound)
        full = krylov.used + 1 > krylov.capacity < n
        if exhausted or full or bound <= self._overlook or self._hopeless(bound):
            self._examined, self._origin = True, -1
            self._test()

    @property
    def _cheap(self) -> int:
        """Products that an examination may take without promise: they are cheap, or insisted on."""
        return max(64, self._origin) if self._insists else 100_000 // self.krylov.basis.shape[1]

    def _hopeless(self, bound: float) -> bool:
        """Whether the examination, at its pace so far, would take more products than it may."""
        steps = self.krylov.size - self._origin
        if steps == 1:
            self._first = bound
            return False
        if steps < self._cheap:
            return False
        pace = math.log(self._first / bound) / (steps - 1)
        left = math.log(bound / self._overlook) / pace if pace > 0 else math.inf
        return steps + left > max(_PROMISING, self._cheap)

    def _futile(self, ritz: Ritz) -> bool:
        """Whether an examination would be given up, so that it need not begin.

        Its bound falls by ``e^arccosh(1 + 2 gap/width)`` a product when ``x`` lies a ``gap`` beyond
        a spectrum of that ``width``; the (k+1)-th Ritz value overestimates what is left, whence the
        factor 2. It begins in any case when the tolerance does not tell the pairs apart, because
        then pairs may pass before better ones have shown.
        """
        good = self.wanted.goodness(torch.linalg.eigvalsh(self.krylov.projected))
        good = good.sort(descending=True).values
        half, last = (self.k - 1) // 2, self.k - 1
        told_apart = float(good[half] - good[last]) > float(ritz.tolerance[-1]) * (last - half)
        if self._cheap >= _PROMISING or len(good) == self.k or not told_apart:
            return False
        rest = float(good[self.k])
        width = 2 * abs(rest) if self.wanted.which == "magnitude" else rest - float(good[-1])
        gap = self._edges[1] - rest
        if width <= 0 or gap <= 0:
            return gap <= 0
        pace = math.acosh(1 + 2 * gap / width)
        n = self.krylov.basis.shape[1]
        return math.log(math.sqrt(2 * n / math.pi) / self._overlook) / pace > 2 * _PROMISING

    # Saving -------------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """Everything that :meth:`load` needs, the generator included."""
        counts = [self.finished, self.passed, self._wait, self._origin, self._dimension]
        flags = [self._examined, self._tried]
        reals = [*self._edges, self._total, self._first, self.missed]
        return {
            **self.krylov.state(),
            "search": torch.tensor([*counts, *flags], dtype=torch.int64),
            "edges": torch.tensor(reals, dtype=torch.float64),
            "generator": self.generator.get_state(),
        }

    def load(self, state: dict[str, Tensor]) -> None:
        """Take up a saved state."""
        self.krylov.load(state)
        counts = [int(x) for x in state["search"]]
        self.finished, self._examined, self._tried = (bool(counts[i]) for i in (0, 5, 6))
        self.passed, self._wait, self._origin, self._dimension = counts[1:5]
        better, copies, self._total, self._first, self.missed = (float(x) for x in state["edges"])
        self._edges = (better, copies)
        self.generator.set_state(state["generator"])


def christoffel(T: Tensor, last: float, x: float) -> float:
    """``1 / Σ_j p_j(x)²`` for the orthonormal polynomials of a tridiagonal ``T: [s, s]``.

    ``last`` is the off-diagonal entry that follows ``T``; with it the sum runs over degrees 0 to
    ``s``, and a zero means that the measure is known: it has no mass outside the eigenvalues of
    ``T``. From the recurrence ``β_j p_{j+1} = (x − α_j) p_j − β_{j−1} p_{j−1}``.

    >>> T = torch.tensor([[0.0, 0.5], [0.5, 0.0]])      # Chebyshev: p_j(1) = j + 1
    >>> round(1 / christoffel(T, 0.5, 1.0), 6)
    14.0
    """
    alphas = torch.diagonal(T).tolist()
    betas = [*torch.diagonal(T, -1).tolist(), last]
    before, now, total = 0.0, 1.0, 1.0
    for j, (alpha, beta) in enumerate(zip(alphas, betas, strict=True)):
        if beta == 0:
            return 0.0
        before, now = now, ((x - alpha) * now - (betas[j - 1] * before if j else 0.0)) / beta
        total += now * now
        if total > 1e200:
            return 0.0
    return 1 / total
