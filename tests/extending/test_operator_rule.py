"""Rules for operators of torch.library, from one file outside the package."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import curvescope as cs
from curvescope.errors import ModelError
from curvescope.record.rules import RULES

EPS = 0.1


@pytest.fixture
def soft_abs(written: Callable[[str], Path]) -> Iterator[Callable[[Tensor, float], Tensor]]:
    """The operator of the page, with its rules."""
    written("operator-rule")
    before = set(RULES)
    yield import_module("soft_abs").soft_abs
    for op in set(RULES) - before:
        del RULES[op]


class Apply(nn.Module):
    """A function of one tensor as a layer."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def problem(function: Callable[[Tensor], Tensor], *, ends: bool = False) -> cs.Problem:
    """A small network around the function, or one that ends with it."""
    torch.manual_seed(0)
    X, y = torch.randn(20, 3).double(), torch.arange(20) % 2
    layers = [nn.Linear(3, 2 if ends else 4), Apply(function)] + [nn.Linear(4, 2)] * (not ends)
    return cs.Problem(nn.Sequential(*layers).double(), (X, y), batch_size=7)


def formula(x: Tensor) -> Tensor:
    return (x * x + EPS).sqrt()


def double_backward(given: cs.Problem) -> Tensor:
    """The Hessian of the problem by torch alone."""
    gradient = 0
    parameters = list(given.model.parameters())
    batches = list(given.data)
    total = sum(len(batch.target) for batch in batches)
    for batch in batches:
        z = given.model(batch.inputs)
        loss = nn.functional.cross_entropy(z, batch.target, reduction="sum") / total
        parts = torch.autograd.grad(loss, parameters, create_graph=True)
        gradient = gradient + torch.cat([part.flatten() for part in parts])
    rows = [torch.autograd.grad(entry, parameters, retain_graph=True) for entry in gradient]
    return torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])


@pytest.mark.parametrize("ends", [False, True])
def test_products_are_those_of_the_formula(soft_abs: Any, ends: bool) -> None:
    own = problem(lambda x: soft_abs(x, EPS), ends=ends)
    plain = problem(formula, ends=ends)
    torch.testing.assert_close(cs.Hessian(own).dense(), double_backward(plain))
    torch.testing.assert_close(cs.GaussNewton(own).dense(), cs.GaussNewton(plain).dense())
    torch.testing.assert_close(cs.EmpiricalFisher(own).dense(), cs.EmpiricalFisher(plain).dense())
    cs.Hessian(own) @ torch.ones(own.params.size, dtype=torch.float64)
    assert cs.Hessian(own).plan.strategy == "streamed tangents"


def test_without_a_rule_there_is_no_second_derivative(soft_abs: Any) -> None:
    """A backward pass without a formula is refused: torch would take it for a constant."""
    backward = torch.ops.example.soft_abs_backward.default
    own = problem(lambda x: soft_abs(x, EPS))
    rule = RULES.pop(backward)
    with pytest.raises(ModelError, match=r"'1' \(Apply\).*no autograd formula"):
        cs.Hessian(own) @ torch.ones(own.params.size, dtype=torch.float64)
    RULES[backward] = rule


def test_under_no_grad_it_is_a_constant(soft_abs: Any) -> None:
    def scaled(x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = soft_abs(x, EPS)
        return x * scale

    def plain(x: Tensor) -> Tensor:
        return x * formula(x).detach()

    own = problem(scaled)
    torch.testing.assert_close(cs.Hessian(own).dense(), double_backward(problem(plain)))
    assert cs.Hessian(own).plan.strategy == "streamed tangents"


@pytest.mark.parametrize("ends", [False, True])
def test_another_functions_derivative_is_not_replaced(soft_abs: Any, ends: bool) -> None:
    """A straight-through estimator calls the operator, and is differentiated as it says."""

    class Straight(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return soft_abs(x, EPS)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * g

    own = problem(Straight.apply, ends=ends)
    torch.testing.assert_close(cs.Hessian(own).dense(), double_backward(own))
    expected = problem(lambda x: formula(x).detach() + 2 * (x - x.detach()), ends=ends)
    torch.testing.assert_close(cs.GaussNewton(own).dense(), cs.GaussNewton(expected).dense())


def test_a_step_may_map_one_tangent_at_a_time(soft_abs: Any) -> None:
    """The second form is made by ``torch.vmap`` where it is left out."""
    from curvescope.record.rules import make_step, rule

    @rule(torch.ops.example.soft_abs.default)
    def single(call: Any) -> Any:
        slope = call.leaves[0] / call.out
        return make_step(lambda t, *_: slope * t)

    own = problem(lambda x: soft_abs(x, EPS))
    torch.testing.assert_close(cs.Hessian(own).dense(), double_backward(problem(formula)))
