"""Which module is to blame when a model cannot be differentiated twice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from curvescope.errors import CurvescopeError, ModelError
from curvescope.problem.batches import Batch
from curvescope.problem.calling import call_with
from curvescope.problem.problem import Problem

_SIGNS = ("not implemented", "once_differentiable", "does not require grad", "not support",
          "not have been used in the graph", "don't support automatic differentiation",
          "no autograd formula was registered")  # fmt: skip


@contextmanager
def explain_failure(problem: Problem, batch: Batch | None) -> Iterator[None]:
    """Turn autograd's refusal into a sentence that names the module."""
    try:
        yield
    except (RuntimeError, NotImplementedError) as error:
        text = str(error)
        if isinstance(error, CurvescopeError) or not any(sign in text for sign in _SIGNS):
            raise
        reason = text.strip().splitlines()[0].partition(" Set allow_unused")[0]  # advice for us
        culprit = _find(problem, batch or next(iter(problem.data)))
        where = f"module {culprit}" if culprit else "the model"
        raise ModelError("Problem", f"{where} cannot be differentiated twice: {reason}") from error


@dataclass(frozen=True)
class ModuleCall:
    """The first call of a module in a forward pass: what it was given."""

    name: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def module_calls(problem: Problem, batch: Batch) -> dict[str, ModuleCall]:
    """The first call of every module in a forward pass of a batch, in the order of these calls."""
    calls: dict[str, ModuleCall] = {}
    with ExitStack() as hooks, problem.evaluation():
        for name, module in problem.model.named_modules():

            def note(m: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
                calls.setdefault(name, ModuleCall(name, m, args, dict(kwargs)))

            hooks.callback(module.register_forward_pre_hook(note, with_kwargs=True).remove)
        problem.output(problem.variables(), batch)
    return calls


def _find(problem: Problem, batch: Batch) -> str | None:
    """The first leaf module whose own second derivative fails at the inputs it gets."""
    for call in module_calls(problem, batch).values():
        if next(call.module.children(), None) is not None:
            continue
        with problem.evaluation():
            if _fails(call.module, call.args, call.kwargs):
                return f"{call.name!r} ({type(call.module).__name__})"
    return None


def _fails(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    def fresh(t: Tensor) -> Tensor:
        return t.detach().requires_grad_(t.is_floating_point())

    args, kwargs = pytree.tree_map_only(Tensor, fresh, (args, kwargs))
    state = {n: fresh(p) for n, p in module.named_parameters()}
    variables = [*state.values(), *pytree.tree_leaves((args, kwargs))]
    variables = [v for v in variables if isinstance(v, Tensor) and v.requires_grad]
    try:
        out = call_with(module, state, args, kwargs)
        outs = [o for o in pytree.tree_leaves(out) if isinstance(o, Tensor) and o.requires_grad]
        if not outs or not variables:
            return False
        u = [torch.ones_like(o).requires_grad_() for o in outs]
        first = torch.autograd.grad(outs, variables, u, create_graph=True, allow_unused=True)
        some = [g for g in first if g is not None]
        # The first derivative is linear in u, so it must depend on it.
        torch.autograd.grad(some, u, [torch.ones_like(g) for g in some], retain_graph=True)
        torch.autograd.grad(some, variables, some, allow_unused=True)
    except (RuntimeError, NotImplementedError):
        return True
    return False
