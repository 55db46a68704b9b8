"""Vector figures beside a report, for papers: PDF and SVG of each picture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from curvescope.experiments.stages import class_layers, class_structure, layers, spectra
from curvescope.experiments.store import RunDirectory
from curvescope.plots import classes as class_pictures
from curvescope.plots import kronecker as layer_pictures
from curvescope.plots import spectra as spectrum_pictures
from curvescope.plots import style


def write_figures(run: RunDirectory) -> list[Path]:
    """Draw every figure that the finished stages allow into ``figures/``.

    Raises:
        CurvescopeError: If matplotlib is missing or the folder cannot be written.
    """
    written: list[Path] = []
    for name, figure in _figures(run):
        for kind in ("svg", "pdf"):
            written += style.save(figure, run.path / "figures" / f"{name}.{kind}")
            figure.set_layout_engine("none")  # the layout is found once, and is slow
    return written


def _figures(run: RunDirectory) -> Iterator[tuple[str, Any]]:
    """Names and matplotlib figures; only ``plots`` knows what those are."""
    curves = {}
    for name in run.stages:
        stage = run.stage(name)
        if name.startswith("spectrum-"):
            spectrum = spectra.restore(stage)
            curves[spectrum.name] = spectrum.measure.density()
            exact = None if spectrum.exact is None else spectrum.exact.values
            yield (
                name,
                spectrum_pictures.densities(
                    {spectrum.name: curves[spectrum.name]},
                    exact=exact,
                    title=f"Spectrum of {spectrum.name}",
                ),
            )
        elif name.startswith("layer-") and (layer := layers.restore(stage)):
            yield name, layer_pictures.layer(layer)
        elif name == "classes" and (whole := class_structure.restore(stage)):
            yield name, class_pictures.attribution(whole)
        elif name.startswith("classes-") and (each := class_layers.restore(stage)):
            yield name, class_pictures.class_layer(each)
    if curves:
        yield "spectra", spectrum_pictures.densities(curves, title="Spectra of H, G and E")
