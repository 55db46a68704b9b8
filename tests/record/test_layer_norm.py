"""The rules of layer norm against forward-mode differentiation of torch's own, in float64."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from curvescope.record.rules import Call
from curvescope.record.rules.norms import _layer_norm, _layer_norm_backward

aten = torch.ops.aten
CASES = [((3, 4, 6), [6], 2), ((5, 2, 3), [2, 3], 2), ((4, 6), [6], 0), ((6,), [6], 2),
         ((3, 4, 6), [6], 1)]  # fmt: skip
COLUMNS = 2


@pytest.mark.parametrize(("shape", "normalized", "affine"), CASES)
def test_tangents_of_both_passes(shape: Any, normalized: Any, affine: int) -> None:
    torch.manual_seed(0)
    x, g = torch.randn(2, *shape).double()
    own = [torch.randn(normalized).double() for _ in range(affine)]
    w, b = [*own, None, None][:2]
    out = aten.native_layer_norm(x, normalized, w, b, 1e-5)
    forward = _layer_norm(Call(None, (x, normalized, w, b, 1e-5), {}, out, []))
    given = (g, x, normalized, *out[1:], w, b, [True, affine > 0, affine > 1])
    pulled = aten.native_layer_norm_backward(*given)
    backward = _layer_norm_backward(Call(None, given, {}, pulled, []))

    def norm(x: Tensor, *own: Tensor) -> Tensor:
        return F.layer_norm(x, normalized, *[*own, None, None][:2])

    def adjoint(g: Tensor, *inputs: Tensor) -> Any:
        return torch.func.vjp(norm, *inputs)[1](g)

    primals, none = (g, x, *own), [None] * len(normalized)
    columns = [torch.randn(COLUMNS, *t.shape).double() for t in primals]
    for present in itertools.product([True, False], repeat=len(columns)):
        if not any(present):
            continue
        some = [t if there else None for t, there in zip(columns, present, strict=True)]
        full = [
            t if there else torch.zeros_like(t) for t, there in zip(columns, present, strict=True)
        ]
        tw, tb = [*some[2:], None, None][:2]
        for c in range(COLUMNS):
            tangents = tuple(t[c] for t in full)
            leaves: list[Tensor | None] = [some[0], some[1], *none, None, None, tw, tb]
            _, wanted = torch.func.jvp(adjoint, primals, tangents)
            compare(backward, leaves, c, wanted)
            if any(present[1:]):
                _, moved = torch.func.jvp(norm, primals[1:], tangents[1:])
                compare(forward, [some[1], *none, tw, tb], c, (moved,))


def compare(step: Any, leaves: list[Tensor | None], c: int, wanted: Any) -> None:
    """One tangent, and several, against a column of what they should be."""
    alone = step.single(*(None if t is None else t[c] for t in leaves))
    together = step.block(*leaves)
    for ours, block, theirs in zip(alone, together, wanted, strict=False):
        if ours is None:
            assert block is None
            assert not theirs.any()
        else:
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(block[c], theirs, rtol=1e-12, atol=1e-12)
