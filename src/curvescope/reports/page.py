"""One HTML file from a run directory: it opens offline and loads nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import import_module, metadata, resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from curvescope import io
from curvescope.errors import CurvescopeError
from curvescope.experiments.stages.plan import STAGES, Extra
from curvescope.experiments.store import RunDirectory
from curvescope.figures import style, svg
from curvescope.reports.blocks import Section
from curvescope.reports.figures import write_figures
from curvescope.reports.sections import certificate, provenance, user

_SCRIPTS = ("chart.js", "page.js")
_LIGHT = {
    "blue": style.BLUE,
    "vermilion": style.VERMILION,
    "green": style.GREEN,
    "orange": style.ORANGE,
    "purple": style.PURPLE,
    "sky": style.SKY,
    "gray": style.GRAY,
}
# The same hues, lighter: on a dark page each stands out at least 3 : 1 (WCAG 1.4.11).
_DARK = {
    "blue": "#56B4E9",
    "vermilion": "#FF8C52",
    "green": "#2FC49B",
    "orange": "#F0B429",
    "purple": "#E2A3C7",
    "sky": "#A6DBFF",
    "gray": "#A0A0A0",
}


def write_report(
    path: io.PathLike, *, figures: bool | None = None, extra: Sequence[Extra] = ()
) -> Path:
    """Write ``report.html`` and ``figures/`` into a run directory, from its files alone.

    The report of an unfinished run shows its finished stages. The same directory gives the
    same file.

    Args:
        path: A run directory.
        figures: Whether to draw the vector figures too, which takes most of the time; by default
            where matplotlib is installed.
        extra: The user stages of the run, for their sections; without its code, a stage is named.

    Returns:
        The path of the report.

    Raises:
        CurvescopeError: If it is no run directory, jinja2 (or matplotlib, for ``figures=True``) is
            missing, or the code of an extra stage has changed.
    """
    run = RunDirectory(path)
    page = render(run, extra=extra)
    if figures is None:
        figures = find_spec("matplotlib") is not None
    if figures:
        write_figures(run, extra)
    target = run.path / "report.html"
    with io.atomic(target) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return target


def render(run: RunDirectory, *, home: str = "", extra: Sequence[Extra] = ()) -> str:
    """The report as HTML; ``home`` is the address of a list of runs, if there is one."""
    modules = [
        import_module(f"curvescope.reports.sections.{name}")
        for name in dict.fromkeys(family.section for family in STAGES)
    ]
    built = [module.build(run) for module in (*modules, certificate)]
    ours = [section for section in built if section is not None]
    sections = [*ours, *user.build(run, extra), provenance.build(run)]
    config = run.config
    heading = f"{config.model.name} on {config.data.name}"
    under = f"{config.loss.replace('_', '-')} loss, seed {config.seed}, {config.dtype}"
    return fill(
        "report.html.j2",
        title=heading,
        sections=sections,
        heading=heading,
        under=under,
        home=home,
    )


def fill(template: str, *, title: str, sections: list[Section], **values: Any) -> str:
    """A page of the package: its template with styles, scripts and the charts' numbers inside."""
    environment = _environment()
    charts = {
        chart.id: svg.numbers(chart.panel) for section in sections for chart in section.charts()
    }
    values = {"home": "", "refresh": False, **values}
    return environment.get_template(template).render(
        title=title,
        sections=sections,
        version=metadata.version("curvescope"),
        colors=_colors(),
        css=asset("style.css"),
        javascript="\n".join(map(asset, (*_SCRIPTS, *values.pop("scripts", ())))),
        charts=embedded(charts),
        **values,
    )


def embedded(value: Any) -> str:
    r"""JSON that is safe inside a ``<script>`` element: no tag can begin or end in it.

    >>> embedded({"name": "</script>"})
    '{"name":"\\u003c/script\\u003e"}'
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def asset(name: str) -> str:
    """A file of the package's ``assets``."""
    return (resources.files("curvescope.reports") / "assets" / name).read_text(encoding="utf-8")


def _environment() -> Any:
    try:
        import jinja2
    except ModuleNotFoundError:
        rule = "pages need jinja2"
        raise CurvescopeError("reports", rule, remedy="install curvescope[report]") from None
    return jinja2.Environment(
        loader=jinja2.PackageLoader("curvescope.reports"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _colors() -> str:
    light, dark = (
        " ".join(f"--{name}: {value};" for name, value in table.items())
        for table in (_LIGHT, _DARK)
    )
    return (
        f":root {{ {light} }}\n"
        f':root[data-theme="dark"] {{ {dark} }}\n'
        "@media (prefers-color-scheme: dark) "
        f'{{ :root:not([data-theme="light"]) {{ {dark} }} }}'
    )
