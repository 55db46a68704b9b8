"""The sections of user stages, made by the code that measured them."""

from __future__ import annotations

from collections.abc import Sequence

from curvescope.errors import CurvescopeError
from curvescope.experiments.stages.plan import Extra, check_extra
from curvescope.experiments.store import RunDirectory
from curvescope.reports.blocks import Section


def build(run: RunDirectory, extra: Sequence[Extra]) -> list[Section]:
    """A section for each extra stage that is finished; without its code, a sentence says so.

    Raises:
        CurvescopeError: If the code of a stage is not that which measured it, or makes no section.
    """
    check_extra(run.config, extra)
    stages = {part.name: part for part in extra}
    sections = []
    for name in run.config.extra:
        if not run.has(name):
            continue
        if name not in stages:
            sections.append(_without_code(name))
            continue
        section = stages[name].section(run.result(name, stages[name].kind))
        if not isinstance(section, Section):
            rule = "`section` must return a Section"
            raise CurvescopeError(f"Extra({name!r})", rule, given=type(section).__name__)
        sections.append(section)
    return sections


def _without_code(name: str) -> Section:
    observation = (
        "This stage was measured by code that is no part of curvescope, and without which its "
        "results cannot be shown: curvescope analyze --extra CODE writes its section."
    )
    return Section(f"user-{name}", name, observation, "", source="")
