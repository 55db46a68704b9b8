"""Spectra of the Hessian, of G and of E on training and test data (Papyan 2020, fig. 3, 4)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from curvescope.data import Dataset
from curvescope.figures.model import Panel, Picture, rounded
from curvescope.operators.base import LinearOperator
from curvescope.operators.gauss_newton import GaussNewton
from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem
from curvescope.spectra.eigensolver import EigenPairs, eigenpairs
from curvescope.spectra.measure import SpectralMeasure, spectral_measure
from curvescope.structure.outliers import widest_gap
from curvescope.studies.measures import restored, saved
from curvescope.studies.pictures import density
from curvescope.studies.run import Result, Run, Value
from curvescope.training import evaluate

C = 10
SPLITS = ("train", "test")
Measures = dict[str, SpectralMeasure]  # "H" and "G" without their 2C largest, "E"
Largest = dict[str, Tensor]  # "H", "G": the 2C largest


def run(run: Run) -> Result:
    """Train, then measure the three matrices on both splits."""
    group = run.networks("digits")
    (model,) = group.models
    values: dict[str, float | Value] = {}
    measures: dict[str, Measures] = {}
    largest: dict[str, Largest] = {}
    for place, (split, images) in enumerate(zip(SPLITS, (group.data, group.held_out), strict=True)):
        fit, few = evaluate(model, images), images.per_class(run["curvature_per_class"])
        values |= {f"{split}: loss": fit.loss, f"{split}: error": 1 - fit.accuracy}
        run.tell(f"spectra of H, G and E, {split} data")
        measure = partial(
            _measure, model, few, run["steps"], run.get("basis"), run.generator(10 + place)
        )
        parts = run.once(f"components-{split}", measure)
        measures[split] = {name: restored(parts, f"{name} ") for name in ("H", "G", "E")}
        largest[split] = {name: parts[f"{name} largest"].cpu() for name in ("H", "G")}
    values |= _outliers(largest) | _components(largest, measures)
    numbers = {
        f"largest eigenvalues of {name}, {split}": own.tolist()
        for split in SPLITS
        for name, own in largest[split].items()
    }
    return Result(values, _pictures(largest, measures), numbers)


def _measure(
    model: nn.Module, data: Dataset, steps: int, basis: int | None, generator: torch.Generator
) -> dict[str, Tensor]:
    """With a ``basis``, a search takes so many products and vectors: 150 are 17 GB on a GPU."""
    problem = Problem(model, data.batches(1000))
    H, G = Hessian(problem, keep=True), GaussNewton(problem, keep=True)
    parts: dict[str, Tensor] = {}

    def density_of(name: str, A: LinearOperator, out: EigenPairs | int) -> None:
        measure = spectral_measure(A, steps=steps, deflate=out, generator=generator)
        parts.update({f"{name} {part}": tensor for part, tensor in saved(measure).items()})

    for name, A in (("H", H), ("G", G)):
        pairs = eigenpairs(A, 2 * C, tol=1e-3, basis=basis, max_products=basis, generator=generator)
        parts[f"{name} largest"] = pairs.values.double().cpu()
        density_of(name, A, pairs)
    density_of("E", H - G, 0)
    H.release()
    return parts


# Numbers -----------------------------------------------------------------------------------------


def _outliers(largest: dict[str, Largest]) -> dict[str, float | Value]:
    values: dict[str, float | Value] = {}
    for split, own in largest.items():
        for name, eigenvalues in own.items():
            gap = widest_gap(eigenvalues, most=2 * C - 1)
            after = float(eigenvalues[C - 1] / eigenvalues[C])
            note = f"gap of a factor {gap.ratio:.2f}; λ₁₀/λ₁₁ = {after:.2f}"
            values[f"outliers of {name}, {split} data"] = Value(gap.count, note)
    first = {split: float(own["H"][0]) for split, own in largest.items()}
    return {**values, "λ₁ of H, test over train": first["test"] / first["train"]}


def _components(
    largest: dict[str, Largest], measures: dict[str, Measures]
) -> dict[str, float | Value]:
    """“Outliers attributable to G, bulk attributable to E” (sec. 5.1)."""
    values: dict[str, float | Value] = {}
    for split in SPLITS:
        top, own = largest[split], measures[split]
        width = {name: _width(own[name]) for name in ("H", "G", "E")}
        values |= {
            f"C largest of G over those of H, mean, {split}": float(
                (top["G"][:C] / top["H"][:C]).mean()
            ),
            f"largest of E over the tenth of H, {split}": own["E"].support[1]
            / float(top["H"][C - 1]),
            f"width of the bulk, G over H, {split}": width["G"] / width["H"],
            f"width of the bulk, E over G, {split}": width["E"] / width["G"],
        }
    top = largest["test"]
    shared = top["H"][:C] >= top["G"][:C] + measures["test"]["E"].support[0]
    values["test: λᵢ(H) ≥ λᵢ(G) + λ_min(E) for i ≤ C (interlacing)"] = float(shared.double().mean())
    return values


def _width(measure: SpectralMeasure) -> float:
    """The root mean square of the eigenvalues that are not taken out."""
    return float((measure.weights * measure.nodes.square()).sum(1).mean().sqrt())


# Pictures ----------------------------------------------------------------------------------------


def _pictures(largest: dict[str, Largest], measures: dict[str, Measures]) -> tuple[Picture, ...]:
    def panel(name: str, split: str) -> Panel:
        measure = measures[split][name]
        outliers = largest[split].get(name)
        linear = None if outliers is None else rounded(max(abs(x) for x in measure.support))
        return density(f"{name}, {split}", measure, outliers=outliers, linear=linear)

    three = tuple(panel(name, split) for split in SPLITS for name in ("H", "G", "E"))
    return (Picture("components", "Spectra of H, G and E, train and test (fig. 3, 4).", three, 3),)
