"""Stages of one's own: their sections, made by the code that measured them."""

from __future__ import annotations

from collections.abc import Sequence

from curvescope.errors import CurvescopeError
from curvescope.experiments.stages.plan import Extra, check_extra
from curvescope.experiments.store import RunDirectory
from curvescope.reports.blocks import Section


def build(run: RunDirectory, extra: Sequence[Extra]) -> list[Section]:
    """A section for each extra stage that is finished; one without its code is only named.

    Raises:
        CurvescopeError: If the code of a stage is not that which measured it, or makes no section.
    """
    check_extra(run.config, extra)
    given = {part.name: part for part in extra}
    sections = []
    for name in run.config.extra:
        if not run.has(name):
            continue
        if name not in given:
            sections.append(_without_code(name))
            continue
        section = given[name].section(run.result(name, given[name].kind))
        if not isinstance(section, Section):
            rule = "`section` must return a Section"
            raise CurvescopeError(f"Extra({name!r})", rule, given=type(section).__name__)
        sections.append(section)
    return sections


def _without_code(name: str) -> Section:
    seen = (
        "This stage was measured by code that is no part of curvescope, and without which its "
        "results cannot be shown: curvescope analyze --extra CODE writes its section."
    )
    return Section(f"own-{name}", name, seen, "", authority="")
