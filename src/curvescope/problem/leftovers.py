"""What earlier passes left in a model: tensors that were computed from its parameters.

Some models keep such tensors while they are not trained (LeViT: the biases of its attention). A
derivative would stop at them without a word, since they belong to the graph of another pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from curvescope import _state
from curvescope.errors import ModelError

_OF_TORCH = frozenset(vars(nn.Module()))


def caches(model: nn.Module) -> list[dict[Any, Any]]:
    """The dictionaries among the attributes of a model's modules, torch's own left out."""
    return [
        value
        for module in model.modules()
        for name, value in vars(module).items()
        if type(value) is dict and name not in _OF_TORCH
    ]


@contextmanager
def emptied(dictionaries: Iterable[dict[Any, Any]]) -> Iterator[None]:
    """In the block no dictionary holds what a pass computed from variables; then as they were."""
    before = [(each, dict(each)) for each in dictionaries]

    def put_back() -> None:
        for each, contents in before:
            if each.keys() != contents.keys() or any(map(_computed, each.values())):
                each.clear()
                each.update(contents)

    with _state.undone(put_back):
        for each, contents in before:
            for key, value in contents.items():
                if _computed(value):
                    del each[key]
        yield


def _computed(value: Any) -> bool:
    return isinstance(value, Tensor) and value.grad_fn is not None


def refuse_leftovers(model: nn.Module, variables: Iterable[Tensor], z: Tensor) -> None:
    """Refuse an output that depends on the parameters by another way than through the variables.

    Cost: a walk over the graph of the output.
    """
    wanted = {id(v) for v in variables}
    memory = {p.data_ptr() for p in model.parameters()}
    visited: set[Any] = set()
    queue: list[Any] = [z.grad_fn]
    while queue:
        node = queue.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, Tensor) and id(leaf) not in wanted and leaf.data_ptr() in memory:
            rule = "the model keeps a tensor that an earlier pass computed from its parameters"
            remedy = "empty such caches, or compute the tensor in every pass"
            raise ModelError("Problem(model)", rule, remedy=remedy)
        queue.extend(parent for parent, _ in node.next_functions)
