"""Limits of stability beside the recursions they come from, and beside the steps themselves."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import curvescope as cs
from curvescope.monitor.limits import Before, stability_limits
from tests.reference.curvature import Reference
from tests.reference.losses import CrossEntropy

Make = Callable[..., torch.optim.Optimizer]
RATE = 0.1
LOSS = CrossEntropy()


# Against the recursion ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"weight_decay": 0.3},
        {"momentum": 0.9},
        {"momentum": 0.9, "dampening": 0.5, "weight_decay": 0.2},
        {"momentum": 0.8, "nesterov": True, "weight_decay": 0.2},
    ],
    ids=str,
)
def test_sgd_is_stable_below_its_limit_and_not_above(how: dict[str, Any]) -> None:
    def grows(curvature: float) -> bool:
        w = torch.ones(1, dtype=torch.float64, requires_grad=True)
        opt = torch.optim.SGD([w], lr=RATE, **how)
        size = []
        for _ in range(600):
            w.grad = curvature * w.detach()
            opt.step()
            size.append(abs(w.item()))
        return max(size[500:]) > max(size[100:200])

    w = torch.ones(1, dtype=torch.float64)
    limits = stability_limits(torch.optim.SGD([w], lr=RATE, **how), [w])
    assert limits is not None
    assert limits.inverse_root is None
    assert not grows(0.98 * limits.threshold)
    assert grows(1.02 * limits.threshold)


@pytest.mark.parametrize("decay", [0.0, 0.4])
@pytest.mark.parametrize("kind", ["Adam", "AdamW", "RMSprop", "Adagrad"])
def test_with_a_frozen_preconditioner_the_recursion_has_the_eigenvalue_minus_one(
    kind: str, decay: float
) -> None:
    """``(m, w)`` after a step as a matrix, at a curvature that is right on the limit."""
    w = torch.ones(1, dtype=torch.float64, requires_grad=True)
    momentum = {"momentum": 0.7} if kind == "RMSprop" else {}
    opt = getattr(torch.optim, kind)([w], lr=RATE, weight_decay=decay, **momentum)
    for _ in range(3):
        w.grad = 0.5 * w.detach()
        opt.step()
    limits = stability_limits(opt, [w])
    assert limits is not None
    assert limits.inverse_root is not None
    p = float(limits.inverse_root) ** -2
    inside = 0.0 if kind == "AdamW" else decay  # decay that is part of the gradient
    h = limits.threshold * p - inside
    if kind in ("Adam", "AdamW"):
        beta = 0.9
        m = torch.tensor([[beta, (1 - beta) * (h + inside)], [0.0, 1.0]], dtype=torch.float64)
        shrink = RATE * decay if kind == "AdamW" else 0.0
        step = torch.tensor([[1.0, 0.0], [-RATE / p, 1 - shrink]], dtype=torch.float64)
    else:
        m = torch.tensor(
            [[momentum.get("momentum", 0.0), (h + inside) / p], [0.0, 1.0]], dtype=torch.float64
        )
        step = torch.tensor([[1.0, 0.0], [-RATE, 1.0]], dtype=torch.float64)
    roots = torch.linalg.eigvals(step @ m)
    assert float((roots + 1).abs().min()) < 1e-6
    assert float(roots.abs().max()) < 1 + 1e-6


# Against the steps themselves ---------------------------------------------------------------------


def made_by_step(
    opt: torch.optim.Optimizer, p: Tensor, before: Tensor, gradient: Tensor, old: dict[str, Any]
) -> Tensor:
    """``P``, solved for in ``w_after = w_before − η (mean of gradients) / P``."""
    group = next(g for g in opt.param_groups if any(each is p for each in g["params"]))
    state, rate = opt.state[p], group["lr"]
    moved = (p - before).detach()
    decay = group["weight_decay"]
    if isinstance(opt, torch.optim.Adam):
        decoupled = group["decoupled_weight_decay"]
        return -rate * state["exp_avg"] / (moved + rate * decay * before * decoupled)
    if isinstance(opt, torch.optim.Adafactor):
        return -rate * gradient / (moved + rate * decay * before)
    if isinstance(opt, torch.optim.RMSprop):
        last = old.get("momentum_buffer", torch.zeros_like(p))
        move = state["momentum_buffer"] - group["momentum"] * last if group["momentum"] else 0
        move = move if group["momentum"] else -moved / rate
        return (gradient + decay * before) / move
    return -rate * (gradient + decay * before) / moved  # Adagrad


MAKERS: dict[str, Make] = {
    "Adam": partial(torch.optim.Adam, lr=0.01),
    "Adam, decay": partial(torch.optim.Adam, lr=0.01, weight_decay=0.05, betas=(0.8, 0.95)),
    "Adam, amsgrad": partial(torch.optim.Adam, lr=0.01, amsgrad=True, eps=1e-3),
    "Adam, fused": partial(torch.optim.Adam, lr=0.01, fused=True),
    "AdamW": partial(torch.optim.AdamW, lr=0.01, weight_decay=0.3),
    "RMSprop": partial(torch.optim.RMSprop, lr=0.01, alpha=0.9),
    "RMSprop, centered": partial(
        torch.optim.RMSprop, lr=0.01, centered=True, momentum=0.6, weight_decay=0.1, eps=1e-2
    ),
    "Adagrad": partial(torch.optim.Adagrad, lr=0.05, lr_decay=0.1, weight_decay=0.1),
    "Adafactor": partial(torch.optim.Adafactor, lr=0.05, weight_decay=0.1),
    "Adafactor, not clipped": partial(torch.optim.Adafactor, lr=0.05, d=3.0),
}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


X = torch.randn(40, 4, generator=torch.Generator().manual_seed(1)).double()
Y = X[:, :3].argmax(1)


def trained(opt: torch.optim.Optimizer, model: nn.Module, monitor: cs.Monitor, steps: int) -> Any:
    """Some steps; the last record, and weights, gradients and states just before the last step."""
    for number in range(1, 1 + steps):  # gradients grow, so that Adafactor clips them
        (number * nn.functional.cross_entropy(model(X), Y)).backward()
        parameters = list(model.parameters())
        before = [p.detach().clone() for p in parameters]
        gradients = [p.grad.clone() for p in parameters if p.grad is not None]
        old = [
            {k: v.clone() for k, v in opt.state[p].items() if torch.is_tensor(v)}
            for p in parameters
        ]
        opt.step()
        record = monitor.step()
        opt.zero_grad()
    return record, before, gradients, old


def watch(model: nn.Module, opt: torch.optim.Optimizer, **how: Any) -> cs.Monitor:
    g = torch.Generator().manual_seed(0)
    how = {"track": ("directional", "top"), "every": 1} | how
    return cs.Monitor(model, (X, Y), optimizer=opt, generator=g, **how)


@pytest.mark.parametrize("name", MAKERS)
def test_the_preconditioned_matrix_is_that_of_the_step(name: str) -> None:
    model = network()
    opt = MAKERS[name](model.parameters())
    record, *past = trained(opt, model, watch(model, opt), 4)
    rows = [
        made_by_step(opt, p, *parts) for p, *parts in zip(model.parameters(), *past, strict=True)
    ]
    P = torch.cat([row.detach().reshape(-1) for row in rows])
    group = opt.param_groups[0]
    inside = not isinstance(opt, torch.optim.AdamW | torch.optim.Adafactor)
    H = Reference(model, [(X, Y)], LOSS).hessian()
    H = H + torch.eye(len(H)).double() * group["weight_decay"] * inside
    dense = torch.linalg.eigvalsh(H / (P[:, None] * P).sqrt())[-1]
    assert record.values["top/preconditioned"] == pytest.approx(float(dense), rel=1e-3)
    limits = stability_limits(opt, list(model.parameters()), before_of(model, past))
    assert limits is not None
    assert torch.allclose(limits.inverse_root**-2, P, rtol=1e-6)
    beta = group["betas"][0] if "betas" in group else 0.0
    momentum = group.get("momentum", 0.0)
    outside = 0.0 if inside else group["weight_decay"]
    c = (1 + beta) / (1 - beta) * (2 / group["lr"] - outside) * (1 + momentum)
    assert record.values["top/threshold"] == pytest.approx(c)
    assert record.values["top/ratio"] == pytest.approx(float(dense) / c, rel=1e-3)


def before_of(model: nn.Module, past: Any) -> Before:
    weights, gradients, _ = past
    ids = [id(p) for p in model.parameters()]
    return Before(dict(zip(ids, weights, strict=True)), dict(zip(ids, gradients, strict=True)))


def test_groups_with_rates_of_their_own_share_one_limit() -> None:
    model = network()
    groups = [
        {"params": model[0].parameters(), "lr": 0.5, "momentum": 0.9},
        {"params": [model[2].weight], "lr": 0.1, "weight_decay": 0.3},
    ]
    opt = torch.optim.SGD(groups, lr=0.1)
    record, *_ = trained(opt, model, watch(model, opt), 3)
    T = torch.cat([torch.full((25,), 2 * 1.9 / 0.5), torch.full((15,), 2 / 0.1 - 0.3)])
    H = Reference(model, [(X, Y)], LOSS).hessian()[:40, :40]
    dense = float(torch.linalg.eigvalsh(H / (T[:, None] * T).sqrt())[-1])  # the bias is not moved
    assert record.values["top/ratio"] == pytest.approx(dense, rel=1e-3)


def test_directional_is_that_of_the_step_that_was_made() -> None:
    model = network()
    opt = torch.optim.RMSprop(model.parameters(), lr=0.01, momentum=0.5)
    record, before, *_ = trained(opt, model, watch(model, opt), 3)
    H = Reference(model, [(X, Y)], LOSS).hessian()
    step = torch.cat([(p - q).reshape(-1) for p, q in zip(model.parameters(), before, strict=True)])
    step = step.detach()
    loss = nn.functional.cross_entropy(model(X), Y)
    g = torch.cat([t.reshape(-1) for t in torch.autograd.grad(loss, list(model.parameters()))])
    values = record.values
    assert values["directional/sharpness"] == pytest.approx(
        float(step @ H @ step / step.dot(step)), rel=1e-6
    )
    assert values["directional/slope"] == pytest.approx(float(step @ g), rel=1e-6)
    assert values["directional/norm"] == pytest.approx(float(step.norm()), rel=1e-6)
    assert values["directional/products"] == 1


def test_an_optimizer_without_a_limit_gets_none() -> None:
    class Mine(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            super().step(closure)

    model = network()
    for opt in (Mine(model.parameters()), torch.optim.NAdam(model.parameters())):
        assert stability_limits(opt, list(model.parameters())) is None
        record, *_ = trained(opt, model, watch(model, opt), 1)
        assert "top/hessian" in record.values
        assert "top/threshold" not in record.values
