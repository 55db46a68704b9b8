"""ParamSpace: names ↔ flat vector ↔ layers."""

from __future__ import annotations

import pytest
import torch

import curvescope as cs
from tests.cases import BY_NAME, CASES


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_order_and_size(name: str) -> None:
    """The flat vector follows ``model.named_parameters()``; tied parameters appear once."""
    case = BY_NAME[name]
    problem, reference = case.problem(), case.reference()
    params = problem.params
    assert list(params.names) == reference.names
    assert params.size == reference.size
    named = dict(problem.model.named_parameters())
    shapes = (
        params.shapes
        if isinstance(params.shapes, dict)
        else dict(zip(params.names, params.shapes, strict=True))
    )
    for n in params.names:
        assert tuple(shapes[n]) == tuple(named[n].shape)
        assert params.slice(n) == reference.slice(n)


def test_flatten_and_unflatten_are_inverse() -> None:
    problem = BY_NAME["loose-parameters"].problem()
    params = problem.params
    flat = torch.arange(params.size, dtype=torch.float64)
    parts = params.unflatten(flat)
    assert list(parts) == list(params.names)
    assert parts["temperature"].shape == ()
    assert "frozen" not in parts
    torch.testing.assert_close(params.flatten(parts), flat, rtol=0, atol=0)
    block = torch.stack([flat, -flat, 2 * flat], 1)
    torch.testing.assert_close(params.flatten(params.unflatten(block)), block, rtol=0, atol=0)


def test_unflatten_uses_the_order_of_each_parameter() -> None:
    """Row-major, as ``reshape(-1)`` of each parameter in turn."""
    problem = BY_NAME["cross_entropy"].problem()
    named = {n: p.detach() for n, p in problem.model.named_parameters()}
    flat = torch.cat([p.reshape(-1) for p in named.values()])
    torch.testing.assert_close(problem.params.flatten(named), flat, rtol=0, atol=0)
    for n, part in problem.params.unflatten(flat).items():
        torch.testing.assert_close(part, named[n], rtol=0, atol=0)


def test_layers() -> None:
    assert list(BY_NAME["cross_entropy"].problem().params.layers) == ["fc1", "fc2"]
    assert list(BY_NAME["params-layer"].problem().params.layers) == ["fc2"]
    assert list(BY_NAME["logistic"].problem().params.layers) == ["body.fc1", "body.fc2"]


def test_the_order_of_a_list_does_not_matter() -> None:
    case = BY_NAME["cross_entropy"]
    forward = cs.Problem(case.model(), case.data(), params=["fc1.bias", "fc2"])
    backward = cs.Problem(case.model(), case.data(), params=["fc2", "fc1.bias", "fc1.bias"])
    assert (
        list(forward.params.names)
        == list(backward.params.names)
        == ["fc1.bias", "fc2.weight", "fc2.bias"]
    )


def test_errors() -> None:
    params = BY_NAME["cross_entropy"].problem().params
    with pytest.raises(cs.CurvescopeError, match=r"'fc7'.*fc1.*fc2"):
        params.slice("fc7")
    with pytest.raises(cs.CurvescopeError, match=r"43.*got \[42\]"):
        params.unflatten(torch.zeros(42, dtype=torch.float64))
    with pytest.raises(cs.CurvescopeError, match=r"fc2\.bias"):
        params.flatten(
            {
                n: torch.zeros(tuple(p.shape))
                for n, p in params.unflatten(torch.zeros(43)).items()
                if n != "fc2.bias"
            }
        )
