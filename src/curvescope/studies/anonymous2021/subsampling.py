"""Fig. 2: the trace survives sub-sampling, the trace of the square does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from curvescope.figures.model import Curve, Panel, Picture
from curvescope.flatness import SubsamplingStudy, subsampling_study
from curvescope.problem import Problem
from curvescope.studies.courses import courses
from curvescope.studies.run import Result, Run

KEY = "subsampling"
MATRICES = {"hessian": "H", "ggn": "G"}
BATCH = 128
"""the paper's sub-samples."""


@dataclass(frozen=True)
class Point:
    """A study of one matrix at one epoch."""

    epoch: int
    matrix: str
    study: SubsamplingStudy


def run(run: Run) -> Result:
    """Train with checkpoints, study both matrices at each of them."""
    trained = courses(run, KEY)
    (course,) = trained.runs
    points = []
    for epoch in (0, *trained.description.recipe.checkpoints):
        problem = Problem(course.at(epoch), trained.data.batches(2500))
        for matrix, name in MATRICES.items():
            run.tell(f"{name} after epoch {epoch}")
            study = subsampling_study(
                problem, run["sizes"], matrix=matrix, repeats=run["repeats"], probes=run["probes"],
                generator=run.generator(1),
            )  # fmt: skip
            points.append(Point(epoch, name, study))
    values = {what: value for p in points for what, value in _values(p).items()}
    return Result(values, _pictures(points), {"studies": [asdict(p) for p in points]})


def _values(p: Point) -> dict[str, float]:
    (at,) = (s for s in p.study.subsamples if s.size == BATCH)
    where = f"{p.matrix}, epoch {p.epoch}, B = {BATCH}"
    square = p.study.square_sum.value
    return {
        f"tr of the batch over that of all, {where}": at.trace.value / p.study.trace.value,
        f"tr² of the batch over that of all, {where}": at.square_sum.value / square,
        f"the same by the formula, {where}": p.study.predicted_square_sum(BATCH) / square,
    }


def derive(values: Mapping[str, float], numbers: Mapping[str, Any]) -> dict[str, float]:
    """The worst of all epochs and both matrices."""
    away, squares = [], []
    for each in numbers["studies"]:
        study = each["study"]
        (at,) = (s for s in study["subsamples"] if s["size"] == BATCH)
        # The mean of the batches is off by its own error; the same probes are used for all data.
        away.append(abs(at["trace"]["value"] - study["trace"]["value"]) / at["trace"]["stderr"])
        squares.append(at["square_sum"]["value"] / study["square_sum"]["value"])
    where = f"batches of {BATCH} over that of all"
    return {
        f"tr of {where}: distance from 1 in standard errors, largest": max(away),
        f"tr² of {where}, least": min(squares),
    }


def _pictures(points: list[Point]) -> tuple[Picture, ...]:
    last = points[-1].epoch
    along, against = [], []
    for power in ("", "²"):
        for matrix in MATRICES.values():
            chosen = [p for p in points if p.matrix == matrix]
            along.append(_along(matrix, power, chosen))
            against.append(_against(matrix, power, next(p for p in chosen if p.epoch == last)))
    return (
        Picture(
            "training",
            f"All data and batches of {BATCH} along training (fig. 2): the traces agree, the "
            "traces of the squares do not.",
            tuple(along),
        ),
        Picture("sizes", "Against the size of the batch, after the last epoch.", tuple(against)),
    )


def _along(matrix: str, power: str, points: list[Point]) -> Panel:
    epochs = [p.epoch for p in points]
    batch = [next(s for s in p.study.subsamples if s.size == BATCH) for p in points]
    whole = [(p.study.square_sum if power else p.study.trace).value for p in points]
    means = [(s.square_sum if power else s.trace).value for s in batch]
    spread = [s.square_spread if power else s.trace_spread for s in batch]
    return Panel(
        xlabel="epoch",
        ylabel=f"tr {matrix}{power}",
        curves=(
            Curve.of("all data", epochs, whole),
            Curve.of(
                f"B = {BATCH}",
                epochs,
                means,
                low=[m - s for m, s in zip(means, spread, strict=True)],
                high=[m + s for m, s in zip(means, spread, strict=True)],
            ),
        ),
    )


def _against(matrix: str, power: str, point: Point) -> Panel:
    study = point.study
    sizes = [s.size for s in study.subsamples]
    means = [(s.square_sum if power else s.trace).value for s in study.subsamples]
    whole = (study.square_sum if power else study.trace).value
    curves = [
        Curve.of("batches", sizes, means, kind="points"),
        Curve.of("all data", sizes, [whole for _ in sizes]),
    ]
    if power:
        fitted = [study.predicted_square_sum(size) for size in sizes]
        curves.append(Curve.of("formula", sizes, fitted))
    label = f"tr {matrix}{power}"
    return Panel(xlabel="size B of the batch", ylabel=label, curves=tuple(curves), xscale="log")
