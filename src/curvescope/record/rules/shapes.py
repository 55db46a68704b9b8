"""Operations that are linear as they stand: look-ups, views, reductions, copies.

The block form of a view only shifts its dimensions by one, past the columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from curvescope.errors import ModelError
from curvescope.record.rules.generic import linear_in_first
from curvescope.record.rules.step import (
    Call,
    LinearStep,
    Outputs,
    Untraceable,
    lift,
    make_step,
    rule,
)  # fmt: skip

aten = torch.ops.aten


rule(
    aten.gather.default, aten.index_select.default, aten.index.Tensor,
    aten.embedding_dense_backward.default, aten.avg_pool2d.default,
    aten.avg_pool2d_backward.default,
    aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool2d_backward.default,
    aten.slice_backward.default, aten.select_backward.default,
    aten.cumsum.default, aten.tril.default, aten.triu.default, aten.flip.default, aten.roll.default,
    aten.sum.default, aten.mean.default, aten.mean.dim, aten.diagonal.default, aten.unfold.default,
    aten.unfold_backward.default, aten.im2col.default, aten.col2im.default, aten.repeat.default,
    aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int,
    aten.upsample_nearest2d.default, aten.upsample_bilinear2d.default,
)(linear_in_first)  # fmt: skip


@rule(aten.embedding.default)
def _embedding(call: Call) -> LinearStep:
    """A table look-up; the row of a padding index is a constant for autograd, so for us."""
    if len(call.leaves) > 3 and call.leaves[3]:
        rule = (
            "an embedding with `scale_grad_by_freq=True` has gradients that are no derivatives of "
            "the loss"
        )
        raise ModelError("Problem(model)", rule, remedy="set `scale_grad_by_freq=False`")
    step = linear_in_first(call)
    padding = call.leaves[2] if len(call.leaves) > 2 else -1
    if padding < 0:
        return step
    counts = (call.leaves[1] != padding).unsqueeze(-1)
    return make_step(
        lambda t, *_: step.single(t) * counts,
        lambda t, *_: torch.vmap(step.single)(t) * counts,
    )


@rule(aten._pack_padded_sequence.default)
def _pack(call: Call) -> LinearStep:
    """The rows of all sequences, those of one time after the other."""
    run = call.without(0).run

    def pack(t: Tensor, *_: Tensor | None) -> Outputs:
        return run({0: t})[0], None

    def block(t: Tensor, *_: Tensor | None) -> Outputs:
        return torch.stack([run({0: each})[0] for each in t]), None

    return make_step(pack, block)


@rule(aten._pack_padded_sequence_backward.default)
def _pack_backward(call: Call) -> LinearStep:
    run = call.without(0).run
    return make_step(
        lambda t, *_: run({0: t}), lambda t, *_: torch.stack([run({0: each}) for each in t])
    )


@rule(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def _index_fill(call: Call) -> LinearStep:
    """``t`` outside of some lines, the tangent of one number inside of them."""
    shape, (dim, index) = tuple(call.out.shape), call.leaves[1:3]
    inside = torch.zeros(shape, dtype=torch.bool, device=call.out.device)
    inside = inside.index_fill(dim, index, 1)

    def fill(t: Tensor | None, v: Tensor | None, full: tuple[int, ...]) -> Outputs:
        some = v if t is None else t
        outside = some.new_zeros(full) if t is None else t  # type: ignore[union-attr]
        return torch.where(inside, 0.0 if v is None else v, outside)

    def block(t: Tensor | None, _: None, __: None, v: Tensor | None) -> Outputs:
        columns = (v if t is None else t).shape[0]  # type: ignore[union-attr]
        v = None if v is None else lift(v, len(shape))
        return fill(t, v, (columns, *shape))

    return make_step(lambda t, _, __, v: fill(t, v, shape), block)


@rule(aten.constant_pad_nd.default)
def _pad(call: Call) -> LinearStep:
    """Whatever the border is filled with, its tangent is zero."""
    pad = list(call.args[1])

    def padded(t: Tensor, *_: Tensor | None) -> Outputs:
        return aten.constant_pad_nd(t, pad)

    return make_step(padded, padded)  # it counts dimensions from the last


def shifted(dim: int, ndim: int) -> int:
    """A dimension of a tensor with ``ndim ≥ 1`` of them, once columns come before it."""
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
    if ndim < 2:  # a number, too, may be transposed
        return make_step(lambda t, *_: t, lambda t, *_: t)
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
      aten.select.int,)  # fmt: skip
def _other_views(call: Call) -> LinearStep:
    return linear_in_first(call)


@rule(aten.as_strided.default)
def _as_strided(call: Call) -> LinearStep:
    """Picked by the places in memory that the view names, whatever those of the tangent are."""
    x = call.leaves[0]
    numbers = torch.arange(x.numel(), device=x.device).reshape(x.shape)
    places = torch.full(
        (x.untyped_storage().nbytes() // x.element_size(),), -1, device=x.device, dtype=torch.int64
    )
    places.as_strided(x.shape, x.stride(), x.storage_offset()).copy_(numbers)
    size, stride = call.args[1:3]
    offset = call.args[3] if len(call.args) > 3 else None
    picked = places.as_strided(size, stride, x.storage_offset() if offset is None else offset)
    if bool((picked < 0).any()):
        raise Untraceable("as_strided looks beyond its argument")
    return make_step(
        lambda t, *_: t.reshape(-1)[picked], lambda t, *_: t.reshape(t.shape[0], -1)[:, picked]
    )


@rule(aten.sum.dim_IntList)
def _sum(call: Call) -> LinearStep:
    keep, shape = call.out.ndim == call.leaves[0].ndim, tuple(call.out.shape)
    in_ndim = call.leaves[0].ndim
    if in_ndim == 0:
        return linear_in_first(call)
    dims = [d % in_ndim for d in call.leaves[1:] if type(d) is int] or list(range(in_ndim))
    moved = [d + 1 for d in dims]
    if len(call.leaves) != 1 + len(dims) + (type(call.leaves[-1]) is bool):
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

    # An old form: [0] counts as nothing beside tensors of any number of dimensions.
    placed = [i for i, s in enumerate(shapes) if s != (0,) or call.out.ndim == 1]

    def block(*tangents: Tensor | None) -> Outputs:
        some = next(t for t in tangents if t is not None)
        pairs = [(tangents[i], shapes[i]) for i in placed]
        parts = [some.new_zeros(some.shape[0], *s) if t is None else t for t, s in pairs]
        return torch.cat(parts, moved)

    return make_step(single, block)
