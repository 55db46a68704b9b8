"""Class structure of a language model: the most frequent next characters as classes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from curvescope.data import Dataset
from curvescope.figures.model import Panel, Picture
from curvescope.operators.gauss_newton import GaussNewton
from curvescope.spectra.eigensolver import EigenPairs, eigenpairs
from curvescope.structure.classes import PARTS, class_structure
from curvescope.structure.grouping import frequent_classes
from curvescope.studies.language.spectra import probes
from curvescope.studies.language.subjects import (
    Point,
    Subject,
    language_problem,
    signs,
    subject,
    top,
)
from curvescope.studies.pictures import curves
from curvescope.studies.run import Result, Run, Value


def run(run: Run) -> Result:
    """The parts of G at the start, in the middle and at the end of the training."""
    of = subject(run)
    values: dict[str, float | Value] = {}
    numbers: dict[str, Any] = {}
    panels: list[Panel] = []
    for point in of.points:
        found = {key: tensor.cpu() for key, tensor in _found(run, of, point).items()}
        pairs = top(run, of, point, "G")
        trace = probes(run, of, point)["G kinds"].double().sum(0)
        values |= _values(point.name, found, pairs, float(trace.mean()))
        numbers[point.name] = _numbers(of, found, pairs)
        panels += _panels(point.name, found, pairs)
    return Result(values, (Picture("classes", _CAPTION, tuple(panels), columns=2),), numbers)


def _values(
    at: str, found: Mapping[str, Tensor], pairs: EigenPairs, trace: float
) -> dict[str, float | Value]:
    G, C = pairs.values.double().cpu(), min(len(found["counts"]), len(pairs.values))
    of_class, of_means = found["class share"], found["between share"]
    left, rest = found["left without class"].double(), found["left without between"].double()
    traces = {part: float(found[f"{part} trace"]) for part in PARTS}
    return {
        f"{at}: sum of the parts against G": float(found["off"]),
        f"{at}: share of the class part in the C largest of G": float(of_class[:C].mean()),
        f"{at}: share of the means in the C largest of G": float(of_means[:C].mean()),
        f"{at}: share of the means in λ₁ of G": float(of_means[0]),
        f"{at}: share of the diagonal part in λ₁ of G": float(found["diagonal share"][0]),
        f"{at}: largest of G without the class part over the C-th of G": float(left[0] / G[C - 1]),
        f"{at}: largest of G without the means over λ₁": float(rest[0] / G[0]),
        f"{at}: eigenvalues of G above the largest without the means": int((G > rest[0]).sum()),
        f"{at}: largest of the class part over λ₁ of G": float(found["class values"][0] / G[0]),
        f"{at}: share of the class part in tr G": traces["class"] / trace,
        f"{at}: share of the means in tr G": traces["between"] / trace,
    }


def _numbers(of: Subject, found: Mapping[str, Tensor], pairs: EigenPairs) -> dict[str, Any]:
    def shown(values: Tensor) -> list[float]:
        return [float(f"{float(value):.4g}") for value in values]

    groups, letters = found["groups"].tolist(), of.few.vocabulary
    frequent = [letters[groups.index(c)] for c in range(max(groups))]
    return {
        "classes": [*frequent, "all others"],
        "labels of each class": found["counts"].tolist(),
        "eigenvalues of G": shown(pairs.values),
        **{
            f"eigenvalues of the {part} part": shown(found[f"{part} values"][:16]) for part in PARTS
        },
        "eigenvalues of G without the class part": shown(found["left without class"]),
        "eigenvalues of G without all means": shown(found["left without between"]),
        **{f"share of the {part} part": shown(found[f"{part} share"]) for part in PARTS},
    }


def _panels(at: str, found: Mapping[str, Tensor], pairs: EigenPairs) -> tuple[Panel, Panel]:
    k = len(pairs.values)
    spectra = {
        "G": pairs.values,
        "class part": found["class values"][:k],
        "G without the class part": found["left without class"],
        "G without all means": found["left without between"],
    }
    spectra = {name: values[values > 0] for name, values in spectra.items()}
    shares = {part: found[f"{part} share"] for part in PARTS[:3]}
    shares["within"] = 1 - found["between share"]
    return (
        curves(f"{at}: largest eigenvalues", "index", "eigenvalue", spectra, yscale="log"),
        curves(f"{at}: shares in each of G", "index", "share", shares, ylim=(0.0, 1.0)),
    )


_CAPTION = (
    "Left: the largest eigenvalues of G, of its class part, and of what is left without class "
    "means and without all means. Right: the shares of the four parts in each eigenvalue of G."
)


def _found(run: Run, of: Subject, point: Point) -> Mapping[str, Tensor]:
    pairs = top(run, of, point, "G")
    compute = partial(
        _classes, point.model, of.few, run["frequent"], pairs, run["tolerance"], run.generator(41)
    )
    run.tell(f"{point.name}: classes")
    return run.once(f"gpt-{point.name}-classes", compute)


def _classes(
    model: nn.Module,
    few: Dataset,
    count: int,
    pairs: EigenPairs,
    tol: float,
    generator: torch.Generator,
) -> Mapping[str, Tensor]:
    """The parts of G, their shares in its top eigenvectors, and what is left without them."""
    problem = language_problem(model, few)
    groups = frequent_classes(problem, count)
    structure = class_structure(problem, classes=groups)
    found = {"groups": groups, "counts": structure.counts, "weights": structure.weights}
    vectors = pairs.vectors
    shares = {}
    for part in PARTS:
        found[f"{part} values"] = structure.eigenvalues(part)
        operator = getattr(structure, f"{part}_part")
        shares[part] = operator.quadratic(vectors) / pairs.values.double()
        found[f"{part} trace"] = (
            operator.scales.double() * operator.left.double().square().sum(0)
        ).sum()
    found |= {f"{part} share": share for part, share in shares.items()}
    G = GaussNewton(problem, keep=True)
    for part in ("class", "between"):
        left = G - getattr(structure, f"{part}_part")
        found[f"left without {part}"] = eigenpairs(
            left, len(pairs.values), tol=tol, generator=generator
        ).values
    v = signs(G, 1, generator)
    parts = structure.between_part @ v
    for c in range(structure.classes):
        parts = parts + structure.within_of(c) @ v
    whole = G @ v
    found["off"] = ((parts - whole).norm() / whole.norm()).reshape(1)
    return found
