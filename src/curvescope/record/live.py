"""One product with a batch that is used once: tangents go through while the batch is computed.

Nothing is recorded. Each operation is followed at once by its linear map on the tangents, in the
forward pass and then in the backward pass that autograd takes, so that the model runs once and the
steps are seen by Python once. The gradient by a weight is not computed at all, only its tangent
(:mod:`curvescope.record.unread`). A tangent lives as long as the tensor that it belongs to:
autograd lets go of a tensor that no backward pass needs, and the tangent goes with it. At its peak
a product so holds twice what a gradient holds, the tensors saved for the backward pass and their
tangents.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from curvescope._state import Above, uninterrupted, watching, without_gradients
from curvescope.problem.batches import Batch
from curvescope.problem.params import ParamSpace
from curvescope.problem.problem import Problem
from curvescope.record.memory import address
from curvescope.record.outputs import Mix
from curvescope.record.recorder import Recorder
from curvescope.record.replaced import replaced
from curvescope.record.rules import Call, Untraceable, linear_step
from curvescope.record.unread import saves_tensors_themselves, without_unread


class _Watched(weakref.ref[Tensor]):
    """A tensor that is not kept alive, by the id and the address that it had.

    What is called at its end is no code of Python's, in which a ctrl-C would be lost.
    """

    __slots__ = ("key", "where")
    key: int
    where: int | None

    def __new__(
        cls, tensor: Tensor, end: Callable[[_Watched], None], key: int, where: int | None
    ) -> _Watched:
        self = super().__new__(cls, tensor, end)
        self.key, self.where = key, where
        return self

    def __init__(self, tensor: Tensor, end: Callable[[_Watched], None], *_: int | None) -> None:
        super().__init__(tensor, end)  # type: ignore[call-arg]


class Pusher(Recorder):
    """A recorder that pushes tangents instead of noting steps; see the module's docstring."""

    def __init__(self) -> None:
        super().__init__()
        self._tangents: dict[int, Tensor] = {}  # by slot
        self._bound: Counter[int] = Counter()  # living tensors of each slot
        self._saved: dict[int, bool] = {}  # slot -> whether autograd differentiates what it saved
        self._replaced: list[int] = []
        self._dead: list[_Watched] = []
        self._above = Above()
        self._parameters: set[int | None] = set()  # where they lie
        self._leaves_out = not torch.is_anomaly_enabled()  # which looks for what is not a number

    def parameter(self, p: Tensor, tangent: Tensor | None) -> None:
        """A leaf; the numbers of the gradient by it are not computed in the backward pass."""
        self._parameters.add(address(p))
        self.seed(p, tangent)

    def seed(self, tensor: Tensor, tangent: Tensor | None) -> None:
        """A tensor whose tangent is given; None for zero."""
        slot = self.add(tensor)
        if tangent is not None:
            self._tangents[slot] = tangent

    def tangent(self, tensor: Tensor) -> Tensor | None:
        """The tangent of a tensor, None where it is zero."""
        slot = self.slot(tensor)
        return None if slot is None else self._tangents.get(slot)

    def take(self, tensor: Tensor) -> Tensor | None:
        """:meth:`tangent`, no longer kept where the backward pass did not save the tensor."""
        self._bury()
        slot = self.slot(tensor)
        if slot is None or self._bound[slot] > 1:
            return self.tangent(tensor)
        return self._tangents.pop(slot, None)

    def forget(self) -> None:
        """See :class:`Recorder`."""
        super().forget()
        self._tangents.clear()

    def add(self, tensor: Tensor) -> int:
        """See :class:`Recorder`; the tensor is not kept alive."""
        slot = len(self.sizes)
        self.sizes.append(tensor.numel())
        self._bind(tensor, slot)
        return slot

    def _bind(self, tensor: Tensor, slot: int) -> None:
        self._bury()
        key, where = id(tensor), address(tensor)
        before = self._slots.get(key)
        if before is not None:  # written over in place, where the old tangent is still read
            self._replaced.append(before[0])
        self._bound[slot] += 1
        self._slots[key] = (slot, _Watched(tensor, self._dead.append, key, where))
        if where is not None:
            self._memory.setdefault(where, set()).add(key)

    def _bury(self) -> None:
        """Let go of what belongs to tensors that are no more, before others get their ids."""
        while self._dead:
            dead = self._dead.pop()
            if self._slots.get(dead.key, (0, None))[1] is dead:
                self._gone(dead.key, dead.where)

    def _gone(self, key: int, where: int | None) -> None:
        self._unbind(self._slots.pop(key)[0])
        if where in self._memory:
            self._memory[where].discard(key)
            if not self._memory[where]:
                del self._memory[where]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self._bury()
        return super().__torch_dispatch__(func, types, args, kwargs)  # type: ignore[no-untyped-call]

    def _unbind(self, slot: int) -> None:
        self._bound[slot] -= 1
        if not self._bound[slot]:
            del self._bound[slot]
            self._tangents.pop(slot, None)

    def _alias(self, tensor: Tensor, alias: Tensor) -> None:
        entry = self._slots.get(id(tensor))
        if entry is not None:
            self._saved.setdefault(entry[0], tensor.requires_grad)
            self._bind(alias, entry[0])

    def _hidden(self, tensor: Tensor, slot: int) -> bool:
        return not self._saved.get(slot, tensor.requires_grad)

    # What takes more than a tangent for each living tensor is left to a tape ----------------------

    def _adopt(self, tensor: Tensor) -> None:
        raise Untraceable("a function with a derivative of its own")

    def _shared(self, target: Tensor) -> None:
        if target._is_view() or self._memory.get(address(target) or 0, set()) - {id(target)}:
            raise Untraceable("an in-place operation on memory that several tensors share")

    def _save_numbers(self, leaves: list[Any]) -> None:
        """Nothing: rules do their work at once."""

    def _overwritten(self, out: Any) -> None:
        if isinstance(out, Tensor) and id(out) in self._slots:
            self._gone(id(out), address(out))

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self.forward_slots is None:
            self._leaves_out = self._leaves_out and saves_tensors_themselves()
        elif self._leaves_out and not kwargs:
            out = without_unread(func, args, self._parameters)
            if out is not None:
                return out
        return super()._run(func, args, kwargs)

    # Tangents -------------------------------------------------------------------------------------

    def _take(
        self, call: Call, sources: tuple[int | None, ...], targets: tuple[int | None, ...]
    ) -> None:
        inputs = [None if s is None else self._tangents.get(s) for s in sources]
        while self._replaced:
            self._unbind(self._replaced.pop())
        call.active = [i for i, t in enumerate(inputs) if t is not None]
        if not call.active:
            return
        with uninterrupted(), self._above, without_gradients():
            made = linear_step(call).single(*inputs)
        outs = made if isinstance(made, tuple | list) else (made,)
        for slot, tangent in zip(targets, outs, strict=False):
            if slot is not None and tangent is not None and slot in self._bound:
                self._tangents[slot] = tangent


class LiveBatch:
    """The forward pass of a batch with the tangent of one direction."""

    def __init__(self, problem: Problem, batch: Batch, space: ParamSpace, row: Tensor) -> None:
        self._problem, self._space, self._index = problem, space, batch.index
        self._pusher = Pusher()
        self._variables = problem.variables()
        for name, p in self._variables.items():
            inside = name in space.shapes
            self._pusher.parameter(p, row[space.slice(name)].view(p.shape) if inside else None)
        with problem.evaluation(), replaced(), watching(self._pusher):
            self._z = problem.output(self._variables, batch)
        if self._pusher.slot(self._z) is None:
            raise Untraceable("the output was not made by recorded operations")
        self._loss = problem.loss_at(self._z, batch)
        self.weight = self._loss.weight

    def product(self, mix: Mix) -> dict[str, Tensor]:
        """``residual · E v + Jᵀ B J v`` by parameters; the graph is freed."""
        u = self._middle(mix)
        if mix.residual == 0.0:
            self._pusher.forget()
            return {} if u is None else self._pull(u)
        if u is not None and mix.residual != 1.0:
            u = u / mix.residual
        slope = self._loss.gradient()
        self._pusher.begin_backward(second_order=True)
        self._pusher.seed(slope, u)
        del u
        with watching(self._pusher):
            gradients = self._pull(slope)
        tangents = {name: self._pusher.tangent(g) for name, g in gradients.items()}
        factor = mix.residual
        there = {name: t for name, t in tangents.items() if t is not None}
        return there if factor == 1.0 else {name: t * factor for name, t in there.items()}

    def _middle(self, mix: Mix) -> Tensor | None:
        """``B J v``; the tangent of the output, which may be large, is let go of."""
        t = self._pusher.take(self._z)
        if t is None or not mix.outputs:
            return None
        return mix.middle(self._loss, self._index, t[None])[0]

    def _pull(self, u: Tensor) -> dict[str, Tensor]:
        inputs = {name: self._variables[name] for name in self._space.names}
        z = get_gradient_edge(self._z)  # the output itself, and the loss, are needed no more
        del self._z, self._loss
        try:
            # A checkpoint runs its forward pass again, and must find the model in the same mode.
            with self._problem.evaluation(), replaced():
                pieces = torch.autograd.grad(z, list(inputs.values()), u, allow_unused=True)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, NotImplementedError) as error:  # the other engine explains it
            raise Untraceable(str(error)) from error
        return {n: g for n, g in zip(inputs, pieces, strict=True) if g is not None}
