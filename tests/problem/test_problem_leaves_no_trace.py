"""Products leave the model and the random state as they found them, and notice changes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import curvescope as cs
from tests import case_models
from tests.cases import BY_NAME, build, classes, convert
from tests.conformance import assert_relative
from tests.tolerances import EXACT

NAMES = [
    "cross_entropy",
    "batch-norm-eval",
    "batch-norm-train",
    "batch-norm-train-dropout",
    "residual-batch-norm-train",
    "embedding-attention-dropout-train",
    "dropout-module",
    "dropout-functional",
    "frozen-layer",
    "params-layer",
    "tied-embedding",
    "weight-norm",
    "transformer-layer",
    "checkpoint",
    "sdpa",
]


def snapshot(model: nn.Module) -> dict[str, Any]:
    """Everything about a model that a product must not change."""
    return {
        "weights": {n: p.detach().clone() for n, p in model.named_parameters()},
        "buffers": {n: b.clone() for n, b in model.named_buffers()},
        "identities": [id(p) for p in model.parameters()],
        "storages": [p.data_ptr() for p in model.parameters()],
        "training": {n: m.training for n, m in model.named_modules()},
        "requires_grad": {n: p.requires_grad for n, p in model.named_parameters()},
        "grads": {
            n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()
        },
        "hooks": [
            len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks)
            for m in model.modules()
        ],
        "attributes": {n: sorted(vars(m)) for n, m in model.named_modules()},
        "rng": torch.get_rng_state(),
        "grad mode": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(),
        "default dtype": torch.get_default_dtype(),
        "kernels": (
            torch.backends.cuda.flash_sdp_enabled(),
            torch.backends.cuda.mem_efficient_sdp_enabled(),
            torch.backends.cuda.math_sdp_enabled(),
            torch.backends.mha.get_fastpath_enabled(),
            torch.backends.mkldnn.enabled,
        ),
    }


def exercise(problem: Any) -> None:
    """Every road into the model."""
    v = torch.ones(problem.params.size, dtype=problem.dtype)
    V = torch.ones(problem.params.size, 3, dtype=problem.dtype)
    problem.value()
    problem.gradient()
    for keep in (True, False, "auto"):
        H, G = cs.Hessian(problem, keep=keep), cs.GaussNewton(problem, keep=keep)
        H @ v
        G @ V
        (H - G) @ v
        H.block(problem.params.names[0]) @ v[
            : problem.params.unflatten(v)[problem.params.names[0]].numel()
        ]
    cs.EmpiricalFisher(problem) @ V
    cs.MonteCarloFisher(problem, samples=1, generator=torch.Generator().manual_seed(0)) @ v


@pytest.mark.parametrize("training", [True, False], ids=["given-in-train", "given-in-eval"])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_moves(name: str, training: bool) -> None:
    """Buffers, flags, gradients and random state, whatever the model's own training flags were."""
    case = BY_NAME[name]
    model = case.model().train(training)
    list(model.modules())[-1].train(not training)  # mixed flags are restored one by one
    for i, p in enumerate(model.parameters()):
        if i % 2 == 0:
            p.grad = torch.full_like(p, 3.0)
    torch.manual_seed(5)
    before = snapshot(model)
    exercise(cs.Problem(model, case.data(), loss=case.loss, params=case.params, mode=case.mode))
    after = snapshot(model)
    for key, value in before.items():
        _assert_same(key, after[key], value)


def _assert_same(key: str, after: Any, before: Any) -> None:
    if key in ("weights", "buffers", "grads"):
        assert after.keys() == before.keys(), key
        for name, tensor in before.items():
            assert (after[name] is None) == (tensor is None), f"{key} of {name}"
            if tensor is not None:
                assert torch.equal(after[name], tensor), f"{key} of {name} moved"
    elif key == "rng":
        assert torch.equal(after, before), "torch's global generator was used"
    else:
        assert after == before, key


def test_the_mode_of_the_model_does_not_matter() -> None:
    """A model in train mode, dropout on, gives the operator of ``mode="eval"``."""
    case = BY_NAME["batch-norm-train-dropout"]
    v = torch.ones(53, dtype=torch.float64)
    products = [
        cs.Hessian(cs.Problem(case.model().train(t), case.data())) @ v for t in (True, False)
    ]
    assert_relative(products[0], products[1], rtol=0.0, what="train against eval")
    after = cs.Problem(model := case.model(), case.data())
    H = cs.Hessian(after)
    model.train()  # a training loop goes on
    assert_relative(H @ v, products[1], rtol=0.0, what="flag changed after the problem was built")


class CountsItsCalls(nn.Module):
    """A buffer that moves in every forward pass, in any mode."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.fc(torch.sin(x))


def test_buffers_that_a_forward_writes_to() -> None:
    model = build(CountsItsCalls, torch.float64)
    exercise(cs.Problem(model, convert(classes(4), torch.float64)))
    assert float(model.calls) == 0


def test_the_model_can_be_trained_after_products() -> None:
    """Gradients through the model still work, and equal those of an untouched copy."""
    case = BY_NAME["batch-norm-train"]
    model = case.model().train()
    untouched = copy.deepcopy(model)
    problem = cs.Problem(model, case.data(), mode="train")
    H = cs.Hessian(problem, keep=True)
    H @ torch.ones(53, dtype=torch.float64)
    x, y = case.data()[0]
    for m in (model, untouched):
        nn.functional.cross_entropy(m(x), y).backward()
    for p, q in zip(model.parameters(), untouched.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=0, atol=0)


def step(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = convert(classes(4), torch.float64)[0]
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()


def add(model: nn.Module) -> None:
    with torch.no_grad():
        model.fc1.weight.add_(0.1)


def load(model: nn.Module) -> None:
    model.load_state_dict({k: 2 * v for k, v in model.state_dict().items()})


def replace(model: nn.Module) -> None:
    model.fc2.bias = nn.Parameter(model.fc2.bias.detach() + 1)


def set_data(model: nn.Module) -> None:
    model.fc1.weight.data = model.fc1.weight.data + 1


CHANGES = {
    "optimizer-step": step, "add": add, "load_state_dict": load, "replace": replace,
    "set-data": set_data,
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("keep", [True, False], ids=["kept", "streamed"])
@pytest.mark.parametrize("used", [True, False], ids=["after-a-product", "before-any"])
def test_weights_changed_after_the_problem_was_built(change: str, keep: bool, used: bool) -> None:
    """An operator is immutable: it never mixes two sets of weights, it says that they changed."""
    model = build(case_models.mlp, torch.float64)
    problem = cs.Problem(model, convert(classes(4), torch.float64))
    H, v = cs.Hessian(problem, keep=keep), torch.ones(43, dtype=torch.float64)
    if used:
        H @ v
    CHANGES[change](model)
    with pytest.raises(cs.CurvescopeError, match=r"(?i)(weight|parameter).*changed.*Problem"):
        H @ v


def test_a_new_problem_after_the_change() -> None:
    """The remedy of the message works."""
    model = build(case_models.mlp, torch.float64)
    data = convert(classes(4), torch.float64)
    cs.Hessian(cs.Problem(model, data)) @ torch.ones(43, dtype=torch.float64)
    add(model)
    from tests.reference.curvature import Reference
    from tests.reference.losses import CrossEntropy

    H = cs.Hessian(cs.Problem(model, data))
    assert_relative(
        H.dense(),
        Reference(model, data, CrossEntropy()).hessian(),
        rtol=EXACT[torch.float64],
        what="new",
    )
