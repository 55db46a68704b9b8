"""The same operators on a GPU, against the CPU's dense reference."""

from __future__ import annotations

import pytest
import torch

import curvescope as cs
from tests.cases import BY_NAME, DTYPES, convert, dense
from tests.conformance import check_operator, check_products
from tests.tolerances import EXACT

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

NAMES = [
    "cross_entropy",
    "cross_entropy-ignored",
    "logistic",
    "mse",
    "conv-stride-padding",
    "conv-groups-no-bias",
    "residual-batch-norm-eval",
    "residual-batch-norm-train",
    "layer-norm",
    "embedding-attention",
    "sdpa",
    "sdpa-causal-positions",
    "transformer-layer",
    "recurrent-loop",
    "tied-embedding",
]


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "streamed"])
@pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])
@pytest.mark.parametrize("name", NAMES)
def test_products_on_the_gpu(name: str, dtype: torch.dtype, keep: bool) -> None:
    case = BY_NAME[name]
    data = convert(case.data(dtype), dtype, "cuda")
    problem = cs.Problem(
        case.model(dtype).cuda(), data, loss=case.loss, params=case.params, mode=case.mode
    )
    for matrix, make in (
        ("hessian", cs.Hessian),
        ("gauss_newton", cs.GaussNewton),
        ("empirical_fisher", cs.EmpiricalFisher),
    ):
        check_products(make(problem, keep=keep), dense(name, matrix), rtol=EXACT[dtype])


def test_battery_on_the_gpu() -> None:
    case = BY_NAME["cross_entropy"]
    problem = cs.Problem(case.model().cuda(), convert(case.data(), torch.float64, "cuda"))
    check_operator(
        cs.Hessian(problem), dense("cross_entropy", "hessian"), rtol=EXACT[torch.float64]
    )


def test_monte_carlo_fisher_draws_the_same_labels_as_the_cpu() -> None:
    case = BY_NAME["cross_entropy"]
    cpu = cs.MonteCarloFisher(case.problem(), samples=2, generator=torch.Generator().manual_seed(0))
    problem = cs.Problem(case.model().cuda(), convert(case.data(), torch.float64, "cuda"))
    gpu = cs.MonteCarloFisher(problem, samples=2, generator=torch.Generator().manual_seed(0))
    check_products(gpu, cpu.dense(), rtol=EXACT[torch.float64])


@pytest.mark.parametrize("columns", [1, 5])
def test_cuda_graph_gives_the_same_product(columns: int) -> None:
    case = BY_NAME["conv-stride-padding"]
    problem = cs.Problem(case.model().cuda(), convert(case.data(), torch.float64, "cuda"))
    for matrix, make in (("hessian", cs.Hessian), ("gauss_newton", cs.GaussNewton)):
        op = make(problem, keep=True, cuda_graph=True)
        expected = dense("conv-stride-padding", matrix)
        for seed in (0, 1, 2):  # replays with new columns
            g = torch.Generator().manual_seed(seed)
            V = torch.randn(op.shape[0], columns, generator=g, dtype=torch.float64)
            torch.testing.assert_close((op @ V.cuda()).cpu(), expected @ V, rtol=1e-9, atol=1e-11)
