"""A folder in which a long certification can be continued after a kill.

Its files belong to one request, and what the request alone decides, such as the prior mean, is
never read from them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from torch import Tensor

from curvescope import io
from curvescope.certificates.blocks import Layout
from curvescope.certificates.optimize import Optimized, Point
from curvescope.certificates.posterior import Posterior
from curvescope.certificates.request import Request

_HISTORY = 200  # points kept


def thinned(history: tuple[Point, ...]) -> tuple[Point, ...]:
    """At most 200 points of a history, evenly spaced, the last one among them."""
    every = -(-len(history) // _HISTORY)
    return tuple(reversed(history[::-1][::every]))


@dataclass(frozen=True)
class _Notes:
    """What lies beside the tensors of a finished posterior."""

    history: tuple[Point, ...]
    prior_variances: tuple[float, ...]


class Unfinished:
    """The folder of an unfinished certification; without a folder nothing is written.

    Args:
        folder: Made if it is not there.
        request: What the files in it belong to.
    """

    def __init__(self, folder: io.PathLike | None, request: Request) -> None:
        self._folder = None if folder is None else io.make_folder(folder)
        self._request = io.encode(request)[0]

    def _place(self, name: str) -> io.Checkpoint | None:
        file = self._file(name)
        if file is None:
            return None
        return io.Checkpoint(
            file, self._request, where="certify", what="certification",
            remedy="remove it, or name another folder",
        )  # fmt: skip

    def _file(self, name: str) -> Path | None:
        return None if self._folder is None else self._folder / f"{name}.safetensors"

    @property
    def course(self) -> io.Checkpoint | None:
        """The state of the optimization on its way."""
        return self._place("course")

    @property
    def draws(self) -> Path | None:
        """The file of the evaluation's state."""
        return self._file("draws")

    def load(self, layout: Layout, prior_mean: Tensor) -> Optimized | None:
        """The optimized posterior beside the prior mean of this request, if it is there.

        Raises:
            CurvescopeError: If it belongs to another request, or has changed since.
        """
        place = self._place("posterior")
        saved = None if place is None else place.load()
        if place is None or saved is None:
            return None
        notes = io.decode(_Notes, saved.notes)
        tensors = {**saved.tensors, "prior_mean": prior_mean.cpu()}
        posterior = Posterior.from_tensors(layout, tensors).to(prior_mean.device)
        return Optimized(posterior, notes.prior_variances, notes.history)

    def save(self, optimized: Optimized) -> None:
        """Write the optimized posterior; its course is of no use any more."""
        place, course = self._place("posterior"), self.course
        if place is None or course is None:
            return
        notes = _Notes(thinned(optimized.history), optimized.prior_variances)
        tensors = optimized.posterior.tensors()
        del tensors["prior_mean"]
        place.save(tensors, asdict(notes))
        course.remove()
