"""Knockouts in the dual space against knockouts of dense matrices."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from curvescope.errors import CurvescopeError
from curvescope.operators.algebra import knockout
from curvescope.operators.gauss_newton import GaussNewton
from curvescope.operators.hessian import Hessian
from curvescope.operators.simple import LowRank
from curvescope.problem import Problem
from curvescope.spectra.exact import ExactSpectrum, log_distance
from curvescope.spectra.measure import SpectralMeasure
from curvescope.structure.classes import ClassStructure, class_structure
from curvescope.structure.knockouts import (
    HOW,
    PARTS,
    class_dual,
    class_knockouts,
    hessian_split,
)
from tests.cases import BY_NAME
from tests.conformance import assert_relative

F64 = torch.float64


def all_values(spectrum: ExactSpectrum) -> Tensor:
    zeros = spectrum.values.new_zeros(spectrum.zeros)
    return torch.cat([spectrum.values, zeros]).sort(descending=True).values


def part_of(structure: ClassStructure, name: str) -> LowRank:
    if name == "global":
        return LowRank(structure.global_mean[:, None], structure.class_weights.sum()[None])
    return getattr(structure, f"{name}_part")


def dense_spectrum(matrix: Tensor) -> Tensor:
    return torch.linalg.eigvalsh((matrix + matrix.T) / 2).flip(0)


CASES = [
    "cross_entropy", "cross_entropy-ignored", "logistic-column", "batch-norm-train",
    "conv-stride-padding", "params-list",
]  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_every_knockout_is_that_of_the_dense_matrix(name: str) -> None:
    problem = BY_NAME[name].problem()
    structure, dual = class_structure(problem), class_dual(problem)
    G = structure.operator
    size = float(G.dense().norm())
    assert_relative(
        all_values(dual.spectrum()), dense_spectrum(G.dense()), rtol=1e-12, what="G", scale=size
    )
    for part in PARTS:
        for how in HOW:
            expected = dense_spectrum(knockout(G, part_of(structure, part), how).dense())
            ours = all_values(dual.knocked_out(part, how))
            assert_relative(ours, expected, rtol=1e-12, what=f"{part}, {how}", scale=size)
    rest = dense_spectrum((G - structure.within_part).dense())
    ours = all_values(dual.knocked_out("within"))
    assert_relative(ours, rest, rtol=1e-12, what="without within", scale=size)
    together = all_values(dual.knocked_out(("class", "cross", "diagonal")))
    assert_relative(
        together, all_values(dual.knocked_out("between")), rtol=1e-12, what="sum", scale=size
    )


def test_the_parts_resolve_the_identity() -> None:
    dual = class_dual(trained())
    between = dual.bases["between"]
    eye = torch.eye(between.shape[1], dtype=F64)
    torch.testing.assert_close(between.T @ between, eye, atol=1e-13, rtol=0)
    ranks = {name: X.shape[1] for name, X in dual.bases.items()}
    assert ranks == {"global": 1, "class": 3, "cross": 3, "diagonal": 3, "between": 9}
    inside = dual.bases["class"].T @ dual.bases["global"]
    torch.testing.assert_close(inside.square().sum(), torch.tensor(1.0, dtype=F64))


def test_a_layer_has_its_own_knockouts() -> None:
    problem = BY_NAME["conv-stride-padding"].problem()
    layer = problem.params.layers[0]
    structure = class_structure(problem.restrict(layer))
    dual = class_dual(problem, layer=layer)
    for how in HOW:
        expected = dense_spectrum(knockout(structure.operator, structure.cross_part, how).dense())
        ours = all_values(dual.knocked_out("cross", how))
        assert_relative(ours, expected, rtol=1e-11, what=how, scale=float(expected[0]))


def trained() -> Problem:
    g = torch.Generator().manual_seed(0)
    centers = 2 * torch.randn(3, 6, dtype=F64, generator=g)
    y = torch.arange(24) % 3
    X = centers[y] + 0.5 * torch.randn(24, 6, dtype=F64, generator=g)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(X), y).backward()
        optimizer.step()
    return Problem(model, (X, y))


def test_lanczos_takes_over_where_the_gram_matrix_is_too_large(generator: torch.Generator) -> None:
    problem = trained()
    exact = class_knockouts(problem)
    sampled = class_knockouts(problem, limit=5, steps=80, probes=30, generator=generator)
    assert exact.exact
    assert not sampled.exact
    assert exact.without.keys() == sampled.without.keys()
    assert isinstance(sampled.without["class", "project"], SpectralMeasure)
    within = sampled.without["within", "subtract"]
    assert isinstance(within, ExactSpectrum)  # low-rank parts are exact in any case
    theirs = exact.without["within", "subtract"]
    assert isinstance(theirs, ExactSpectrum)
    torch.testing.assert_close(all_values(within), all_values(theirs), atol=1e-12, rtol=1e-9)
    for way, spectrum in exact.without.items():
        assert log_distance(spectrum, sampled.without[way], eps=1e-3) < 0.3
    top = lambda s: float(all_values(s)[0])  # noqa: E731
    assert top(exact.whole) >= top(exact.without["class", "project"])
    with pytest.raises(CurvescopeError, match=r"has 72 rows, more than limit=5; Lanczos needs a"):
        class_knockouts(problem, limit=5)


def test_the_hessian_split(generator: torch.Generator) -> None:
    problem = trained()
    split = hessian_split(problem, generator=generator)
    H, G = Hessian(problem).dense(), GaussNewton(problem).dense()
    for ours, matrix in ((split.hessian, H), (split.gauss_newton, G), (split.residual, H - G)):
        assert isinstance(ours, ExactSpectrum)
        torch.testing.assert_close(
            ours.values[-5:].flip(0), dense_spectrum(matrix)[:5], atol=1e-10, rtol=0
        )
    larger = hessian_split(problem, generator=generator, limit=60, steps=40, deflate=3)
    assert isinstance(larger.hessian, SpectralMeasure)
    assert isinstance(larger.gauss_newton, ExactSpectrum)  # 48 rows, though 83 parameters
    torch.testing.assert_close(
        larger.hessian.outliers.sort(descending=True).values, dense_spectrum(H)[:3],
        atol=1e-6, rtol=0,
    )  # fmt: skip


def test_what_is_refused() -> None:
    dual = class_dual(trained())
    with pytest.raises(CurvescopeError, match="knock it out alone and with how='subtract'"):
        dual.knocked_out("within", "project")
    with pytest.raises(CurvescopeError, match="part must be one of 'global', 'class'"):
        dual.knocked_out("bulk")
    with pytest.raises(CurvescopeError, match="how must be one of 'subtract', 'project'"):
        dual.knocked_out("class", "remove")


def test_saturated_and_empty_classes() -> None:
    layer = nn.Linear(2, 4, bias=False).double()
    with torch.no_grad():
        layer.weight.mul_(3e3)
    X = torch.randn(6, 2, dtype=F64)
    dual = class_dual(Problem(layer, (X, torch.tensor([0, 0, 1, 1, 1, 3]))))  # 2 is empty
    assert dual.bases["class"].shape[1] == 3
    for part in PARTS:
        for how in HOW:
            assert bool(torch.isfinite(dual.knocked_out(part, how).values).all())
