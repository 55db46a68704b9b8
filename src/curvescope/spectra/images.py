"""Estimates from products in stages; the rows of a stage depend on the images of earlier ones."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from curvescope.operators.base import LinearOperator
from curvescope.spectra.control import require_finite
from curvescope.spectra.resumable import Estimator, R, State
from curvescope.vectors import Space


class Staged(Estimator[R]):
    """``A`` times the rows of one stage after the other, ``block`` at a time.

    A stage begins as soon as the one before it has ended.
    """

    stages: ClassVar[tuple[str, ...]]

    def __init__(self, A: LinearOperator, block: int) -> None:
        self._operator, self._space, self._block = A, A.domain, block
        self.images: dict[str, Tensor] = {}
        self._begin({})

    @abstractmethod
    def rows(self, stage: str) -> Tensor:
        """The rows ``[b, count]`` that a stage multiplies; ``images`` has earlier ones."""

    def _begin(self, saved: State) -> None:
        """Begin the next stages up to one that has rows to multiply."""
        for stage in self.stages[len(self.images) :]:
            rows = self.rows(stage)
            self.images[stage] = saved[stage].to(rows) if stage in saved else rows[:0]
            self._left = rows[len(self.images[stage]) :]
            if len(self._left):
                return

    @property
    def done(self) -> int:
        """The number of rows multiplied."""
        return sum(len(images) for images in self.images.values())

    @property
    def finished(self) -> bool:
        """Whether no stage has rows left."""
        return len(self._left) == 0

    @property
    def state(self) -> State:
        """The images of all stages."""
        return self.images

    @state.setter
    def state(self, state: State) -> None:
        self.images = {}
        self._begin(state)

    def step(self) -> None:
        """A block of products."""
        image = self._operator.on_rows(self._left[: self._block])
        stage = list(self.images)[-1]
        self.images[stage] = torch.cat([self.images[stage], image])
        self._left = self._left[self._block :]
        if not len(self._left):
            self._begin({})


def range_basis(space: Space, rows: Tensor) -> Tensor:
    """Orthonormal columns ``[count, r]`` that span ``rows``, with their numerical rank ``r``."""
    Q, R = space.qr(rows)
    require_finite("A Ω", R)
    u, s = space.same(*torch.linalg.svd(R.double())[:2])
    cutoff = 10 * torch.finfo(rows.dtype).eps * len(rows) * (float(s[0]) if len(s) else 0.0)
    return Q.T @ u[:, : int((s > cutoff).sum())].to(Q)
