"""Functions that users gave a derivative of their own (``torch.autograd.Function``).

What happens inside of their forward pass is hidden from autograd, and so it does not count for us:
only their ``backward`` says what the derivative is. It maps ``u`` to ``Jᵀ u``, so that its own
derivative by ``u`` gives ``J v``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from curvescope.record.rules.step import Call, LinearStep, Outputs, Untraceable, make_step, rule


def user_function(node: Any, output: int) -> Any:
    """The operation that made one output of such a function; recorded as such, never run."""
    raise NotImplementedError


@rule(user_function)
def _user_function(call: Call) -> LinearStep:
    node, output = call.args
    try:
        u, pulled = _pulled(node, output)
    except (RuntimeError, TypeError, ValueError) as error:
        raise Untraceable(f"the backward of {_name(node)} cannot be run: {error}") from error
    if any(g is not None and not g.requires_grad for g in pulled):
        raise Untraceable(f"the backward of {_name(node)} is not linear in what it is given")

    def single(*tangents: Tensor | None) -> Outputs:
        pairs = [
            (g, t) for g, t in zip(pulled, tangents, strict=True) if g is not None and t is not None
        ]
        if not pairs:
            return None
        outputs, weights = [g for g, _ in pairs], [t.expand(g.shape) for g, t in pairs]
        return torch.autograd.grad(outputs, u, weights, retain_graph=True)[0]

    def block(*tangents: Tensor | None) -> Outputs:
        count = next(len(t) for t in tangents if t is not None)
        columns: list[Any] = [
            single(*(None if t is None else t[k] for t in tangents)) for k in range(count)
        ]
        return None if columns[0] is None else torch.stack(columns)

    try:
        single(*(None if g is None else torch.zeros_like(g) for g in pulled))
    except RuntimeError as error:  # once_differentiable
        raise Untraceable(f"the backward of {_name(node)} has no derivative") from error
    return make_step(single, block)


def _pulled(node: Any, output: int) -> tuple[Tensor, list[Tensor | None]]:
    """``u`` and ``Jᵀ u`` for one output, by the inputs that have a gradient; a graph of ``u``."""
    us = [torch.zeros(tuple(m.shape), dtype=m.dtype, device=m.device) for m in node._input_metadata]
    us[output].requires_grad_()
    with torch.enable_grad():
        given = node.apply(*us)
    given = given if isinstance(given, tuple | list) else (given,)
    wanted = node.needs_input_grad
    return us[output], [g for g, needed in zip(given, wanted, strict=False) if needed]


def _name(node: Any) -> str:
    return type(node).__name__.removesuffix("Backward")
