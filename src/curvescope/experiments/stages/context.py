"""What every stage is given: the problem, the settings, and its own random numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from curvescope._checks import finite_float, positive_int
from curvescope.experiments.store import RunDirectory
from curvescope.identity import checksum
from curvescope.problem import Problem
from curvescope.spectra.control import Progress

if TYPE_CHECKING:
    from curvescope.spectra.control import Control

_EVERY = 50
"""Steps between checkpoints, which hold the whole basis; ctrl-C writes one in any case."""


@dataclass(frozen=True)
class Settings:
    """How much work an analysis does; part of its configuration.

    Args:
        steps: Lanczos steps of each density.
        probes: Random vectors of each density: the uncertainty band is their spread.
        trace_probes: Products for each trace and Frobenius norm.
        outliers: Eigenpairs of largest magnitude that are taken out exactly before a density; the
            number of the network's outputs plus four where it is not given.
        tolerance: The residual of an eigenpair, relative to the norm of its matrix.
        exact_rows: A matrix, or its Gram form, of so many rows is diagonalised exactly.
        class_rows: The same for the twelve or so matrices of the class structure.
        layer_pairs: Eigenpairs of each layer's Hessian.
    """

    steps: int = 100
    probes: int = 8
    trace_probes: int = 64
    outliers: int | None = None
    tolerance: float = 1e-4
    exact_rows: int = 4096
    class_rows: int = 2048
    layer_pairs: int = 40

    def __post_init__(self) -> None:
        for name in ("steps", "probes", "trace_probes", "layer_pairs"):
            positive_int("Settings", name, getattr(self, name), minimum=4)
        for name in ("exact_rows", "class_rows"):
            positive_int("Settings", name, getattr(self, name), minimum=0)
        if self.outliers is not None:
            positive_int("Settings", "outliers", self.outliers)
        finite_float("Settings", "tolerance", self.tolerance, minimum=1e-12)


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
        path = self.work / f"{purpose}.npz"
        return {"progress": self.progress, "checkpoint": path, "every": _EVERY}


def derived(seed: int, purpose: str) -> int:
    """A seed of its own for each purpose.

    >>> derived(0, "a") == derived(0, "a"), derived(0, "a") == derived(1, "a")
    (True, False)
    """
    return int(checksum(f"{seed}/{purpose}".encode())[:14], 16)
