"""The log-spectrum of G and its knockouts, exact and by Lanczos (Papyan 2020, fig. 5)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from curvescope._state import copied, evaluated
from curvescope.data import Dataset
from curvescope.figures.model import Curve, Panel, Picture
from curvescope.operators.gauss_newton import GaussNewton
from curvescope.problem import Problem
from curvescope.spectra.exact import ExactSpectrum, log_distance
from curvescope.spectra.measure import SpectralMeasure, spectral_measure
from curvescope.structure.knockouts import class_dual
from curvescope.structure.outliers import SHARES, outliers_of, widest_gap
from curvescope.structure.ratios import spectrum_ratios
from curvescope.studies.measures import restored, saved
from curvescope.studies.papyan2020.subjects import (
    Chosen,
    carriers,
    chosen,
    log_densities,
)
from curvescope.studies.pictures import EPSILON, Spectrum
from curvescope.studies.run import Result, Run, Value
from curvescope.training import load_weights

PARTS = ("class", "cross", "within", "diagonal")
LEADING = 400  # eigenvalues whose shares are kept
Tensors = Mapping[str, Tensor]


def run(run: Run) -> Result:
    """Train at every rate, take the best apart exactly, and run Lanczos on it."""
    best = chosen(run, "vgg")
    model, data, size = best.model, best.data, run["batch"]

    run.tell("all eigenvalues of G and of its knockouts")
    exactly = partial(_exactly, model, data, size, run.generator(1))
    found = {name: tensor.cpu() for name, tensor in run.once("attribution", exactly).items()}
    run.tell(f"Lanczos, {run['steps']} steps without re-orthogonalization")
    lanczos = partial(_lanczos, model, data, size, run["steps"], run.generator(2))
    measure = restored(run.once("attribution-lanczos", lanczos))
    exact = _spectra(found)
    by_rate = _by_rate(run, best)
    values = {
        **best.values(),
        "outliers made by global and class part at the rate where they are most": max(
            (row["global"] + row["class"] for row in by_rate.values()), default=0
        ),
        "parameters": exact["G"].dimension,
        f"samples of {len(data)} that carry half of tr G": int(found["carriers"]),
        **_counts(found),
        **_statements(exact, found, data.classes),
        **_distances(exact["G"], measure),
    }
    numbers = {
        "by rate": by_rate,
        "groups": dict(zip(SHARES, found["groups"].tolist(), strict=True)),
        "edge": float(found["edge"]),
        "leading": found["leading"].tolist(),
        "shares": found["shares"].tolist(),
        "class part": found["class part"].tolist(),
        "cross part": found["cross part"].tolist(),
    }
    pictures = (_knockouts(exact, float(found["edge"])), _makers(found), _both(exact["G"], measure))
    return Result(values, pictures, numbers)


def _by_rate(run: Run, best: Chosen) -> dict[str, dict[str, float]]:
    """What makes the outliers at each rate, over a few images of each class."""
    few = best.data.per_class(run["per_class_by_rate"])
    table = {}
    for rate, trained, error in zip(
        best.sweep.rates, best.sweep.runs, best.sweep.scores, strict=True
    ):
        if trained.folder is None or trained.train is None:
            continue
        model = copied(best.model)
        load_weights(trained.folder / "weights" / "final.safetensors", model)
        problem = Problem(evaluated(model), few.batches(run["batch"]))
        made = outliers_of(class_dual(problem), generator=run.generator(3))
        table[f"{rate:.3g}"] = {
            "test error": error,
            "training loss": trained.train.loss,
            "samples that carry half of tr G": carriers(problem),
            **{group.name: group.outliers for group in made.groups},
        }
    return table


def _lanczos(
    model: nn.Module, data: Dataset, size: int, steps: int, generator: torch.Generator
) -> dict[str, Tensor]:
    G = GaussNewton(Problem(model, data.batches(size)), keep=True)
    return saved(spectral_measure(G, steps=steps, reorthogonalize=False, generator=generator))


def _exactly(
    model: nn.Module, data: Dataset, size: int, generator: torch.Generator
) -> dict[str, Tensor]:
    problem = Problem(model, data.batches(size))
    dual = class_dual(problem)
    outliers = outliers_of(dual, generator=generator)
    found = {"G": dual.spectrum().values}
    found |= {f"G without {part}": dual.knocked_out(part).values for part in PARTS}
    for name in ("class", "cross"):
        X = dual.bases[name]
        found[f"{name} part"] = torch.linalg.eigvalsh(X.T @ dual.gram @ X)
    groups = [[g.expected, g.outliers, g.subtracted, g.projected] for g in outliers.groups]
    return found | {
        "leading": outliers.values[:LEADING].clone(),
        "shares": outliers.shares[:LEADING].clone(),
        "groups": torch.tensor(groups),
        "edge": torch.tensor([outliers.edge], dtype=torch.float64),
        "parameters": torch.tensor([dual.dimension]),
        "carriers": torch.tensor([carriers(problem)]),
    }


def _spectra(found: Tensors) -> dict[str, ExactSpectrum]:
    n = int(found["parameters"])
    names = ("G", *(f"G without {part}" for part in PARTS))
    return {name: ExactSpectrum(found[name], n - len(found[name]), "dual", 0) for name in names}


# Numbers -----------------------------------------------------------------------------------------


def _counts(found: Tensors) -> dict[str, float | Value]:
    """Outliers above all that is left without the cross-class means, and what makes each."""
    values: dict[str, float | Value] = {
        "outliers of G, above the edge of its bulk": int((found["leading"] > found["edge"]).sum())
    }
    for name, (_, made, subtracted, projected) in zip(
        SHARES, found["groups"].tolist(), strict=True
    ):
        note = f"gone by subtraction: {subtracted}, by projection: {projected}"
        values[f"outliers made by the {name} part"] = Value(made, note)
    groups = found["groups"]
    values["outliers gone when the class part is subtracted"] = int(groups[:2, 2].sum())
    return values


def _statements(
    exact: Mapping[str, ExactSpectrum], found: Tensors, C: int
) -> dict[str, float | Value]:
    """What sec. 6.1 says of fig. 5, as numbers."""
    top = exact["G"].values.flip(0)
    left = {part: exact[f"G without {part}"].values.flip(0) for part in PARTS}
    bulk = float(top[top > EPSILON].median())
    gap = widest_gap(top[: 2 * C], most=2 * C - 1)
    ratios = spectrum_ratios(exact["G"], C)
    values: dict[str, float | Value] = {
        f"mean of the C largest: without {what} over with it": float(
            left[part][:C].mean() / top[:C].mean()
        )
        for part, what in (("class", "the class part"), ("diagonal", "c = c'"))
    }
    for part in ("class", "cross"):
        median = float(found[f"{part} part"].median())
        values[f"median eigenvalue of the {part} part over that of G above ε"] = median / bulk
    values["widest gap among the 2C largest of G: outliers above it"] = Value(
        gap.count, f"a factor {gap.ratio:.2f}"
    )
    for name in ("outliers to mini-bulk", "mini-bulk to bulk"):
        values[f"ratio of {name}"] = ratios.ratio(name)
    trace = float(top.sum())
    for part in PARTS:
        values[f"share of tr G left without the {part} part"] = float(left[part].sum()) / trace
    return values


def _distances(exact: ExactSpectrum, lanczos: SpectralMeasure) -> dict[str, float | Value]:
    """Lanczos against the exact spectrum on the logarithmic axis."""
    return {
        "Lanczos to exact, Wasserstein of ln(λ + ε)": log_distance(exact, lanczos),
        "Lanczos to exact, Kolmogorov of λ + ε": kolmogorov(lanczos, exact, EPSILON),
        "Lanczos to exact, Kolmogorov among eigenvalues above ε": kolmogorov(
            lanczos, exact, EPSILON, alone=True
        ),
        "eigenvalues above ε, exact": _above(exact),
        "eigenvalues above ε, Lanczos over exact": _above(lanczos) / _above(exact),
        "largest eigenvalue, Lanczos over exact": float(lanczos.nodes.max() / exact.values[-1]),
    }


def kolmogorov(a: Spectrum, b: Spectrum, above: float, *, alone: bool = False) -> float:
    """The largest distance of distribution functions at eigenvalues above a value.

    With ``alone`` each function is that of the eigenvalues above the value, so that millions of
    zeros do not hide what happens to the others.
    """
    points = torch.cat([s.values if isinstance(s, ExactSpectrum) else s.nodes[0] for s in (a, b)])
    points = torch.cat([points[points > above], points.new_tensor([above])])
    shares = []
    for spectrum in (a, b):
        share = 1 - spectrum.cdf(points)
        shares.append(share / share[-1] if alone else share)
    return float((shares[0] - shares[1]).abs().max())


def _above(spectrum: Spectrum) -> float:
    share = 1 - float(spectrum.cdf(torch.tensor([EPSILON], dtype=torch.float64)))
    return share * spectrum.dimension


# Pictures ----------------------------------------------------------------------------------------


def _knockouts(exact: Mapping[str, ExactSpectrum], edge: float) -> Picture:
    """Each knockout in front of G, over the decades that the paper shows."""
    panels = []
    for i, (name, spectrum) in enumerate(list(exact.items())[1:]):
        shown = {"G": exact["G"], name: spectrum}
        panels.append(log_densities(name, shown, colors={"G": 6, name: i}))
    caption = (
        "Exact spectra of G and of G without each part (fig. 5), on a logarithmic axis, ε = 1e-5. "
        f"The edge of the bulk is {edge:.3g}."
    )
    return Picture("knockouts", caption, tuple(panels))


def _makers(found: Tensors, most: int = 150) -> Picture:
    makers, values = found["shares"][:most].argmax(1), found["leading"][:most]
    curves = []
    for i, name in enumerate(SHARES):
        places = (makers == i).nonzero()[:, 0]
        if len(places):
            curves.append(Curve.of(name, places + 1, values[places], kind="points", color=i))
    ends = [1, len(values)]
    curves.append(Curve.of("edge of the bulk", ends, [float(found["edge"])] * 2, color=6))
    panel = Panel(xlabel="index", ylabel="eigenvalue of G", curves=tuple(curves), yscale="log")
    caption = "The largest eigenvalues of G by the part that makes most of each."
    return Picture("makers", caption, (panel,), columns=1)


def _both(exact: ExactSpectrum, lanczos: SpectralMeasure) -> Picture:
    shown: dict[str, Spectrum] = {"exact": exact, f"Lanczos, M = {lanczos.nodes.shape[1]}": lanczos}
    caption = "The exact spectrum of G beside Lanczos' (one probe, no re-orthogonalization)."
    return Picture("exact-and-lanczos", caption, (log_densities("", shown),), columns=1)
