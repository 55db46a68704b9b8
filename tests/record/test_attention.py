"""Attention in blocks of queries against torch's unfused path, in float64."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

import curvescope as cs
from curvescope.record import blockwise
from curvescope.record.batch import TapeBatch
from curvescope.record.blockwise import Attention
from curvescope.record.rules.attention import covered
from tests.conformance import check_products
from tests.reference.curvature import Reference
from tests.reference.losses import CrossEntropy

EXACT = 1e-12
SHAPES = {  # leading dimensions, heads of queries, heads of keys, T, S, d, width of values
    "as usual": ((2,), 2, 2, 13, 13, 4, 4),
    "grouped queries": ((2,), 4, 2, 7, 7, 4, 4),
    "one sample, other keys": ((), 3, 3, 5, 9, 4, 6),
    "two leading dimensions, few keys": ((2, 3), 2, 1, 9, 5, 4, 4),
}
MASKS = ("none", "causal", "boolean", "additive", "a query that sees nothing")


@pytest.fixture(params=["one block", "small blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "small blocks":
        monkeypatch.setitem(blockwise.ROOM, "cpu", 60)
        monkeypatch.setattr(blockwise, "ROWS", 2)
        monkeypatch.setattr(blockwise, "CAUSAL_ROWS", 3)


def mask_of(kind: str, shape: tuple[int, ...], heads: int, T: int, S: int) -> dict[str, Any]:
    if kind == "causal":
        return {"is_causal": True}
    if kind == "boolean":
        mask = torch.rand(*shape, 1, T, S) > 0.4
        mask[..., 0] = True
        return {"attn_mask": mask}
    if kind == "additive":
        return {"attn_mask": torch.randn(heads, T, S).double()}
    if kind == "a query that sees nothing":
        mask = torch.rand(T, S) > 0.4
        mask[2] = False
        return {"attn_mask": mask}
    return {}


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shape", SHAPES)
def test_values_tangents_and_adjoints(shape: str, mask: str) -> None:
    torch.manual_seed(0)
    lead, heads, shared, T, S, d, width = SHAPES[shape]
    q = torch.randn(*lead, heads, T, d).double()
    k, v = torch.randn(*lead, shared, S, d).double(), torch.randn(*lead, shared, S, width).double()
    settings = mask_of(mask, lead, heads, T, S) | {"scale": 0.3, "enable_gqa": heads != shared}

    def unfused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(q, k, v, **settings)

    def adjoint(g: Tensor, *qkv: Tensor) -> Any:
        return torch.func.vjp(unfused, *qkv)[1](g)

    given = covered(q, k, v, **settings)
    assert given is not None
    here = Attention(*given)
    out = unfused(q, k, v)
    torch.testing.assert_close(here.output(), out, rtol=EXACT, atol=EXACT)
    g = torch.randn_like(out)
    for ours, theirs in zip(here.adjoint(g), adjoint(g, q, k, v), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=EXACT, atol=EXACT)
    columns = [torch.randn(2, *t.shape).double() for t in (g, q, k, v)]
    for present in itertools.product([False, True], repeat=4):
        if not any(present):
            continue
        given_columns = [t if p else None for t, p in zip(columns, present, strict=True)]
        full = [t if p else torch.zeros_like(t) for t, p in zip(columns, present, strict=True)]
        tangents = here.adjoint_tangent(g, *given_columns)
        for c in range(2):
            some = tuple(t[c] for t in full)
            _, wanted = torch.func.jvp(adjoint, (g, q, k, v), some)
            for ours, theirs in zip(tangents, wanted, strict=True):
                torch.testing.assert_close(ours[c], theirs, rtol=EXACT, atol=EXACT)
            if any(present[1:]):
                _, moved = torch.func.jvp(unfused, (q, k, v), some[1:])
                ours = here.tangent(*given_columns[1:])[c]
                torch.testing.assert_close(ours, moved, rtol=EXACT, atol=EXACT)


class Reader(nn.Module):
    """Attention of one layer, with what a case needs."""

    def __init__(self, mask: str, *, groups: int = 2, bias: bool = False) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(4, 4 + 4 * groups), nn.Linear(4, 3)
        self.groups, self.settings = groups, mask_of(mask, (), 2, 5, 5)
        self.bias = nn.Parameter(torch.randn(2, 5, 5)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).split([4, 2 * self.groups, 2 * self.groups], -1)
        q, k, v = (t.unflatten(-1, (-1, 2)).transpose(1, 2) for t in (q, k, v))
        settings = self.settings if self.bias is None else {"attn_mask": self.bias}
        y = F.scaled_dot_product_attention(q, k, v, enable_gqa=self.groups == 1, **settings)
        return self.out(y.transpose(1, 2).flatten(2)).mean(1)


def problem_of(model: nn.Module) -> tuple[cs.Problem, Reference]:
    torch.manual_seed(2)
    model, data = model.double(), [(torch.randn(3, 5, 4).double(), torch.arange(3))]
    return cs.Problem(model, data), Reference(model, data, CrossEntropy())


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("mask", MASKS)
def test_products_of_networks(mask: str, groups: int, keep: bool) -> None:
    torch.manual_seed(0)
    problem, reference = problem_of(Reader(mask, groups=groups))
    with sdpa_kernel(SDPBackend.MATH):
        hessian, gauss_newton = reference.hessian(), reference.gauss_newton()
    check_products(cs.Hessian(problem, keep=keep), hessian, rtol=1e-10)
    check_products(cs.GaussNewton(problem, keep=keep), gauss_newton, rtol=1e-10)


def test_one_instruction_on_the_tape() -> None:
    torch.manual_seed(0)
    problem, _ = problem_of(Reader("causal"))
    tape = TapeBatch(problem, next(iter(problem.data)))
    names = [step.name for step in tape._forward]
    assert names.count("curvescope.attention.default") == 1
    assert not any("softmax" in name for name in names)


def test_what_is_not_covered_takes_the_unfused_path() -> None:
    torch.manual_seed(0)
    problem, reference = problem_of(Reader("none", bias=True))
    with sdpa_kernel(SDPBackend.MATH):
        hessian = reference.hessian()
    check_products(cs.Hessian(problem, keep=False), hessian, rtol=1e-10)
    tape = TapeBatch(problem, next(iter(problem.data)))
    assert any("softmax" in step.name for step in tape._forward)


class Largest(TorchDispatchMode):
    """The largest number of entries of a tensor that an operation makes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, tuple | list) else (out,):
            if isinstance(t, Tensor):
                self.size = max(self.size, t.untyped_storage().nbytes() // t.element_size())
        return out


@pytest.mark.parametrize("causal", [True, False])
def test_nothing_as_large_as_the_square_of_the_length(
    monkeypatch: pytest.MonkeyPatch, causal: bool
) -> None:
    monkeypatch.setitem(blockwise.ROOM, "cpu", 1 << 14)
    sizes = []
    for T in (256, 512, 1024):
        q, k, v, g = torch.randn(4, 1, 2, T, 8)
        here = Attention(q, k, v, None, causal, 0.3)
        with Largest() as largest:
            here.output()
            here.tangent(q[None], k[None], v[None])
            here.adjoint(g)
            here.adjoint_tangent(g, g[None], q[None], k[None], v[None])
        sizes.append(largest.size)
    assert sizes[2] <= 64 * 1024  # ROWS queries see all keys; the whole matrix has 1024²
    assert sizes[2] <= 2 * sizes[1] <= 4 * sizes[0]
