"""What every stage is given: the problem, the settings, and its own random numbers."""

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
from curvescope.spectra.control import Progress

if TYPE_CHECKING:
    from curvescope.spectra.control import Control

_EVERY = 50
"""Steps between checkpoints, which hold the whole basis; ctrl-C writes one in any case."""


@dataclass(frozen=True)
class Context:
    """A stage's view of the analysis."""

    problem: Problem
    test: Problem | None
    run: RunDirectory  # for what earlier stages found
    settings: Settings
    outputs: int  # of the network, for one sample
    layers: tuple[str, ...]
    seed: int
    work: Path
    progress: Callable[[Progress], None] | None = None

    def generator(self, purpose: str) -> torch.Generator:
        """Random numbers for one purpose, whatever was computed before it."""
        return torch.Generator().manual_seed(derived(self.seed, purpose))

    def control(self, purpose: str) -> Control:
        """Progress and a checkpoint of its own for one estimate."""
        path = self.work / f"{purpose}.safetensors"
        return {"progress": self.progress, "checkpoint": path, "every": _EVERY}


def derived(seed: int, purpose: str) -> int:
    """A seed of its own for each purpose.

    >>> derived(0, "a") == derived(0, "a"), derived(0, "a") == derived(1, "a")
    (True, False)
    """
    return int(checksum(f"{seed}/{purpose}".encode())[:14], 16)
