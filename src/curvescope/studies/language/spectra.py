"""Spectra of a language model: H, G, E, and the Hessian in the metric of Adam.

References:
    Cohen, Ghorbani, Krishnan, Agarwal, Medapati, Badura, Suo, Cardoze, Nado, Dahl and Gilmer
    (2022), *Adaptive Gradient Methods at the Edge of Stability*.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from curvescope.data import Dataset
from curvescope.flatness.rescaling import Congruence
from curvescope.operators.base import LinearOperator
from curvescope.operators.gauss_newton import GaussNewton
from curvescope.operators.hessian import Hessian
from curvescope.spectra.eigensolver import EigenPairs, eigenpairs
from curvescope.spectra.measure import SpectralMeasure, spectral_measure
from curvescope.structure.outliers import widest_gap
from curvescope.structure.overlaps import overlap
from curvescope.studies.language.panels import is_known, spectra_pictures
from curvescope.studies.language.subjects import (
    KINDS,
    NAMES,
    Point,
    Subject,
    by_kind,
    language_problem,
    signs,
    sizes,
    spread,
    subject,
    top,
)
from curvescope.studies.measures import restored, restored_pairs, saved, saved_pairs
from curvescope.studies.run import Result, Run, Value

STABLE = 38.0
"""λ₁(P⁻¹H) times the rate at which Adam on all data becomes unstable: (2 + 2β₁)/(1 − β₁) for
β₁ = 0.9 (Cohen et al. 2022)."""
_SETS = 3  # of sequences, for the spread of λ₁


def run(run: Run) -> Result:
    """All matrices at the start, in the middle and at the end of the training."""
    of = subject(run)
    values = _fits(of)
    numbers: dict[str, Any] = {}
    found: list[dict[str, Any]] = []
    for point in of.points:
        pairs, measures = _spectra(run, of, point)
        found.append({"pairs": pairs, "measures": measures, "probes": probes(run, of, point)})
        values |= _values(point, of, **found[-1])
        numbers[point.name] = _numbers(of, point, **found[-1])
    values |= _samples(run, of)
    return Result(values, spectra_pictures(of, found), numbers)


# Computations ------------------------------------------------------------------------------------


def _spectra(
    run: Run, of: Subject, point: Point
) -> tuple[dict[str, EigenPairs], dict[str, SpectralMeasure]]:
    """The largest eigenpairs (of E: in magnitude) and the measure of the rest, for each matrix."""
    pairs = {name: top(run, of, point, name) for name in ("H", "G")}
    P = point.preconditioner(of.problem(point).params)
    measures = {}
    for name in ("H", "G", "E", "P"):
        if name == "P" and P is None:
            continue
        run.tell(f"{point.name}: the spectrum of {NAMES[name]}")
        scale = P.rsqrt() if name == "P" and P is not None else None
        compute = partial(
            _measure, name, point.model, of.few, scale, pairs.get(name), run["further"],
            run["tolerance"], run["steps"], run["probes"], run.generator(12),
        )  # fmt: skip
        parts = run.once(f"gpt-{point.name}-measure-{name}", compute)
        measures[name] = restored(parts, "measure ")
        if name not in pairs:
            pairs[name] = restored_pairs(parts, "pairs ")
    return pairs, measures


def _measure(
    name: str,
    model: nn.Module,
    few: Dataset,
    scale: Tensor | None,
    pairs: EigenPairs | None,
    k: int,
    tol: float,
    steps: int,
    probes: int,
    generator: torch.Generator,
) -> Mapping[str, Tensor]:
    problem = language_problem(model, few)
    H, G = Hessian(problem, keep=True), GaussNewton(problem, keep=True)
    A: LinearOperator = {"H": H, "G": G, "E": H - G, "P": H}[name]
    if scale is not None:
        A = Congruence(A, scale)
    parts = {}
    if pairs is None:
        which = "magnitude" if name == "E" else "largest"
        pairs = eigenpairs(A, k, tol=tol, which=which, generator=generator)
        parts = {f"pairs {key}": tensor for key, tensor in saved_pairs(pairs).items()}
    measure = spectral_measure(A, steps=steps, probes=probes, deflate=pairs, generator=generator)
    return parts | {f"measure {key}": tensor for key, tensor in saved(measure).items()}


def probes(run: Run, of: Subject, point: Point) -> Mapping[str, Tensor]:
    """``ωᵀ A ω`` by kinds of layers and ``‖A ω‖²`` for signs ``ω``, of H, G and E = H − G."""
    compute = partial(_signs, point.model, of.few, run["signs"], run.generator(13))
    run.tell(f"{point.name}: traces")
    return run.once(f"gpt-{point.name}-signs", compute)


def _signs(
    model: nn.Module, few: Dataset, count: int, generator: torch.Generator
) -> Mapping[str, Tensor]:
    problem = language_problem(model, few)
    H, G = Hessian(problem, keep=True), GaussNewton(problem, keep=True)
    columns = signs(H, count, generator)
    images = {"H": H @ columns, "G": G @ columns}
    images["E"] = images["H"] - images["G"]
    direct = (H - G) @ columns[:, :1]
    parts = {f"{name} kinds": by_kind(columns * y, problem.params) for name, y in images.items()}
    parts |= {f"{name} squares": y.double().square().sum(0) for name, y in images.items()}
    return parts | {"E off": (images["E"][:, :1] - direct).norm() / images["H"][:, 0].norm()}


def _samples(run: Run, of: Subject) -> dict[str, float | Value]:
    """λ₁ at the end on other sequences of the training text, and on some held out."""
    end = of.points[-1]
    sets = {
        f"set {i}": spread(of.training, len(of.few), part=i, parts=_SETS + 1)
        for i in range(1, _SETS + 1)
    } | {"held out": spread(of.held_out, len(of.few))}
    found = {}
    for name, few in sets.items():
        run.tell(f"λ₁ of H, {name}")
        compute = partial(_largest, end.model, few, run["tolerance"], run.generator(14))
        found[name] = float(run.once(f"gpt-largest-{name.replace(' ', '-')}", compute)["values"][0])
    others = torch.tensor([value for name, value in found.items() if name != "held out"])
    first = float(top(run, of, end, "H").values[0])
    spread_ = float(torch.cat([others, torch.tensor([first])]).std() / others.mean())
    return {
        "end: λ₁ of H, spread over sets of sequences": Value(
            spread_, f"relative standard deviation over {_SETS + 1} sets"
        ),
        "end: λ₁ of H, held out over trained": found["held out"] / first,
    }


def _largest(
    model: nn.Module, few: Dataset, tol: float, generator: torch.Generator
) -> Mapping[str, Tensor]:
    H = Hessian(language_problem(model, few), keep=True)
    return saved_pairs(eigenpairs(H, 1, tol=tol, generator=generator))


# Numbers -----------------------------------------------------------------------------------------


def _fits(of: Subject) -> dict[str, float | Value]:
    """Loss and error of the training as a whole."""
    train, test = of.run.train, of.run.test
    assert train is not None, "the training has not diverged"
    assert test is not None, "text is held out"
    return {
        "end: training loss": train.loss,
        "end: held-out loss": test.loss,
        "end: held-out characters that are predicted": test.accuracy,
    }


def _values(
    point: Point,
    of: Subject,
    pairs: Mapping[str, EigenPairs],
    measures: Mapping[str, SpectralMeasure],
    probes: Mapping[str, Tensor],
) -> dict[str, float | Value]:
    """What is judged at a point, and what is said besides."""
    at, problem = point.name, of.problem(point)
    H, G, E = (pairs[name].values.double() for name in ("H", "G", "E"))
    low = float(measures["H"].support[0])
    gap = widest_gap(H, most=len(H) - 1)
    values: dict[str, float | Value] = {
        f"{at}: loss on the sequences": float(problem.value()),
        f"{at}: λ₁ of H": float(H[0]),
        f"{at}: λ₁ of G": float(G[0]),
        f"{at}: largest |λ| of E": float(E.abs().max()),
        f"{at}: −λ_min over λ₁ of H": -low / float(H[0]),
        f"{at}: eigenvalues of H before its widest gap": Value(
            gap.count, f"a factor {gap.ratio:.2f}, among the {len(H)} largest"
        ),
        f"{at}: largest of E over the tenth of H": float(E.max() / H[:10][-1]),
        f"{at}: spread of the bulk, E over G": _spread(measures["E"]) / _spread(measures["G"]),
        f"{at}: overlap of the top eigenspaces of H and G": float(
            overlap(pairs["H"], pairs["G"])[-1]
        ),
        f"{at}: (H − G) v against H v − G v": float(probes["E off"]),
        f"{at}: largest |λᵢ(H) − λᵢ(G)| over ‖E‖": float((H - G).abs().max() / E.abs().max()),
        f"{at}: share of the gradient in the top eigenspace of H": _inside(
            problem.gradient(), pairs["H"].vectors
        ),
    }
    for name in ("H", "G", "E"):
        traces, squares = probes[f"{name} kinds"].double().sum(0), probes[f"{name} squares"]
        values[f"{at}: tr {name}"] = Value(float(traces.mean()), _error(traces))
        values[f"{at}: ‖{name}‖_F"] = Value(float(squares.mean().sqrt()), _error(squares.sqrt()))
    norms = {name: probes[f"{name} squares"].mean().sqrt() for name in ("E", "G")}
    values[f"{at}: ‖E‖_F over ‖G‖_F"] = float(norms["E"] / norms["G"])
    if is_known(probes["H kinds"].double().sum(0)):
        kinds = {name: probes[f"{name} kinds"].double().mean(1) for name in ("H", "G")}
        values[f"{at}: tr G over tr H"] = float(kinds["G"].sum() / kinds["H"].sum())
        quiet = [KINDS.index(kind) for kind in ("q", "k")]
        share = float(kinds["H"][quiet].sum() / kinds["H"].sum())
        parameters = float(sizes(problem.params)[quiet].sum())
        over = f"{at}: share of tr H in q and k, over their share of parameters"
        values[over] = share / parameters
    if "P" in pairs:
        first = float(pairs["P"].values[0])
        values[f"{at}: λ₁ of P⁻¹H"] = first
        values[f"{at}: λ₁(P⁻¹H) times the rate, over 38"] = first * point.rate / STABLE
    return values


def _spread(measure: SpectralMeasure) -> float:
    """The root mean square of the eigenvalues that were not found one by one."""
    return float((measure.weights * measure.nodes.square()).sum(1).mean().sqrt())


def _inside(vector: Tensor, basis: Tensor) -> float:
    """How much of a vector's squared length lies in the span of orthonormal columns."""
    return float((basis.T @ vector).square().sum() / vector.square().sum())


def _error(samples: Tensor) -> str:
    return f"± {float(samples.std() / len(samples) ** 0.5):.2g} from {len(samples)} probes"


def _numbers(
    of: Subject,
    point: Point,
    pairs: Mapping[str, EigenPairs],
    measures: Mapping[str, SpectralMeasure],
    probes: Mapping[str, Tensor],
) -> dict[str, Any]:
    """Everything else: eigenvalues, and shares by kind of layer."""
    space = of.problem(point).params
    found: dict[str, Any] = {
        name: {
            "eigenvalues": [round(float(value), 6) for value in each.values],
            "largest residual": float(each.residuals.max()),
            "first eigenvector by kind": _rounded(by_kind(each.vectors.square(), space)[:, 0]),
            "products": each.products + measures[name].products,
        }
        for name, each in pairs.items()
    }
    for name in ("H", "G"):
        kinds = probes[f"{name} kinds"].double()
        found[f"trace of {name} by kind"] = _rounded(kinds.mean(1))
    found["parameters by kind"] = _rounded(sizes(space))
    return found


def _rounded(shares: Tensor) -> dict[str, float]:
    return {kind: float(f"{float(x):.4g}") for kind, x in zip(KINDS, shares, strict=True)}
