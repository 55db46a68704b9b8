"""What the studies draw of a layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor

from curvescope.figures.model import Curve, Image, Panel
from curvescope.studies.pictures import means
from curvescope.studies.wu2020.layers import LayerStudy

FACTORS = {"input": "E[xxᵀ]", "output": "E[M]"}


def comparison(study: LayerStudy, title: str, *, k: int = 50) -> tuple[Panel, Panel]:
    """Eigenvalues and eigenspaces, true against Kronecker, mean over models (fig. 2, 29)."""
    true, approximate, overlap = (study[name][:, :k] for name in ("true", "approximate", "overlap"))
    return true_and_approximate(true, approximate, overlap, title=title, label="Kronecker")


def true_and_approximate(
    true: Tensor, approximate: Tensor, overlap: Tensor, *, title: str, label: str
) -> tuple[Panel, Panel]:
    """Eigenvalues and overlap, mean and standard deviation over the models."""
    values = {"true": true, label: approximate}
    return (
        means(f"{title}: eigenvalues", "index", "eigenvalue", values, yscale="log"),
        means(
            f"{title}: overlap with the approximation", "k", "overlap", {"": overlap},
            within=(0.0, 1.0), ylim=(0.0, 1.05),
        ),
    )  # fmt: skip


def between_models(study: LayerStudy, title: str) -> Panel:
    """Overlap of independent models, mean and spread over pairs, with what is expected (fig. 5)."""
    curves = study["between"]
    expected = study["predicted"][:, : curves.shape[1]].mean(0)
    shown = (
        Curve.mean("between models", None, curves, within=(0.0, 1.0)),
        Curve.of("expected from the factors", None, expected),
    )
    lines = {f"m = {study.m}": study.m} if study.m <= curves.shape[1] else None
    return Panel(title=title, xlabel="k", ylabel="overlap", curves=shown, lines=lines)


def rank_one(studies: Iterable[LayerStudy], *, k: int = 200) -> Panel:
    """``‖Mat(h_i)‖ / ‖Mat(h_i)‖_F``, mean over models (fig. 6, 22)."""
    shown = [
        Curve.of(study.layer, None, study["ratio"][:, :k].mean(0), kind="points")
        for study in studies
    ]
    title, label = "first singular value of an eigenvector", "‖Mat(h)‖ / ‖Mat(h)‖_F"
    return Panel(title=title, xlabel="i", ylabel=label, curves=tuple(shown), ylim=(0.0, 1.05))


def correspondences(
    layer: str, patterns: Mapping[str, Tensor], *, rows: int = 20, columns: int = 60
) -> list[Panel]:
    """The four matrices of fig. 3, 14–17, their top left corners: by input, then by output."""
    made = []
    for kind, hessian in (("true", "true Hessian"), ("approximate", "Kronecker product")):
        for side, factor in FACTORS.items():
            values = patterns[f"{kind} {side}"][:rows, :columns]
            image = Image.of(values, low=0.0, high=1.0, label="correspondence")
            title, label = f"{layer}: {hessian} and {factor}", f"eigenvector of {factor}"
            made.append(Panel(title, "eigenvector of the layer", label, image=image))
    return made


def factor_spectra(study: LayerStudy, *, k: int = 20) -> Panel:
    """Eigenvalues of both factors, each over its largest, mean over models (fig. 24b–26b)."""
    shown = [
        Curve.of(label, None, over_first(study[name].mean(0))[:k], kind="points")
        for label, name in (("E[xxᵀ]", "inputs"), ("E[M]", "outputs"))
    ]
    return Panel(
        title=f"{study.layer}: eigenvalues of the factors", xlabel="index",
        ylabel="over the largest", curves=tuple(shown), yscale="log",
    )  # fmt: skip


def spectra(title: str, outputs: Tensor, layer: Tensor | None = None, *, k: int = 30) -> Panel:
    """Eigenvalues of ``E[M]``, and those of the layer, each over its largest (fig. 4)."""
    both = {"E[M]": outputs} | ({} if layer is None else {"layer's Hessian": layer})
    shown = [Curve.of(name, None, over_first(v)[:k], kind="points") for name, v in both.items()]
    return Panel(
        title=title, xlabel="index", ylabel="eigenvalue over the largest", curves=tuple(shown),
        lines={"c − 1": 9.5}, ylim=(0.0, 1.05),
    )  # fmt: skip


def over_first(values: Tensor) -> Tensor:
    """Eigenvalues over the largest.

    >>> import torch
    >>> over_first(torch.tensor([4.0, 1.0]))
    tensor([1.0000, 0.2500])
    """
    return values / values[0]
