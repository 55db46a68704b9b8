"""Models, modes and batches that a problem refuses before anything is computed."""

from __future__ import annotations

import sys
from collections.abc import Container
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from curvescope import _checks, _state
from curvescope.errors import CurvescopeError


def unwrapped(model: Any) -> Any:
    """The module inside of ``DistributedDataParallel``, which only adds hooks for training."""
    while isinstance(model, DistributedDataParallel):
        model = model.module
    return model


def is_sharded(model: nn.Module) -> bool:
    """Whether a parameter is a DTensor; torch's part that knows them is not imported to look."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and any(isinstance(p, module.DTensor) for p in model.parameters())


def check_model(model: Any) -> None:
    """Refuse a model that cannot be run with other weights.

    Raises:
        CurvescopeError: If it is no module, a wrapper for several devices, compiled by TorchScript,
            without its parameters as yet, or with parameters that cannot be differentiated.
    """
    if not isinstance(model, nn.Module):
        rule = "needs a torch.nn.Module"
        raise CurvescopeError("Problem(model)", rule, given=type(model).__name__)
    if is_sharded(model):
        rule = "its weights are shared out over ranks, where only reverse mode can go through them"
        remedy = "take cs.ShardedHessian(model, data, loss=…, group=True) or ShardedGaussNewton"
        raise CurvescopeError("Problem(model)", rule, remedy=remedy)
    for module in model.modules():
        if isinstance(module, nn.DataParallel | DistributedDataParallel):
            raise CurvescopeError(
                "Problem(model)",
                f"{type(module).__name__} runs copies of the model, whose weights cannot be varied",
                remedy="give the module that it wraps, model.module",
            )
        if isinstance(module, torch.jit.ScriptModule):
            rule = "a scripted or traced module has its weights compiled in"
            remedy = "give the torch.nn.Module that it was made from"
            raise CurvescopeError("Problem(model)", rule, remedy=remedy)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        _check_tensor(name, tensor)


def _check_tensor(name: str, tensor: Tensor) -> None:
    if is_lazy(tensor):
        remedy = "run the model on a batch once, so that its lazy layers are made"
        raise CurvescopeError("Problem(model)", f"{name!r} has no shape yet", remedy=remedy)
    if not isinstance(tensor, nn.Parameter):
        return
    if tensor.is_inference():
        raise CurvescopeError(
            "Problem(model)",
            f"parameter {name!r} was made under torch.inference_mode and cannot be differentiated",
            remedy="make the model outside of it, or copy its weights into one that was",
        )
    if tensor.numel() == 0:
        rule = f"parameter {name!r} of shape {list(tensor.shape)} has no entries"
        raise CurvescopeError("Problem(model)", rule, remedy="remove its layer")


def check_weights(model: nn.Module) -> None:
    """Refuse parameters that are not finite."""
    for name, p in model.named_parameters():
        if p.device.type != "meta" and not _checks.finite(p.detach()):
            kind = "NaN" if bool(torch.isnan(p.detach()).any()) else "infinite"
            rule = f"parameter {name!r} has {kind} entries"
            raise CurvescopeError("Problem(model)", rule, remedy="the weights must be finite")


def device_and_dtype(model: nn.Module, chosen: Container[str]) -> tuple[torch.device, torch.dtype]:
    """The device of the model and the type of the ``chosen`` parameters; refuses mixtures."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    devices = {t.device for _, t in tensors}
    if len(devices) > 1:
        rule = "all parameters and buffers must share a device"
        remedy = "move the model with model.to(...)"
        raise CurvescopeError(
            "Problem(model)", rule, given=", ".join(sorted(map(str, devices))), remedy=remedy
        )
    dtypes = {p.dtype for n, p in model.named_parameters() if n in chosen}
    if len(dtypes) > 1 or not dtypes <= {torch.float32, torch.float64}:
        rule = "the chosen parameters must all be float32 or all be float64"
        remedy = "convert with model.float() or model.double()"
        raise CurvescopeError(
            "Problem(model)", rule, given=", ".join(sorted(map(str, dtypes))), remedy=remedy
        )
    return devices.pop(), dtypes.pop()


def check_mode(where: str, device: torch.device) -> None:
    """Refuse ``torch.inference_mode``, which has no graph, and autocast, which rounds."""
    _state.refuse_inference_mode(where)
    if torch.is_autocast_enabled(device.type):
        rule = "torch.autocast would round the products of this model to another type"
        remedy = "leave it, and convert the model for products of lower precision"
        raise CurvescopeError(where, rule, remedy=remedy)


def check_batch(inputs: Any, target: Any, index: int) -> None:
    """Refuse a batch without samples, or with tensors that are not dense."""
    for tensor in pytree.tree_leaves((inputs, target)):
        if not isinstance(tensor, Tensor):
            continue
        if tensor.is_nested:
            rule = f"batch {index} has a nested tensor, whose samples differ in size"
            remedy = "pad them, with x.to_padded_tensor(0.0) and a mask if the model takes one"
            raise CurvescopeError("Problem(data)", rule, remedy=remedy)
        if tensor.layout != torch.strided:
            rule = f"batch {index} has a sparse tensor ({tensor.layout})"
            raise CurvescopeError("Problem(data)", rule, remedy="convert it with x.to_dense()")
        if tensor.ndim and len(tensor) == 0:
            rule = f"batch {index} is empty, with a tensor of shape {list(tensor.shape)}"
            raise CurvescopeError("Problem(data)", rule, remedy="leave out batches without samples")
