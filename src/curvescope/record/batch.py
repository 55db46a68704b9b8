"""A linearized batch: curvature products of one batch, from a tape or from autograd graphs.

Both engines compute, for a block of directions ``v`` in parameter space,

    residual · E v + Jᵀ B J v

summed over the terms of the batch. :class:`TapeBatch` replays recorded linear steps and is several
times faster; :class:`GraphBatch` differentiates autograd graphs and takes any model that autograd
can differentiate twice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from curvescope._state import watching
from curvescope.problem.batches import Batch
from curvescope.problem.losses import LossAt
from curvescope.problem.problem import Problem
from curvescope.record.memory import held
from curvescope.record.outputs import Mix
from curvescope.record.recorder import Recorder
from curvescope.record.rules import Known, Untraceable
from curvescope.record.tape import Program, Step, cut

Columns = dict[str, Tensor]  # name -> [k, *shape]


class LinearizedBatch(ABC):
    """Products with one batch's curvature; ``weight`` is that of its loss terms.

    ``second_order`` says whether the part ``E`` can be applied.
    """

    weight: float
    second_order: bool

    @abstractmethod
    def product(self, mix: Mix, vectors: Columns) -> Columns:
        """The block product; ``vectors`` names the parameters of the block."""

    @abstractmethod
    def width(self, mix: Mix, names: Sequence[str]) -> int:
        """Numbers that one column needs at the widest point of a product."""

    @abstractmethod
    def residuals(self) -> list[Tensor]:
        """The tensors that this object keeps alive, each memory once."""


class TapeBatch(LinearizedBatch):
    """A batch as a tape. Recorded at the loss gradient ``u``, so that ``E`` can be applied.

    The backward pass is recorded after the forward pass, at any cotangent if only ``Jᵀ B J`` is
    wanted (``second_order=False``): recording it at that of a first product gives that product.
    """

    def __init__(self, problem: Problem, batch: Batch) -> None:
        self._index = batch.index
        self._problem = problem
        self._recorder = Recorder()
        self._variables = problem.variables()
        self._params = {name: self._recorder.add(p) for name, p in self._variables.items()}
        with problem.evaluation(), watching(self._recorder):
            self._z = problem.output(self._variables, batch)
        output = self._recorder.slot(self._z)
        if output is None:
            msg = "the output was not made by recorded operations"
            raise Untraceable(msg)
        self._output: int = output
        self._forward: list[Step] = self._recorder.drain()
        self._backward: list[Step] = []
        self._gradients: dict[str, int] = {}
        self._cotangent = -1
        self._loss: LossAt = problem.loss_at(self._z, batch)
        self.weight = self._loss.weight
        self._programs: dict[object, tuple[Program, Program]] = {}

    @property
    def output(self) -> Tensor:
        """``z``, while the batch is being recorded."""
        return self._z.detach()

    @property
    def convolves(self) -> bool:
        """Whether a convolution is among the steps; it decides how columns are best taken."""
        return any("convolution" in step.name for step in self._forward)

    # Recording ----------------------------------------------------------------------------------

    def record_backward(self, u: Tensor | None = None, *, second_order: bool = True) -> Columns:
        """Record ``Jᵀ u`` (default: the loss gradient) and return it; the graph is freed."""
        u = self._loss.gradient() if u is None else u
        self.second_order = second_order
        recorder = self._recorder
        recorder.begin_backward(second_order=second_order)
        self._cotangent = recorder.add(u)
        # A checkpoint runs its forward pass again, and must find the model in the same mode.
        with self._problem.evaluation(), watching(recorder):
            gradients = self._pull(u)
        for name, g in gradients.items():
            slot = recorder.slot(g)
            if slot is not None:
                self._gradients[name] = slot
        self._backward = recorder.drain()
        self._sizes = recorder.sizes
        self._release()
        return gradients

    def condense(self) -> None:
        """Make the steps faster for many products, by what is constant in their numbers."""
        known: Known = {}
        self._forward = [step.condensed(known) for step in self._forward]
        self._backward = [step.condensed(known) for step in self._backward]

    def pull_back(self, u: Tensor) -> Columns:
        """``Jᵀ u`` without recording, for a batch that is used once; the graph is freed."""
        with self._problem.evaluation():
            gradients = self._pull(u)
        self._release()
        return gradients

    def _pull(self, u: Tensor) -> Columns:
        try:
            pieces = torch.autograd.grad(
                self._z, list(self._variables.values()), u, allow_unused=True
            )
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, NotImplementedError) as error:  # the other engine explains it
            raise Untraceable(str(error)) from error
        return {n: g for n, g in zip(self._variables, pieces, strict=True) if g is not None}

    def _release(self) -> None:
        self._recorder.forget()
        del self._z, self._recorder, self._problem
        self._variables = {}

    # Products -----------------------------------------------------------------------------------

    def push_forward(self, vectors: Columns) -> Tensor:
        """``J v`` for the columns; the backward pass need not be recorded."""
        tangents = self._seeded(vectors)
        self._pushing(tuple(vectors)).run(tangents, columns=_several(vectors))
        return _lifted(tangents[self._output], vectors)

    def quadratic(self, mix: Mix, vectors: Columns) -> Tensor:
        """``vᵀ Jᵀ B J v`` for each column, in float64: ``[k]``."""
        t = self.push_forward(vectors)
        return (t.double() * self.middle(mix, t)).flatten(1).sum(1)

    def push_width(self, names: Sequence[str]) -> int:
        """Numbers that one column of :meth:`push_forward` needs at its widest point."""
        return self._pushing(tuple(names)).width

    def _pushing(self, names: tuple[str, ...]) -> Program:
        key = ("push", names)
        if key not in self._programs:
            sizes = self._sizes if self._backward else self._recorder.sizes
            program = cut(self._forward, sizes, [self._params[n] for n in names], [self._output])
            self._programs[key] = (program, program)
        return self._programs[key][0]

    def middle(self, mix: Mix, t: Tensor) -> Tensor:
        """``B t`` at this batch's output."""
        return mix.middle(self._loss, self._index, t)

    def product(self, mix: Mix, vectors: Columns) -> Columns:
        """See :class:`LinearizedBatch`."""
        forward, backward = self._cut(mix, tuple(vectors))
        several = _several(vectors)
        tangents = self._seeded(vectors)
        forward.run(tangents, columns=several)
        u = None
        if mix.outputs and self._output in tangents:
            u = self.middle(mix, _lifted(tangents[self._output], vectors))
            u = u if several else u[0]
        if mix.residual == 0.0:
            tangents = {}
        elif u is not None and mix.residual != 1.0:
            u = u / mix.residual
        if u is not None:
            tangents[self._cotangent] = u
        backward.run(tangents, columns=several)
        result = {}
        for name in vectors:
            slot = self._gradients.get(name)
            if slot is not None and slot in tangents:
                g = _lifted(tangents[slot], vectors)
                result[name] = g if mix.residual in (0.0, 1.0) else g * mix.residual
        return result

    def width(self, mix: Mix, names: Sequence[str]) -> int:
        """See :class:`LinearizedBatch`."""
        forward, backward = self._cut(mix, tuple(names))
        kept = sum(self._sizes[s] for s in forward.kept) if mix.residual else 0
        return max(forward.width, backward.width + kept)

    def _cut(self, mix: Mix, names: tuple[str, ...]) -> tuple[Program, Program]:
        key = (mix.residual != 0.0, bool(mix.outputs), names)
        if key not in self._programs:
            seeds = {self._params[n] for n in names}
            wanted = [self._gradients[n] for n in names if n in self._gradients]
            later = [self._cotangent] if mix.outputs else []
            if mix.residual:
                reached = (
                    seeds | cut(self._forward, self._sizes, seeds, range(self._cotangent)).slots
                )
                backward = cut(self._backward, self._sizes, [*reached, *later], wanted)
                inside = [self._output] if mix.outputs else []
                forward = cut(self._forward, self._sizes, seeds, [*backward.reads, *inside])
            else:
                backward = cut(self._backward, self._sizes, later, wanted)
                forward = cut(self._forward, self._sizes, seeds, [self._output])
            self._programs[key] = (forward, backward)
        return self._programs[key]

    def _seeded(self, vectors: Columns) -> dict[int, Tensor]:
        several = _several(vectors)
        return {self._params[n]: v if several else v[0] for n, v in vectors.items()}

    def residuals(self) -> list[Tensor]:
        """The tensors that the steps keep, each memory once."""
        steps = [*self._forward, *self._backward]
        return held([step.linear for step in steps], self._loss)


def _several(vectors: Columns) -> bool:
    return next(iter(vectors.values())).shape[0] > 1


def _lifted(t: Tensor, vectors: Columns) -> Tensor:
    """A tangent with its leading column dimension, which single products do without."""
    return t if _several(vectors) else t[None]


class GraphBatch(LinearizedBatch):
    """A batch as autograd graphs: ``g(w, u) = J(w)ᵀ u``, differentiated by ``u`` and by ``w``."""

    second_order = True

    def __init__(self, problem: Problem, batch: Batch) -> None:
        self._index = batch.index
        self._variables = problem.variables()
        with problem.evaluation():
            self._z = problem.output(self._variables, batch)
            self._loss = problem.loss_at(self._z, batch)
            self.weight = self._loss.weight
            self._u = self._loss.gradient().requires_grad_()
            pieces = torch.autograd.grad(
                self._z, list(self._variables.values()), self._u, create_graph=True,
                allow_unused=True,
            )  # fmt: skip
        self._g = {n: g for n, g in zip(self._variables, pieces, strict=True) if g is not None}

    def product(self, mix: Mix, vectors: Columns) -> Columns:
        """See :class:`LinearizedBatch`; columns one after the other."""
        count = next(iter(vectors.values())).shape[0]
        columns = [self._single(mix, {n: v[k] for n, v in vectors.items()}) for k in range(count)]
        return {n: torch.stack([c[n] for c in columns]) for n in vectors if n in self._g}

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

    def width(self, mix: Mix, names: Sequence[str]) -> int:
        """See :class:`LinearizedBatch`: columns are taken one by one."""
        return self._z.numel()


def _saved(roots: Sequence[Tensor]) -> list[Tensor]:
    """The tensors that the nodes of autograd graphs saved for their backward passes."""
    found: list[Tensor] = []
    seen: set[object] = set()
    queue = [t.grad_fn for t in roots if t.grad_fn is not None]
    while queue:
        node = queue.pop()
        if node in seen:
            continue
        seen.add(node)
        for name in dir(node):
            if name.startswith("_saved_") and isinstance(value := getattr(node, name), Tensor):
                found.append(value)
        queue.extend(parent for parent, _ in node.next_functions if parent is not None)
    return found
