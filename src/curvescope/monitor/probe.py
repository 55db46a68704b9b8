"""The fixed data that a monitor looks at, and the problem on it with the weights of now."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils import _pytree as pytree

from curvescope._random import global_generators_kept
from curvescope.errors import CurvescopeError
from curvescope.problem import Loss, Problem
from curvescope.problem.batches import Batch


class Probe:
    """Batches in memory, read once, and the loss that is recognized on them."""

    def __init__(
        self,
        model: nn.Module,
        data: Any,
        loss: str | nn.Module | Callable[..., Tensor] | Loss,
        mode: str,
    ) -> None:
        norms = any(isinstance(module, _NormBase) for module in model.modules())
        self._mode = mode if norms else "eval"  # the same without batch norm
        with global_generators_kept():
            read = Problem(model, data, loss=loss, mode=self._mode)
            self.batches = [(b.inputs, b.target) for b in read.data]
            self._first = Problem(model, self.batches, loss=loss, mode=self._mode)
            self.loss = self._first.loss
        self.names, self.identity = self._first.params.names, self._first.data_identity
        self._used = False
        self.samples = sum(samples_of(target) for _, target in self.batches)

    def problem(self) -> Problem:
        """The problem for the weights that the model has now.

        The first one stays, without what is kept for products: the others know what it found out.
        """
        if not self._used:
            self._used = True
            return self._first
        return self._first.renewed()


def samples_of(target: Any) -> int:
    """The first dimension of a target."""
    return next((len(t) for t in pytree.tree_leaves(target) if isinstance(t, Tensor) and t.ndim), 1)


@dataclass(frozen=True)
class Gradient:
    """The sum over the terms of a batch, their weight, and its gradient (None if not wanted)."""

    loss: float
    weight: float
    slope: Tensor | None


def gradients(
    problem: Problem, batches: Sequence[tuple[Any, Any]], *, slopes: bool = True
) -> Iterator[Gradient]:
    """Loss and gradient of each batch: one forward and one backward pass over it."""
    variables = problem.variables()
    for index, (inputs, target) in enumerate(batches):
        with problem.evaluation():
            z = problem.output(variables, Batch(inputs, target, index))
            at = problem.loss.at(z.detach(), target)
            slope = None
            if slopes:
                pieces = torch.autograd.grad(
                    z, list(variables.values()), at.gradient(), allow_unused=True,
                    materialize_grads=True,
                )  # fmt: skip
                slope = problem.params.flatten(dict(zip(variables, pieces, strict=True)))
            yield Gradient(float(at.value()), float(at.weight), slope)


def mean(parts: Sequence[Gradient]) -> tuple[float, Tensor | None]:
    """The mean loss over all terms of some batches, and its gradient."""
    weight = sum(part.weight for part in parts)
    if weight == 0:
        raise CurvescopeError("Monitor(probe)", "no target counts (all are ignored)")
    slopes = [part.slope for part in parts if part.slope is not None]
    slope = torch.stack(slopes).sum(0) / weight if slopes else None
    return sum(part.loss for part in parts) / weight, slope


def pieces(
    batches: Sequence[tuple[Any, Any]], count: int, generator: torch.Generator
) -> list[tuple[Any, Any]]:
    """The samples of all batches in random order as ``count`` pieces of equal size.

    What is left over is not in any of them.
    """
    total = [samples_of(target) for _, target in batches]
    if len(batches) == 1:
        merged = batches[0]
    else:
        merged = pytree.tree_map(_joined, batches[0], *batches[1:])
    size = sum(total) // count
    if size == 0:
        rule = f"the noise scale needs at least {count} samples in the `probe`"
        raise CurvescopeError("Monitor(probe)", rule, given=sum(total))
    order = torch.randperm(sum(total), generator=generator, device=generator.device)
    chosen = [order[i * size : (i + 1) * size] for i in range(count)]

    def take(rows: Tensor) -> tuple[Any, Any]:
        def pick(t: Tensor) -> Tensor:
            return t[rows.to(t.device)]

        picked: tuple[Any, Any] = pytree.tree_map_only(Tensor, pick, merged)
        return picked

    return [take(rows) for rows in chosen]


def _joined(*parts: Any) -> Any:
    return torch.cat(parts) if isinstance(parts[0], Tensor) else parts[0]
