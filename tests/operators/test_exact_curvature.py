"""Hessian, Gauss–Newton and empirical Fisher against the dense reference, in every case."""

from __future__ import annotations

import pytest
import torch

import curvescope as cs
from tests.cases import BY_NAME, CASES, DTYPES, dense
from tests.conformance import assert_relative, check_operator, check_products, random_block
from tests.tolerances import EXACT, IDENTITY, REORDERED

OPERATORS = {
    "hessian": cs.Hessian,
    "gauss_newton": cs.GaussNewton,
    "empirical_fisher": cs.EmpiricalFisher,
}

every_case = pytest.mark.parametrize("name", [case.name for case in CASES])
every_dtype = pytest.mark.parametrize(
    "dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch.")
)
every_operator = pytest.mark.parametrize("matrix", OPERATORS)


def check_battery(name: str, matrix: str, **options: object) -> None:
    problem = BY_NAME[name].problem()
    op = OPERATORS[matrix](problem, **options)
    assert op.symmetric
    chunked = OPERATORS[matrix](problem, columns=2, **options)
    check_operator(op, dense(name, matrix), rtol=EXACT[torch.float64], chunked=chunked)


@every_operator
@every_case
def test_conformance(name: str, matrix: str) -> None:
    """The whole battery in float64, on one linearization: its two dozen products share memory."""
    check_battery(name, matrix, keep=True)


@every_operator
@pytest.mark.parametrize(
    "name",
    ["cross_entropy", "mse-positions", "batch-norm-train", "tied-embedding", "control-flow"],
)
def test_conformance_of_the_library_s_own_choice(name: str, matrix: str) -> None:
    """Each product alone, streamed; every case has some in `test_products`."""
    check_battery(name, matrix)


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "streamed"])
@every_dtype
@every_case
def test_products(name: str, dtype: torch.dtype, keep: bool) -> None:
    """All three operators of one problem, kept and streamed; H − G − E = 0 in float64."""
    problem = BY_NAME[name].problem(dtype)
    ops = {matrix: make(problem, keep=keep) for matrix, make in OPERATORS.items()}
    for matrix, op in ops.items():
        check_products(op, dense(name, matrix), rtol=EXACT[dtype])
    H, G = ops["hessian"], ops["gauss_newton"]
    E = H - G
    assert E.symmetric
    assert not E.psd
    V = random_block(problem.params.size, 2, dtype)
    HV = H @ V
    tolerance = IDENTITY if dtype == torch.float64 else EXACT[dtype]
    assert_relative(
        HV - G @ V - E @ V,
        torch.zeros_like(V),
        rtol=tolerance,
        what="H − G − E",
        scale=float(HV.norm()),
    )
    expected = (dense(name, "hessian") - dense(name, "gauss_newton")) @ V.double()
    assert_relative(E @ V, expected, rtol=EXACT[dtype], what="E", scale=float(HV.norm()))


@every_dtype
@every_case
def test_value_and_gradient(name: str, dtype: torch.dtype) -> None:
    """The loss that is differentiated is the mean over all terms of all batches."""
    problem = BY_NAME[name].problem(dtype)
    value = problem.value()
    assert value.shape == ()
    assert value.dtype == dtype
    assert_relative(value, dense(name, "value"), rtol=EXACT[dtype], what="value")
    assert_relative(problem.gradient(), dense(name, "gradient"), rtol=EXACT[dtype], what="gradient")


@pytest.mark.parametrize(
    "name", ["cross_entropy", "mse", "logistic", "tied-embedding", "batch-norm-train"]
)
@every_operator
def test_chunks_of_every_size(name: str, matrix: str) -> None:
    """Any number of columns in any chunks is the same product."""
    problem = BY_NAME[name].problem()
    V = random_block(problem.params.size, 7, torch.float64)
    expected = dense(name, matrix) @ V
    for columns in (1, 3, 7, 100):
        op = OPERATORS[matrix](problem, columns=columns)
        assert_relative(
            op @ V, expected, rtol=EXACT[torch.float64], what=f"{matrix} with columns={columns}"
        )


@pytest.mark.parametrize(
    "name", ["cross_entropy", "batch-norm-train", "tied-embedding", "control-flow"]
)
def test_kept_and_streamed_agree_over_many_products(name: str) -> None:
    """Deciding to keep the linearization after some products does not change the answers."""
    problem = BY_NAME[name].problem()
    v = random_block(problem.params.size, 1, torch.float64)[:, 0]
    H = cs.Hessian(problem)
    streamed = cs.Hessian(problem, keep=False) @ v
    for _ in range(6):
        assert_relative(
            H @ v, streamed, rtol=REORDERED[torch.float64], what="kept against streamed"
        )


def test_psd_is_declared_where_it_is_true() -> None:
    """G and the Fishers are psd; the Hessian and G of a loss that is not convex are not."""
    problem = BY_NAME["cross_entropy"].problem()
    assert cs.GaussNewton(problem).psd
    assert cs.EmpiricalFisher(problem).psd
    assert not cs.Hessian(problem).psd
    assert not cs.GaussNewton(BY_NAME["callable-not-convex"].problem()).psd


@every_operator
def test_unknown_options_are_refused(matrix: str) -> None:
    problem = BY_NAME["cross_entropy"].problem()
    with pytest.raises(cs.CurvescopeError, match=r"columns.*0"):
        OPERATORS[matrix](problem, columns=0)
    with pytest.raises(cs.CurvescopeError, match=r"keep.*sometimes"):
        OPERATORS[matrix](problem, keep="sometimes")
