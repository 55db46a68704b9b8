"""Calling a model with other tensors in place of its parameters and buffers."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from curvescope import _state
from curvescope.errors import ModelError
from curvescope.problem.batches import Batch

MISTAKES = (
    RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError,
    ArithmeticError,
)  # fmt: skip
"""The errors of a forward pass that does not fit its inputs."""


def more_arguments(model: nn.Module, batch: Batch) -> dict[str, Any]:
    """What a Hugging Face model is given beside its inputs.

    Decoder inputs are the labels, shifted by one position, which the model makes from ``labels``;
    a problem runs it without them, unless the model has no other way. Caches of earlier positions
    serve to go on with a text: they are left out, with the copies of keys and values in them.
    """
    inputs = batch.inputs if isinstance(batch.inputs, Mapping) else {}
    whole = _whole(model)
    takes = inspect.signature(whole.forward).parameters
    more: dict[str, Any] = {}
    if "use_cache" in takes and "use_cache" not in inputs:
        more["use_cache"] = False
    if not isinstance(batch.target, Tensor) or "decoder_input_ids" not in takes:
        return more
    if "decoder_input_ids" in inputs or "decoder_inputs_embeds" in inputs:
        return more
    prepare = getattr(whole, "prepare_decoder_input_ids_from_labels", None)
    if prepare is not None:
        more["decoder_input_ids"] = prepare(labels=batch.target)
    elif "labels" in takes:
        more["labels"] = batch.target
    return more


def _whole(model: nn.Module) -> nn.Module:
    """The model inside of adapters, which hand on all arguments."""
    base = getattr(model, "get_base_model", None)
    inside = base() if callable(base) else model
    return inside if isinstance(inside, nn.Module) else model


def arguments_for(model: nn.Module, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of ``forward`` for the inputs of a batch.

    Mappings are passed by keyword if ``forward`` takes such keywords, tuples by position.
    """
    if isinstance(inputs, Mapping):
        try:
            inspect.signature(model.forward).bind(**inputs)
        except TypeError:
            return (inputs,), {}
        return (), dict(inputs)
    if isinstance(inputs, tuple | list):
        return tuple(inputs), {}
    return (inputs,), {}


def output_of(where: str, result: Any) -> Tensor:
    """The output tensor in a model's result: the result itself, or its ``logits``."""
    if isinstance(result, Tensor):
        return result
    logits = (
        result.get("logits") if isinstance(result, Mapping) else getattr(result, "logits", None)
    )
    if isinstance(logits, Tensor):
        return logits
    rule = "the output must be a tensor or have .logits"
    raise ModelError(where, rule, given=type(result).__name__)


def call_with(
    model: nn.Module,
    state: Mapping[str, Tensor],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """``model(*args, **kwargs)`` with the tensors of ``state`` for its parameters and buffers.

    The keys of ``state`` are those of ``named_parameters`` and ``named_buffers``, which list a
    shared tensor under one name; here it is replaced at all its places, each of them once.
    ``functional_call`` with ``tie_weights`` goes through every *name*: a module that is registered
    twice is changed twice, and afterwards keeps the tensor that replaced its parameter.

    >>> shared = nn.Linear(1, 1, bias=False)
    >>> model = nn.Sequential(shared, shared)
    >>> call_with(model, {"0.weight": torch.tensor([[3.0]])}, (torch.ones(1),))
    tensor([9.])
    >>> isinstance(shared.weight, nn.Parameter)
    True
    """
    names: dict[int, str] = {}
    everywhere: dict[str, Tensor] = {}
    originals: list[tuple[dict[str, Any], str, Tensor]] = []
    with _state.exclusive(model):
        for prefix, module in model.named_modules():  # lists a module that is registered twice once
            for tensors in (module._parameters, module._buffers):
                for attribute, tensor in tensors.items():
                    if tensor is None:
                        continue
                    place = f"{prefix}.{attribute}" if prefix else attribute
                    name = names.setdefault(id(tensor), place)
                    if name in state:
                        everywhere[place] = state[name]
                        originals.append((tensors, attribute, tensor))

        def put_back() -> None:
            for tensors, attribute, tensor in originals:
                tensors[attribute] = tensor

        with _state.undone(put_back):  # torch does so too, unless ctrl-C comes in between
            return torch.func.functional_call(
                model, everywhere, args, dict(kwargs or {}), tie_weights=False
            )
