"""Operations that are linear as they stand: look-ups, views, reductions, copies.

The block form of a view only shifts its dimensions by one, past the columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from curvescope.linearisation.rules.generic import linear_in_first
from curvescope.linearisation.rules.step import Call, LinearStep, Outputs, lift, make_step, rule

aten = torch.ops.aten


rule(
    aten.gather.default, aten.index_select.default, aten.index.Tensor,
    aten.embedding_dense_backward.default, aten.avg_pool2d.default,
    aten.avg_pool2d_backward.default,
    aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool2d_backward.default,
    aten.slice_backward.default, aten.select_backward.default, aten.constant_pad_nd.default,
    aten.cumsum.default, aten.tril.default, aten.triu.default, aten.flip.default, aten.roll.default,
    aten.sum.default, aten.mean.default, aten.mean.dim, aten.diagonal.default, aten.unfold.default,
    aten.unfold_backward.default, aten.im2col.default, aten.col2im.default, aten.repeat.default,
    aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int,
    aten.upsample_nearest2d.default, aten.upsample_bilinear2d.default,
)(linear_in_first)  # fmt: skip


@rule(aten.embedding.default)
def _embedding(call: Call) -> LinearStep:
    """A table look-up; the row of a padding index is a constant for autograd, so for us."""
    step = linear_in_first(call)
    padding = call.leaves[2] if len(call.leaves) > 2 else -1
    if padding < 0:
        return step
    counts = (call.leaves[1] != padding).unsqueeze(-1)
    return make_step(
        lambda t, *_: step.single(t) * counts,
        lambda t, *_: torch.vmap(step.single)(t) * counts,
    )


def shifted(dim: int, ndim: int) -> int:
    """A dimension of a tensor with ``ndim`` of them, once columns come before it."""
    return dim + 1 if dim >= 0 else dim + ndim + 1


@rule(aten.view.default, aten._unsafe_view.default, aten.reshape.default)
def _view(call: Call) -> LinearStep:
    shape = tuple(call.out.shape)
    return make_step(lambda t, *_: t.reshape(shape), lambda t, *_: t.reshape(t.shape[0], *shape))


@rule(aten.expand.default)
def _expand(call: Call) -> LinearStep:
    shape = tuple(call.out.shape)
    return make_step(
        lambda t, *_: t.expand(shape),
        lambda t, *_: lift(t, len(shape)).expand(t.shape[0], *shape),
    )


@rule(aten.t.default)
def _t(call: Call) -> LinearStep:
    if call.out.ndim < 2:
        return make_step(lambda t: t, lambda t: t)
    return make_step(lambda t: t.t(), lambda t: t.transpose(1, 2))


@rule(aten.transpose.int)
def _transpose(call: Call) -> LinearStep:
    ndim, (a, b) = call.out.ndim, call.leaves[1:3]
    c, d = shifted(a, ndim), shifted(b, ndim)
    return make_step(lambda t, *_: t.transpose(a, b), lambda t, *_: t.transpose(c, d))


@rule(aten.permute.default)
def _permute(call: Call) -> LinearStep:
    dims = call.leaves[1:]
    moved = [0, *(shifted(d, call.out.ndim) for d in dims)]
    return make_step(lambda t, *_: t.permute(dims), lambda t, *_: t.permute(moved))


@rule(aten.unsqueeze.default)
def _unsqueeze(call: Call) -> LinearStep:
    dim = call.leaves[1]
    moved = shifted(dim, call.out.ndim)
    return make_step(lambda t, *_: t.unsqueeze(dim), lambda t, *_: t.unsqueeze(moved))


@rule(aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default, aten.slice.Tensor,
      aten.select.int, aten.as_strided.default)  # fmt: skip
def _other_views(call: Call) -> LinearStep:
    return linear_in_first(call)


@rule(aten.sum.dim_IntList)
def _sum(call: Call) -> LinearStep:
    keep, shape = call.out.ndim == call.leaves[0].ndim, tuple(call.out.shape)
    in_ndim = call.leaves[0].ndim
    dims = [d % in_ndim for d in call.leaves[1:] if type(d) is int] or list(range(in_ndim))
    moved = [d + 1 for d in dims]
    if in_ndim == 0 or len(call.leaves) != 1 + len(dims) + (type(call.leaves[-1]) is bool):
        return linear_in_first(call)
    return make_step(
        lambda t, *_: t.sum(dims, keepdim=keep).reshape(shape),
        lambda t, *_: t.sum(moved, keepdim=keep).reshape(t.shape[0], *shape),
    )


@rule(aten.clone.default, aten.alias.default, aten.detach.default, aten.lift_fresh.default,
      aten.contiguous.default)  # fmt: skip
def _copy(call: Call) -> LinearStep:
    return make_step(lambda t, *_: t, lambda t, *_: t)


@rule(aten._to_copy.default)
def _to_copy(call: Call) -> LinearStep:
    dtype, device = call.out.dtype, call.out.device
    return make_step(lambda t, *_: t.to(device, dtype), lambda t, *_: t.to(device, dtype))


@rule(aten.cat.default)
def _cat(call: Call) -> LinearStep:
    pieces = [x for x in call.leaves if isinstance(x, Tensor)]
    shapes = [tuple(x.shape) for x in pieces]
    count = len(pieces)
    dim = call.leaves[count] if len(call.leaves) > count else 0
    moved = shifted(dim, call.out.ndim)

    def single(*tangents: Tensor | None) -> Outputs:
        some = next(t for t in tangents if t is not None)
        parts = [
            some.new_zeros(s) if t is None else t for s, t in zip(shapes, tangents, strict=False)
        ]
        return torch.cat(parts, dim)

    def block(*tangents: Tensor | None) -> Outputs:
        some = next(t for t in tangents if t is not None)
        parts = [
            some.new_zeros(some.shape[0], *s) if t is None else t
            for s, t in zip(shapes, tangents, strict=False)
        ]
        return torch.cat(parts, moved)

    return make_step(single, block)
