"""Vector figures beside a report, for papers: PDF and SVG of each picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from curvescope import figures as drawing
from curvescope import io
from curvescope.errors import CurvescopeError
from curvescope.experiments.stages.class_layers import ClassLayerFindings
from curvescope.experiments.stages.class_structure import ClassFindings
from curvescope.experiments.stages.layers import LayerFindings
from curvescope.experiments.stages.plan import Extra
from curvescope.experiments.stages.spectra import Spectrum
from curvescope.experiments.store import Finding, RunDirectory
from curvescope.figures import stages as pictures
from curvescope.figures import style
from curvescope.figures.draw import draw
from curvescope.figures.model import Picture
from curvescope.identity import code_digest, digest
from curvescope.reports.sections import own

KINDS = ("svg", "pdf")
DRAWN = ".drawn.json"
"""From what each figure was drawn: one that would come out the same is left as it is."""


def write_figures(run: RunDirectory, extra: Sequence[Extra] = ()) -> list[Path]:
    """Draw every figure that the finished stages allow into ``figures/``, and return their paths.

    Drawing takes most of a report's time, so that figures of the same numbers, drawn by the same
    code, are not drawn again.

    Raises:
        CurvescopeError: If matplotlib is missing or the folder cannot be written.
    """
    folder = run.path / "figures"
    drawn, code = _drawn(folder), _code()
    found: list[Path] = []
    gone = set(drawn)
    for picture in (*figures_of(run), *figures_of_own(run, extra)):
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
        found += paths
    _remove(folder, gone, drawn)
    return found


def _remove(folder: Path, gone: set[str], drawn: dict[str, str]) -> None:
    """Take away figures that were drawn here and that the run has no more."""
    for name in gone:
        for kind in KINDS:
            (folder / f"{name}.{kind}").unlink(missing_ok=True)
        del drawn[name]
    if gone:
        io.write_json(folder / DRAWN, drawn)


def figures_of(run: RunDirectory) -> Iterator[Picture]:
    """The figures that the finished stages allow, in their order; all spectra together at last."""
    matrices = {}
    for name in run.stages:
        if name.startswith("spectrum-"):
            spectrum = run.result(name, Spectrum)
            matrices[spectrum.name] = spectrum
            if not spectrum.vanishes:
                yield pictures.spectra(name, {spectrum.name: spectrum})
        elif name.startswith("layer-") and (
            layer := run.result(name, Finding[LayerFindings]).value
        ):
            yield pictures.layer(name, layer)
        elif name == "classes" and (whole := run.result(name, Finding[ClassFindings]).value):
            yield pictures.attribution(name, whole)
        elif name.startswith("classes-") and (
            each := run.result(name, Finding[ClassLayerFindings]).value
        ):
            yield pictures.class_layer(name, each)
    matrices = {name: found for name, found in matrices.items() if not found.vanishes}
    if matrices:
        yield pictures.spectra("spectra", matrices)


def figures_of_own(run: RunDirectory, extra: Sequence[Extra]) -> Iterator[Picture]:
    """The charts in the sections of stages of one's own."""
    for section in own.build(run, extra):
        for chart in section.charts():
            yield Picture(chart.id, chart.caption, (chart.panel,), columns=1)


def _drawn(folder: Path) -> dict[str, str]:
    """What was noted when the figures were drawn; nothing where that is missing or damaged."""
    try:
        noted = io.read_json(folder / DRAWN) if (folder / DRAWN).is_file() else {}
    except CurvescopeError:
        return {}
    if not isinstance(noted, dict):
        return {}
    return {str(name): str(stamp) for name, stamp in noted.items() if Path(name).name == name}


def _code() -> str:
    """The code that draws: all of its packages, and the version of matplotlib."""
    try:
        version = metadata.version("matplotlib")
    except metadata.PackageNotFoundError:
        version = ""
    return digest(version, code_digest(drawing))
