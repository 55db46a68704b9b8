"""Module by module: is it recorded on the tape, can it be differentiated twice, which closed form.

A module is tried out alone, at the inputs that it gets from the first samples of the data. Where
the whole model passes, no module needs to be tried; where it does not, the search goes down into
the modules that fail, so that the smallest one is named.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from curvescope._state import held
from curvescope.errors import CurvescopeError
from curvescope.experiments.doctor.records import MATRICES, ModuleNote
from curvescope.layers import kind_of
from curvescope.operators.gauss_newton import GaussNewton
from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem
from curvescope.record.batch import TapeBatch
from curvescope.record.diagnosis import ModuleCall, module_calls
from curvescope.record.rules import Untraceable
from curvescope.record.selection import join, layers_of_any_kind

_FAILURES = (RuntimeError, NotImplementedError)


@dataclass(frozen=True)
class _Trial:
    """Why a module or the model is not recorded, and why it has no second derivative.

    Each is a sentence, empty where nothing stands in the way.
    """

    recorded: str
    twice: str


def examine(problem: Problem) -> tuple[ModuleNote, ...]:
    """A note for every module that is called or has parameters of its own, in the model's order.

    Args:
        problem: On a few samples, on which everything is tried out.
    """
    batch = next(iter(problem.data))
    calls = module_calls(problem, batch)
    whole = _try_problem(problem)
    blamed = {} if whole == _Trial("", "") else dict(_blame(problem, calls, ""))
    return tuple(_notes(problem, calls, blamed, whole))


def _notes(
    problem: Problem, calls: dict[str, ModuleCall], blamed: dict[str, _Trial], whole: _Trial
) -> Iterator[ModuleNote]:
    fine = _Trial("", "")
    for name, module in problem.model.named_modules():
        parameters = sum(p.numel() for p in module.parameters(recurse=False))
        leaf = next(module.children(), None) is None
        trial = blamed.get(name, fine)
        if name == "" and not blamed:
            trial = whole  # nothing smaller could be blamed
        if not (parameters or leaf or trial != fine):
            continue
        forms, why_not = _closed_forms(problem, name, module)
        problems = dict.fromkeys(text for text in (trial.twice, trial.recorded) if text)
        yield ModuleNote(
            name, type(module).__name__, parameters, name in calls, not trial.recorded,
            not trial.twice, "; ".join(problems), forms, why_not,
        )  # fmt: skip


# Trying out ------------------------------------------------------------------------------------


def _try_problem(problem: Problem) -> _Trial:
    """A whole problem: on a tape with its second derivative, else by autograd's graphs."""
    try:
        TapeBatch(problem, next(iter(problem.data))).record_backward()
        return _Trial("", "")
    except Untraceable as reason:
        recorded = str(reason)
    except _FAILURES as error:
        recorded = _sentence(error)
    row = torch.ones(problem.params.size, dtype=problem.dtype, device=problem.device)
    try:
        Hessian(problem) @ row
    except CurvescopeError as error:
        return _Trial(recorded, error.after_where())
    except _FAILURES as error:
        return _Trial(recorded, _sentence(error))
    return _Trial(recorded, "")


def _blame(
    problem: Problem, calls: dict[str, ModuleCall], name: str
) -> Iterator[tuple[str, _Trial]]:
    """The smallest modules that fail, below and including one that does."""
    module = problem.model.get_submodule(name)
    failing = []
    for child, _ in module.named_children():
        path = f"{name}.{child}" if name else child
        if path not in calls:  # a container that is not called itself, such as a ModuleList
            failing += list(_blame(problem, calls, path))
            continue
        trial = _try(problem, calls[path])
        if trial != _Trial("", ""):
            failing += list(_blame(problem, calls, path)) or [(path, trial)]
    yield from failing


def _try(problem: Problem, call: ModuleCall) -> _Trial:
    """One module alone: a problem in its parameters and in the inputs of its call."""
    alone = _Alone(call, problem.dtype)
    if not any(p.requires_grad for p in alone.parameters()):
        return _Trial("", "")
    here = torch.zeros(1, device=problem.device, dtype=problem.dtype)
    try:
        with held(alone, "eval"), torch.no_grad():
            target = torch.zeros_like(alone(here))
        if not target.numel():
            return _Trial("", "")
        trial = _try_problem(Problem(alone, [(here, target)], loss="mse"))
        _, alone_twice, reason = trial.twice.partition("cannot be differentiated twice: ")
        return _Trial(trial.recorded, reason if alone_twice else trial.twice)
    except CurvescopeError as error:
        return _Trial(error.after_where(), "")
    except _FAILURES as error:
        return _Trial(_sentence(error), "")


class _Alone(nn.Module):
    """A module at the inputs of one call; inputs of the problem's type become parameters too."""

    def __init__(self, call: ModuleCall, dtype: torch.dtype) -> None:
        super().__init__()
        self.module = call.module
        self._leaves, self._tree = pytree.tree_flatten((call.args, call.kwargs))
        self._places = [
            i for i, t in enumerate(self._leaves) if isinstance(t, Tensor) and t.dtype == dtype
        ]
        self.given = nn.ParameterList([self._leaves[i].detach().clone() for i in self._places])

    def forward(self, x: Tensor) -> Tensor:
        """All outputs of its type in one row ``[1, n]``."""
        leaves = list(self._leaves)
        for i, parameter in zip(self._places, self.given, strict=True):
            leaves[i] = parameter.clone()  # what a module is given is seldom a parameter itself
        args, kwargs = pytree.tree_unflatten(leaves, self._tree)
        out = pytree.tree_leaves(self.module(*args, **kwargs))
        rows = [o.flatten() for o in out if isinstance(o, Tensor) and o.dtype == x.dtype]
        return torch.cat([x[:0], *rows])[None]


def _sentence(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


# Closed forms ----------------------------------------------------------------------------------


def _closed_forms(problem: Problem, name: str, module: nn.Module) -> tuple[tuple[str, ...], str]:
    """For which matrices the block of the weight is multiplied in closed form, and why not."""
    if kind_of(module) is None or join(name, "weight") not in problem.params.shapes:
        return (), ""
    try:
        layers_of_any_kind(problem, [name])
        forms = []
        for matrix, operator in zip(MATRICES, (Hessian, GaussNewton), strict=True):
            plan = operator(problem, keep=True).block(join(name, "weight")).plan
            if "closed form" in plan.strategy:
                forms.append(matrix)
    except CurvescopeError as error:
        return (), error.after_where()
    return tuple(forms), "" if forms else "the recorded products are cheaper"
