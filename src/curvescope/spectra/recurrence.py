"""The Lanczos recurrence for several start vectors side by side, one block product a step.

The recurrences are independent: their tridiagonal matrices are those of separate runs. Only the
product is shared, because a block of columns costs one pass over the data.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from curvescope.operators.base import LinearOperator
from curvescope.spectra.control import require_finite
from curvescope.spectra.resumable import Estimator, R, State, state_of
from curvescope.vectors import reject
from curvescope.vectors.sums import inner


class Recurrence:
    """``p`` recurrences of up to ``steps`` steps from ``rows: [p, n]``.

    With ``outside: [n, c]`` (orthonormal columns, this rank's share of them) the operator is
    ``P A P``, ``P`` the projection on what is orthogonal to them. Memory: ``p · (steps + 1) · n``
    numbers with re-orthogonalization, ``3 · p · n`` without, spread over the ranks where ``A`` is.
    """

    def __init__(
        self,
        A: LinearOperator,
        rows: Tensor,
        steps: int,
        *,
        reorthogonalize: bool,
        outside: Tensor | None = None,
    ) -> None:
        p, n, device = len(rows), A.shape[0], A.device
        # In exact arithmetic a recurrence ends after n steps; without re-orthogonalization it
        # continues and repeats itself (ghosts), so only the basis bounds the steps.
        self.steps = min(steps, n) if reorthogonalize else steps
        self.operator, self.space, self.outside, self.probes = A, A.domain, outside, p
        rows = self._project(rows)
        norms = self.space.norms(rows)[:, None].clamp(min=torch.finfo(rows.dtype).tiny)
        self._now = rows / norms.to(rows)
        self._before = torch.zeros_like(self._now)
        self._alphas = torch.zeros(self.steps, p, dtype=torch.float64, device=device)
        self._betas = torch.zeros_like(self._alphas)
        self._scale = torch.zeros(p, dtype=torch.float64, device=device)
        self.basis: Tensor | None = None
        if reorthogonalize:
            shape = (p, self.steps + 1, self.space.count)
            self.basis = torch.empty(shape, dtype=A.dtype, device=device)
            self.basis[:, 0] = self._now
        self.done = 0

    @property
    def finished(self) -> bool:
        """Whether all steps are taken, or every recurrence has broken down."""
        if self.done >= self.steps:
            return True
        # Looking at the numbers would stall a GPU: there a breakdown is found at the end.
        on_host = self.operator.device.type == "cpu"
        return on_host and self.done > 0 and not bool(self._betas[self.done - 1].any())

    def step(self) -> None:
        """One step of all recurrences: ``p`` products."""
        j, v = self.done, self._now
        w = self._project(self.operator.on_rows(v))
        alpha = self.space.dots(v, w)
        previous = self._betas[j - 1] if j else torch.zeros_like(alpha)
        w = torch.addcmul(w, v, -alpha[:, None].to(w))
        if j:
            w.addcmul_(self._before, -previous[:, None].to(w))
        if self.basis is not None:
            w = self._orthogonal(self.basis[:, : j + 1], w)
        beta = self.space.norms(w)
        scale = torch.maximum(self._scale, alpha.abs() + beta + previous)
        alive = beta > 16 * torch.finfo(w.dtype).eps * scale
        if self.basis is not None and j + 1 == self.space.size:
            alive = torch.zeros_like(alive)  # the basis is complete
        w.mul_(torch.where(alive, 1 / beta, 0.0)[:, None].to(w))
        if self.basis is not None:
            self.basis[:, j + 1] = w
        self._alphas[j], self._betas[j] = alpha, torch.where(alive, beta, 0.0)
        self._before, self._now, self._scale, self.done = v, w, scale, j + 1

    def coefficients(self, probe: int) -> tuple[Tensor, Tensor]:
        """``α`` and ``β`` of one recurrence up to its breakdown, on the host."""
        require_finite(f"{self.operator}", self._alphas[:, probe], self._betas[:, probe])
        alphas, betas = (
            self._alphas[: self.done, probe].cpu(),
            self._betas[: self.done, probe].cpu(),
        )
        ends = (betas == 0).nonzero()
        length = int(ends[0]) + 1 if len(ends) else self.done
        return alphas[:length], betas[:length]

    def _project(self, rows: Tensor) -> Tensor:
        if self.outside is None:
            return rows
        return rows - self.space.total(rows @ self.outside) @ self.outside.T

    def _orthogonal(self, bases: Tensor, rows: Tensor) -> Tensor:
        """Each row without its components along the orthonormal rows of its own basis.

        A second pass follows unless the first one took away little: see
        :mod:`curvescope.spectra.krylov`.
        """
        on_host = rows.device.type == "cpu"
        before = self.space.norms(rows) if on_host else None
        rows = self._less(bases, rows)
        if before is None:
            return self._less(bases, rows)
        enough = self.space.norms(rows) > before / 2
        if bool(enough.all()):
            return rows
        again = (~enough).nonzero()[:, 0]
        rows[again] = self._less([bases[i] for i in again], rows[again])
        return rows

    def _less(self, bases: Sequence[Tensor] | Tensor, rows: Tensor) -> Tensor:
        """One pass: a collective for all rows."""
        if len(rows) == 1:
            return reject(rows, self.space.inner(bases[0], rows), bases[0])
        each = [(q, row[None]) for q, row in zip(bases, rows, strict=True)]
        components = self.space.total(torch.stack([inner(q, row) for q, row in each]))
        return torch.cat([reject(row, c, q) for (q, row), c in zip(each, components, strict=True)])

    def state(self) -> dict[str, Tensor]:
        """The tensors that :meth:`load` needs."""
        j = self.done
        state = {
            "alphas": self._alphas[:j],
            "betas": self._betas[:j],
            "now": self._now,
            "before": self._before,
            "scale": self._scale,
            "done": torch.tensor(j),
        }
        return state if self.basis is None else {**state, "basis": self.basis[:, : j + 1]}

    def load(self, state: State) -> None:
        """Restore a saved state."""
        j = int(state["done"])
        self._alphas[:j], self._betas[:j] = state["alphas"], state["betas"]
        self._now, self._before = state["now"].to(self._now), state["before"].to(self._now)
        self._scale = state["scale"].to(self._scale)
        if self.basis is not None:
            self.basis[:, : j + 1] = state["basis"].to(self.basis)
        self.done = j


class Recurrent(Estimator[R]):
    """An estimate from recurrences alone."""

    recurrence: Recurrence
    state, vectors = state_of("recurrence"), ("basis", "now", "before")

    @property
    def done(self) -> int:
        """Steps of the recurrences."""
        return self.recurrence.done

    @property
    def total(self) -> int:
        """The number of all steps."""
        return self.recurrence.steps

    @property
    def finished(self) -> bool:
        """All steps, or a breakdown."""
        return self.recurrence.finished

    @property
    def has_result(self) -> bool:
        """After the first step."""
        return self.done > 0

    def step(self) -> None:
        """One product for each recurrence."""
        self.recurrence.step()
