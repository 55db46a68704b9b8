"""Rules that serve every operation that has none of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from curvescope._state import forward_mode
from curvescope.record.rules.step import (
    RULES,
    Call,
    LinearStep,
    Outputs,
    Untraceable,
    lift,
    make_step,
    rule,
    total,
)  # fmt: skip

aten = torch.ops.aten
_TORCHS = ("aten", "prims")


def linear_step(call: Call) -> LinearStep:
    """The step of an operation: its own rule, the rule of its kind, or the generic one.

    An operator of torch.library has a rule of its own or none: it has no forward derivative, and
    torch takes it for a constant where one asks for it.
    """
    build = RULES.get(call.op)
    if build is not None:
        return build(call)
    if call.op.namespace not in _TORCHS:
        raise Untraceable(f"{call.op} has no rule")
    if torch.Tag.pointwise in call.op.tags and isinstance(call.out, Tensor):
        return pointwise(call)
    return generic(call)


@rule(aten.scatter_reduce.two)
def _scatter_reduce(call: Call) -> LinearStep:
    # torch 2.13's own forward derivative of a product is wrong by as much as its size.
    if "prod" in call.leaves:
        raise Untraceable(f"{call.op} has a wrong forward derivative for products")
    return generic(call)


@rule(aten.cumprod.default)
def _cumprod(call: Call) -> LinearStep:
    # Beside a zero, the backward pass that is taken without create_graph is right as it stands, but
    # its derivative is not.
    if bool((call.leaves[0] == 0).any()):
        raise Untraceable(f"{call.op} of a zero")
    return generic(call)


@rule(aten.triangular_solve.default)
def _triangular_solve(call: Call) -> LinearStep:
    # It returns a part of its argument beside the solution, of which torch knows no derivative.
    raise Untraceable(f"{call.op} has no forward derivative")


def generic(call: Call) -> LinearStep:
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
            with forward_mode():
                _, changes = torch.func.jvp(  # type: ignore[misc]
                    f, tuple(primals[i] for i in varied), tuple(tangents[i] for i in varied)
                )
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, NotImplementedError) as error:
            raise Untraceable(f"{op} has no forward derivative") from error
        result: list[Tensor | None] = [None] * width
        for i, change in zip(real, changes, strict=True):
            result[i] = None if change._is_zerotensor() else change
        return tuple(result)

    return make_step(single)


def pointwise(call: Call) -> LinearStep:
    """``ẏ = Σ_i D_i ẋ_i`` with ``D_i = ∂y/∂x_i`` taken once; a step function stops tangents."""
    ndim = call.out.ndim
    slopes = {i: _slope(call, i) for i in call.active}
    factors = {i: D for i, D in slopes.items() if D is not None}

    def single(*tangents: Any) -> Outputs:
        return total([D * tangents[i] for i, D in factors.items() if tangents[i] is not None])

    def block(*tangents: Any) -> Outputs:
        return total(
            [D * lift(tangents[i], ndim) for i, D in factors.items() if tangents[i] is not None]
        )

    return make_step(single, block)


def _slope(call: Call, position: int) -> Tensor | None:
    """``∂y/∂x`` entry by entry: the derivative of the sum, with ``x`` as large as ``y``.

    None where it is zero whatever the numbers, as for ``sign`` (the derivative of ``abs``).
    """
    constants = {i: leaf.detach() for i, leaf in enumerate(call.leaves) if isinstance(leaf, Tensor)}
    with torch.enable_grad():
        x = constants[position].expand(call.out.shape).contiguous().requires_grad_()
        y = call.run(constants | {position: x})
    if not y.requires_grad:  # a step function
        return None
    try:
        slope = torch.autograd.grad(y, x, torch.ones_like(y))[0]
        return None if slope._is_zerotensor() else slope
    except (RuntimeError, NotImplementedError) as error:
        raise Untraceable(f"{call.op} has no derivative") from error


def linear_in_first(call: Call, block: Callable[..., Outputs] | None = None) -> LinearStep:
    """Operations that are linear in their first argument, the others being constants."""
    if call.active != [0]:
        return generic(call)
    run = call.without(0).run
    return make_step(lambda t, *_: run({0: t}), None if block is None else lambda t, *_: block(t))
