"""Trees of tensors from rank to rank: tuples, lists and dictionaries, as batches have them.

The shape of a tree is sent as JSON and the tensors as bytes, so that nothing is executed on the
other side.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from curvescope.errors import CurvescopeError
from curvescope.ranks.group import Group


def sent(group: Group, tree: Any, source: int) -> Any:
    """The tree of rank ``source``, on every rank; tensors come where those of the group travel."""
    if group.alone:
        return tree
    tensors: list[Tensor] = []
    shape = None
    with group.together():
        if group.rank == source:
            shape = _shape(tree, tensors)
    shape = group.plain(shape, source)
    if group.rank != source:
        tensors = [torch.empty(size, dtype=getattr(torch, kind)) for size, kind in _tensors(shape)]
    arrived = iter([_bytes(group, tensor, source) for tensor in tensors])
    return tree if group.rank == source else _built(shape, arrived)


def _bytes(group: Group, tensor: Tensor, source: int) -> Tensor:
    """Every type as bytes: gloo does not know all of them."""
    here = tensor.detach().to(group.device).contiguous()
    flat = here.reshape(-1).view(torch.uint8) if here.numel() else here.new_zeros(0).byte()
    whole = group.broadcast(flat, source) if flat.numel() else flat
    return whole.view(tensor.dtype).reshape(tensor.shape) if flat.numel() else here


def _shape(tree: Any, tensors: list[Tensor]) -> Any:
    """The tree as plain data; its tensors are added to the list in their order."""
    if isinstance(tree, Tensor):
        tensors.append(tree)
        return {"tensor": [list(tree.shape), str(tree.dtype).removeprefix("torch.")]}
    if isinstance(tree, tuple | list):
        name = "tuple" if isinstance(tree, tuple) else "list"
        return {name: [_shape(each, tensors) for each in tree]}
    if isinstance(tree, dict) and all(isinstance(key, str) for key in tree):
        return {"dict": {key: _shape(each, tensors) for key, each in tree.items()}}
    if tree is None or isinstance(tree, bool | int | float | str):
        return {"plain": tree}
    rule = "a batch can go to another rank as tensors in tuples, lists and dictionaries only"
    raise CurvescopeError("Problem(data)", rule, given=type(tree).__name__)


def _tensors(shape: Any) -> list[tuple[list[int], str]]:
    ((kind, inside),) = shape.items()
    if kind == "tensor":
        return [tuple(inside)]
    if kind == "plain":
        return []
    parts = inside.values() if kind == "dict" else inside
    return [each for part in parts for each in _tensors(part)]


def _built(shape: Any, tensors: Any) -> Any:
    ((kind, inside),) = shape.items()
    if kind == "tensor":
        return next(tensors)
    if kind == "plain":
        return inside
    if kind == "dict":
        return {key: _built(each, tensors) for key, each in inside.items()}
    parts = [_built(each, tensors) for each in inside]
    return tuple(parts) if kind == "tuple" else parts
