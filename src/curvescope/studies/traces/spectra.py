"""TR fig. 3, 4, 14: spectra of the Hessian, of G and of E, on training and test data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from curvescope.figures.model import Curve, Panel, Picture, rounded
from curvescope.operators.base import LinearOperator
from curvescope.operators.gauss_newton import GaussNewton
from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem
from curvescope.spectra.eigensolver import EigenPairs, eigenpairs
from curvescope.spectra.measure import SpectralMeasure, spectral_measure
from curvescope.structure.outliers import widest_gap
from curvescope.studies.entry import Entry, Outcome, Row, Settings
from curvescope.studies.traces import subjects
from curvescope.studies.traces.vgg import SPLITS, digits, test_residual


@dataclass(frozen=True)
class Split:
    """H, G and E on one split: densities, with the largest eigenpairs taken out and without."""

    pairs: dict[str, EigenPairs]  # "H", "G": the 2C largest
    measures: dict[str, SpectralMeasure]  # "H", "G" (deflated), "E"
    plain: SpectralMeasure  # of H, nothing taken out


def run(settings: Settings) -> Outcome:
    """Train, then measure the three matrices on both splits."""
    subject = digits(settings)
    found = {}
    for i, split in enumerate(SPLITS):
        settings.tell(f"spectra of H, G and E, {split} data")
        residual = test_residual(settings, subject) if split == "test" else None
        problem, generator = subject.problems[split], settings.generator(10 + i)
        found[split] = _measure(settings, problem, generator, residual)
    rows = (*_outliers(found), *_components(found), *_deflation(found["train"]))
    numbers = {
        "fits": {
            split: {"loss": loss, "error": error} for split, (loss, error) in subject.fits.items()
        },
        "largest eigenvalues": {
            f"{name}, {split}": pairs.values.tolist()
            for split in SPLITS
            for name, pairs in found[split].pairs.items()
        },
    }
    notes = (
        f"{subject.note} The paper has VGG11 with batch norm, 5,000 per class for both, and 200 "
        "epochs.",
        subjects.RANGES,
        "The width of a bulk is the root mean square of its eigenvalues once the 2C largest of H "
        "and of G are taken out. How many are taken out decides whether E is wider than G: for "
        "LeNet5 on 30 digits per class, E over G on training data is 0.35, 0.61, 1.7 and 5.0 with "
        "the 10, 20, 50 and 100 largest of G (exact) taken out: the mini-bulk counts as bulk.",
        "Outliers of H are counted by the widest gap on a logarithmic axis among its 2C largest "
        "eigenvalues; the paper counts by eye.",
        "Densities: Lanczos, M = "
        f"{found['train'].plain.nodes.shape[1]}, K = 1024, κ = 3, one probe, as in App. D.2.",
    )
    return Outcome(rows, tuple(_pictures(found)), numbers, notes)


def _measure(
    settings: Settings,
    problem: Problem,
    generator: torch.Generator,
    residual: SpectralMeasure | None,
) -> Split:
    H, G = Hessian(problem, keep=True), GaussNewton(problem, keep=True)
    steps = settings.pick(smoke=64, small=128, paper=128)
    # 17 GB of vectors on a GPU, so that a search needs few products, and no more than it can pay
    basis = settings.pick(smoke=None, small=None, paper=150)
    C = 10

    def density(A: LinearOperator, out: EigenPairs | int) -> SpectralMeasure:
        return spectral_measure(A, steps=steps, deflate=out, generator=generator)

    pairs = {
        name: eigenpairs(A, 2 * C, tol=1e-3, basis=basis, max_products=basis, generator=generator)
        for name, A in (("H", H), ("G", G))
    }
    measures = {
        "H": density(H, pairs["H"]),
        "G": density(G, pairs["G"]),
        "E": residual or density(H - G, 0),
    }
    plain = density(H, 0)
    H.release()
    return Split(pairs, measures, plain)


# Rows -------------------------------------------------------------------------------------------


def _outliers(found: dict[str, Split]) -> list[Row]:
    rows = []
    for split, own in found.items():
        for name in ("H", "G"):
            values = own.pairs[name].values.double().cpu()
            gap = widest_gap(values, most=len(values) - 1)
            rows.append(
                Row(f"outliers of {name}, {split} data", gap.count, paper=10,
                    note=f"gap of a factor {gap.ratio:.2f}; λ₁₀/λ₁₁ = "
                    f"{float(values[9] / values[10]):.2f}")
            )  # fmt: skip
    top = [float(found[split].pairs["H"].values[0]) for split in ("test", "train")]
    rows.append(Row("λ₁ of H, test over train", top[0] / top[1],
                    note="“a clear difference in magnitude”"))  # fmt: skip
    share = float(found["train"].plain.cdf(torch.tensor([-1e-6 * top[1]])))
    rows.append(Row("share of negative eigenvalues of the train Hessian", share, low=1e-9,
                    note="“negative eigenvalues exist”"))  # fmt: skip
    return rows


def _components(found: dict[str, Split]) -> list[Row]:
    """“Outliers attributable to G, bulk attributable to E” (sec. 5.1)."""
    rows = []
    for split, own in found.items():
        tenth = float(own.pairs["H"].values[9])
        outliers = float((own.pairs["G"].values[:10] / own.pairs["H"].values[:10]).mean())
        rows += [
            Row(f"C largest of G over those of H, mean, {split}", outliers, 1.0, low=0.8, high=1.2,
                note="knocking E out keeps the outliers"),
            Row(f"largest of E over the tenth of H, {split}", own.measures["E"].support[1] / tenth,
                high=1.0, note="knocking G out eliminates the outliers"),
            Row(f"width of the bulk, G over H, {split}",
                _width(own.measures["G"]) / _width(own.measures["H"]),
                note="“knocking out E shrinks the bulk significantly”"),
            Row(f"width of the bulk, E over G, {split}",
                _width(own.measures["E"]) / _width(own.measures["G"]), low=1.0,
                note="“the bulk originates largely from E”"),
        ]  # fmt: skip
    tails = found["test"].pairs
    shared = (
        tails["H"].values[:10] >= tails["G"].values[:10] + found["test"].measures["E"].support[0]
    )
    rows.append(Row("test: λᵢ(H) ≥ λᵢ(G) + λ_min(E) for i ≤ C (interlacing)",
                    float(shared.double().mean()), 1.0, note="Weyl: a check"))  # fmt: skip
    return rows


def _width(measure: SpectralMeasure) -> float:
    """The root mean square of the eigenvalues that are not taken out."""
    return float((measure.weights * measure.nodes.square()).sum(1).mean().sqrt())


def _deflation(own: Split) -> list[Row]:
    """Fig. 17: eigenvalues found beforehand are the outliers that Lanczos alone shows."""
    pairs = own.pairs["H"].values[:10].double().cpu()
    nodes = own.plain.nodes.flatten()
    nearest = (pairs[:, None] - nodes).abs().amin(1) / pairs
    return [
        Row("train: C largest of H against the nearest node of Lanczos alone, worst",
            float(nearest.max()), 0.0, high=0.05,
            note="“align with the outliers” (fig. 17, of ResNet18)"),
        Row("train: spacing of the grid, deflated over plain",
            _span(own.measures["H"]) / _span(own.plain),
            note="“improved resolution of the bulk”"),
    ]  # fmt: skip


def _span(measure: SpectralMeasure) -> float:
    return measure.support[1] - measure.support[0]


# Pictures ---------------------------------------------------------------------------------------


def _pictures(found: dict[str, Split]) -> list[Picture]:
    three = [
        density_panel(f"{name}, {split}", own.measures[name], _out(own, name),
                      linear=None if name == "E" else bulk(own.measures[name]))
        for split, own in found.items()
        for name in ("H", "G", "E")
    ]  # fmt: skip
    own = found["train"]
    width = bulk(own.measures["H"])
    both = [
        density_panel("largest pairs taken out", own.measures["H"], _out(own, "H"), linear=width),
        density_panel("Lanczos alone", own.plain, None, linear=width),
    ]
    return [
        Picture("components", "Spectra of H, G and E, train and test (TR fig. 3, 4).",
                tuple(three), columns=3),
        Picture("deflation", "The train Hessian with and without deflation (TR fig. 14).",
                tuple(both)),
    ]  # fmt: skip


def bulk(measure: SpectralMeasure) -> float:
    """How far a deflated spectrum goes from zero, as a number of one digit."""
    return rounded(max(abs(side) for side in measure.support))


def _out(own: Split, name: str) -> Tensor | None:
    return own.pairs[name].values.cpu() if name in own.pairs else None


def density_panel(
    title: str, measure: SpectralMeasure, outliers: Tensor | None, *, linear: float | None
) -> Panel:
    """A density in eigenvalues per cell, ``outliers`` as points; linear over the bulk alone."""
    density = measure.density(points=1024, kappa=3.0)
    count = density.values * measure.dimension * float(density.grid[1] - density.grid[0])
    curves = [Curve.of("density", density.grid[::2], count[::2].clamp(min=1e-12))]
    if outliers is not None:
        ones = torch.ones_like(outliers)
        curves.append(Curve.of("eigenpairs", outliers, ones, kind="points"))
    return Panel(title=title, xlabel="eigenvalue", ylabel="eigenvalues per cell",
                 curves=tuple(curves), yscale="log", ylim=(1e-2, 3 * float(count.max())),
                 xscale="linear" if linear is None else "symlog", linear=linear)  # fmt: skip


def _checks(outcome: Outcome) -> Iterator[Row]:
    """TR sec. 4.1: “a clear bulk-and-outliers structure with, arguably, C outliers”."""
    for name in ("H", "G"):
        for split, count in zip(SPLITS, outcome.values(f"outliers of {name}, "), strict=True):
            yield Row(f"outliers of {name}, {split} data, about C", count, paper=10, low=8, high=12,
                      note="“arguably, C outliers”; range ours")  # fmt: skip
    (ratio,) = outcome.values("λ₁ of H, test over train")
    yield Row("λ₁ of H: larger on test data", ratio, low=2.0,
              note="“a clear difference in magnitude”; range ours")  # fmt: skip
    for split, ratio in zip(SPLITS, outcome.values("width of the bulk, G over H"), strict=True):
        yield Row(f"the bulk shrinks without E, {split}", ratio, high=0.5,
                  note="“knocking out E shrinks the bulk significantly”; range ours")  # fmt: skip


ENTRY = Entry(
    name="traces/spectra",
    source="TR sec. 4, 5: fig. 3 (MNIST), 4, 14 (MNIST)",
    shows="A bulk and about C outliers of the Hessian; the outliers are G's, the bulk is E's.",
    cost={
        "smoke": "4 s, embedded digits",
        "small": "3 minutes on two cores, MNIST, LeNet5",
        "paper": "VGG11 with 28 million parameters, 13,510 digits, 2 minutes on an H200",
    },
    run=run,
    subject={
        "smoke": "F-24 on embedded digits",
        "small": "LeNet5 on mnist",
        "paper": "VGG11 with batch norm on mnist",
    },
    reduced={
        "smoke": "network, data and epochs",
        "small": (
            "LeNet5 instead of VGG11, 30 digits per class instead of 5,000, 60 epochs instead of "
            "200"
        ),
        "paper": (
            "1,351 digits per class instead of 5,000, 100 epochs instead of 200, one learning rate "
            "instead of the best of 100; spectra over 100 digits per class"
        ),
    },
    checks=_checks,
)
