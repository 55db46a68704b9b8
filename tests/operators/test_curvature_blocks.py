"""``block(layer)`` and ``block(parameter)`` against the dense sub-block."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import curvescope as cs
from tests.cases import BY_NAME, CASES, classes, convert, dense
from tests.conformance import check_operator, check_products
from tests.reference.curvature import Reference
from tests.reference.losses import CrossEntropy
from tests.tolerances import EXACT

RTOL = EXACT[torch.float64]
OPERATORS = {
    "hessian": cs.Hessian,
    "gauss_newton": cs.GaussNewton,
    "empirical_fisher": cs.EmpiricalFisher,
}


def check_block(block, full: Tensor, indices: Tensor, *, psd: bool) -> None:
    """Products of the block against rows and columns of the dense matrix.

    A block can be zero although the matrix is not (a bias before batch norm): its error is then
    measured against the whole matrix.
    """
    sub = full[indices][:, indices]
    scale = float(full.norm()) if sub.norm() <= 1e-12 * full.norm() else None
    assert block.shape == tuple(sub.shape)
    assert block.symmetric
    assert block.psd == psd
    check_products(block, sub, rtol=RTOL, scale=scale)


def layers_of(reference: Reference) -> dict[str, list[str]]:
    """Every module → all its parameters, sub-modules and tied ones included, in flat order."""
    by_identity = {
        id(p): name for name, p in zip(reference.names, reference.parameters, strict=True)
    }
    layers = {}
    for layer, module in reference.model.named_modules():
        inside = {by_identity[id(p)] for p in module.parameters() if id(p) in by_identity}
        if layer and inside:
            layers[layer] = [name for name in reference.names if name in inside]
    return layers


@pytest.mark.parametrize(
    "name",
    [case.name for case in CASES if case.mode == "train" or case.reference_loss == CrossEntropy()],
)
def test_hessian_blocks(name: str) -> None:
    """Every layer and every parameter."""
    H, full, reference = (
        cs.Hessian(BY_NAME[name].problem()),
        dense(name, "hessian"),
        BY_NAME[name].reference(),
    )
    for parameter in reference.names:
        check_block(H.block(parameter), full, reference.indices([parameter]), psd=False)
    for layer, parameters in layers_of(reference).items():
        check_block(H.block(layer), full, reference.indices(parameters), psd=False)


@pytest.mark.parametrize(
    "name", ["mse", "logistic", "tied-embedding", "conv-stride-padding", "batch-norm-train"]
)
@pytest.mark.parametrize("matrix", ["gauss_newton", "empirical_fisher"])
def test_psd_blocks(name: str, matrix: str) -> None:
    op, full, reference = (
        OPERATORS[matrix](BY_NAME[name].problem()),
        dense(name, matrix),
        BY_NAME[name].reference(),
    )
    for layer, parameters in layers_of(reference).items():
        check_block(op.block(layer), full, reference.indices(parameters), psd=True)
        for parameter in parameters:
            check_block(op.block(parameter), full, reference.indices([parameter]), psd=True)


def test_blocks_of_a_difference_and_a_multiple() -> None:
    problem, reference = BY_NAME["mse"].problem(), BY_NAME["mse"].reference()
    H, G = cs.Hessian(problem), cs.GaussNewton(problem)
    expected = dense("mse", "hessian") - 0.5 * dense("mse", "gauss_newton")
    check_block(
        (H - 0.5 * G).block("fc1"),
        expected,
        reference.indices(["fc1.weight", "fc1.bias"]),
        psd=False,
    )
    check_block(
        (H - 0.5 * G).block("fc1.bias"), expected, reference.indices(["fc1.bias"]), psd=False
    )


def test_a_block_passes_the_whole_battery() -> None:
    problem, reference = BY_NAME["mse"].problem(), BY_NAME["mse"].reference()
    indices = reference.indices(["fc2.weight", "fc2.bias"])
    check_operator(
        cs.Hessian(problem).block("fc2"), dense("mse", "hessian")[indices][:, indices], rtol=RTOL
    )


def test_a_block_equals_the_operator_of_the_restricted_problem() -> None:
    problem = BY_NAME["cross_entropy"].problem()
    restricted = problem.restrict("fc1")
    assert list(restricted.params.names) == ["fc1.weight", "fc1.bias"]
    assert restricted.params.size == 25
    check_operator(cs.Hessian(restricted), cs.Hessian(problem).block("fc1").dense(), rtol=RTOL)


def test_layer_names_are_not_prefixes() -> None:
    """``fc1`` is one layer, ``fc10`` another."""
    model = nn.Sequential()
    for name, layer in {
        "fc1": nn.Linear(4, 3),
        "fc10": nn.Linear(3, 3),
        "fc1_head": nn.Linear(3, 3),
    }.items():
        model.add_module(name, layer)
    model.double()
    data = convert(classes(4), torch.float64)
    reference = Reference(model, data, CrossEntropy())
    H = cs.Hessian(cs.Problem(model, data))
    for layer in ("fc1", "fc10", "fc1_head"):
        check_block(
            H.block(layer),
            reference.hessian(),
            reference.indices([f"{layer}.weight", f"{layer}.bias"]),
            psd=False,
        )


@pytest.mark.parametrize("wanted", ["fc9", "fc1.wheight", "fc"])
def test_unknown_block(wanted: str) -> None:
    H = cs.Hessian(BY_NAME["cross_entropy"].problem())
    with pytest.raises(cs.CurvescopeError, match=rf"(?s)'{wanted}'.*fc1.*fc2"):
        H.block(wanted)


def test_block_of_a_frozen_layer() -> None:
    """A layer that is in the model but not among the parameters is refused as clearly."""
    H = cs.Hessian(BY_NAME["frozen-layer"].problem())
    with pytest.raises(cs.CurvescopeError, match=r"(?s)'fc1'.*fc2"):
        H.block("fc1")
