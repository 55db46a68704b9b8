"""All studies, papers and topics, read from the files beside this one.

A folder with a ``paper.toml`` is a paper, one with a ``topic.toml`` holds studies of no paper.
Every other TOML file in it, but for ``networks.toml``, is a study, computed by the function ``run``
of the Python file of the same name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from curvescope import io
from curvescope.errors import CurvescopeError
from curvescope.studies.papers import Paper, Topic
from curvescope.studies.study import Study

_HERE = Path(__file__).parent
_OTHERS = ("paper", "topic", "networks")


@cache
def papers() -> tuple[Paper, ...]:
    """The papers, in alphabetical order; versions of one behind it."""
    files = sorted(_HERE.glob("*/paper.toml"))
    return tuple(paper for file in files for paper in Paper.read(file))


@cache
def topics() -> tuple[Topic, ...]:
    """What studies of no paper are about, in alphabetical order."""
    files = sorted(_HERE.glob("*/topic.toml"))
    return tuple(topic for file in files for topic in Topic.read(file))


@cache
def studies() -> tuple[Study, ...]:
    """All studies, by folder and name."""
    marks = (*_HERE.glob("*/paper.toml"), *_HERE.glob("*/topic.toml"))
    return tuple(
        _study(folder, file)
        for folder in sorted(mark.parent for mark in marks)
        for file in sorted(folder.glob("*.toml"))
        if file.stem not in _OTHERS
    )


def _study(folder: Path, file: Path) -> Study:
    name = f"{folder.name}/{file.stem}"
    module = import_module(f"{__package__}.{folder.name}.{file.stem.replace('-', '_')}")
    return Study.parse(
        file.read_text(encoding="utf-8"),
        module.run,
        name=name,
        derive=getattr(module, "derive", None),
        networks=shared_networks(folder),
    )


@cache
def shared_networks(folder: Path) -> Mapping[str, Mapping[str, Any]]:
    """The networks that all studies of a folder may use."""
    file = folder / "networks.toml"
    return io.parse_toml(file.read_text(encoding="utf-8"), file.name) if file.exists() else {}


def find(name: str, among: Iterable[Study] | None = None) -> tuple[Study, ...]:
    """A study, all studies of a paper or topic, or those of a pattern.

    Raises:
        CurvescopeError: If there is none.

    >>> [study.name for study in find("wu2020/random-*")]
    ['wu2020/random-two-layer']
    """
    pool = studies() if among is None else tuple(among)
    chosen = tuple(
        study
        for study in pool
        if name in (study.name, study.name.partition("/")[0]) or fnmatchcase(study.name, name)
    )
    if not chosen:
        raise CurvescopeError("reproduce", f"there is no study {name!r}")
    return chosen


def study_named(name: str) -> Study | None:
    """The study of this name, if it is one of the package."""
    return next((study for study in studies() if study.name == name), None)
