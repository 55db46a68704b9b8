"""Every architecture of the table works as it comes: the model, a batch, and nothing else.

The value is the model's own loss; H and G are compared with what torch's double backward makes of
that loss, or with differences of its gradients where torch has no second derivative.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import curvescope as cs
from curvescope.engine.engine import Engine
from tests.conformance import assert_relative, random_block
from tests.foreign.table import TABLE, Architecture

pytestmark = [
    pytest.mark.foreign,
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning"),  # of peft
]

RTOL = 1e-10
ROUGH = 1e-6  # of differences of gradients
STEP = 1e-5  # its length
COLUMNS = 2


@pytest.fixture(autouse=True)
def _double(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms and softmax of these models work in float32; in float64 they can be compared."""
    softmax = F.softmax

    def widened(convert: Any) -> Any:
        def wide(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            if self.dtype == torch.float64:
                args = tuple(torch.float64 if a is torch.float32 else a for a in args)
                kwargs = {k: torch.float64 if v is torch.float32 else v for k, v in kwargs.items()}
            return convert(self, *args, **kwargs)

        return wide

    def wide_softmax(x: Tensor, *args: Any, dtype: Any = None, **kwargs: Any) -> Tensor:
        return softmax(x, *args, dtype=None if x.dtype == torch.float64 else dtype, **kwargs)

    monkeypatch.setattr(Tensor, "to", widened(Tensor.to))
    monkeypatch.setattr(Tensor, "type", widened(Tensor.type))
    monkeypatch.setattr(Tensor, "float", lambda self: self.to(torch.float32))
    monkeypatch.setattr(F, "softmax", wide_softmax)


class Oracle:
    """Products by torch alone, from the loss that the model computes."""

    def __init__(self, case: Architecture, model: nn.Module) -> None:
        self._case, self._model = case, model
        self._leaves = [p for p in model.parameters() if p.requires_grad]

    def _pass(self) -> tuple[Tensor, Tensor]:
        with sdpa_kernel(SDPBackend.MATH):
            loss, rows, _ = self._case.loss_and_logits(self._model)
        return loss, rows

    def value(self) -> float:
        return float(self._pass()[0].detach())

    def _flat(self, pieces: Any) -> Tensor:
        return torch.cat([
            (torch.zeros_like(p) if g is None else g).reshape(-1).detach()
            for g, p in zip(pieces, self._leaves, strict=True)
        ])  # fmt: skip

    def _split(self, v: Tensor) -> list[Tensor]:
        pieces = v.split([p.numel() for p in self._leaves])
        return [piece.view_as(p) for piece, p in zip(pieces, self._leaves, strict=True)]

    def hessian(self, V: Tensor) -> Tensor:
        """Gradients of ``⟨gradient, v⟩``."""
        first = torch.autograd.grad(
            self._pass()[0], self._leaves, create_graph=True, allow_unused=True
        )
        used = [i for i, g in enumerate(first) if g is not None and g.requires_grad]
        columns = []
        for v in map(self._split, V.T):
            second = torch.autograd.grad(
                [first[i] for i in used], self._leaves, [v[i] for i in used],
                retain_graph=True, allow_unused=True,
            )  # fmt: skip
            columns.append(self._flat(second))
        return torch.stack(columns, 1)

    def differences(self, V: Tensor) -> Tensor:
        """``H V`` from gradients on both sides."""
        start = [p.detach().clone() for p in self._leaves]
        columns = []
        for w in V.T:
            sides, size = [], STEP / float(w.norm())
            for sign in (1, -1):
                with torch.no_grad():
                    for p, at, step in zip(self._leaves, start, self._split(w), strict=True):
                        p.copy_(at + sign * size * step)
                loss = self._pass()[0]
                pieces = torch.autograd.grad(loss, self._leaves, allow_unused=True)
                sides.append(self._flat(pieces))
            columns.append((sides[0] - sides[1]) / (2 * size))
        with torch.no_grad():
            for p, at in zip(self._leaves, start, strict=True):
                p.copy_(at)
        return torch.stack(columns, 1)

    def gauss_newton(self, V: Tensor) -> Tensor:
        """``Jᵀ B J V``, with ``J v`` as the derivative of ``Jᵀ u`` by ``u``."""
        _, rows = self._pass()
        if self._case.no_oracle:
            return self._by_rows(rows, V)
        u = torch.zeros_like(rows, requires_grad=True)
        pulled = torch.autograd.grad(rows, self._leaves, u, create_graph=True, allow_unused=True)
        there = [i for i, g in enumerate(pulled) if g is not None]
        p = rows.detach().softmax(-1)
        columns = []
        for v in map(self._split, V.T):
            (t,) = torch.autograd.grad(
                [pulled[i] for i in there], u, [v[i] for i in there], retain_graph=True
            )
            t = (p * t - p * (p * t).sum(-1, keepdim=True)) / len(rows)
            pieces = torch.autograd.grad(
                rows, self._leaves, t, retain_graph=True, allow_unused=True
            )
            columns.append(self._flat(pieces))
        return torch.stack(columns, 1)

    def _by_rows(self, rows: Tensor, V: Tensor) -> Tensor:
        """The same with the rows of ``J``, which take first derivatives only."""
        eye = torch.eye(rows.numel(), dtype=rows.dtype).view(-1, *rows.shape)
        J = torch.stack([
            self._flat(torch.autograd.grad(rows, self._leaves, e, retain_graph=True,
                                           allow_unused=True)) for e in eye
        ])  # fmt: skip
        p = rows.detach().softmax(-1)
        t = (J @ V).T.view(-1, *rows.shape)
        t = (p * t - p * (p * t).sum(-1, keepdim=True)) / len(rows)
        return J.T @ t.flatten(1).T


@pytest.mark.parametrize("name", list(TABLE))
def test_value_and_products(name: str) -> None:
    case = TABLE[name]
    model = case.build()
    oracle = Oracle(case, model)
    problem = cs.Problem(model, [case.batch()])
    assert float(problem.value()) == pytest.approx(oracle.value(), rel=1e-12)
    V = random_block(problem.params.size, COLUMNS, torch.float64)
    H, G = oracle.differences(V) if case.no_oracle else oracle.hessian(V), oracle.gauss_newton(V)
    rtol = ROUGH if case.no_oracle else RTOL
    for keep in (False, True):
        for A, expected, tolerance in (
            (cs.Hessian(problem, keep=keep), H, rtol),
            (cs.GaussNewton(problem, keep=keep), G, RTOL),
        ):
            what = f"{A} with keep={keep}"
            assert_relative(A @ V, expected, rtol=tolerance, what=f"{what}, columns")
            assert_relative(A @ V[:, 0], expected[:, 0], rtol=tolerance, what=f"{what}, a vector")
    tapes = problem.companion(Engine)._linearizer.tapes("second order")
    assert tapes == (not case.on_graphs), "the other way of making products"


def test_the_table_is_long_enough() -> None:
    assert len(TABLE) >= 30
