"""The configuration of an analysis: written first into its folder, and never changed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import ClassVar

from curvescope._checks import finite_float, one_of, positive_int
from curvescope.errors import CurvescopeError
from curvescope.record.moments import SHARING

_LONGEST = 200
_STAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.~-]*")


@dataclass(frozen=True)
class Settings:
    """How much work an analysis does; part of its configuration.

    Args:
        steps: Lanczos steps of each density.
        probes: Random vectors of each density: the uncertainty band is their spread.
        trace_probes: Products for each trace and Frobenius norm.
        outliers: Eigenpairs of largest magnitude that are taken out exactly before a density; the
            default is the number of the network's outputs plus four, at most 128.
        tolerance: The residual of an eigenpair, relative to the norm of its matrix.
        exact_rows: The most rows of a matrix, or of its Gram form, for all eigenvalues.
        class_rows: The same for the twelve or so matrices of the class structure.
        layer_pairs: Eigenpairs of each layer's Hessian.
        sharing: How positions share a weight in Kronecker factors: ``"expand"`` or ``"reduce"``
            (:func:`curvescope.structure.kronecker_factors`).
    """

    steps: int = 100
    probes: int = 8
    trace_probes: int = 64
    outliers: int | None = None
    tolerance: float = 1e-4
    exact_rows: int = 4096
    class_rows: int = 2048
    layer_pairs: int = 40
    sharing: str = "expand"

    def __post_init__(self) -> None:
        for name in ("steps", "probes", "layer_pairs"):
            positive_int("Settings", name, getattr(self, name), minimum=4)
        positive_int("Settings", "trace_probes", self.trace_probes, minimum=6)  # of Hutch++
        for name in ("exact_rows", "class_rows"):
            positive_int("Settings", name, getattr(self, name), minimum=0)
        if self.outliers is not None:
            positive_int("Settings", "outliers", self.outliers)
        one_of("Settings", "sharing", self.sharing, SHARING)
        finite_float("Settings", "tolerance", self.tolerance, minimum=1e-12)


@dataclass(frozen=True)
class ModelNote:
    """A network by its name, its variables and the digest of its modules and weights."""

    name: str
    parameters: dict[str, tuple[int, ...]]
    identity: str


@dataclass(frozen=True)
class DataNote:
    """Samples by number and content; see :attr:`Problem.data_identity`."""

    name: str
    samples: int
    identity: str


@dataclass(frozen=True)
class ClassesNote:
    """Classes that outputs are put into, in words, by number and content."""

    words: str
    count: int
    identity: str


@dataclass(frozen=True)
class Analysis:
    """The configuration of an analysis: two with the same one have the same numbers."""

    FORMAT: ClassVar[int] = 5

    stages: tuple[str, ...]
    seed: int
    model: ModelNote
    loss: str
    loss_identity: str
    mode: str
    dtype: str
    data: DataNote
    test: DataNote | None
    layers: tuple[str, ...]
    settings: Settings
    classes: ClassesNote | None = None  # of outputs; None: every output is one
    extra: dict[str, str] = field(default_factory=dict)  # user stages: name -> digest of the code

    def __post_init__(self) -> None:
        for name in self.stages:
            if not _STAGE.fullmatch(name) or len(name) > _LONGEST:
                rule = "the name of a stage must be one that a folder may have"
                raise CurvescopeError("Analysis", rule, given=repr(name[:40]))
        if len(set(self.stages)) < len(self.stages):
            twice = next(name for name in self.stages if self.stages.count(name) > 1)
            raise CurvescopeError("Analysis", f"there are two stages with the name {twice!r}")
