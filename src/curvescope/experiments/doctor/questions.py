"""What the doctor checks of every problem: data, type, loss, determinism, order, variables.

Each check looks at the first batch. The first one that fails ends the examination, because the
others would fail for the same reason.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from curvescope._state import watching
from curvescope.errors import CurvescopeError
from curvescope.experiments.doctor.products import on
from curvescope.experiments.doctor.records import AttentionNote, Question
from curvescope.problem import Problem
from curvescope.problem.batches import Batch
from curvescope.problem.losses.custom import Custom
from curvescope.problem.losses.model_loss import takes_labels
from curvescope.record.rules.attention import covered


def ask(problem: Problem) -> tuple[Question, ...]:
    """The answers, up to and including the first failure."""
    questions: list[Question] = []
    for what, answer in _QUESTIONS.items():
        try:
            questions.append(Question(what, answer(problem), ok=True))
        except CurvescopeError as error:
            questions.append(Question(what, str(error), ok=False))
            break
    return tuple(questions)


def _data(problem: Problem) -> str:
    """Whether the numbers of the first batch are finite."""
    batch = next(iter(problem.data))
    for t in pytree.tree_leaves((batch.inputs, batch.target)):
        if isinstance(t, Tensor) and not bool(t.isfinite().all()):
            rule = "the first batch has NaN or infinite numbers"
            raise CurvescopeError("data", rule, remedy="remove them")
    length = problem.data.length
    return f"finite, {'an unknown number of' if length is None else f'{length:,}'} batches"


def _type(problem: Problem) -> str:
    """In which precision everything is computed."""
    eps = torch.finfo(problem.dtype).eps
    return f"{_short(problem.dtype)}, products are rounded at {eps:.0e} of their size"


def _loss(problem: Problem) -> str:
    """Whether the loss agrees with the model's own, if it has one, and is a mean over samples."""
    loss = problem.loss  # compared with the model's own loss at the first access
    one = on(problem, next(iter(problem.data)))
    value = float(one.value())
    whose = "as the model computes it itself" if takes_labels(problem.model) else (
        "a callable; it is the average that it declares" if isinstance(loss, Custom)
        else "the model computes none of its own"
    )  # fmt: skip
    return f"{loss.name}, {value:.6g} on the first batch ({whose})"


def _determinism(problem: Problem) -> str:
    """Whether two identical passes agree."""
    on(problem, next(iter(problem.data))).check()
    return "two passes agree in loss and gradient"


def _order(problem: Problem) -> str:
    """Whether outputs depend on the rest of the batch."""
    if problem.mode == "train":
        return "batch norms use the statistics of each batch"
    if problem.samples_apart(next(iter(problem.data))):
        return "do not see each other"
    return "see each other: the batches are part of the loss, keep them as they are"


def _reached(problem: Problem) -> str:
    """Parameters that the loss does not depend on."""
    gradients = _gradients(problem, next(iter(problem.data)))
    dead = [name for name, g in gradients.items() if g is None]
    if not dead:
        return "the loss depends on every variable"
    more = f" and {len(dead) - 3} more" if len(dead) > 3 else ""
    return f"the loss does not depend on {', '.join(dead[:3])}{more}, whose curvature is zero"


_QUESTIONS: dict[str, Callable[[Problem], str]] = {
    "data": _data,
    "type": _type,
    "determinism": _determinism,
    "loss": _loss,
    "samples": _order,
    "variables": _reached,
}


def _gradients(problem: Problem, batch: Batch) -> dict[str, Tensor | None]:
    variables = problem.variables()
    with problem.evaluation():
        z = problem.output(variables, batch)
        u = problem.loss_at(z, batch).gradient()
        pieces = torch.autograd.grad(z, list(variables.values()), u, allow_unused=True)
    return dict(zip(variables, pieces, strict=True))


# Weights ---------------------------------------------------------------------------------------


def tied(problem: Problem) -> tuple[tuple[str, ...], ...]:
    """Names that share one parameter."""
    names = defaultdict(list)
    for name, parameter in problem.model.named_parameters(remove_duplicate=False):
        names[id(parameter)].append(name)
    return tuple(tuple(group) for group in names.values() if len(group) > 1)


def frozen(problem: Problem) -> tuple[str, ...]:
    """Parameters that are no variables."""
    return tuple(
        name for name, _ in problem.model.named_parameters() if name not in problem.params.shapes
    )


# Attention -------------------------------------------------------------------------------------


class _Calls(TorchFunctionMode):
    """Counts the calls of attention, those with a blockwise rule, and the scores of the others."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = self.blockwise = self.longest = self.scores = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            self._count(args, kwargs)
        return func(*args, **kwargs)

    def _count(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        query, key = (
            args[i] if len(args) > i else kwargs[name] for i, name in enumerate(("query", "key"))
        )
        self.calls += 1
        self.longest = max(self.longest, int(key.shape[-2]))
        if covered(*args, **kwargs) is not None:
            self.blockwise += 1
        else:
            rows = query.numel() // query.shape[-1]
            self.scores += rows * int(key.shape[-2]) * query.element_size()


def attention(problem: Problem) -> AttentionNote | None:
    """How the attention of the model is computed; None for a model without."""
    batch, watch = next(iter(problem.data)), _Calls()
    with problem.evaluation(), watching(watch), torch.no_grad():
        problem._call(problem.variables(), batch, {})
    if not watch.calls:
        return None
    return AttentionNote(watch.calls, watch.blockwise, watch.longest, watch.scores)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
