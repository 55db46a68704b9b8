"""Autograd graphs: the strategy for models that cannot be recorded as a tape.

The graph of value and gradient is made once for a batch and differentiated for every column. It
takes any model that autograd can differentiate twice, and is several times slower than a tape.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from curvescope.problem.batches import Batch
from curvescope.problem.leftovers import refuse_leftovers
from curvescope.problem.params import ParamSpace
from curvescope.problem.problem import Problem
from curvescope.record.batch import LinearizedBatch
from curvescope.record.memory import held
from curvescope.record.outputs import Mix


class GraphBatch(LinearizedBatch):
    """A batch as autograd graphs: ``g(w, u) = J(w)ᵀ u``, differentiated by ``u`` and by ``w``."""

    second_order = True

    def __init__(self, problem: Problem, batch: Batch) -> None:
        self._index = batch.index
        self._variables = problem.variables()
        with problem.evaluation():
            self._z = problem.output(self._variables, batch)
            refuse_leftovers(problem.model, self._variables.values(), self._z)
            self._loss = problem.loss_at(self._z, batch)
            self.weight = self._loss.weight
            self._u = self._loss.gradient().requires_grad_()
            pieces = torch.autograd.grad(
                self._z, list(self._variables.values()), self._u, create_graph=True,
                allow_unused=True,
            )  # fmt: skip
        self._g = {n: g for n, g in zip(self._variables, pieces, strict=True) if g is not None}

    def product(
        self, mix: Mix, space: ParamSpace, rows: Tensor, total: Tensor, *, write: bool = False
    ) -> None:
        """See :class:`LinearizedBatch`; columns one after the other."""
        for row, out in zip(rows, total, strict=True):
            result = self._single(mix, space.unflatten(row))
            for name in space.names:
                target = out[space.slice(name)]
                if name in result:
                    g = result[name].flatten()
                    target.copy_(g) if write else target.add_(g)
                elif write:
                    target.zero_()

    def _single(self, mix: Mix, v: dict[str, Tensor]) -> dict[str, Tensor]:
        inside = {n: t for n, t in v.items() if n in self._g}
        targets = [self._variables[n] for n in inside]
        outputs, weights = [], []
        if mix.outputs:
            # J v = ∂⟨g(w, u), v⟩/∂u: the reverse-mode way to a forward product.
            (jv,) = torch.autograd.grad(
                [self._g[n] for n in inside], self._u, list(inside.values()), retain_graph=True
            )
            outputs.append(self._z)
            weights.append(mix.middle(self._loss, self._index, jv[None])[0])
        if mix.residual:
            for n, t in inside.items():
                if self._g[n].requires_grad:
                    outputs.append(self._g[n])
                    weights.append(t * mix.residual)
        if not outputs:
            return {n: torch.zeros_like(t) for n, t in inside.items()}
        pieces = torch.autograd.grad(
            outputs, targets, weights, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        return dict(zip(inside, pieces, strict=True))

    def residuals(self) -> list[Tensor]:
        """See :class:`LinearizedBatch`: what the graphs saved is not listed, but bounded.

        The graphs of value and gradient save about the forward and backward tensors, whose number
        autograd does not tell; the saved tensors of the nodes are counted.
        """
        return held(_saved([self._z, *self._g.values()]), self._loss)

    def width(self, mix: Mix, space: ParamSpace) -> int:
        """See :class:`LinearizedBatch`: columns are taken one by one."""
        return self._z.numel()


def _saved(roots: Sequence[Tensor]) -> list[Tensor]:
    """The tensors that the nodes of autograd graphs saved for their backward passes."""
    saved: list[Tensor] = []
    visited: set[object] = set()
    queue = [t.grad_fn for t in roots if t.grad_fn is not None]
    while queue:
        node = queue.pop()
        if node in visited:
            continue
        visited.add(node)
        for name in dir(node):
            if name.startswith("_saved_") and isinstance(value := getattr(node, name), Tensor):
                saved.append(value)
        queue.extend(parent for parent, _ in node.next_functions if parent is not None)
    return saved
