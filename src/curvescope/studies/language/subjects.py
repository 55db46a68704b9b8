"""The language model of these studies, at three points of its training, and its sequences.

It is the run of ``curvescope train GPT-4x128 --data python-topics`` (smaller ones at smaller
scales), whose folder is in the study's work folder and can be analyzed like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from curvescope import io
from curvescope._random import rademacher
from curvescope._state import copied, evaluated
from curvescope.data import Dataset
from curvescope.experiments.training import NamedData, named_data, train_network
from curvescope.identity import digest
from curvescope.operators.base import LinearOperator
from curvescope.operators.gauss_newton import GaussNewton
from curvescope.operators.hessian import Hessian
from curvescope.problem import ParamSpace, Problem
from curvescope.problem.losses import CrossEntropy
from curvescope.spectra.eigensolver import EigenPairs, eigenpairs
from curvescope.studies.measures import restored_pairs, saved_pairs
from curvescope.studies.run import Run
from curvescope.training import load_weights
from curvescope.training.folder import TrainingFolder
from curvescope.training.moments import Moments
from curvescope.training.run import Trained

TOLERANCE = 1e-3
"""Of the eigenpairs that several studies share, relative to the norm."""
POINTS = ("start", "middle", "end")
NAMES = {"H": "H", "G": "G", "E": "E", "P": "P⁻¹H"}
KINDS = ("embedding", "positions", "q", "k", "v", "o", "up", "down", "norms", "head")


@dataclass(frozen=True)
class Point:
    """The network at one point of its training."""

    name: str
    epoch: int
    model: nn.Module
    rate: float  # of the last step; 0 at the start
    moments: Moments | None  # Adam's state; None at the start, where it has none

    def preconditioner(self, space: ParamSpace) -> Tensor | None:
        """The diagonal of Adam's ``P`` as a flat vector."""
        return None if self.moments is None else space.flatten(self.moments.preconditioner())

    def last_step(self, space: ParamSpace) -> Tensor | None:
        """``P⁻¹ m``, the direction of Adam's last step, without weight decay and of length one."""
        if self.moments is None:
            return None
        step = space.flatten(self.moments.mean) / space.flatten(self.moments.preconditioner())
        return step / step.norm()


@dataclass(frozen=True)
class Subject:
    """The network at the points of its training, the run, and the sequences of the text."""

    points: tuple[Point, ...]
    run: Trained
    few: Dataset  # that curvature is taken over
    training: Dataset
    held_out: Dataset

    def problem(self, point: Point, data: Dataset | None = None) -> Problem:
        """The network on the sequences, or on others, as one batch."""
        return language_problem(point.model, self.few if data is None else data)


def language_problem(model: nn.Module, data: Dataset) -> Problem:
    """Cross-entropy of the next character, averaged over all positions."""
    return Problem(model, [data.tensors], loss=CrossEntropy(axis=-1))


def subject(run: Run) -> Subject:
    """The network as the study's file describes it, trained once for all studies of the folder."""
    of = run.describe("gpt")
    recipe = replace(of.recipe, seed=run.seed)
    data = _data(of.images.data, of.images.samples)
    owner = digest("language", of.network, of.init, recipe, data.train, data.test)[:12]
    folder = run.work / "training" / "language" / f"{of.network}-{run.scale}-{run.seed}-{owner}"
    io.make_folder(folder.parent)
    run.tell(f"training {of.network}, {recipe.epochs} epochs")
    model, trained = train_network(
        of.network, data, recipe, folder=folder, init=of.init, device=run.device, resume=True
    )
    last = recipe.epochs
    epochs = {"start": 0, "middle": recipe.checkpoints[0], "end": last}
    points = [_point(name, epochs[name], last, model, trained, folder) for name in POINTS]
    training, held_out = data.train.to(run.device), data.test.to(run.device)
    return Subject(tuple(points), trained, spread(training, run["sequences"]), training, held_out)


def _data(name: str, samples: int | None) -> NamedData:
    data = named_data(name)
    if samples is None:
        return data
    return replace(data, train=spread(data.train, samples), test=spread(data.test, samples // 4))


def spread(data: Dataset, count: int, *, part: int = 0, parts: int = 1) -> Dataset:
    """So many sequences at equal distances; other ``part`` of ``parts`` such sets lie between.

    >>> text = Dataset(torch.arange(8)[:, None], torch.zeros(8, 1).long(), 9, "numbers")
    >>> spread(text, 2).X[:, 0], spread(text, 2, part=1, parts=2).X[:, 0]
    (tensor([0, 4]), tensor([2, 6]))
    """
    rows = (torch.arange(count) * parts + part) * len(data) // (count * parts)
    return replace(data, X=data.X[rows], y=data.y[rows])


def _point(
    name: str, epoch: int, last: int, model: nn.Module, trained: Trained, folder: Path
) -> Point:
    file = {0: "initial", last: "final"}.get(epoch, f"epoch-{epoch:05d}")
    place = TrainingFolder(folder)
    network = copied(model)
    load_weights(place.weights(file), network)
    rate = trained.recipe.rate(epoch) if epoch else 0.0
    return Point(name, epoch, evaluated(network), rate, place.moments(file) if epoch else None)


def signs(A: LinearOperator, count: int, generator: torch.Generator) -> Tensor:
    """Columns ``[n, count]`` of random signs, each drawn on its own."""
    rows = [rademacher((A.shape[0],), generator, A.dtype, A.device) for _ in range(count)]
    return torch.stack(rows, 1)


# Layers ------------------------------------------------------------------------------------------


def kind(layer: str) -> str:
    """The kind of a layer, one of ``KINDS``.

    >>> kind("q3"), kind("norm-mlp1"), kind("norm"), kind("head")
    ('q', 'norms', 'norms', 'head')
    """
    return "norms" if layer.startswith("norm") else layer.rstrip("0123456789")


def by_kind(rows: Tensor, space: ParamSpace) -> Tensor:
    """Entries of columns ``[n, k]`` summed over the parameters of each kind of layer.

    The result is ``[len(KINDS), k]``.
    """
    sums = rows.new_zeros(len(KINDS), rows.shape[1])
    for layer in space.layers:
        for name in space.resolve(layer):
            sums[KINDS.index(kind(layer))] += rows[space.slice(name)].sum(0)
    return sums


def sizes(space: ParamSpace) -> Tensor:
    """The share of each kind in the number of parameters, ``[len(KINDS)]``."""
    return by_kind(torch.ones(space.size, 1), space)[:, 0] / space.size


# Eigenpairs that several studies need ------------------------------------------------------------


def top(run: Run, of: Subject, point: Point, matrix: str) -> EigenPairs:
    """The largest eigenpairs of ``"H"`` or ``"G"`` on the sequences, computed once."""
    compute = partial(_top, matrix, point.model, of.few, run["pairs"], TOLERANCE, run.generator(11))
    run.tell(f"{point.name}: eigenpairs of {matrix}")
    return restored_pairs(run.once(f"gpt-{point.name}-top-{matrix}", compute))


def _top(
    matrix: str, model: nn.Module, few: Dataset, k: int, tol: float, generator: torch.Generator
) -> Mapping[str, Tensor]:
    problem = language_problem(model, few)
    A = Hessian(problem, keep=True) if matrix == "H" else GaussNewton(problem, keep=True)
    return saved_pairs(eigenpairs(A, k, tol=tol, generator=generator))
