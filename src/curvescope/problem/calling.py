"""Calling a model with other tensors in the place of its own."""

from __future__ import annotations

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
"""What a forward raises when it does not fit its inputs; whoever records it may raise others."""


def decoder_inputs(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """What a Hugging Face model with a decoder reads there: its labels, moved by one position.

    It makes them itself when it is given labels; a problem runs it without.
    """
    prepare = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    given = batch.inputs if isinstance(batch.inputs, Mapping) else {}
    if prepare is None or not isinstance(batch.target, Tensor):
        return {}
    if "decoder_input_ids" in given or "decoder_inputs_embeds" in given:
        return {}
    return {"decoder_input_ids": prepare(labels=batch.target)}


def output_of(where: str, result: Any) -> Tensor:
    """What a model returned: a tensor, or its ``logits``."""
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

    ``state`` is by the names of ``named_parameters`` and ``named_buffers``, which know a shared
    tensor by one of its names; it is put in at all its places, and each place once. PyTorch's own
    way with shared tensors goes through every *name*: a module that is registered twice is changed
    twice, and what is put back the second time is what was put in the first time.

    >>> shared = nn.Linear(1, 1, bias=False)
    >>> model = nn.Sequential(shared, shared)
    >>> call_with(model, {"0.weight": torch.tensor([[3.0]])}, (torch.ones(1),))
    tensor([9.])
    >>> isinstance(shared.weight, nn.Parameter)
    True
    """
    names: dict[int, str] = {}
    everywhere: dict[str, Tensor] = {}
    own: list[tuple[dict[str, Any], str, Tensor]] = []
    with _state.exclusive(model):
        for prefix, module in model.named_modules():  # a module that is there twice comes once
            for tensors in (module._parameters, module._buffers):
                for attribute, tensor in tensors.items():
                    if tensor is None:
                        continue
                    place = f"{prefix}.{attribute}" if prefix else attribute
                    name = names.setdefault(id(tensor), place)
                    if name in state:
                        everywhere[place] = state[name]
                        own.append((tensors, attribute, tensor))

        def put_back() -> None:
            for tensors, attribute, tensor in own:
                tensors[attribute] = tensor

        with _state.undone(put_back):  # torch does so itself, unless a ctrl-C comes meanwhile
            return torch.func.functional_call(
                model, everywhere, args, dict(kwargs or {}), tie_weights=False
            )
