"""Gradients by parameters whose numbers nobody reads, and which are therefore not computed.

A product with the Hessian is the tangent of the gradient. Where that is followed while autograd
takes the backward pass, the gradient by a weight itself, one of three matrix products in every
layer, is read by nobody: it goes to the parameter and nowhere else. Which operation that is, the
node of autograd's graph says that it is run for. In its place stands a single NaN in the shape of
the result, so that a mistake could not pass for a number.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

_VIEWS = {"TBackward0", "TransposeBackward0", "PermuteBackward0", "ViewBackward0"}
_FACTORS = {  # which edges of a node belong to the factors of its product
    "AddmmBackward0": (1, 2), "MmBackward0": (0, 1),
    "GeneratedBackwardFor_curvescope_recurrent_defaultBackward": (1,),
}  # fmt: skip
_MASKED = {  # operations whose results belong to the edges one by one, and whose mask comes last
    aten.convolution_backward.default: "ConvolutionBackward0",
    aten.native_batch_norm_backward.default: "NativeBatchNormBackward0",
    aten.native_layer_norm_backward.default: "NativeLayerNormBackward0",
}


def saves_tensors_themselves() -> bool:
    """Whether the backward pass will find the tensors of the forward pass, and no copies."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top is not None and top(True) is None


def without_unread(func: Any, args: Any, weights: set[int | None]) -> Any:
    """The results of an operation of the backward pass but for those that nobody reads.

    None where all of them are read. ``weights`` are the addresses of the parameters: the gradient
    by one factor of a product is a product with the other one, so that the gradient by a parameter
    is the one that no parameter is a factor of, if tensors are saved themselves.
    """
    if func in _MASKED:
        return _masked(func, args, _node(_MASKED[func]))
    if func is aten.embedding_dense_backward.default:
        node = _node("EmbeddingBackward0")
        if node is not None and _parameter(node, 0) is not None:
            return _nothing(args[0], (args[2], args[0].shape[-1]))
    if func is aten.mm.default and not any(t.untyped_storage().data_ptr() in weights for t in args):
        node = _node(*_FACTORS)
        if node is not None and any(_parameter(node, i) is not None for i in _FACTORS[node.name()]):
            return _nothing(args[0], (args[0].shape[0], args[1].shape[1]))
    return None


def _masked(func: Any, args: Any, node: Any) -> Any:
    if node is None:
        return None
    given, mask = args[-1], list(args[-1])
    targets = [None, *(_parameter(node, i, views=False) for i in (1, 2))]
    for i, target in enumerate(targets):
        mask[i] = mask[i] and target is None
    if mask == list(given):
        return None
    made = func(*args[:-1], mask) if any(mask) else [None] * 3
    return tuple(
        _nothing(args[0], target.shape) if wanted and target is not None else out
        for out, target, wanted in zip(made, targets, given, strict=True)
    )


def _node(*names: str) -> Any:
    """The node that autograd is at, if it is one of these."""
    node = torch._C._current_autograd_node()
    return node if node is not None and node.name() in names else None


def _parameter(node: Any, edge: int, *, views: bool = True) -> Tensor | None:
    """The leaf that a node's result goes to by views alone, if nobody else looks at it there."""
    target = node.next_functions[edge][0]
    while views and target is not None and target.name() in _VIEWS:
        target = target.next_functions[0][0]
    leaf = getattr(target, "variable", None)
    return leaf if isinstance(leaf, Tensor) and not leaf._backward_hooks else None


def _nothing(like: Tensor, shape: Any) -> Tensor:
    return like.new_full((), torch.nan).expand(shape)
