"""Watching a forward and a backward pass, operation by operation, to make a tape of linear steps.

Below autograd every model is a sequence of ATen operations, whatever its Python looks like. The
recorder sees each of them with its real tensors, asks :mod:`rules` for the linear step, and numbers
the tensors that depend on the parameters ("slots"). Recording costs little more than the passes
themselves, needs no symbolic tracing, and follows data-dependent control flow.

What makes it safe. In the forward pass autograd's own ``requires_grad`` must agree with our slots:
a tensor that requires grad but that we never saw made (a custom autograd function, say) stops the
recording, and a tensor that we saw but that does not require grad (``detach``, ``no_grad``) is a
constant, as it is for autograd. The caller then uses the universal engine.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from curvescope.errors import ModelError
from curvescope.record.apart import in_pieces
from curvescope.record.memory import address
from curvescope.record.operations import facts, functional_form, is_view, run
from curvescope.record.rules import RULES, Call, Untraceable, flatten, linear_step
from curvescope.record.rules.user_function import user_function
from curvescope.record.slots import SlotKeeper, Slots
from curvescope.record.tape import Step

aten = torch.ops.aten

_RANDOM = "the model's forward draws random numbers ({}), so its loss is not a fixed function"

_ALIASES = {aten.detach.default, aten.alias.default}
# In-place forms whose rule needs only the result, or no number at all.
_INPLACE = {aten.relu_.default: aten.relu.default, aten.add_.Tensor: aten.add.Tensor}


class Recorder(SlotKeeper):
    """Context in which operations on recorded tensors are noted; ``drain`` makes steps of them."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Call, Slots, Slots]] = []
        self._foreign: set[int] = set()  # slots of by-products whose tangents autograd may not know
        self._claimed: dict[int, Any] = {}  # slot -> the operator of torch.library that made it
        self._nested = False

    def slot(self, tensor: Tensor) -> int | None:
        """The slot of a tensor, or None for a constant."""
        entry = self._slots.get(id(tensor))
        if entry is None:
            return None
        self._check_claim(tensor, entry[0])
        return entry[0]

    def _check_claim(self, tensor: Tensor, slot: int) -> None:
        """Its rule stands for an operator's derivative only if autograd takes the operator's own.

        Another function that calls it without gradients may have another derivative.
        """
        op = self._claimed.get(slot)
        if op is None or not tensor.requires_grad:
            return
        name = op._schema.name.replace("::", "_")
        if f"BackwardFor_{name}_" not in type(tensor.grad_fn).__name__:
            raise Untraceable(f"{op} inside a function that has a derivative of its own")

    def begin_backward(self, *, second_order: bool) -> None:
        """From here on the operations belong to the backward pass.

        Without ``second_order`` the forward tensors count as constants in it: only its linear
        dependence on the cotangent is recorded.
        """
        self.forward_slots = len(self.sizes)
        self._second_order = second_order

    def drain(self) -> list[Step]:
        """The steps of all operations since the last call; outside the recording context.

        The rules run here and not as the operations pass by, because derivatives cannot be taken
        below autograd.
        """
        steps = [Step(str(call.op), linear_step(call), *slots) for call, *slots in self._calls]
        self._calls = []
        self._readers.clear()
        return steps

    def _varies(self, tensor: Any) -> bool:
        """Whether this argument depends on the parameters, as autograd sees it."""
        if not isinstance(tensor, Tensor):
            return False
        entry = self._slots.get(id(tensor))
        if self.forward_slots is not None and not self._second_order:
            return entry is not None and entry[0] >= self.forward_slots
        if entry is None:
            if not tensor.requires_grad:
                return False
            self._adopt(tensor)
            return True
        if self.forward_slots is not None and entry[0] >= self.forward_slots:
            return True
        if self.forward_slots is None:
            self._check_claim(tensor, entry[0])
            return self._nested or tensor.requires_grad
        # A result that autograd does not differentiate (the mean of a layer norm) is saved without
        # requires_grad, but the backward pass depends on the parameters through it.
        hidden = self._hidden(tensor, entry[0])
        if hidden and entry[0] in self._claimed:
            return False  # really under no_grad
        if hidden and entry[0] in self._foreign:
            raise Untraceable(
                "the backward pass uses a by-product that autograd does not differentiate"
            )
        return self._nested or tensor.requires_grad or hidden

    def _hidden(self, tensor: Tensor, slot: int) -> bool:
        """Whether autograd took what the slot was made for to be a constant."""
        return not self._origins[slot].requires_grad

    def _alias(self, tensor: Tensor, alias: Tensor) -> None:
        """Another tensor with the numbers, and the slot, of one that may have a slot."""
        entry = self._slots.get(id(tensor))
        if entry is not None:
            self._bind(alias, entry[0])

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        if self._written:
            self._look_again(flatten(args, kwargs))
        if func in _ALIASES:  # autograd's own way to hand a saved tensor on
            out = func(*args, **kwargs)
            self._alias(args[0], out)
            return out
        random, mutable = facts(func)
        if random:
            remedy = "switch the noise off in eval mode"
            raise ModelError("Problem", _RANDOM.format(func), remedy=remedy)
        leaves = flatten(args, kwargs)
        active = [i for i, leaf in enumerate(leaves) if self._varies(leaf)]
        if mutable:
            self._save_numbers([*args[:1], *flatten((), kwargs)])
        if not active:
            out = run(func, args, kwargs)
            if mutable:
                self._overwritten(out)
            return out
        if self.forward_slots is None and not self._nested and not torch.is_grad_enabled():
            if func.namespace == "aten" or func not in RULES:
                return func(*args, **kwargs)  # under no_grad: a constant for autograd, so for us
            # The library's operators are seen below their own autograd function, without gradients.
            out = func(*args, **kwargs)
            self._record(func, args, kwargs, out, active, leaves)
            made = out if isinstance(out, tuple | list) else (out,)
            self._claimed |= {self._slots[id(o)][0]: func for o in made if id(o) in self._slots}
            return out
        pieces = in_pieces(func, args)
        if pieces is not None:
            return self._apart(pieces, args, kwargs, leaves, active)
        if mutable:
            return self._inplace(func, args, kwargs, active)
        out = self._run(func, args, kwargs)
        self._record(func, args, kwargs, out, active, leaves)
        return out

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        return run(func, args, kwargs)

    def _apart(self, pieces: Any, args: Any, kwargs: Any, leaves: Any, active: list[int]) -> Any:
        """Record the simpler operations that one consists of."""
        hidden = {  # known to us but constant for autograd: hand over an unknown alias
            i: leaf.detach()
            for i, leaf in enumerate(leaves)
            if isinstance(leaf, Tensor) and i not in active and id(leaf) in self._slots
        }
        outer, self._nested = self._nested, True
        try:
            with self:
                return Call(pieces, args, kwargs, None, active).run(hidden)
        finally:
            self._nested = outer

    def _inplace(self, func: Any, args: Any, kwargs: Any, active: list[int]) -> Any:
        """An in-place operation is its functional form, after which the tensor has a new slot."""
        target = args[0]
        leaves = flatten(args, kwargs)
        if torch.Tag.inplace_view in func.tags:
            return self._reshape(func, args, kwargs, active, leaves)
        shared = self._shared(target)
        if func in _INPLACE:
            out = func(*args, **kwargs)
            functional = _INPLACE[func]
        else:
            functional = functional_form(func)
            new = functional(*args, **kwargs)
            copied = (target.clone(), *args[1:])  # the rule needs the numbers from before
            args = tuple(copied)
            out = target.copy_(new)
        self._record(functional, args, kwargs, out, active, leaves)
        if shared is not None:
            shared.version += 1
            self._write(shared, target)
            self._versions[id(target)] = shared.version
        return out

    def _reshape(self, func: Any, args: Any, kwargs: Any, active: list[int], leaves: Any) -> Any:
        """An operation that gives its argument another shape, where it lies.

        Rules look at shapes later: what was recorded so far goes on with the old one.
        """
        functional, target = functional_form(func), args[0]
        before = target.view(target.shape)
        for call, *_ in self._calls:
            call.replace(target, before)
        func(*args, **kwargs)
        self._record(functional, (before, *args[1:]), kwargs, target, active, leaves)
        return target

    def _record(
        self, func: Any, args: Any, kwargs: Any, out: Any, active: list[int], leaves: list[Any]
    ) -> None:
        call = Call(func, args, kwargs, out, active)
        sources = tuple(
            self._slots[id(leaf)][0] if i in active else None for i, leaf in enumerate(leaves)
        )
        outs = out if isinstance(out, tuple | list) else (out,)
        targets = tuple(
            self.add(o) if isinstance(o, Tensor) and o.is_floating_point() else None for o in outs
        )
        if not self._nested and func not in RULES and len(outs) > 1:
            self._foreign.update(t for t in targets if t is not None)
        self._take(call, sources, targets)

    def _take(self, call: Call, sources: Slots, targets: Slots) -> None:
        """What is done with an operation that was seen: noted here, until :meth:`drain`."""
        self._calls.append((call, sources, targets))
        if not is_view(call.op):
            for leaf in call.leaves:
                where = address(leaf) if isinstance(leaf, Tensor) else None
                if where is not None:
                    self._readers.setdefault(where, []).append(call)

    def _adopt(self, tensor: Tensor) -> None:
        """A slot for the result of a function that has a derivative of its own."""
        node = tensor.grad_fn
        if not isinstance(node, BackwardCFunction) or address(tensor) in self._memory:
            raise Untraceable(
                "a tensor that requires grad was made outside the recorded operations"
            )
        # A leaf is known by the tensor itself: its edge cannot be asked for inside an operation.
        edges = [
            (id(edge[0].variable), 0) if hasattr(edge[0], "variable") else edge
            for edge in node.next_functions
            if edge[0] is not None
        ]
        slots: dict[Any, int] = {}
        for slot, source in reversed(self._slots.values()):
            if source.requires_grad:
                of = id(source) if source.grad_fn is None else source.grad_fn
                slots.setdefault((of, source.output_nr), slot)
            if all(edge in slots for edge in edges):
                break
        else:
            raise Untraceable(f"an argument of {type(node).__name__} was not recorded")
        call = Call(user_function, (node, tensor.output_nr), {}, None, list(range(len(edges))))
        sources = tuple(slots[edge] for edge in edges)
        self._take(call, sources, (self.add(tensor),))
