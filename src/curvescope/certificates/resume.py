"""A folder in which a long certification can be continued after a kill."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from curvescope import io
from curvescope.certificates.blocks import Layout
from curvescope.certificates.course import Course, check_key
from curvescope.certificates.methods import Method
from curvescope.certificates.optimise import Optimised, Point
from curvescope.certificates.posterior import Posterior
from curvescope.certificates.prior import Task

_HISTORY = 200  # points kept


def thinned(history: tuple[Point, ...]) -> tuple[Point, ...]:
    """At most 200 points of a history, evenly spaced, the last one among them."""
    every = -(-len(history) // _HISTORY)
    return tuple(reversed(history[::-1][::every]))


class Checkpoint:
    """The folder in which a long certification can be continued."""

    def __init__(
        self, folder: io.PathLike | None, method: Method, task: Task, data_sha256: str
    ) -> None:
        self._folder = None if folder is None else Path(folder)
        self._device = task.prior_mean.device
        key = {"method": asdict(method), "data": data_sha256, "prior": float(task.prior_mean.sum())}
        self._key = json.dumps(key, sort_keys=True)
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)

    @property
    def course(self) -> Course:
        """Where the optimisation is kept on its way."""
        return Course(self._folder, self._key)

    @property
    def draws(self) -> Path | None:
        """The file of the evaluation's state."""
        return None if self._folder is None else self._folder / "draws.safetensors"

    def load(self, layout: Layout) -> Optimised | None:
        """The optimised posterior, if it is there."""
        if self._folder is None or not (self._folder / "posterior.safetensors").exists():
            return None
        tensors, metadata = io.read_tensors(self._folder / "posterior.safetensors")
        check_key(self._folder, metadata, self._key)
        found = json.loads(metadata["found"])
        history = tuple(Point(**point) for point in found["history"])
        posterior = Posterior.from_tensors(layout, tensors).to(self._device)
        return Optimised(posterior, tuple(found["prior_variances"]), history)

    def save(self, found: Optimised) -> None:
        """Keep the optimised posterior."""
        if self._folder is None:
            return
        notes = {
            "history": [asdict(point) for point in thinned(found.history)],
            "prior_variances": found.prior_variances,
        }
        metadata = {"key": self._key, "found": json.dumps(notes)}
        io.write_tensors(
            self._folder / "posterior.safetensors", found.posterior.tensors(), metadata
        )
        self.course.end()
