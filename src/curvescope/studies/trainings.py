"""The trainings of a study by several workers: its seeds and its learning rates are a sweep.

A study asks for trainings in folders of its ``work``. With one job they run in this process, side
by side on a GPU; with more, workers of :mod:`curvescope.sweeps` take one after the other. Either
way the study then reads the folders: what is finished is not trained again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from curvescope import io
from curvescope._state import fast_precision
from curvescope.data import Dataset
from curvescope.errors import CurvescopeError
from curvescope.sweeps import Ended, Queue, Task, empty, engine
from curvescope.training import Recipe, train

if TYPE_CHECKING:
    from curvescope.studies.networks import Description

KIND = "training of a study"


@dataclass(frozen=True)
class Workers:
    """Where trainings are done: how many workers, and what they need to load the same images."""

    work: Path
    root: Path | None
    device: str
    seed: int  # of the run: it decides the images
    jobs: int = 1

    def finish(
        self, of: Description, seeds: Sequence[int], recipes: Sequence[Recipe],
        folders: Sequence[Path], *, held_out: bool = False, classes: int | None = None,
        fast: bool = False,
    ) -> None:  # fmt: skip
        """Have workers do those trainings that are not finished; nothing with one job.

        Args:
            of: The networks and their images.
            seeds: Of the initial weights.
            recipes: One for each.
            folders: One for each, below ``work``.
            held_out: Whether the error on held-out images is measured after each epoch.
            classes: Only the images of so many first classes.
            fast: Whether they are trained with a GPU's fast precision.

        Raises:
            CurvescopeError: If a training fails.
        """
        tasks = [
            self._task(of, seed, recipe, folder, held_out=held_out, classes=classes, fast=fast)
            for seed, recipe, folder in zip(seeds, recipes, folders, strict=True)
            if not (folder / "result.json").exists()
        ]
        if self.jobs == 1 or len(tasks) < 2:
            return
        queue = Queue.add(self.work, tasks, adopt=True)
        queue.retry(tasks)
        states = empty(queue, engine("local", self.jobs), self.jobs)
        for name, (state, result) in states.items():
            if state == "failed" and result is not None:
                raise CurvescopeError(f"training {name}", result.problem)

    def _task(
        self, of: Description, seed: int, recipe: Recipe, folder: Path, **chosen: Any
    ) -> Task:
        settings = {
            "description": io.encode(replace(of, recipe=recipe, seeds=1, start=0))[0],
            "seed": seed,
            "images": self.seed,
            "root": None if self.root is None else str(Path(self.root).resolve()),
            "device": self.device,
            **chosen,
        }
        return Task(folder.relative_to(self.work).as_posix(), KIND, settings)


def perform(task: Task, folder: Path) -> Ended:
    """Do one of these trainings in a worker."""
    from curvescope.studies.networks import Description, fresh

    given = task.settings
    of = io.decode(Description, given["description"])
    place = {"root": given["root"] and Path(given["root"]), "device": given["device"]}
    data = of.images.load(seed=given["images"], **place)
    test = None
    if given["held_out"] and of.held_out is not None:
        test = of.held_out.load(seed=given["images"], **place)
    data = first_classes(data, given["classes"])
    model = fresh(of, data, given["seed"]).to(given["device"])
    with fast_precision() if given["fast"] else nullcontext():
        train(model, data, of.recipe, test=test, folder=folder / task.name, resume=True)
    return Ended(True)


def first_classes(data: Dataset, classes: int | None) -> Dataset:
    """The images of the first classes."""
    if classes is None:
        return data
    rows = data.y < classes
    return replace(data, X=data.X[rows], y=data.y[rows], classes=classes)
