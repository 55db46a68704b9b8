"""Trainings that a study follows: their history, the weights at checkpoints, a penalty.

Where only the end of a training counts, ``run.networks`` has it. Here the whole run is kept in
``work``, one folder for each seed, and goes on where it was stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from curvescope import io
from curvescope._state import evaluated
from curvescope.data import Dataset
from curvescope.errors import CurvescopeError
from curvescope.identity import digest
from curvescope.studies.networks import Description, fresh
from curvescope.studies.run import Run
from curvescope.training import Fit, Trained, load_weights, train, train_many
from curvescope.training.objective import Penalty


@dataclass(frozen=True)
class Course:
    """A network with the run directory of its training."""

    model: nn.Module  # at the end of the training, until :meth:`at` is called
    seed: int
    trained: Trained
    folder: Path

    def at(self, epoch: int) -> nn.Module:
        """The network with its weights after an epoch: 0, a checkpoint or the last one."""
        last = self.trained.recipe.epochs
        name = {0: "initial", last: "final"}.get(epoch, f"epoch-{epoch:05d}")
        load_weights(self.folder / "weights" / f"{name}.safetensors", self.model)
        return evaluated(self.model)

    @property
    def fits(self) -> tuple[Fit, Fit]:
        """On the data that it was trained on, and on those held out.

        Raises:
            CurvescopeError: If the training diverged or nothing was held out.
        """
        if self.trained.train is None or self.trained.test is None:
            raise CurvescopeError(str(self.folder), "has no fit of training and held-out data")
        return self.trained.train, self.trained.test


@dataclass(frozen=True)
class Courses:
    """The trainings of one description, by seed, and their images."""

    description: Description
    runs: tuple[Course, ...]
    data: Dataset
    held_out: Dataset | None


def courses(
    run: Run,
    key: str,
    description: Description | None = None,
    *,
    penalty: Callable[[int], Penalty | None] | None = None,
) -> Courses:
    """The networks of this name, or as described, trained with all that can be asked of it later.

    The error on held-out images is measured after each epoch, weights are kept at the recipe's
    checkpoints.

    Args:
        run: The study at its scale.
        key: A name of the study's networks, or one for the folders.
        description: Of the networks, where the study's file does not have it as it is.
        penalty: The term that is added to the loss, for each seed.
    """
    of = run.describe(key) if description is None else description
    paper = run.study.name.partition("/")[0]
    data = of.images.load(root=run.root, seed=run.seed, device=run.device)
    held_out = None
    if of.held_out is not None:
        held_out = of.held_out.load(root=run.root, seed=run.seed, device=run.device)
    seeds = of.seeds_from(run.seed)
    models = [fresh(of, data, seed).to(run.device) for seed in seeds]
    penalties = [None if penalty is None else penalty(seed) for seed in seeds]
    recipes = [replace(of.recipe, seed=seed) for seed in seeds]
    kind = replace(of, seeds=1, start=0)  # further seeds leave those that are there as they are
    folders = [
        run.work
        / "training"
        / paper
        / f"{key}-{run.scale}-{seed}-{digest(kind, r, repr(p), data)[:12]}"
        for seed, r, p in zip(seeds, recipes, penalties, strict=True)
    ]
    for folder in folders:
        io.make_folder(folder.parent)
    run.tell(f"{key}: training {len(models)} × {of.network}, {of.recipe.epochs} epochs")
    if penalty is None:
        run.workers.finish(of, seeds, recipes, folders, held_out=True)
        ended = train_many(models, data, recipes, test=held_out, folders=folders, resume=True)
    else:  # one after the other: its random numbers are its own
        ended = tuple(
            train(model, data, recipe, test=held_out, folder=folder, resume=True, penalty=p)
            for model, recipe, folder, p in zip(models, recipes, folders, penalties, strict=True)
        )
    runs = (Course(*each) for each in zip(models, seeds, ended, folders, strict=True))
    return Courses(of, tuple(runs), data, held_out)
