"""The arguments of a stage: problem, settings, earlier results and random numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from curvescope.experiments.configuration import Settings
from curvescope.experiments.store import RunDirectory
from curvescope.identity import checksum
from curvescope.problem import Problem
from curvescope.problem.losses import Groups
from curvescope.spectra.control import Progress

if TYPE_CHECKING:
    from curvescope.spectra.control import Control

_EVERY = 50
"""Steps between checkpoints, which hold the whole basis; ctrl-C writes one in any case."""


@dataclass(frozen=True)
class Context:
    """What a stage computes its result from."""

    problem: Problem
    test: Problem | None
    run: RunDirectory  # with the results of earlier stages
    settings: Settings
    outputs: int  # of the network, for one sample
    layers: tuple[str, ...]
    seed: int
    work: Path
    groups: Groups | None = None  # the classes that outputs are put into; None: each is one
    progress: Callable[[Progress], None] | None = None

    def generator(self, purpose: str) -> torch.Generator:
        """Random numbers for one purpose; they do not depend on what was computed before."""
        return torch.Generator().manual_seed(derived(self.seed, purpose))

    def control(self, purpose: str) -> Control:
        """The progress callback and the checkpoint of one estimate."""
        path = self.work / f"{purpose}.safetensors"
        return {"progress": self.progress, "checkpoint": path, "every": _EVERY}


def derived(seed: int, purpose: str) -> int:
    """A seed for one purpose, derived by a hash from the seed of the run.

    >>> derived(0, "a") == derived(0, "a"), derived(0, "a") == derived(1, "a")
    (True, False)
    """
    return int(checksum(f"{seed}/{purpose}".encode())[:14], 16)
