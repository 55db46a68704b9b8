"""No product changes a parameter, a buffer, an input or its vectors, and every product is right.

A parameter alone is the hard case: its tangents reach the output through few steps, so that what a
step may write over is closest to what belongs to the user. Every combination of matrix, ``keep``
and number of columns is run with CURVESCOPE_FULL=1; otherwise each combination of parameter and
batches takes every ninth one, a different one each time.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

import curvescope as cs
from tests.case_models import mlp
from tests.cases import BY_NAME, CASES, Batch, Case, classes, dense
from tests.conformance import assert_relative, random_block
from tests.reference.curvature import Reference, call, concatenate
from tests.tolerances import EXACT

COLUMNS = (1, 2, 37)
RTOL = EXACT[torch.float64]


def cuts(case: Case) -> Iterator[tuple[str, list[Batch]]]:
    """The data in single samples, in pairs and in one batch."""
    whole = concatenate(case.data())
    count = len(whole[0][1])
    for size in (1, 2, count):
        sizes = [min(size, count - start) for start in range(0, count, size)]
        parts = zip(*(leaf.split(sizes) for leaf in pytree.tree_leaves(whole[0])), strict=True)
        spec = pytree.tree_structure(whole[0])
        yield f"batches of {size}", [pytree.tree_unflatten(list(part), spec) for part in parts]


def references(case: Case, model: nn.Module, batches: list[Batch]) -> dict[str, Tensor]:
    """Dense H and G, for these batches where the output of a sample depends on its batch."""
    if not case.per_batch and case.mode == "eval":
        return {matrix: dense(case.name, matrix) for matrix in ("hessian", "gauss_newton")}
    own = Reference(
        model, batches, case.reference_loss, names=case.names, mode=case.mode, per_batch=True
    )
    return {"hessian": own.hessian(), "gauss_newton": own.gauss_newton()}


def belongings(model: nn.Module, batches: list[Batch]) -> list[Tensor]:
    """Everything of the user's that a product reads."""
    return [*model.parameters(), *model.buffers(), *pytree.tree_leaves(batches)]


def check(
    problem: cs.Problem, expected: dict[str, Tensor], scale: float, owned: list[Tensor], what: str,
    turn: int | None = None,
) -> None:  # fmt: skip
    """All combinations, or those whose turn it is."""
    before = [t.detach().clone() for t in owned]
    ways = list(itertools.product((False, "auto", True), COLUMNS, ("H", "G", "E")))
    for keep, columns, name in ways if turn is None else ways[turn % 9 :: 9]:
        H, G = cs.Hessian(problem, keep=keep), cs.GaussNewton(problem, keep=keep)
        A = {"H": H, "G": G, "E": H - G}[name]
        h, g = expected["hessian"], expected["gauss_newton"]
        matrix = {"H": h, "G": g, "E": h - g}[name]
        V = random_block(A.shape[1], columns, torch.float64, seed=columns)
        V = V[:, 0].clone() if columns == 1 else V
        given = V.clone()
        for _ in range(2 if keep == "auto" else 1):
            result = A @ given
            told = f"{what}: {name}, keep={keep}, {columns} columns"
            same = [torch.equal(a, b) for a, b in zip(owned, before, strict=True)]
            assert all(same), f"{told}: tensor {same.index(False)} of the user's was changed"
            assert torch.equal(given, V), f"{told}: its vector was changed"
            size = max(scale * float(V.norm()) / len(V) ** 0.5, 1e-300)
            assert_relative(result, matrix @ V, rtol=RTOL, what=told, scale=size)


def reached(model: nn.Module, batches: list[Batch], parameter: str) -> bool:
    """Whether the outputs of all batches depend on the parameter; otherwise it is refused."""
    p = model.get_parameter(parameter)
    outputs = [call(model, x).sum() for x, _ in batches]
    return all(torch.autograd.grad(z, p, allow_unused=True)[0] is not None for z in outputs)


def needs_several_samples(case: Case) -> bool:
    """Whether the model refuses a batch of one sample: it uses the statistics of its batch."""
    norms = [m for m in case.model().modules() if isinstance(m, _BatchNorm)]
    return any(case.mode == "train" or m.running_mean is None for m in norms)


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_products_of_single_parameters(name: str) -> None:
    case = BY_NAME[name]
    turns = itertools.repeat(None) if os.environ.get("CURVESCOPE_FULL") else itertools.count()
    for how, batches in cuts(case):
        if how == "batches of 1" and needs_several_samples(case):
            continue
        model = case.model()
        full = references(case, model, batches)
        scale = float(full["hessian"].norm())
        reference = case.reference()
        for parameter in reference.names:
            problem = cs.Problem(model, batches, loss=case.loss, params=parameter, mode=case.mode)
            if case.mode == "eval" and not reached(model.eval(), batches, parameter):
                with pytest.raises(cs.CurvescopeError, match="does not depend on the chosen"):
                    cs.Hessian(problem) @ random_block(problem.params.size, 1, torch.float64)
                continue
            part = reference.slice(parameter)
            block = {matrix: whole[part, part] for matrix, whole in full.items()}
            owned = belongings(model, batches)
            check(problem, block, scale, owned, f"{name}, {parameter}, {how}", next(turns))


@pytest.mark.parametrize("layers", [0, 1, 2])
def test_a_bias_before_gates(layers: int) -> None:
    """The bias of one sample's pre-activation has the shape of that pre-activation."""
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU())
    for _ in range(layers):
        model.extend([nn.Linear(5, 5), nn.ReLU()])
    model.append(nn.Linear(5, 3))
    model = model.double()
    data = [(x.double(), y) for x, y in classes(4, sizes=(1,) * 5)]
    reference = Reference(model, data, BY_NAME["cross_entropy"].reference_loss)
    full = {"hessian": reference.hessian(), "gauss_newton": reference.gauss_newton()}
    whole = cs.Problem(model, data)
    for parameter in reference.names:
        part = reference.slice(parameter)
        block = {matrix: m[part, part] for matrix, m in full.items()}
        problem = cs.Problem(model, data, params=parameter)
        check(problem, block, float(full["hessian"].norm()), belongings(model, data), parameter)
        H = cs.Hessian(whole).block(parameter)
        v = random_block(H.shape[1], 1, torch.float64)[:, 0]
        for _ in range(3):
            assert_relative(H @ v, block["hessian"] @ v, rtol=RTOL, what=f"block {parameter}")


def test_the_trial_with_the_model_s_own_weights_leaves_them_alone() -> None:
    """Whether E vanishes is tried out with the weights as tangents."""
    model = mlp(nn.ReLU).double()
    data = [(x.double(), y) for x, y in classes(4, sizes=(1,) * 4)]
    before = [p.detach().clone() for p in model.parameters()]
    for parameter in ("fc1.bias", "fc2.bias", "fc1", "fc2"):
        problem = cs.Problem(model, data, params=parameter)
        cs.Hessian(problem).same_diagonal()
        print(cs.Hessian(problem).plan)
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))


class CheckpointedNorm(nn.Module):
    """A batch norm in a checkpoint, which runs it again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.norm, self.fc2 = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = checkpoint(lambda x: torch.tanh(self.norm(self.fc1(x))), x, use_reentrant=False)
        return self.fc2(h)


@pytest.mark.parametrize("parameter", [None, "fc1.weight", "fc1.bias", "norm.weight", "fc2.bias"])
@pytest.mark.parametrize("trained", [True, False])
def test_checkpoints_run_again_with_the_same_variables(
    parameter: str | None, trained: bool
) -> None:
    """Four samples of four numbers: weights and activations have one shape, and can be mistaken."""
    model = CheckpointedNorm().double()
    data = [(x.double(), y) for x, y in classes(4, sizes=(4, 4))]
    reference = Reference(
        model, data, BY_NAME["cross_entropy"].reference_loss, mode="train", per_batch=True
    )
    full = {"hessian": reference.hessian(), "gauss_newton": reference.gauss_newton()}
    if not trained:
        model.requires_grad_(False)
    problem = cs.Problem(model, data, params=parameter or reference.names, mode="train")
    part = reference.slice(parameter) if parameter else slice(None)
    block = {matrix: m[part, part] for matrix, m in full.items()}
    owned = belongings(model, data)
    expected = reference.gradient()[part]
    assert_relative(problem.gradient(), expected, rtol=RTOL, what="gradient", scale=1.0)
    check(problem, block, float(full["hessian"].norm()), owned, str(parameter))
    assert all(p.requires_grad is trained for p in model.parameters())
