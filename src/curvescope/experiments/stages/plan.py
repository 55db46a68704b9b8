"""The stages of an analysis in order, each with the type and the function of its result."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from curvescope.errors import CurvescopeError
from curvescope.experiments.best_values import Summary
from curvescope.experiments.configuration import Analysis
from curvescope.experiments.stages import (
    class_layers,
    class_structure,
    layers,
    overview,
    sharpness,
    spectra,
    summary,
)
from curvescope.experiments.stages.context import Context
from curvescope.experiments.store import Finding, Outcome
from curvescope.identity import digest
from curvescope.structure.layer_comparison import LayerComparison

_LONGEST = 120


@dataclass(frozen=True)
class Part:
    """A stage: its name, the type of its result, and the function that computes it."""

    name: str
    kind: Any
    compute: Callable[[Context], Outcome[Any]]


@dataclass(frozen=True)
class Extra(Part):
    """A stage of the user, after those of the library, and the section of the report that shows it.

    Args:
        name: Of the stage and its folder.
        kind: The type of the result: a frozen dataclass of numbers, texts and tensors.
        compute: Returns the result, from the problem and the results of earlier stages.
        section: Makes a :class:`curvescope.reports.blocks.Section` of the result, without the
            model.
    """

    section: Callable[[Any], Any]

    def __post_init__(self) -> None:
        """Refuse a name that could be confused with a stage of the library."""
        if self.name.partition("-")[0] in {family.name for family in STAGES}:
            rule = "`name` must not begin with that of one of curvescope's own stages"
            raise CurvescopeError("Extra", rule, given=repr(self.name))

    @property
    def measures(self) -> str:
        """A digest of the code that decides the result."""
        return digest(self.name, self.kind, self.compute)


@dataclass(frozen=True)
class Family:
    """A stage of the library, or one for each matrix or layer; a line of :data:`STAGES`."""

    name: str  # of the stage, or what its name begins with
    kind: Any
    compute: Callable[..., Outcome[Any]]
    section: str  # the module of ``reports.sections`` that shows it
    each: str = ""  # "name" of a matrix or "layer": an argument of ``compute``
    by_class: bool = False  # whether it needs a loss with classes

    def parts(self, chosen: Sequence[str]) -> list[Part]:
        """Its stages in an analysis of these layers."""
        if not self.each:
            return [Part(self.name, self.kind, self.compute)]
        subjects = {"name": spectra.MATRICES, "layer": chosen}[self.each]
        return [
            Part(
                stage_name(self.name, subject),
                self.kind,
                partial(self.compute, **{self.each: subject}),
            )
            for subject in subjects
        ]


STAGES = (
    Family("overview", overview.Overview, overview.compute, "overview"),
    Family(sharpness.NAME, sharpness.Sharpness, sharpness.compute, "overview"),
    Family("spectrum", spectra.Spectrum, spectra.compute, "spectra", each="name"),
    Family("layer", Finding[LayerComparison], layers.compute, "layers", each="layer"),
    Family(
        "classes", Finding[class_structure.ClassFindings], class_structure.compute, "classes",
        by_class=True,
    ),
    Family(
        "classes", Finding[class_layers.ClassLayerFindings], class_layers.compute, "classes",
        each="layer", by_class=True,
    ),
    Family("summary", Summary, summary.compute, "overview"),
)  # fmt: skip
"""The stages of the library, in order, and with them the order of the report's sections."""


def parts_of(chosen: Sequence[str], *, classes: bool) -> list[Part]:
    """The stages of an analysis of these layers, in order."""
    families = [family for family in STAGES if classes or not family.by_class]
    return [part for family in families for part in family.parts(chosen)]


def kinds_of(config: Analysis, extra: Sequence[Extra] = ()) -> dict[str, Any]:
    """The type of each stage's result, by the stage's name.

    Args:
        config: Of the run.
        extra: The stages that are not the library's.

    Raises:
        CurvescopeError: If one of the run's stages is neither the library's nor among ``extra``, or
            an extra one has changed since it was measured.
    """
    check_extra(config, extra)
    parts = {part.name: part.kind for part in (*parts_of(config.layers, classes=True), *extra)}
    for name in config.stages:
        if name not in parts:
            rule = f"the stage {name!r} is not one of curvescope's own"
            raise CurvescopeError("analyze", rule, remedy="give the code that made it with `extra`")
    return {name: parts[name] for name in config.stages}


def check_extra(config: Analysis, extra: Sequence[Extra]) -> None:
    """Refuse user stages that are not those of the run, or whose code has changed."""
    for part in extra:
        there = config.extra.get(part.name)
        if there is None:
            rule = f"the run has no stage {part.name!r}"
            raise CurvescopeError("analyze(extra)", rule, remedy="analyze with it first")
        if there != part.measures:
            rule = f"the code of the stage {part.name!r} has changed since it was measured"
            raise CurvescopeError("analyze(extra)", rule, remedy="analyze into another folder")


def stage_name(kind: str, layer: str) -> str:
    """A folder's name for a layer's stage; no two layers have the same one.

    Characters that a folder's name should not hold are written as their codes between tildes; a
    very long name is cut and ends in a digest.

    >>> stage_name("layer", "block1.conv1"), stage_name("layer", "a b"), stage_name("layer", "")
    ('layer-block1.conv1', 'layer-a~20~b', 'layer-~')
    """
    plain = re.sub(r"[^A-Za-z0-9_.-]", lambda sign: f"~{ord(sign[0]):x}~", layer)
    if len(plain) > _LONGEST:
        plain = f"{plain[:_LONGEST]}~{digest(layer)[:32]}"
    return f"{kind}-{plain or '~'}"
