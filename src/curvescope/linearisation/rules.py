"""How each ATen operation transforms tangents: the derivative of one operation as a linear step.

A *rule* looks at one executed operation ``out = op(*args)`` and returns a :class:`LinearStep`, the
linear map from the tangents of its active arguments to the tangents of its outputs. The rule keeps
only the numbers that the map needs (for a matrix product the two factors, for a ReLU its output).
The same rules serve the forward pass and the backward pass, because both are recorded as plain ATen
operations; the tangent of the backward pass is the Hessian product.

A step works in two forms. ``single`` maps one tangent per argument, shaped like the argument.
``block`` maps ``K`` tangents at once, with a leading column dimension; where a rule gives none,
``torch.vmap`` makes it from ``single``. Operations without a rule here use forward-mode
differentiation of the operation itself, so that the list below is about speed, not coverage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torch.utils import _pytree as pytree

aten = torch.ops.aten
Tangents = Sequence[Tensor | None]
Outputs = Tensor | tuple[Tensor | None, ...]


class Untraceable(Exception):
    """The recording cannot represent this model; the universal engine has to be used."""


@dataclass(frozen=True)
class LinearStep:
    """The linear map of one operation: ``f(*tangents)`` with ``None`` for a zero tangent."""

    single: Callable[..., Outputs]
    block: Callable[..., Outputs]


class Call:
    """One executed operation: ``leaves`` are its flattened arguments, ``active`` those that vary."""

    def __init__(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        self.op, self.out = op, out
        self.leaves, self._spec = pytree.tree_flatten((args, kwargs))
        self.active: list[int] = []

    def run(self, replaced: dict[int, Any]) -> Any:
        """The operation with some arguments replaced, by position among the leaves."""
        return _rerun(self.op, self.leaves, self._spec, replaced)

    def frozen(self, replaced: Sequence[int]) -> Callable[[dict[int, Any]], Any]:
        """Like ``run``, but forgets the arguments that are always replaced."""
        op, spec = self.op, self._spec
        leaves = [None if i in replaced else leaf for i, leaf in enumerate(self.leaves)]
        return lambda new: _rerun(op, leaves, spec, new)


def _rerun(op: Any, leaves: Sequence[Any], spec: Any, replaced: dict[int, Any]) -> Any:
    leaves = [replaced.get(i, leaf) for i, leaf in enumerate(leaves)]
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    return op(*args, **kwargs)


Rule = Callable[[Call], LinearStep]
RULES: dict[Any, Rule] = {}


def rule(*ops: Any) -> Callable[[Rule], Rule]:
    """Register a rule for some operations."""

    def register(build: Rule) -> Rule:
        RULES.update(dict.fromkeys(ops, build))
        return build

    return register


def linear_step(call: Call) -> LinearStep:
    """The step of an operation: its own rule, the rule of its kind, or the generic one."""
    build = RULES.get(call.op)
    if build is not None:
        return build(call)
    if torch.Tag.pointwise in call.op.tags and isinstance(call.out, Tensor):
        return _pointwise(call)
    return _generic(call)


# Shapes -----------------------------------------------------------------------------------------


def _lift(t: Tensor, ndim: int) -> Tensor:
    """``[K, *shape]`` with singleton dimensions put in after ``K``, to broadcast against ``ndim``."""
    missing = ndim + 1 - t.ndim
    return t if missing <= 0 else t.reshape(t.shape[0], *(1,) * missing, *t.shape[1:])


def _total(terms: Sequence[Tensor | None]) -> Tensor | None:
    present = [t for t in terms if t is not None]
    if not present:
        return None
    total = present[0]
    for t in present[1:]:
        total = total + t
    return total


def _by_vmap(single: Callable[..., Outputs]) -> Callable[..., Outputs]:
    """``block`` from ``single``: map over the leading dimension of the tangents that are there."""

    def block(*tangents: Tensor | None) -> Outputs:
        present = [i for i, t in enumerate(tangents) if t is not None]
        empty: list[int] = []  # outputs that are None: vmap returns tensors only

        def mapped(*some: Tensor) -> tuple[Tensor, ...]:
            full: list[Tensor | None] = [None] * len(tangents)
            for i, t in zip(present, some, strict=True):
                full[i] = t
            out = single(*full)
            outs = tuple(out) if isinstance(out, tuple | list) else (out,)
            empty[:] = [i for i, o in enumerate(outs) if o is None]
            return tuple(o for o in outs if o is not None)

        some = [t for t in tangents if t is not None]
        try:
            results: list[Tensor | None] = list(torch.vmap(mapped)(*some))
        except RuntimeError:  # an operation that vmap does not know: column by column
            columns = [mapped(*column) for column in zip(*some, strict=True)]
            results = [torch.stack(parts) for parts in zip(*columns, strict=True)]
        for i in empty:
            results.insert(i, None)
        return tuple(results)

    return block


def _step(single: Callable[..., Outputs], block: Callable[..., Outputs] | None = None) -> LinearStep:
    return LinearStep(single, block or _by_vmap(single))


# Generic rules ----------------------------------------------------------------------------------


def _generic(call: Call) -> LinearStep:
    """Forward-mode differentiation of the operation at its recorded arguments."""
    outs = call.out if isinstance(call.out, tuple | list) else (call.out,)
    real = [i for i, o in enumerate(outs) if isinstance(o, Tensor) and o.is_floating_point()]
    width, run, op = len(outs), call.run, call.op
    primals = {i: call.leaves[i] for i in call.active}

    def single(*tangents: Tensor | None) -> Outputs:
        varied = [i for i in primals if tangents[i] is not None]

        def f(*some: Tensor) -> tuple[Tensor, ...]:
            out = run(dict(zip(varied, some, strict=True)))
            out = out if isinstance(out, tuple | list) else (out,)
            return tuple(out[i] for i in real)

        try:
            _, changes = torch.func.jvp(
                f, tuple(primals[i] for i in varied), tuple(tangents[i] for i in varied)
            )
        except NotImplementedError as error:
            msg = f"{op} has no forward derivative"
            raise Untraceable(msg) from error
        result: list[Tensor | None] = [None] * width
        for i, change in zip(real, changes, strict=True):
            result[i] = change
        return tuple(result)

    return _step(single)


def _pointwise(call: Call) -> LinearStep:
    """``ẏ = Σ_i D_i ẋ_i`` with ``D_i = ∂y/∂x_i`` taken once, by forward mode along ones."""
    ndim = call.out.ndim
    factors: dict[int, Tensor] = {}
    for i in call.active:
        x = call.leaves[i].detach().contiguous()  # forward mode refuses expanded memory
        try:
            _, D = torch.func.jvp(lambda x, i=i: call.run({i: x}), (x,), (torch.ones_like(x),))
        except NotImplementedError as error:
            msg = f"{call.op} has no forward derivative"
            raise Untraceable(msg) from error
        factors[i] = D.detach()

    def single(*tangents: Tensor | None) -> Outputs:
        return _total([D * tangents[i] for i, D in factors.items() if tangents[i] is not None])

    def block(*tangents: Tensor | None) -> Outputs:
        return _total(
            [D * _lift(tangents[i], ndim) for i, D in factors.items() if tangents[i] is not None]
        )

    return _step(single, block)


def _linear_in_first(call: Call, block: Callable[..., Outputs] | None = None) -> LinearStep:
    """Operations that are linear in their first argument, the others being constants."""
    if call.active != [0]:
        return _generic(call)
    run = call.frozen([0])
    return _step(
        lambda t, *_: run({0: t}), None if block is None else lambda t, *_: block(t)
    )


rule(
    aten.gather.default, aten.index_select.default, aten.index.Tensor,
    aten.embedding_dense_backward.default, aten.avg_pool2d.default, aten.avg_pool2d_backward.default,
    aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool2d_backward.default,
    aten.slice_backward.default, aten.select_backward.default, aten.constant_pad_nd.default,
    aten.cumsum.default, aten.tril.default, aten.triu.default, aten.flip.default, aten.roll.default,
    aten.sum.default, aten.mean.default, aten.mean.dim, aten.diagonal.default, aten.unfold.default,
    aten.unfold_backward.default, aten.im2col.default, aten.col2im.default, aten.repeat.default,
    aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int,
    aten.upsample_nearest2d.default, aten.upsample_bilinear2d.default,
)(_linear_in_first)  # fmt: skip


@rule(aten.embedding.default)
def _embedding(call: Call) -> LinearStep:
    """A table look-up; the row of a padding index is a constant for autograd, so for us."""
    step = _linear_in_first(call)
    padding = call.leaves[2] if len(call.leaves) > 2 else -1
    if padding < 0:
        return step
    counts = (call.leaves[1] != padding).unsqueeze(-1)
    return _step(
        lambda t, *_: step.single(t) * counts,
        lambda t, *_: torch.vmap(step.single)(t) * counts,
    )


# Views and reductions, whose block form only shifts dimensions by one -----------------------------


def _shifted(dim: int, ndim: int) -> int:
    return dim + 1 if dim >= 0 else dim + ndim + 1


@rule(aten.view.default, aten._unsafe_view.default, aten.reshape.default)
def _view(call: Call) -> LinearStep:
    shape = tuple(call.out.shape)
    return _step(lambda t, *_: t.reshape(shape), lambda t, *_: t.reshape(t.shape[0], *shape))


@rule(aten.expand.default)
def _expand(call: Call) -> LinearStep:
    shape = tuple(call.out.shape)
    return _step(
        lambda t, *_: t.expand(shape),
        lambda t, *_: _lift(t, len(shape)).expand(t.shape[0], *shape),
    )


@rule(aten.t.default)
def _t(call: Call) -> LinearStep:
    if call.out.ndim < 2:
        return _step(lambda t: t, lambda t: t)
    return _step(lambda t: t.t(), lambda t: t.transpose(1, 2))


@rule(aten.transpose.int)
def _transpose(call: Call) -> LinearStep:
    ndim, (a, b) = call.out.ndim, call.leaves[1:3]
    c, d = _shifted(a, ndim), _shifted(b, ndim)
    return _step(lambda t, *_: t.transpose(a, b), lambda t, *_: t.transpose(c, d))


@rule(aten.permute.default)
def _permute(call: Call) -> LinearStep:
    dims = call.leaves[1:]
    moved = [0, *(_shifted(d, call.out.ndim) for d in dims)]
    return _step(lambda t, *_: t.permute(dims), lambda t, *_: t.permute(moved))


@rule(aten.unsqueeze.default)
def _unsqueeze(call: Call) -> LinearStep:
    dim = call.leaves[1]
    moved = _shifted(dim, call.out.ndim)
    return _step(lambda t, *_: t.unsqueeze(dim), lambda t, *_: t.unsqueeze(moved))


@rule(aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default, aten.slice.Tensor,
      aten.select.int, aten.as_strided.default)  # fmt: skip
def _other_views(call: Call) -> LinearStep:
    return _linear_in_first(call)


@rule(aten.sum.dim_IntList)
def _sum(call: Call) -> LinearStep:
    keep, shape = call.out.ndim == call.leaves[0].ndim, tuple(call.out.shape)
    in_ndim = call.leaves[0].ndim
    dims = [d % in_ndim for d in call.leaves[1:] if type(d) is int] or list(range(in_ndim))
    moved = [d + 1 for d in dims]
    if in_ndim == 0 or len(call.leaves) != 1 + len(dims) + (type(call.leaves[-1]) is bool):
        return _linear_in_first(call)
    return _step(
        lambda t, *_: t.sum(dims, keepdim=keep).reshape(shape),
        lambda t, *_: t.sum(moved, keepdim=keep).reshape(t.shape[0], *shape),
    )


@rule(aten.clone.default, aten.alias.default, aten.detach.default, aten.lift_fresh.default,
      aten.contiguous.default)  # fmt: skip
def _copy(call: Call) -> LinearStep:
    return _step(lambda t, *_: t, lambda t, *_: t)


@rule(aten._to_copy.default)
def _to_copy(call: Call) -> LinearStep:
    dtype, device = call.out.dtype, call.out.device
    return _step(lambda t, *_: t.to(device, dtype), lambda t, *_: t.to(device, dtype))


@rule(aten.cat.default)
def _cat(call: Call) -> LinearStep:
    pieces = [x for x in call.leaves if isinstance(x, Tensor)]
    shapes = [tuple(x.shape) for x in pieces]
    count = len(pieces)
    dim = call.leaves[count] if len(call.leaves) > count else 0
    moved = _shifted(dim, call.out.ndim)

    def single(*tangents: Tensor | None) -> Outputs:
        some = next(t for t in tangents if t is not None)
        parts = [
            some.new_zeros(s) if t is None else t
            for s, t in zip(shapes, tangents, strict=False)
        ]
        return torch.cat(parts, dim)

    def block(*tangents: Tensor | None) -> Outputs:
        some = next(t for t in tangents if t is not None)
        parts = [
            some.new_zeros(some.shape[0], *s) if t is None else t
            for s, t in zip(shapes, tangents, strict=False)
        ]
        return torch.cat(parts, moved)

    return _step(single, block)


# Pointwise operations with a cheaper rule than the generic one ------------------------------------


@rule(aten.relu.default)
def _relu(call: Call) -> LinearStep:
    y = call.out.detach()
    gate = lambda t: aten.threshold_backward(t, y, 0)  # noqa: E731
    return _step(gate, gate)


@rule(aten.threshold_backward.default)
def _threshold_backward(call: Call) -> LinearStep:
    # The gate is constant almost everywhere, so only the gradient argument carries a tangent.
    y, threshold = call.leaves[1].detach(), call.leaves[2]

    def gate(t: Tensor | None, *_: Tensor | None) -> Outputs:
        return (None,) if t is None else aten.threshold_backward(t, y, threshold)

    return _step(gate, gate)


@rule(aten.add.Tensor, aten.sub.Tensor)
def _add(call: Call) -> LinearStep:
    named = call.leaves[2] if len(call.leaves) > 2 else 1
    alpha = -named if call.op is aten.sub.Tensor else named
    shape = tuple(call.out.shape)
    ndim = len(shape)

    def combine(a: Tensor | None, b: Tensor | None, full: tuple[int, ...]) -> Outputs:
        if b is None:
            return a if a.shape == full else a.expand(full)  # type: ignore[union-attr]
        if a is None:
            b = b if alpha == 1 else b * alpha
            return b if b.shape == full else b.expand(full)
        return torch.add(a, b, alpha=alpha)

    def block(a: Any, b: Any = None, *_: Any) -> Outputs:
        a, b = (t if t is None else _lift(t, ndim) for t in (a, b))
        columns = (b if a is None else a).shape[0]
        return combine(a, b, (columns, *shape))

    return _step(lambda a, b=None, *_: combine(a, b, shape), block)


@rule(aten.mul.Tensor)
def _mul(call: Call) -> LinearStep:
    a, b = call.leaves[:2]
    ndim = call.out.ndim
    left = b if 0 in call.active else None  # multiplies the tangent of a
    right = a if 1 in call.active else None

    def single(ta: Tensor | None, tb: Tensor | None = None) -> Outputs:
        return _total([None if ta is None else ta * left, None if tb is None else tb * right])

    def block(ta: Tensor | None, tb: Tensor | None = None) -> Outputs:
        return _total(
            [
                None if ta is None else _lift(ta, ndim) * left,
                None if tb is None else _lift(tb, ndim) * right,
            ]
        )

    return _step(single, block)


@rule(aten.mul.Scalar)
def _mul_scalar(call: Call) -> LinearStep:
    factor = call.leaves[1]
    return _step(lambda t, *_: t * factor, lambda t, *_: t * factor)


@rule(aten.div.Tensor, aten.div.Scalar)
def _div(call: Call) -> LinearStep:
    if call.active != [0]:
        return _pointwise(call)
    divisor, ndim = call.leaves[1], call.out.ndim
    return _step(lambda t, *_: t / divisor, lambda t, *_: _lift(t, ndim) / divisor)


@rule(aten.neg.default)
def _neg(call: Call) -> LinearStep:
    return _step(lambda t: -t, lambda t: -t)


@rule(aten.add.Scalar, aten.sub.Scalar)
def _shift(call: Call) -> LinearStep:
    return _step(lambda t, *_: t, lambda t, *_: t)


@rule(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def _masked_fill(call: Call) -> LinearStep:
    if call.active != [0]:
        return _generic(call)
    mask, ndim = call.leaves[1], call.out.ndim
    return _step(
        lambda t, *_: t.masked_fill(mask, 0), lambda t, *_: _lift(t, ndim).masked_fill(mask, 0)
    )


# Matrix products ----------------------------------------------------------------------------------


def _mm_block_left(t: Tensor, b: Tensor) -> Tensor:
    """``ȧ_k b`` for all columns: fold the columns into the rows of one product."""
    return torch.matmul(t, b)


def _mm_block_right(a: Tensor, t: Tensor) -> Tensor:
    """``a ḃ_k`` for all columns."""
    return torch.matmul(a, t)


@rule(aten.mm.default, aten.bmm.default)
def _mm(call: Call) -> LinearStep:
    a, b = call.leaves
    left = b.detach() if 0 in call.active else None
    right = a.detach() if 1 in call.active else None

    def single(ta: Tensor | None, tb: Tensor | None) -> Outputs:
        if tb is None:
            return torch.matmul(ta, left)
        if ta is None:
            return torch.matmul(right, tb)
        if ta.ndim == 2:
            return torch.addmm(torch.matmul(ta, left), right, tb)
        return torch.baddbmm(torch.matmul(ta, left), right, tb)

    def block(ta: Tensor | None, tb: Tensor | None) -> Outputs:
        return _total(
            [
                None if ta is None else _mm_block_left(ta, left),
                None if tb is None else _mm_block_right(right, tb),
            ]
        )

    return _step(single, block)


@rule(aten.addmm.default)
def _addmm(call: Call) -> LinearStep:
    if len(call.leaves) > 3:  # scaled forms are rare
        return _generic(call)
    product = Call(aten.mm.default, tuple(call.leaves[1:3]), {}, call.out)
    product.active = [i - 1 for i in call.active if i > 0]
    mm = _mm(product)
    shape = tuple(call.out.shape)

    def single(bias: Tensor | None, ta: Tensor | None, tb: Tensor | None) -> Outputs:
        if ta is None and tb is None:
            return bias.expand(shape)  # type: ignore[union-attr]
        y = mm.single(ta, tb)
        return y if bias is None else y + bias

    def block(bias: Tensor | None, ta: Tensor | None, tb: Tensor | None) -> Outputs:
        if bias is not None:
            bias = _lift(bias, 2)
        if ta is None and tb is None:
            return bias.expand(bias.shape[0], *shape)  # type: ignore[union-attr]
        y = mm.block(ta, tb)
        return y if bias is None else y + bias

    return _step(single, block)


# Convolutions and pooling -------------------------------------------------------------------------


@rule(aten.convolution.default)
def _convolution(call: Call) -> LinearStep:
    x, w = call.leaves[0].detach(), call.leaves[1].detach()
    settings = _conv_settings(call)
    weight = w if 0 in call.active else None
    source = x if 1 in call.active else None
    shape = tuple(call.out.shape)

    def single(tx: Any, tw: Any, tb: Any = None, *_: Any) -> Outputs:
        bias_shape = None if tb is None else (1, -1) + (1,) * (len(shape) - 2)
        if tx is None and tw is None:
            return tb.reshape(bias_shape).expand(shape)
        first = None if tx is None else aten.convolution(tx, weight, tb, *settings)
        if tw is None:
            return first
        second = aten.convolution(source, tw, tb if first is None else None, *settings)
        return second if first is None else second.add_(first)

    return _step(single, _conv_block(single, shape, weight, source, settings))


def _conv_settings(call: Call) -> tuple[Any, ...]:
    """(stride, padding, dilation, transposed, output_padding, groups) of a convolution call."""
    args, _ = pytree.tree_unflatten(call.leaves, call._spec)
    return tuple(args[3:9])


def _conv_block(single: Any, shape: Any, weight: Any, source: Any, settings: Any) -> Any:
    transposed, groups = settings[3], settings[5]

    def block(tx: Any, tw: Any, tb: Any = None, *_: Any) -> Outputs:
        columns = next(t for t in (tx, tw, tb) if t is not None).shape[0]
        total = None
        if tx is not None:  # columns folded into the batch
            total = aten.convolution(tx.flatten(0, 1), weight, None, *settings)
            total = total.unflatten(0, (columns, -1))
        if tw is not None:
            if groups == 1 and not transposed:  # columns folded into the output channels
                y = aten.convolution(source, tw.flatten(0, 1), None, *settings)
                y = y.unflatten(1, (columns, -1)).transpose(0, 1)
            else:
                y = torch.stack([aten.convolution(source, t, None, *settings) for t in tw])
            total = y if total is None else total.add_(y)
        if tb is not None:
            b = tb.reshape(columns, 1, -1, *(1,) * (len(shape) - 2))
            total = b.expand(columns, *shape) if total is None else total + b
        return total

    return block


@rule(aten.convolution_backward.default)
def _convolution_backward(call: Call) -> LinearStep:
    (grad, x, w, bias_sizes, *settings, mask), _ = pytree.tree_unflatten(call.leaves, call._spec)
    grad, x, w = grad.detach(), x.detach(), w.detach()
    second = 1 in call.active or 2 in call.active
    delta = grad if second else None
    kept_x = x if mask[1] or 0 in call.active else None
    kept_w = w

    def backward(g: Any, x_: Any, w_: Any, wanted: list[bool]) -> Any:
        return aten.convolution_backward(g, x_, w_, bias_sizes, *settings, wanted)

    def single(tg: Any, tx: Any, tw: Any, *_: Any) -> Outputs:
        gx = gw = gb = None
        if tg is not None:
            gx, gw, gb = backward(tg, kept_x, kept_w, list(mask))
        wanted = [mask[0] and tw is not None, mask[1] and tx is not None, False]
        if any(wanted):
            x_ = tx if tx is not None else kept_x
            w_ = tw if tw is not None else kept_w
            hx, hw, _ = backward(delta, x_, w_, wanted)
            gx = hx if gx is None else gx if hx is None else gx.add_(hx)
            gw = hw if gw is None else gw if hw is None else gw.add_(hw)
        return (gx, gw, gb)

    def block(tg: Any, tx: Any, tw: Any, *_: Any) -> Outputs:
        columns = next(t for t in (tg, tx, tw) if t is not None).shape[0]
        results = [
            single(*(None if t is None else t[k] for t in (tg, tx, tw))) for k in range(columns)
        ]
        return tuple(
            None if parts[0] is None else torch.stack(parts)
            for parts in zip(*results, strict=True)
        )

    return _step(single, block)


@rule(aten.max_pool2d_with_indices.default)
def _max_pool2d(call: Call) -> LinearStep:
    indices = call.out[1]
    flat, shape = indices.flatten(-2), tuple(indices.shape)

    def single(t: Tensor, *_: Any) -> Outputs:
        return (t.flatten(-2).gather(-1, flat).reshape(shape), None)

    def block(t: Tensor, *_: Any) -> Outputs:
        picked = t.flatten(-2).gather(-1, flat.expand(t.shape[0], *flat.shape))
        return (picked.reshape(t.shape[0], *shape), None)

    return _step(single, block)


@rule(aten.max_pool2d_with_indices_backward.default)
def _max_pool2d_backward(call: Call) -> LinearStep:
    args, _ = pytree.tree_unflatten(call.leaves, call._spec)
    _, x, *settings, indices = args
    x = x.detach()
    shape, flat = tuple(x.shape), indices.flatten(-2)

    def single(t: Tensor | None, *_: Any) -> Outputs:
        if t is None:
            return (None,)
        return aten.max_pool2d_with_indices_backward(t, x, *settings, indices)

    def block(t: Tensor | None, *_: Any) -> Outputs:
        if t is None:
            return (None,)
        k = t.shape[0]
        y = t.new_zeros(k, *shape[:-2], shape[-2] * shape[-1])
        y.scatter_add_(-1, flat.expand(k, *flat.shape), t.flatten(-2))
        return y.reshape(k, *shape)

    return _step(single, block)


# Softmax ------------------------------------------------------------------------------------------


@rule(aten._softmax.default, aten._safe_softmax.default)
def _softmax(call: Call) -> LinearStep:
    y, dim = call.out.detach(), call.leaves[1]
    moved = _shifted(dim, y.ndim)

    def along(t: Tensor, dim: int) -> Outputs:
        yt = y * t
        return yt - y * yt.sum(dim, keepdim=True)

    return _step(lambda t, *_: along(t, dim), lambda t, *_: along(t, moved))


@rule(aten._log_softmax.default)
def _log_softmax(call: Call) -> LinearStep:
    p, dim = call.out.detach().exp(), call.leaves[1]
    moved = _shifted(dim, p.ndim)
    return _step(
        lambda t, *_: t - (p * t).sum(dim, keepdim=True),
        lambda t, *_: t - (p * t).sum(moved, keepdim=True),
    )
