"""A Krylov decomposition that grows, shrinks and takes in new directions.

    A V = V T + F G,        [V, F]ᵀ [V, F] = I

``V: [n, m]`` is the basis, ``F: [n, p]`` holds the *pending* directions, which are known but not
yet multiplied, and ``G: [p, m]`` couples them. A Ritz pair ``T y = θ y`` has the residual
``‖A V y − θ V y‖ = ‖G y‖``, at no product. With one start vector this is Lanczos with full
re-orthogonalization, with a block of them band or block Lanczos (Ruhe 1979), and replacing ``V`` by
``V Y`` for chosen Ritz vectors ``Y`` keeps the identity: that is thick restart (Wu and Simon 2000),
the symmetric case of Krylov–Schur (Stewart 2001). A fresh random direction may become pending at
any time, which is how a breakdown is survived and how repeated eigenvalues are found.

Vectors are stored as rows, ``basis: [capacity, n]``, of which each rank holds its share of the
columns (:mod:`curvescope.vectors`); the projected matrix is float64, and every rank has it. A new
direction loses first the components that the symmetry of ``A`` predicts (in Lanczos' case those of
the three-term recurrence), then, by a blocked product, its other components in the basis. A second
such pass follows only where the first one took away a good part (Daniel, Gragg, Kaufman and Stewart
1976), which after the predicted components it rarely does: the passes read the whole basis and are
what a step costs besides its product. Directions are given up where what remains is rounding,
``≤ 16 · eps · ‖T‖``, or below a share of ``‖T‖`` that the caller can do without; ``dropped`` bounds
what this adds to residuals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from curvescope.operators.base import LinearOperator
from curvescope.spectra.control import require_finite
from curvescope.vectors import reject

_SLAB = 1 << 16
"""Columns of the basis that a restart recombines at a time, which bounds its memory."""


class Krylov:
    """The decomposition of one operator; memory ``capacity · n`` numbers."""

    def __init__(self, A: LinearOperator, capacity: int, *, negligible: float = 0.0) -> None:
        self.operator, self.space, self.dimension = A, A.domain, A.shape[0]
        self.capacity = min(capacity, self.dimension)
        self.basis = torch.empty(self.capacity, self.space.count, dtype=A.dtype, device=A.device)
        self.matrix = torch.zeros(self.capacity, self.capacity, dtype=torch.float64)
        self.negligible = max(negligible, 16 * torch.finfo(A.dtype).eps)
        self.scale = 0.0  # the largest coefficient so far: a lower bound of the norm
        self.dropped = 0.0
        self.products = 0
        # Components of the random start vectors in the rows, [q, capacity]; a restart forgets them.
        self.starts = torch.zeros(0, self.capacity, dtype=torch.float64)
        # Multiplied and pending rows (m, p). A step sets this pair last, so that an interrupted
        # step leaves the decomposition before it.
        self.counts = (0, 0)

    @property
    def size(self) -> int:
        """``m``."""
        return self.counts[0]

    @property
    def pending(self) -> int:
        """``p``."""
        return self.counts[1]

    @property
    def used(self) -> int:
        """Rows that are taken, ``m + p``."""
        return sum(self.counts)

    @property
    def projected(self) -> Tensor:
        """``T``, symmetric to the last bit."""
        T = self.matrix[: self.size, : self.size]
        return (T + T.T) / 2

    @property
    def coupling(self) -> Tensor:
        """``G``."""
        return self.matrix[self.size : self.used, : self.size]

    # Growing ------------------------------------------------------------------------------------

    def inject(self, count: int, generator: torch.Generator) -> int:
        """Make up to ``count`` random directions pending; return how many there was room for."""
        count = min(count, self.capacity - self.used)
        rows = self.space.random(count, kind="gaussian", generator=generator)
        return self.start(rows) if count else 0

    def start(self, rows: Tensor) -> int:
        """Make given directions ``[b, n]`` pending; return how many were independent."""
        noise = 16 * torch.finfo(rows.dtype).eps * float(self.space.norms(rows).norm())
        inside, outside = self._append(rows, noise)
        m, p = self.counts
        fresh = torch.zeros(rows.shape[0], self.capacity, dtype=torch.float64)
        fresh[:, : self.used + outside.shape[0]] = torch.cat([inside, outside]).T
        self.starts = torch.cat([self.starts, fresh])
        self.counts = (m, p + outside.shape[0])
        return outside.shape[0]

    def extend(self, count: int) -> None:
        """Multiply the first ``count`` pending directions: ``count`` products."""
        (m, p), used = self.counts, self.used
        count = min(count, p)
        block = self.basis[m : m + count]
        image = self.operator.on_rows(block)
        self.products += count
        inside, outside = self._append(image, None, self._predicted(image))
        self.matrix[:used, m : m + count] = inside
        self.matrix[used : used + outside.shape[0], m : m + count] = outside
        self.counts = (m + count, p - count + outside.shape[0])

    def _predicted(self, image: Tensor) -> Tensor:
        """Coefficients ``[used, b]`` of a product that need no pass over the basis.

        ``A q_j`` has the component ``q_iᵀ A q_j = (A q_i)ᵀ q_j`` along a row that was multiplied
        before, which ``G`` holds; those among the new rows themselves are small products.
        """
        (m, _), count = self.counts, image.shape[0]
        foretold = torch.zeros(self.used, count, dtype=torch.float64, device=image.device)
        foretold[:m] = self.coupling[:count].T.to(image.device)
        foretold[m : m + count] = self.space.inner(self.basis[m : m + count], image)
        return foretold

    def _reject(self, rows: Tensor, foretold: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """``rows`` less their components in the basis: orthonormal rest, its factor, components."""
        used, space = self.used, self.space
        old = self.basis[:used]
        inside = torch.zeros(used, rows.shape[0], dtype=torch.float64, device=rows.device)
        if foretold is not None:
            inside = foretold
            some = foretold.any(1)
            rows = reject(rows, foretold[some], old[some])
        # Rows that are not shortened much are orthogonal after one pass. The check would stall a
        # GPU, where a pass over the basis costs next to nothing.
        before = space.norms(rows) if rows.device.type == "cpu" else None
        first = space.inner(old, rows)
        inside = inside + first
        unit, factor = space.orthonormalize(reject(rows, first, old))
        if before is not None and bool((factor.diagonal() > before / 2).all()):
            return unit, factor, inside
        second = space.inner(old, unit)
        unit, correction = space.orthonormalize(reject(unit, second, old))
        return unit, correction @ factor, inside + second @ factor

    def _append(
        self, rows: Tensor, noise: float | None, foretold: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Orthonormalize ``rows`` against the basis and append the rest to it.

        Returns the coefficients ``[used, b]`` in the old rows and ``[r, b]`` in the new ones, where
        ``r ≤ b`` is the rank above ``noise`` (None: rounding of a product).
        """
        used = self.used
        unit, factor, inside = self._reject(rows, foretold)
        coefficients = torch.cat([inside, factor]).cpu()
        require_finite(f"{self.operator}", coefficients)
        inside, outside = coefficients[:used], coefficients[used:]
        product = noise is None
        if noise is None:
            self.scale = max(self.scale, float(coefficients.abs().max()))
            noise = self.negligible * self.scale
        room = self.capacity - used
        if rows.shape[0] == 1:
            s, rank = outside[0], int(room > 0 and float(outside) > noise)
            outside = outside[:rank]
        else:  # turn to the left singular vectors of what is left: then the cutoff is a rank
            u, s, vh = self.space.same(*torch.linalg.svd(outside, full_matrices=False))
            rank = min(int((s > noise).sum()), room)
            unit, outside = u[:, :rank].T.to(unit) @ unit, s[:rank, None] * vh[:rank]
        if product:
            self.dropped = math.hypot(self.dropped, *s[rank:].tolist())
        self.basis[used : used + rank] = unit[:rank]
        self.matrix[used : used + rank] = 0
        return inside, outside

    # Turning and shrinking ----------------------------------------------------------------------

    def promote(self, index: int) -> None:
        """Make pending direction ``index`` the first one."""
        a, b = self.size, self.size + index
        if a != b:
            self.basis[[a, b]] = self.basis[[b, a]]
            self.matrix[[a, b]] = self.matrix[[b, a]]
            self.starts[:, [a, b]] = self.starts[:, [b, a]]

    def favor(self, directions: Tensor) -> None:
        """Rotate the pending directions: the leading singular vectors of ``directions`` come first.

        The residuals of Ritz vectors ``Y`` are ``F G Y``: the leading left singular vectors of
        ``G Y`` are the directions whose products lower them most.
        """
        if self.pending < 2 or directions.shape[1] == 0:
            return
        (u,) = self.space.same(torch.linalg.svd(directions, full_matrices=True)[0])
        rows = slice(self.size, self.used)
        self.basis[rows] = u.T.to(self.basis) @ self.basis[rows]
        self.matrix[rows, : self.size] = u.T @ self.matrix[rows, : self.size]
        self.starts[:, rows] = self.starts[:, rows] @ u

    def ritz_vectors(self, ritz: Tensor) -> Tensor:
        """``V Y`` as columns ``[n, k]``, this rank's share of them."""
        return self.basis[: self.size].T @ ritz.to(self.basis)

    def restart(self, values: Tensor, ritz: Tensor) -> None:
        """Keep the Ritz pairs ``(values, ritz)`` and the pending directions; forget the rest."""
        keep, m, p = len(values), self.size, self.pending
        turn = ritz.T.to(self.basis)
        for chunk in self.basis[: self.used].split(_SLAB, dim=1):
            chunk[:keep] = turn @ chunk[:m]
            chunk[keep : keep + p] = chunk[m : m + p].clone()
        coupling = self.coupling @ ritz
        self.matrix.zero_()
        self.matrix[:keep, :keep] = torch.diag(values)
        self.matrix[keep : keep + p, :keep] = coupling
        self.starts = self.starts[:0]
        self.counts = (keep, p)

    # Saving -------------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """The tensors that :meth:`load` needs."""
        counts = torch.tensor([*self.counts, self.products])
        reals = torch.tensor([self.scale, self.dropped], dtype=torch.float64)
        basis = self.basis[: self.used]
        return {
            "basis": basis,
            "matrix": self.matrix,
            "starts": self.starts,
            "counts": counts,
            "reals": reals,
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore a saved state."""
        m, p, self.products = (int(x) for x in state["counts"])
        self.basis[: m + p] = state["basis"].to(self.basis)
        self.matrix, self.starts = state["matrix"].clone(), state["starts"].clone()
        self.scale, self.dropped = (float(x) for x in state["reals"])
        self.counts = (m, p)
