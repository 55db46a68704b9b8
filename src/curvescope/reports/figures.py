"""Vector figures beside a report, for papers: PDF and SVG of each picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from curvescope import figures as drawing
from curvescope import io
from curvescope.errors import CurvescopeError
from curvescope.experiments.stages.plan import Extra, parts_of
from curvescope.experiments.stages.spectra import Spectrum
from curvescope.experiments.store import Finding, RunDirectory
from curvescope.figures import stages as pictures
from curvescope.figures import style
from curvescope.figures.draw import draw
from curvescope.figures.model import Picture
from curvescope.identity import code_digest, digest
from curvescope.reports.sections import user

KINDS = ("svg", "pdf")
DRAWN = ".drawn.json"
"""The file with the digest of what each figure was drawn from; an equal one is not drawn again."""


def write_figures(run: RunDirectory, extra: Sequence[Extra] = ()) -> list[Path]:
    """Draw every figure that the finished stages allow into ``figures/``, and return their paths.

    Drawing takes most of a report's time, so that figures of the same numbers, drawn by the same
    code, are not drawn again.

    Raises:
        CurvescopeError: If matplotlib is missing or the folder cannot be written.
    """
    folder = run.path / "figures"
    drawn, code = _drawn(folder), _code()
    written: list[Path] = []
    gone = set(drawn)
    for picture in (*figures_of(run), *user_figures(run, extra)):
        gone.discard(picture.name)
        paths = [folder / f"{picture.name}.{kind}" for kind in KINDS]
        stamp = digest(picture, code)
        if drawn.get(picture.name) != stamp or not all(path.is_file() for path in paths):
            figure = draw(picture)
            for path in paths:
                style.save(figure, path)
                figure.set_layout_engine("none")  # the layout is found once, and is slow
            drawn[picture.name] = stamp
            io.write_json(folder / DRAWN, drawn)
        written += paths
    _remove(folder, gone, drawn)
    return written


def _remove(folder: Path, gone: set[str], drawn: dict[str, str]) -> None:
    """Remove figures that were drawn here and that the run no longer has."""
    for name in gone:
        for kind in KINDS:
            (folder / f"{name}.{kind}").unlink(missing_ok=True)
        del drawn[name]
    if gone:
        io.write_json(folder / DRAWN, drawn)


def figures_of(run: RunDirectory) -> Iterator[Picture]:
    """The figures of the finished stages, in their order; that of all spectra is the last."""
    spectra: dict[str, Spectrum] = {}
    for part in parts_of(run.config.layers, classes=True):
        if not run.has(part.name):
            continue
        result = run.result(part.name, part.kind)
        if isinstance(result, Finding):
            result = result.value
        if isinstance(result, Spectrum):
            if result.vanishes:
                continue
            spectra[result.name] = result
        if type(result) in pictures.OF_STAGE:
            yield pictures.OF_STAGE[type(result)](part.name, result)
    if spectra:
        yield pictures.spectra("spectra", spectra)


def user_figures(run: RunDirectory, extra: Sequence[Extra]) -> Iterator[Picture]:
    """The charts in the sections of user stages."""
    for section in user.build(run, extra):
        for chart in section.charts():
            yield Picture(chart.id, chart.caption, (chart.panel,), columns=1)


def _drawn(folder: Path) -> dict[str, str]:
    """The digests of the figures that were drawn; empty where their file is missing or damaged."""
    try:
        noted = io.read_json(folder / DRAWN) if (folder / DRAWN).is_file() else {}
    except CurvescopeError:
        return {}
    if not isinstance(noted, dict):
        return {}
    return {str(name): str(stamp) for name, stamp in noted.items() if Path(name).name == name}


def _code() -> str:
    """The digest of the code that draws, and the version of matplotlib."""
    try:
        version = metadata.version("matplotlib")
    except metadata.PackageNotFoundError:
        version = ""
    return digest(version, code_digest(drawing))
