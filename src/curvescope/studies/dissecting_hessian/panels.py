"""What the entries draw of a layer, and the rows that they print of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from curvescope.figures.model import Curve, Image, Panel
from curvescope.structure.autocorrelation import AutocorrelationStructure, autocorrelation_table
from curvescope.studies.dissecting_hessian.layer_study import LayerStudy
from curvescope.studies.entry import Row


@dataclass(frozen=True)
class Printed:
    """A row of DH's tables 6 to 8: mean, smallest and largest."""

    alignment: tuple[float, float, float]
    ratio: tuple[float, float, float]


def comparison(study: LayerStudy, title: str, *, k: int = 50) -> tuple[Panel, Panel]:
    """Eigenvalues and eigenspace overlap, true against Kronecker, mean over models (fig. 2, 29)."""
    true, approximate = (t[:, :k] for t in (study.true, study.approximate))
    values = Panel(
        title=f"{title}: eigenvalues",
        xlabel="index",
        ylabel="eigenvalue",
        curves=(
            Curve.mean("true", None, true),
            Curve.mean("Kronecker", None, approximate),
        ),
        yscale="log",
    )
    share = Panel(
        title=f"{title}: overlap with the approximation",
        xlabel="k",
        ylabel="overlap",
        curves=(Curve.mean("", None, study.overlap[:, :k], within=(0.0, 1.0)),),
        ylim=(0.0, 1.05),
    )
    return values, share


def between_models(study: LayerStudy, title: str, *, expected: bool = True) -> Panel:
    """Overlap of independent models, mean and spread over pairs, with what is expected (fig. 5)."""
    curves = study.between.curves
    shown = [Curve.mean("between models", None, curves, within=(0.0, 1.0))]
    if expected:
        ours = study.predicted[:, : curves.shape[1]]
        shown.append(Curve.of("expected from the factors", None, ours.mean(0)))
    return Panel(
        title=title,
        xlabel="k",
        ylabel="overlap",
        curves=tuple(shown),
        lines={f"m = {study.m}": study.m} if study.m <= curves.shape[1] else None,
    )


def rank_one(studies: Iterable[LayerStudy], *, k: int = 200) -> Panel:
    """``‖Mat(h_i)‖ / ‖Mat(h_i)‖_F``, mean over models (fig. 1b, 6, 22)."""
    return Panel(
        title="first singular value of an eigenvector",
        xlabel="i",
        ylabel="‖Mat(h)‖ / ‖Mat(h)‖_F",
        curves=tuple(
            Curve.of(study.layer, None, study.ratio[:, :k].mean(0), kind="points")
            for study in studies
        ),
        ylim=(0.0, 1.05),
    )


def correspondences(
    study: LayerStudy, *, rows: int = 20, columns: int = 60
) -> tuple[Panel, Panel, Panel, Panel]:
    """The four matrices of fig. 3, 14–17, their top left corners."""
    return pattern_panels(study.layer, study.correspondences, rows=rows, columns=columns)


def pattern_panels(
    layer: str, patterns: Mapping[str, Tensor], *, rows: int = 20, columns: int = 60
) -> tuple[Panel, Panel, Panel, Panel]:
    """The same from the matrices alone."""

    def panel(kind: str, side: str) -> Panel:
        factor = {"input": "E[xxᵀ]", "output": "E[M]"}[side]
        values = patterns[f"{kind} {side}"][:rows, :columns]
        hessian = "true Hessian" if kind == "true" else "Kronecker product"
        return Panel(
            title=f"{layer}: {hessian} and {factor}",
            xlabel="eigenvector of the layer",
            ylabel=f"eigenvector of {factor}",
            image=Image.of(values, low=0.0, high=1.0, label="correspondence"),
        )

    return (
        panel("true", "input"),
        panel("true", "output"),
        panel("approximate", "input"),
        panel("approximate", "output"),
    )


def factor_spectra(study: LayerStudy, *, k: int = 20) -> Panel:
    """Eigenvalues of both factors, each over its largest, mean over models (fig. 24b–26b)."""
    gamma = study.inputs.mean(0)
    tau = (study.outputs / study.outputs[:, :1]).mean(0)
    return Panel(
        title=f"{study.layer}: eigenvalues of the factors",
        xlabel="index",
        ylabel="over the largest",
        curves=(
            Curve.of("E[xxᵀ]", None, (gamma / gamma[0])[:k], kind="points"),
            Curve.of("E[M]", None, tau[:k], kind="points"),
        ),
        yscale="log",
    )


def spectra(title: str, outputs: Tensor, layer: Tensor | None = None, *, k: int = 30) -> Panel:
    """Eigenvalues of ``E[M]``, and those of the layer, each over its largest (fig. 4)."""
    curves = [Curve.of("E[M]", None, outputs[:k] / outputs[0], kind="points")]
    if layer is not None:
        curves.append(Curve.of("layer's Hessian", None, layer[:k] / layer[0], kind="points"))
    return Panel(
        title=title,
        xlabel="index",
        ylabel="eigenvalue over the largest",
        curves=tuple(curves),
        lines={"c − 1": 9.5},
        ylim=(0.0, 1.05),
    )


def autocorrelation_rows(
    name: str,
    structures: Sequence[AutocorrelationStructure],
    printed: Printed,
) -> list[Row]:
    """A row of tables 6 to 8: ours agrees where our mean lies in the paper's range.

    The range of the alignment is wider by the rounding of its three printed digits.
    """
    table = autocorrelation_table(structures)
    rows = []
    for what, ours, (mean, low, high), rounding in (
        ("(v₁·Ê[x])²", table.alignment, printed.alignment, 5e-4),
        ("λ₁/λ₂", table.spectral_ratio, printed.ratio, 0.0),
    ):
        note = f"{ours.min:.4g} … {ours.max:.4g} over {table.layers} layers"
        row = Row(
            f"{what}, {name}: mean",
            ours.mean,
            mean,
            round(low - rounding, 4),
            round(high + rounding, 4),
            note,
        )
        rows.append(row)
    return rows


def summary(studies: Mapping[str, LayerStudy]) -> dict[str, Any]:
    """The numbers of each layer, as plain JSON."""
    return {
        name: {
            "outputs": study.m,
            "models": len(study.true),
            "alignment": [s.alignment for s in study.structures],
            "spectral_ratio": [s.spectral_ratio for s in study.structures],
            "dominance": [s.dominance for s in study.structures],
            "peak": study.between.peak,
            "overlap_at_peak": float(study.between.mean.max()),
            "predicted_peaks": study.predicted_peak.tolist(),
            "verdict": study.verdict,
            "largest_eigenvalue": study.true[:, 0].tolist(),
            "kronecker_over_true": (study.approximate[:, 0] / study.true[:, 0]).tolist(),
            "between_mean": _short(study.between.mean),
            "between_std": _short(study.between.std),
            "ratio_mean": _short(study.ratio.mean(0)),
        }
        for name, study in studies.items()
    }


def _short(values: Tensor) -> list[float]:
    return [float(f"{value:.4g}") for value in values.tolist()]
