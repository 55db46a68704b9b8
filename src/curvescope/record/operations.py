"""What is known of an ATen operation: its kind, its functional form, the fastest way to run it."""

from __future__ import annotations

import functools
from typing import Any

import torch

from curvescope.record.multiply import FASTER, by_onednn
from curvescope.record.rules import Untraceable

aten = torch.ops.aten


def run(func: Any, args: Any, kwargs: Any) -> Any:
    """The operation by the library that is faster at it."""
    faster = None if kwargs else FASTER.get(func)
    if faster is None or not by_onednn(*args[-2:]):
        return func(*args, **kwargs)
    return faster(*args)


@functools.cache
def facts(func: Any) -> tuple[bool, bool]:
    """Whether an operation draws random numbers, and whether it writes to its arguments."""
    return torch.Tag.nondeterministic_seeded in func.tags, func._schema.is_mutable


@functools.cache
def is_view(func: Any) -> bool:
    """Whether a result looks at the memory of an argument: then no rule needs its numbers."""
    arguments = getattr(getattr(func, "_schema", None), "arguments", ())
    return any(a.alias_info is not None and not a.alias_info.is_write for a in arguments)


@functools.cache
def functional_form(func: Any) -> Any:
    """The operation that returns what an in-place one writes: its name and types of arguments."""
    name = func._schema.name.removeprefix("aten::")
    packet = getattr(aten, name.removesuffix("_"), None) if name.endswith("_") else None
    for overload in () if packet is None else packet.overloads():
        functional = getattr(packet, overload)
        if _signature(functional) == _signature(func):
            return functional
    raise Untraceable(f"the operation {func} writes to its arguments")


def _signature(func: Any) -> list[tuple[str, str]]:
    return [(argument.name, str(argument.type)) for argument in func._schema.arguments]
