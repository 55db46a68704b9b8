"""What a study's function is given, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from curvescope import io
from curvescope.errors import CurvescopeError
from curvescope.figures.model import Picture
from curvescope.identity import digest
from curvescope.studies.networks import Description, Group, group
from curvescope.studies.study import Scale, Study
from curvescope.studies.trainings import Workers


@dataclass(frozen=True)
class Value:
    """A number with what is to be said beside it: a spread, a count."""

    number: float
    note: str = ""


@dataclass(frozen=True)
class Result:
    """Named numbers, which criteria refer to; pictures; and everything else, as plain JSON."""

    values: Mapping[str, float | Value]
    pictures: tuple[Picture, ...] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """A study at one scale: its settings by name, its networks, and a place for finished parts.

    ``run["epochs"]`` is what the scale's table says.
    """

    study: Study
    scale: Scale
    work: Path  # trained networks and finished parts; a second run goes on from there
    root: Path | None = None  # the folder with the data files
    device: str = "cpu"
    seed: int = 0
    tell: Callable[[str], None] = lambda text: None  # one line about what happens now
    jobs: int = 1  # workers for trainings

    def __post_init__(self) -> None:
        """Refuse a scale that the study does not have."""
        if self.scale not in self.study.levels:
            rule = f"{self.study.name} has no scale {self.scale!r}"
            remedy = f"it has {', '.join(self.study.levels)}"
            raise CurvescopeError("reproduce", rule, remedy=remedy)

    def __getitem__(self, key: str) -> Any:
        """A setting of the scale."""
        settings = self.study.levels[self.scale].settings
        if key not in settings:
            rule = f"scale {self.scale!r} has no setting {key!r}"
            raise CurvescopeError(self.study.name, rule, remedy=f"it has {', '.join(settings)}")
        return settings[key]

    def get(self, key: str, default: Any = None) -> Any:
        """A setting that the scale may lack."""
        return self.study.levels[self.scale].settings.get(key, default)

    @property
    def identity(self) -> str:
        """What decides numbers; not where they are kept or computed, and what is told."""
        level = self.study.levels[self.scale]
        networks = {name: dict(table) for name, table in self.study.networks.items()}
        return digest("run", self.scale, self.seed, dict(level.settings), networks)

    @property
    def workers(self) -> Workers:
        """Who does the trainings that are not finished."""
        return Workers(self.work, self.root, self.device, self.seed, self.jobs)

    def generator(self, stream: int = 0) -> torch.Generator:
        """A generator of its own for each ``stream``, on the CPU."""
        return torch.Generator().manual_seed(1_000_003 * stream + self.seed)

    def describe(self, key: str) -> Description:
        """The networks of this name, as the study's file has them at this scale."""
        where = f"{self.study.name}: networks.{key}"
        if key not in self.study.networks:
            remedy = f"there are {', '.join(self.study.networks) or 'none'}"
            raise CurvescopeError(where, "the study has no such networks", remedy=remedy)
        return Description.of(where, self.study.networks[key], self.scale)

    def networks(self, key: str, description: Description | None = None) -> Group:
        """Trained networks: those of this name, or as described, kept under this name.

        They are trained once and taken from the work folder after that, by whatever study.
        """
        paper = self.study.name.partition("/")[0]
        suffix = "" if self.scale == "paper" else f"-{self.scale}"
        return group(
            f"{paper}/{key}{suffix}",
            self.describe(key) if description is None else description,
            work=self.work,
            root=self.root,
            device=self.device,
            seed=self.seed,
            tell=self.tell,
            workers=self.workers,
        )

    def once(self, key: str, compute: Callable[[], Mapping[str, Tensor]]) -> Mapping[str, Tensor]:
        """The tensors of ``compute()``, from ``work`` when they were computed before.

        They are recognized by all that ``compute`` is made of: its code and that of the studies
        that it calls, and the values that it captures, networks and data among them. What has
        changed is computed anew, beside the old. ``key`` is a name for readers.
        """
        paper = self.study.name.partition("/")[0]
        name = f"{key}-{self.scale}-seed{self.seed}-{digest(compute)[:16]}"
        file = self.work / paper / "parts" / f"{name}.safetensors"
        if file.is_file():
            tensors, _ = io.read_tensors(file)
            return {name: tensor.to(self.device) for name, tensor in tensors.items()}
        tensors = {name: tensor.contiguous() for name, tensor in compute().items()}
        io.make_folder(file.parent)
        io.write_tensors(file, {name: tensor.cpu() for name, tensor in tensors.items()})
        return tensors
