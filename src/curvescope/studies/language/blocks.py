"""The block-diagonal part of a language model's Hessian beside the whole.

References:
    Granziol and Juarev (2026), *Hessian Spectral Analysis at Foundation Model Scale*,
    arXiv:2602.00816.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from curvescope.data import Dataset
from curvescope.figures.model import Image, Panel, Picture
from curvescope.operators.gauss_newton import GaussNewton
from curvescope.operators.hessian import Hessian
from curvescope.problem import ParamSpace
from curvescope.studies.language.subjects import (
    Point,
    Subject,
    language_problem,
    signs,
    subject,
    top,
)
from curvescope.studies.run import Result, Run, Value

PARTITIONS = ("layer", "block")
_EIGENVECTORS = 3


def run(run: Run) -> Result:
    """All directions at the start, in the middle and at the end of the training."""
    of = subject(run)
    values: dict[str, float | Value] = {}
    numbers: dict[str, Any] = {}
    for point in of.points:
        for matrix in ("H", "G"):
            names, tensors = _found(run, of, point, matrix)
            found = {key: tensor.cpu().double() for key, tensor in tensors.items()}
            numbers[f"{point.name}: {matrix}"] = _numbers(names, found)
            if matrix == "H":
                values |= _values(point.name, names, found)
            else:
                values |= _of_g(point, of, found)
        shares = [_share(numbers[f"{point.name}: {matrix}"]) for matrix in ("G", "H")]
        for matrix, share in zip(("G", "H"), shares, strict=True):
            values[f"{point.name}: share of ‖{matrix}‖_F² in the blocks by layer"] = share
        over = f"{point.name}: share of ‖G‖_F² in the blocks by layer, over that of H"
        values[over] = shares[0] / shares[1]
    return Result(values, (_picture(numbers),), numbers)


def _values(at: str, names: list[str], found: Mapping[str, Tensor]) -> dict[str, float | Value]:
    """Cosines and errors of the block-diagonal part of H; means over the random vectors."""
    values: dict[str, float | Value] = {}
    for partition, words in {"layer": "layer", "block": "transformer block"}.items():
        cosines, errors = _quality(found, partition)
        for name, places in _groups(names).items():
            values[f"{at}: cosine by {words}, {name}"] = float(cosines[places].mean())
            values[f"{at}: relative error by {words}, {name}"] = float(errors[places].mean())
    return values


def _of_g(point: Point, of: Subject, found: Mapping[str, Tensor]) -> dict[str, float | Value]:
    """``vᵀGv ≤ B vᵀDv`` for ``B`` blocks."""
    count = len(parts_of(of.problem(point).params, "layer"))
    worst = float((found["form"] / (count * found["layer form"])).max())
    return {f"{point.name}: largest vᵀGv over the number of blocks times vᵀDv": worst}


def _quality(found: Mapping[str, Tensor], partition: str) -> tuple[Tensor, Tensor]:
    """``cos(A v, D v)`` and ``‖A v − D v‖ / ‖A v‖`` of each column."""
    whole, blocked = found["whole"], found[f"{partition} blocked"]
    inner = found[f"{partition} inner"]
    cosines = inner / (whole * blocked).sqrt()
    errors = ((whole - 2 * inner + blocked).clamp(min=0) / whole).sqrt()
    return cosines, errors


def _groups(names: list[str]) -> dict[str, list[int]]:
    """The places of the columns that are said together."""
    groups: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        groups.setdefault("random v" if name.startswith("random") else name, []).append(place)
    return groups


def _numbers(names: list[str], found: Mapping[str, Tensor]) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for partition in PARTITIONS:
        cosines, errors = _quality(found, partition)
        shares = found[f"{partition} blocked"] / found["whole"]
        rows[f"by {partition}"] = {
            name: {
                "cosine": round(float(cosines[i]), 4),
                "relative error": round(float(errors[i]), 4),
                "squared length": round(float(shares[i]), 4),
                "vᵀDv over vᵀAv": round(float(found[f"{partition} form"][i] / found["form"][i]), 4),
            }
            for i, name in enumerate(names)
        }
    return rows


def _share(numbers: Mapping[str, Any]) -> float:
    """``‖D‖_F² / ‖A‖_F²``, estimated from the random vectors."""
    rows = numbers["by layer"]
    sample = [row["squared length"] for name, row in rows.items() if name.startswith("random")]
    return float(sum(sample) / len(sample))


def _picture(numbers: Mapping[str, Any]) -> Picture:
    panels = []
    for matrix in ("H", "G"):
        for partition, words in {"layer": "layer", "block": "transformer block"}.items():
            points = [key.partition(":")[0] for key in numbers if key.endswith(matrix)]
            tables = [numbers[f"{point}: {matrix}"][f"by {partition}"] for point in points]
            names = list(tables[-1])
            rows = [
                [table.get(name, {}).get("cosine", math.nan) for table in tables] for name in names
            ]
            image = Image.of(
                torch.tensor(rows, dtype=torch.float64), low=0.0, high=1.0, label="cosine",
                rows=names, columns=points,
            )  # fmt: skip
            panels.append(Panel(title=f"{matrix}, blocks by {words}", image=image))
    return Picture("cosines", _CAPTION, tuple(panels), columns=2)


_CAPTION = (
    "The cosine between A v and the product with the diagonal blocks of A, for H and G, with a "
    "block for each layer and for each transformer block; Adam has no step at the start."
)


def _found(
    run: Run, of: Subject, point: Point, matrix: str
) -> tuple[list[str], Mapping[str, Tensor]]:
    """The directions' names, and the products with them."""
    directions = _directions(run, of, point)
    run.tell(f"{point.name}: the blocks of {matrix}")
    X = torch.stack(list(directions.values()), 1)
    compute = partial(_products, matrix, point.model, of.few, X / X.norm(dim=0))
    return list(directions), run.once(f"gpt-{point.name}-blocks-{matrix}", compute)


def _directions(run: Run, of: Subject, point: Point) -> dict[str, Tensor]:
    """What H is multiplied with, by name."""
    problem = of.problem(point)
    random = signs(Hessian(problem), run["signs"], run.generator(21))
    found = {f"random {i}": row for i, row in enumerate(random.T, 1)}
    found["gradient"] = problem.gradient()
    step = point.last_step(problem.params)
    if step is not None:
        found["Adam's step"] = step
    vectors = top(run, of, point, "H").vectors
    found |= {f"eigenvector {i + 1}": vectors[:, i] for i in range(_EIGENVECTORS)}
    return found


def parts_of(space: ParamSpace, partition: str) -> list[list[str]]:
    """The parameters of each diagonal block: of a layer, or of a transformer block.

    What lies before the first transformer block is one block, and so is what lies after the last.
    """
    if partition == "layer":
        return [space.resolve(layer) for layer in space.layers]
    blocks: dict[str, list[str]] = {}
    for layer in space.layers:
        number = layer[len(layer.rstrip("0123456789")) :]
        place = number or ("before" if layer in ("embedding", "positions") else "after")
        blocks.setdefault(place, []).extend(space.resolve(layer))
    return list(blocks.values())


def _products(matrix: str, model: nn.Module, few: Dataset, X: Tensor) -> Mapping[str, Tensor]:
    """``A X`` beside ``D X`` of its diagonal blocks: inner products, column by column."""
    problem = language_problem(model, few)
    kind = Hessian if matrix == "H" else GaussNewton
    whole = (kind(problem) @ X).double()
    found = {"whole": whole.square().sum(0), "form": (X * whole).sum(0)}
    for partition in PARTITIONS:
        blocked = torch.zeros_like(whole)
        for names in parts_of(problem.params, partition):
            rows = problem.params.indices(names)
            blocked[rows] = (kind(problem.restrict(names)) @ X[rows]).double()
        found[f"{partition} blocked"] = blocked.square().sum(0)
        found[f"{partition} inner"] = (whole * blocked).sum(0)
        found[f"{partition} form"] = (X * blocked).sum(0)
    return found
