"""Layer blocks in closed form: when they are taken, what is kept, what is left out."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import curvescope as cs
from curvescope.engine import closed_form
from curvescope.engine.engine import Engine
from curvescope.engine.layer_factors import Factors, Gradients, Products
from curvescope.record import memory
from tests.cases import classes, convert
from tests.conformance import assert_relative, check_operator, check_products
from tests.operators.test_layer_blocks import NETWORKS, RTOL, problem_of, recorded, relu_mlp
from tests.reference.curvature import Reference
from tests.reference.losses import CrossEntropy
from tests.tolerances import REORDERED


@contextmanager
def counted_captures() -> Iterator[list[int]]:
    """Notes every pass that records a layer."""
    calls: list[int] = []
    own = closed_form.capture

    def noted(*args: Any) -> Any:
        calls.append(1)
        return own(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(closed_form, "capture", noted)
        yield calls


def kept(problem: cs.Problem) -> dict[str, list[Factors]]:
    """What is kept of each layer."""
    entries = problem.companion(Engine)._closed._factors.items()
    return {layer: pieces for (layer, _), (pieces, _) in entries}


# When it is taken ---------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", [nn.Tanh, nn.GELU, nn.Softplus])
def test_a_smooth_network_keeps_its_residual_part(activation: type[nn.Module]) -> None:
    """Its Hessian goes the general way; its Gauss–Newton matrix and its last layer do not."""
    data = convert(classes(4), torch.float64)
    model = nn.Sequential(nn.Linear(4, 5), activation(), nn.Linear(5, 3)).double()
    problem = cs.Problem(model, data)
    reference = Reference(model, data, CrossEntropy())
    for layer, expected in (("0", set()), ("2", {"2"})):
        indices = reference.indices([f"{layer}.weight", f"{layer}.bias"])
        block = cs.Hessian(problem, keep=True).block(layer)
        check_products(block, reference.hessian()[indices][:, indices], rtol=RTOL)
        assert recorded(problem) == expected
    cs.GaussNewton(problem, keep=True).block("0") @ torch.randn(25).double()
    assert recorded(problem) == {"0", "2"}


def test_a_path_that_only_some_batches_take() -> None:
    """A later batch turns the network smooth: the closed form steps back, the answer is right."""

    class Switching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(4, 5), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.fc1(x)
            return self.fc2(torch.relu(x) if x.shape[0] == 5 else torch.tanh(x))

    data = convert(classes(4), torch.float64)
    model = Switching().double()
    reference = Reference(model, data, CrossEntropy(), per_batch=True)
    problem = cs.Problem(model, data)
    indices = reference.indices(["fc1.weight", "fc1.bias"])
    for keep in ("auto", True):
        H = cs.Hessian(problem, keep=keep).block("fc1")
        check_products(H, reference.hessian()[indices][:, indices], rtol=RTOL)
        assert "closed form" not in H.plan.strategy
    assert recorded(problem) == set()
    # The Gauss–Newton block is in closed form on every path.
    G = cs.GaussNewton(problem, keep=True).block("fc1")
    check_products(G, reference.gauss_newton()[indices][:, indices], rtol=RTOL)
    assert recorded(problem) == {"fc1"}


def test_sums_of_matrices() -> None:
    make, data = NETWORKS["mlp"]
    problem = problem_of(make, data)
    makes = (cs.Hessian, cs.GaussNewton, cs.EmpiricalFisher)
    H, G, F = (make(problem, keep=True) for make in makes)
    E = (H - G).block("0")
    assert (E @ torch.eye(E.shape[0]).double()).abs().max() == 0
    mixed = (2 * H + 3 * F).block("0")
    expected = 2 * H.block("0").dense() + 3 * F.block("0").dense()
    assert_relative(mixed.dense(), expected, rtol=1e-12, what="2 H + 3 F")


def test_no_closed_form_where_samples_see_each_other() -> None:
    data = convert(classes(4), torch.float64)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)).double()
    problem = cs.Problem(model, data, mode="train")
    reference = Reference(model, data, CrossEntropy(), mode="train")
    for layer in ("0", "3"):
        indices = reference.indices([f"{layer}.weight", f"{layer}.bias"])
        sub = reference.gauss_newton()[indices][:, indices]
        check_products(cs.GaussNewton(problem, keep=True).block(layer), sub, rtol=RTOL)
    assert recorded(problem) == {"3"}  # nothing mixes the samples behind the last layer


def test_many_directions_are_not_recorded_for_few_columns() -> None:
    data = (torch.randn(6, 60).double(), torch.arange(6) * 7)
    problem = cs.Problem(nn.Sequential(nn.Linear(60, 50)).double(), data)
    G = cs.GaussNewton(problem)
    V = torch.randn(3050, 49).double()  # as many columns as directions, C − 1
    assert G.plan.strategy == "streamed tangents"
    assert "49 columns or more go in closed form" in str(G.plan)
    with counted_captures() as captures:
        one = G @ V[:, :48]
        assert not captures
        many = G @ V
        assert captures
    assert_relative(many[:, :48], one, rtol=1e-12, what="both ways")
    assert G.for_many().plan.strategy == "kept closed form"
    assert_relative(G.for_many() @ V, many, rtol=1e-12, what="kept")


# What is kept -------------------------------------------------------------------------------------


def test_the_model_runs_once() -> None:
    make, data = NETWORKS["conv"]
    problem = problem_of(make, data)
    calls = []
    problem.model.register_forward_hook(lambda *_: calls.append(1))
    H = cs.Hessian(problem, keep=True).block("0")
    V = torch.randn(H.shape[0], 4).double()
    H @ V
    assert calls
    calls.clear()
    H @ V
    G = cs.GaussNewton(problem, keep=True).block("0.weight")
    G @ V[:-4]  # shares what the Hessian recorded
    assert not calls


def test_forms_of_storage() -> None:
    """A convolution with many positions stores gradients, a plain layer errors and inputs."""
    problem = problem_of(*NETWORKS["conv"])
    for layer, form in (("0", Gradients), ("6", Products)):
        B = cs.GaussNewton(problem, keep=True).block(layer)
        B @ torch.randn(B.shape[0]).double()
        assert [type(piece) for piece in kept(problem)[layer]] == [form]  # the batches are one


def test_the_plan_says_what_is_held() -> None:
    make, _ = NETWORKS["conv"]
    for layer in ("0", "6"):
        problem = problem_of(make, classes(2, 6, 6, sizes=(5, 5)))
        H = cs.Hessian(problem, keep=True).block(layer)
        before = H.plan
        assert before.strategy == "kept closed form"
        assert before.held == 0
        H @ torch.randn(H.shape[0]).double()
        held = memory.size(t for factors in kept(problem)[layer] for t in factors.tensors())
        assert before.needed is not None
        assert held == before.needed if layer == "0" else held <= before.needed
        assert H.plan.held == held
        H.release()
        assert H.plan.held == 0
        assert not kept(problem)


class Dull(nn.Module):
    """Inputs that do not vary and neurons that are always off, before and behind the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(20, 3), nn.Linear(3, 18), nn.Linear(18, 3)
        with torch.no_grad():
            self.fc1.bias[1] = -100.0
            self.fc2.bias[[0, 4, 11]] = -100.0

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


@pytest.mark.parametrize("block", ["fc1", "fc1.weight", "fc1.bias", "fc2", "fc2.weight", "fc3"])
def test_what_does_not_vary_is_left_out_exactly(block: str) -> None:
    torch.manual_seed(3)
    model = Dull().double()
    data = convert(classes(20), torch.float64)
    for x, _ in data:
        x[:, 2:8], x[:, 12] = 0.7, -0.3
    reference = Reference(model, data, CrossEntropy())
    problem = cs.Problem(model, data)
    indices = reference.indices(problem.params.resolve(block))
    dense = reference.hessian()[indices][:, indices]
    H = cs.Hessian(problem, keep=True).block(block)
    check_products(H, dense, rtol=RTOL)
    assert_relative(H.dense(), dense, rtol=RTOL, what=block)
    (pieces,) = kept(problem).values()
    e, x = pieces[0].tensors()
    at_most = {"fc1": (2, 16), "fc2": (15, 3), "fc3": (3, 16)}[block.split(".")[0]]
    assert e.shape[3] <= at_most[0]
    assert x.shape[2] <= at_most[1]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_confident_samples_are_left_out_below_rounding(dtype: torch.dtype) -> None:
    """Against the general way, which takes every sample."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5)).to(dtype)
    with torch.no_grad():
        model[2].weight.mul_(300.0)
    X = torch.randn(300, 20, dtype=dtype)
    problem = cs.Problem(model, (X, model(X).argmax(1)))
    H = cs.Hessian(problem, keep=True).block("0")
    V = torch.randn(H.shape[0], 3, dtype=dtype)
    general = cs.Hessian(problem, keep=False).block("0")
    assert general.plan.strategy == "streamed tangents"
    assert_relative(H @ V, general @ V, rtol=REORDERED[dtype], what="confident")
    (pieces,) = kept(problem).values()
    assert pieces[0].tensors()[0].shape[0] < 290


@pytest.mark.parametrize("layer", ["0", "0.weight", "0.bias"])
@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("value", [0.0, 0.7])
def test_gram_of_a_root_with_constant_inputs(layer: str, columns: int, value: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 5)).double()
    X = torch.randn(12, 40).double()
    X[:, 5:35] = value * torch.arange(30.0)
    R = cs.Hessian(cs.Problem(model, (X, torch.arange(12) % 5))).block(layer).root()
    assert R is not None
    U = torch.randn(R.shape[0], columns).double()
    gathered = R.gather(U)
    assert_relative(R.spread(gathered), R.dense() @ (R.dense().T @ U), rtol=1e-12, what="R Rᵀ")
    C = torch.randn(2, columns).double()
    combined = R.scatter(C @ gathered)
    assert_relative(combined, R.dense().T @ U @ C.T, rtol=1e-12, what="a combination")


@pytest.mark.parametrize("layer", ["0", "6.weight"])
def test_root(layer: str) -> None:
    problem = problem_of(*NETWORKS["conv"])
    for A in (cs.Hessian(problem).block(layer), 3 * cs.GaussNewton(problem).block(layer)):
        R = A.root()
        assert R.shape == (12 * 2, A.shape[0])
        check_operator(R, R.dense(), rtol=1e-12)
        assert_relative(R.dense().T @ R.dense(), A.dense(), rtol=1e-12, what="Rᵀ R")
    assert cs.Hessian(problem).root() is None
    assert (-1.0 * cs.Hessian(problem).block(layer)).root() is None
    smooth = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    other = cs.Problem(smooth, convert(classes(4), torch.float64))
    assert cs.Hessian(other).block("0").root() is None
    assert cs.Hessian(other, keep=False).block("2").root() is None


@pytest.mark.parametrize("keep", ["auto", False])
def test_streams_when_memory_is_short(keep: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(*NETWORKS["conv"])
    expected = cs.Hessian(problem, keep=True).block("0").dense()
    fresh = problem_of(*NETWORKS["conv"])
    if keep == "auto":
        monkeypatch.setattr(memory, "free", lambda device: 1000)
    H = cs.Hessian(fresh, keep=keep).block("0")
    assert_relative(H.dense(), expected, rtol=1e-12, what="streamed, many columns")
    one = H @ torch.ones(H.shape[0]).double()
    assert_relative(one, expected.sum(1), rtol=1e-12, what="streamed, one column")
    assert recorded(fresh) == set()


def test_keep_true_refuses_what_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(*NETWORKS["mlp"])
    monkeypatch.setattr(memory, "free", lambda device: 1000)
    H = cs.Hessian(problem, keep=True).block("0")
    with pytest.raises(cs.CurvescopeError, match="keep=True does not fit into half"):
        H @ torch.ones(H.shape[0]).double()


def test_changed_weights_are_noticed() -> None:
    problem = problem_of(*NETWORKS["mlp"])
    H = cs.Hessian(problem, keep=True).block("0")
    H @ torch.ones(H.shape[0]).double()
    with torch.no_grad():
        problem.model[4].weight.add_(1.0)
    with pytest.raises(cs.CurvescopeError, match="weights have changed"):
        H @ torch.ones(H.shape[0]).double()


def test_all_targets_ignored() -> None:
    data = (torch.randn(3, 4).double(), torch.full((3,), -100))
    H = cs.GaussNewton(cs.Problem(relu_mlp().double(), data)).block("0")
    with pytest.raises(cs.CurvescopeError, match="no target counts"):
        H @ torch.ones(H.shape[0]).double()


@pytest.mark.gpu
@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("name", ["mlp", "conv-batch-norm", "positions"])
def test_on_a_gpu(name: str, graph: bool) -> None:
    make, data = NETWORKS[name]
    torch.manual_seed(3)
    model = make().double()
    data = convert(data, torch.float64)
    expected = cs.Hessian(cs.Problem(copy.deepcopy(model), data))
    H = cs.Hessian(cs.Problem(model.cuda(), data), keep=True, cuda_graph=graph)
    for layer in expected.space.layers:
        if isinstance(model.get_submodule(layer), nn.Linear | nn.Conv2d):
            V = torch.randn(expected.block(layer).shape[0], 3).double()
            for _ in range(2):
                ours = (H.block(layer) @ V.cuda()).cpu()
                assert_relative(ours, expected.block(layer) @ V, rtol=1e-10, what=layer)
