"""Fused attention as one operation, with a first and a second derivative in blocks of queries.

torch's fused kernels have no second derivative, and its unfused path holds a number for each pair
of positions. While a batch is recorded, ``scaled_dot_product_attention`` is replaced by an operator
of ours (:class:`Fused`), which is one instruction on the tape; :mod:`curvescope.record.blockwise`
has the formulas. Calls that it does not cover take torch's unfused path: dropout, a mask with a
gradient of its own, batches of different shapes.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import bmm_flop, register_flop_formula

from curvescope.record.blockwise import Attention
from curvescope.record.rules.step import Call, LinearStep, Outputs, make_step, rule

_library = torch.library.Library("curvescope", "DEF")
_ARGUMENTS = "Tensor q, Tensor k, Tensor v, Tensor? mask, bool causal, float scale"
_library.define(f"attention({_ARGUMENTS}) -> Tensor")
_library.define(f"attention_backward(Tensor g, {_ARGUMENTS}) -> (Tensor, Tensor, Tensor)")
_forward = torch.ops.curvescope.attention.default
_backward = torch.ops.curvescope.attention_backward.default


def _output(*given: Any) -> Tensor:
    return Attention(*given).output()


def _gradients(g: Tensor, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
    return Attention(*given).adjoint(g)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    q, k, v, mask, ctx.causal, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, mask)


def _autograd(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    return (*_backward(g, *ctx.saved_tensors, ctx.causal, ctx.scale), None, None, None)


_library.impl("attention", _output, "CompositeExplicitAutograd")
_library.impl("attention_backward", _gradients, "CompositeExplicitAutograd")
torch.library.register_autograd(
    "curvescope::attention", _autograd, setup_context=_save, lib=_library
)


class Fused(TorchFunctionMode):
    """Puts the operator in place of torch's function."""

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            given = covered(*args, **kwargs)
            if given is not None:
                return _forward(*given)
        return func(*args, **kwargs)


def covered(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Any, ...] | None:  # fmt: skip
    """The arguments of the operator for those of torch's function; None where it has others."""
    q, k, v = query, key, value
    plain = all(type(t) is Tensor and t.layout is torch.strided for t in (q, k, v))
    if not plain or dropout_p or q.ndim < 3 or not q.ndim == k.ndim == v.ndim:
        return None
    if torch._C._functorch.peek_interpreter_stack() is not None or not q.numel():
        return None
    alike = q.shape[:-3] == k.shape[:-3] == v.shape[:-3] and k.shape[-3:-1] == v.shape[-3:-1]
    heads, shared = q.shape[-3], k.shape[-3]
    if not alike or q.shape[-1] != k.shape[-1] or not shared or heads % shared:
        return None
    if not enable_gqa and heads != shared:
        return None
    if not q.dtype == k.dtype == v.dtype:
        return None
    if attn_mask is not None and (
        is_causal or attn_mask.requires_grad or attn_mask.dtype not in (torch.bool, q.dtype)
    ):
        return None
    return q, k, v, attn_mask, is_causal, 1 / math.sqrt(q.shape[-1]) if scale is None else scale


@rule(_forward)
def _attention(call: Call) -> LinearStep:
    here = Attention(*_detached(call.args))

    def block(*tangents: Tensor | None) -> Outputs:
        return here.tangent(*tangents[:3])

    def single(*tangents: Tensor | None) -> Outputs:
        return here.tangent(*(None if t is None else t[None] for t in tangents[:3]))[0]

    return make_step(single, block, fresh=True)


@rule(_backward)
def _attention_backward(call: Call) -> LinearStep:
    g, *given = _detached(call.args)
    here = Attention(*given)

    def block(*tangents: Tensor | None) -> Outputs:
        return here.adjoint_tangent(g, *tangents[:4])

    def single(*tangents: Tensor | None) -> Outputs:
        columns = (None if t is None else t[None] for t in tangents[:4])
        return tuple(t[0] for t in here.adjoint_tangent(g, *columns))

    return make_step(single, block, fresh=True)


def _detached(args: Any) -> list[Any]:
    return [a.detach() if isinstance(a, Tensor) else a for a in args]


# What the plan counts ----------------------------------------------------------------------------


def _products(q: torch.Size, k: torch.Size, width: int) -> int:
    batch = math.prod(q[:-2])
    return bmm_flop((batch, q[-2], width), (batch, width, k[-2]))


@register_flop_formula(torch.ops.curvescope.attention)
def _forward_flops(q: Any, k: Any, v: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    return _products(q, k, q[-1]) + _products(q, k, v[-1])


@register_flop_formula(torch.ops.curvescope.attention_backward)
def _backward_flops(
    g: Any, q: Any, k: Any, v: Any, *_: Any, out_shape: Any = None, **__: Any
) -> int:
    return 3 * _products(q, k, q[-1]) + 2 * _products(q, k, v[-1])
