"""A folder in which a long certification can be continued after a kill.

Its files belong to one request and carry a checksum; what the request alone decides, such as the
prior mean, is never read from them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import Tensor

from curvescope import io
from curvescope.certificates.blocks import Layout
from curvescope.certificates.course import Course, read_part
from curvescope.certificates.optimize import Optimized, Point
from curvescope.certificates.posterior import Posterior
from curvescope.certificates.request import Request
from curvescope.identity import digest

_HISTORY = 200  # points kept


def thinned(history: tuple[Point, ...]) -> tuple[Point, ...]:
    """At most 200 points of a history, evenly spaced, the last one among them."""
    every = -(-len(history) // _HISTORY)
    return tuple(reversed(history[::-1][::every]))


@dataclass(frozen=True)
class _Notes:
    """What is kept beside the tensors of a finished posterior."""

    history: tuple[Point, ...]
    prior_variances: tuple[float, ...]


class Checkpoint:
    """The folder in which a certification can be continued; no folder, nothing is kept."""

    def __init__(self, folder: io.PathLike | None, request: Request) -> None:
        self._folder = None if folder is None else io.make_folder(folder)
        self._key = digest(request)

    @property
    def course(self) -> Course:
        """Where the optimization is kept on its way."""
        return Course(self._folder, self._key)

    @property
    def draws(self) -> Path | None:
        """The file of the evaluation's state."""
        return None if self._folder is None else self._folder / "draws.safetensors"

    def load(self, layout: Layout, prior_mean: Tensor) -> Optimized | None:
        """The optimized posterior beside the prior mean of this request, if it is there.

        Raises:
            CurvescopeError: If it belongs to another request, or has changed since.
        """
        if self._folder is None or not (self._folder / "posterior.safetensors").exists():
            return None
        file = self._folder / "posterior.safetensors"
        tensors, metadata = read_part(file, self._key)
        notes = io.decode(_Notes, io.parse_json(metadata["notes"], str(file)))
        tensors["prior_mean"] = prior_mean.cpu()
        posterior = Posterior.from_tensors(layout, tensors).to(prior_mean.device)
        return Optimized(posterior, notes.prior_variances, notes.history)

    def save(self, found: Optimized) -> None:
        """Keep the optimized posterior."""
        if self._folder is None:
            return
        notes = _Notes(thinned(found.history), found.prior_variances)
        metadata = {"request": self._key, "notes": json.dumps(asdict(notes))}
        tensors = found.posterior.tensors()
        del tensors["prior_mean"]
        io.write_tensors(self._folder / "posterior.safetensors", tensors, metadata)
        self.course.end()
