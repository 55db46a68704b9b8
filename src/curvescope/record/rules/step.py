"""What a rule works with: the operation that was executed, and the linear step it stands for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from curvescope._state import uninterrupted

Outputs = Tensor | None | tuple[Tensor | None, ...]


class Untraceable(Exception):
    """The recording cannot represent this model; the universal engine has to be used."""


@dataclass(frozen=True)
class LinearStep:
    """The linear map of one operation: ``f(*tangents)`` with ``None`` for a zero tangent.

    ``condensed`` makes a faster form of it at the cost of a look at its numbers, for a step that
    will be used often; its argument is shared by the steps of a tape. ``fresh`` promises that every
    result is in new memory, which nothing else refers to, whichever tangents are given: a program
    may write over it. ``inplace`` is the map, single or block, for a first tangent that may be
    written over.
    """

    single: Callable[..., Outputs]
    block: Callable[..., Outputs]
    condensed: Callable[[Any], LinearStep] | None = None
    fresh: bool = False
    inplace: Callable[..., Outputs] | None = None


def flatten(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments of an ATen call in order, lists opened; they nest no deeper than that."""
    leaves: list[Any] = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, list | tuple):
            leaves.extend(value)
        else:
            leaves.append(value)
    return leaves


class Call:
    """An executed operation: ``leaves`` are its flattened arguments, ``active`` those that vary."""

    def __init__(
        self, op: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any, active: list[int]
    ) -> None:
        self.op, self.args, self.kwargs, self.out, self.active = op, args, kwargs, out, active
        self.leaves = flatten(args, kwargs)

    def run(self, replaced: dict[int, Any]) -> Any:
        """The operation with some arguments replaced, by position among the leaves."""
        leaves = iter([replaced.get(i, leaf) for i, leaf in enumerate(self.leaves)])

        def rebuilt(value: Any) -> Any:
            if isinstance(value, list | tuple):
                return [next(leaves) for _ in value]
            return next(leaves)

        args = [rebuilt(value) for value in self.args]
        return self.op(*args, **{name: rebuilt(value) for name, value in self.kwargs.items()})

    def replace(self, old: Tensor, new: Tensor) -> None:
        """Put ``new`` wherever the call refers to ``old``."""

        def other(value: Any) -> Any:
            if isinstance(value, list | tuple):
                return type(value)(other(v) for v in value)
            return new if value is old else value

        self.args, self.out, self.leaves = other(self.args), other(self.out), other(self.leaves)
        self.kwargs = {name: other(value) for name, value in self.kwargs.items()}

    def without(self, position: int) -> Call:
        """The same call, which no longer holds on to one argument that ``run`` will replace."""
        args = tuple(None if i == position else value for i, value in enumerate(self.args))
        return Call(self.op, args, self.kwargs, None, self.active)


Rule = Callable[[Call], LinearStep]
RULES: dict[Any, Rule] = {}


def rule(*ops: Any) -> Callable[[Rule], Rule]:
    """Register a rule for some operations."""

    def register(build: Rule) -> Rule:
        RULES.update(dict.fromkeys(ops, build))
        return build

    return register


def lift(t: Tensor, ndim: int) -> Tensor:
    """``[K, *shape]`` with singleton dimensions after ``K``, to broadcast against ``ndim``."""
    missing = ndim + 1 - t.ndim
    return t if missing <= 0 else t.reshape(t.shape[0], *(1,) * missing, *t.shape[1:])


def fresh_copy(t: Tensor) -> Tensor:
    """The same numbers in new memory, for a ``fresh`` step that would return a view."""
    return t.clone(memory_format=torch.contiguous_format)


def total(terms: Sequence[Tensor | None]) -> Outputs:
    """The sum of the terms that are there, None if none is."""
    present = [t for t in terms if t is not None]
    if not present:
        return None
    total = present[0]
    for t in present[1:]:
        total = total + t
    return total


def by_vmap(single: Callable[..., Outputs]) -> Callable[..., Outputs]:
    """``block`` from ``single``: map over the leading dimension of the tangents that are there."""

    def block(*tangents: Tensor | None) -> Outputs:
        present = [i for i, t in enumerate(tangents) if t is not None]
        empty: list[int] = []  # outputs that are None: vmap returns tensors only

        def mapped(*some: Tensor) -> tuple[Tensor, ...]:
            full: list[Tensor | None] = [None] * len(tangents)
            for i, t in zip(present, some, strict=True):
                full[i] = t
            out = single(*full)
            outs = tuple(out) if isinstance(out, tuple | list) else (out,)
            empty[:] = [i for i, o in enumerate(outs) if o is None]
            return tuple(o for o in outs if o is not None)

        some = [t for t in tangents if t is not None]
        try:
            with uninterrupted():
                results: list[Tensor | None] = list(torch.vmap(mapped)(*some))
        except RuntimeError:  # an operation that vmap does not know: column by column
            columns = [mapped(*column) for column in zip(*some, strict=True)]
            results = [torch.stack(parts) for parts in zip(*columns, strict=True)]
        for i in empty:
            results.insert(i, None)
        return tuple(results)

    return block


def make_step(
    single: Callable[..., Outputs],
    block: Callable[..., Outputs] | None = None,
    *,
    fresh: bool = False,
    inplace: Callable[..., Outputs] | None = None,
) -> LinearStep:
    """A step from its two forms; the second by ``vmap`` where none is given."""
    return LinearStep(single, block or by_vmap(single), fresh=fresh, inplace=inplace)
