"""A linearized batch: curvature products of one batch, from a tape of recorded linear steps.

For a block of directions ``v`` in parameter space it computes

    residual · E v + Jᵀ B J v

summed over the terms of the batch. Vectors are rows ``[k, P]``; a step sees the piece of its
parameter, a view.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from curvescope._state import watching
from curvescope.problem.batches import Batch
from curvescope.problem.losses import LossAt
from curvescope.problem.params import ParamSpace
from curvescope.problem.problem import Problem
from curvescope.record.memory import held
from curvescope.record.outputs import Mix
from curvescope.record.recorder import Recorder
from curvescope.record.replaced import replaced
from curvescope.record.rules import Cache, Untraceable
from curvescope.record.tape import Program, Step, cut

Gradients = dict[str, Tensor]  # of the parameters that the output depends on


class LinearizedBatch(ABC):
    """Products with one batch's curvature; ``weight`` is that of its loss terms.

    ``second_order`` says whether the part ``E`` can be applied.
    """

    weight: float
    second_order: bool

    @abstractmethod
    def product(
        self, mix: Mix, space: ParamSpace, rows: Tensor, total: Tensor, *, write: bool = False
    ) -> None:
        """Add the products with ``rows: [k, P]`` to ``total``, or ``write`` them over it."""

    @abstractmethod
    def width(self, mix: Mix, space: ParamSpace) -> int:
        """Numbers that one column needs at the widest point of a product."""

    @abstractmethod
    def residuals(self) -> list[Tensor]:
        """The tensors that this object keeps alive, each memory once."""


@dataclass(frozen=True)
class Cut:
    """The programs of a product over some parameters, and where these lie in a row."""

    forward: Program
    backward: Program
    seeds: tuple[tuple[int, slice, torch.Size], ...]  # slot, place in a row, shape
    results: tuple[tuple[int | None, slice], ...]  # slot (None: no gradient), place in a row
    width: int  # numbers that one column needs at the widest point

    def seeded(self, rows: Tensor) -> dict[int, Tensor]:
        """Slot -> tangent, views of the rows; a single one goes without a leading dimension."""
        if len(rows) == 1:
            row = rows[0]
            return {slot: row[place].view(shape) for slot, place, shape in self.seeds}
        k = len(rows)
        return {slot: rows[:, place].view(k, *shape) for slot, place, shape in self.seeds}

    def collect(
        self, tangents: dict[int, Tensor], factor: float, total: Tensor, write: bool
    ) -> None:
        """Add the gradients times ``factor`` to ``total``, or write them over it."""
        for slot, place in self.results:
            target = total[:, place]
            g = None if slot is None else tangents.get(slot)
            if g is not None:
                g = g.reshape(target.shape)
                g = g if factor == 1.0 else g * factor
                target.copy_(g) if write else target.add_(g)
            elif write:
                target.zero_()


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
        with problem.evaluation(), replaced(), watching(self._recorder):
            self._z = problem.output(self._variables, batch)
        output = self._recorder.slot(self._z)
        if output is None:
            msg = "the output was not made by recorded operations"
            raise Untraceable(msg)
        self._output: int = output
        self._forward: list[Step] = self._recorder.drain()
        # Decides how columns are best taken.
        self.convolves = any("convolution" in step.name for step in self._forward)
        self._backward: list[Step] = []
        self._gradients: dict[str, int] = {}
        self._cotangent = -1
        self._loss: LossAt = problem.loss_at(self._z, batch)
        self.weight = self._loss.weight
        self._cuts: dict[object, Cut] = {}

    @property
    def output(self) -> Tensor:
        """``z``, while the batch is being recorded."""
        return self._z.detach()

    # Recording ----------------------------------------------------------------------------------

    def record_backward(self, u: Tensor | None = None, *, second_order: bool = True) -> Gradients:
        """Record ``Jᵀ u`` (default: the loss gradient) and return it; the graph is freed."""
        u = self._loss.gradient() if u is None else u
        self.second_order = second_order
        recorder = self._recorder
        recorder.begin_backward(second_order=second_order)
        self._cotangent = recorder.add(u)
        # A checkpoint runs its forward pass again, and must find the model in the same mode.
        with self._problem.evaluation(), replaced(), watching(recorder):
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
        cache: Cache = {}
        self._forward = [step.condensed(cache) for step in self._forward]
        self._backward = [step.condensed(cache) for step in self._backward]

    def _pull(self, u: Tensor) -> Gradients:
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

    def push_forward(self, space: ParamSpace, rows: Tensor) -> Tensor:
        """``J v`` for the rows, ``[k, *z.shape]``; the backward pass need not be recorded."""
        push = self._pushing(space)
        tangents = push.seeded(rows)
        push.forward.run(tangents, columns=len(rows) > 1)
        return _lifted(tangents[self._output], rows)

    def quadratic(self, mix: Mix, space: ParamSpace, rows: Tensor) -> Tensor:
        """``vᵀ Jᵀ B J v`` for each row, in float64: ``[k]``."""
        t = self.push_forward(space, rows)
        return (t.double() * self.middle(mix, t)).flatten(1).sum(1)

    def push_width(self, space: ParamSpace) -> int:
        """Numbers that one column of :meth:`push_forward` needs at its widest point."""
        return self._pushing(space).width

    def _pushing(self, space: ParamSpace) -> Cut:
        key = ("push", space.names)
        if key not in self._cuts:
            sizes = self._sizes if self._backward else self._recorder.sizes
            seeds = [self._params[n] for n in space.names]
            program = cut(self._forward, sizes, seeds, [self._output])
            self._cuts[key] = self._placed(space, program, program, program.width)
        return self._cuts[key]

    def middle(self, mix: Mix, t: Tensor) -> Tensor:
        """``B t`` at this batch's output."""
        return mix.middle(self._loss, self._index, t)

    def product(
        self, mix: Mix, space: ParamSpace, rows: Tensor, total: Tensor, *, write: bool = False
    ) -> None:
        """See :class:`LinearizedBatch`."""
        programs = self._cut(mix, space)
        tangents = programs.seeded(rows)
        self._run(programs, mix, rows, tangents)
        factor = 1.0 if mix.residual == 0.0 else mix.residual
        programs.collect(tangents, factor, total, write)

    def curves(self, space: ParamSpace, rows: Tensor) -> bool:
        """Whether ``E v`` has any term for the rows: gates may stop every tangent on its way."""
        programs = self._cut(ONLY_E, space)
        tangents = programs.seeded(rows)
        self._run(programs, ONLY_E, rows, tangents)
        return any(slot in tangents for slot, _ in programs.results)

    def _run(self, programs: Cut, mix: Mix, rows: Tensor, tangents: dict[int, Tensor]) -> None:
        """Push tangents forwards, through the matrix at the output, and back; in place."""
        several = len(rows) > 1
        programs.forward.run(tangents, columns=several)
        u = None
        if mix.outputs and self._output in tangents:
            u = self.middle(mix, _lifted(tangents[self._output], rows))
            u = u if several else u[0]
        if mix.residual == 0.0:
            tangents.clear()
        elif u is not None and mix.residual != 1.0:
            u = u / mix.residual
        if u is not None:
            tangents[self._cotangent] = u
        programs.backward.run(tangents, columns=several)

    def width(self, mix: Mix, space: ParamSpace) -> int:
        """See :class:`LinearizedBatch`."""
        return self._cut(mix, space).width

    def _cut(self, mix: Mix, space: ParamSpace) -> Cut:
        key = (mix.residual != 0.0, bool(mix.outputs), space.names)
        if key not in self._cuts:
            names = space.names
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
            remaining = sum(self._sizes[s] for s in forward.remaining) if mix.residual else 0
            width = max(forward.width, backward.width + remaining)
            self._cuts[key] = self._placed(space, forward, backward, width)
        return self._cuts[key]

    def _placed(self, space: ParamSpace, forward: Program, backward: Program, width: int) -> Cut:
        """The programs with the places of their parameters, looked up once."""
        seeds = tuple((self._params[n], space.slice(n), s) for n, s in space.shapes.items())
        results = tuple((self._gradients.get(n), space.slice(n)) for n in space.names)
        return Cut(forward, backward, seeds, results, width)

    def residuals(self) -> list[Tensor]:
        """The tensors that the steps keep, each memory once."""
        steps = [*self._forward, *self._backward]
        return held([step.linear for step in steps], self._loss)


ONLY_E = Mix(1.0, ())


def _lifted(t: Tensor, rows: Tensor) -> Tensor:
    """A tangent with its leading column dimension, which single products do without."""
    return t if len(rows) > 1 else t[None]
