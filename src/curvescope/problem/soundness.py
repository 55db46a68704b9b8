"""What no problem can be made of, refused in one sentence before anything is computed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from curvescope import _checks
from curvescope._checks import CurvescopeError


def check_model(model: Any) -> None:
    """Refuse what is no module that can be run with other weights.

    Raises:
        CurvescopeError: If it is no module, a wrapper for several devices, compiled by TorchScript,
            without its parameters as yet, or with parameters that cannot be differentiated.
    """
    if not isinstance(model, nn.Module):
        msg = f"Problem(model): needs a torch.nn.Module, got {type(model).__name__}"
        raise CurvescopeError(msg)
    for module in model.modules():
        if isinstance(module, nn.DataParallel | DistributedDataParallel):
            msg = (
                f"Problem(model): {type(module).__name__} runs copies of the model, whose weights "
                "cannot be varied; give the module that it wraps, model.module"
            )
            raise CurvescopeError(msg)
        if isinstance(module, torch.jit.ScriptModule):
            msg = (
                "Problem(model): a scripted or traced module has its weights compiled in; give the "
                "torch.nn.Module that it was made from"
            )
            raise CurvescopeError(msg)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        _check_tensor(name, tensor)


def _check_tensor(name: str, tensor: Tensor) -> None:
    if is_lazy(tensor):
        msg = (
            f"Problem(model): {name!r} has no shape yet; run the model on a batch once, so that "
            "its lazy layers are made"
        )
        raise CurvescopeError(msg)
    if not isinstance(tensor, nn.Parameter):
        return
    if tensor.is_inference():
        msg = (
            f"Problem(model): parameter {name!r} was made under torch.inference_mode and cannot be "
            "differentiated; make the model outside of it, or copy its weights into one that was"
        )
        raise CurvescopeError(msg)
    if tensor.numel() == 0:
        msg = (
            f"Problem(model): parameter {name!r} of shape {list(tensor.shape)} has no entries; "
            "remove its layer"
        )
        raise CurvescopeError(msg)


def check_weights(model: nn.Module) -> None:
    """Refuse parameters that are not finite."""
    for name, p in model.named_parameters():
        if p.device.type != "meta" and not _checks.finite(p.detach()):
            kind = "NaN" if bool(torch.isnan(p.detach()).any()) else "infinite"
            msg = (
                f"Problem(model): parameter {name!r} has {kind} entries; the weights must be finite"
            )
            raise CurvescopeError(msg)


def check_mode(device: torch.device) -> None:
    """Refuse to evaluate where torch keeps no graph, or rounds as it sees fit."""
    if torch.is_inference_mode_enabled():
        msg = (
            "Problem: nothing can be differentiated under torch.inference_mode; leave it, or use "
            "torch.no_grad, which does no harm here"
        )
        raise CurvescopeError(msg)
    if torch.is_autocast_enabled(device.type):
        msg = (
            "Problem: torch.autocast would round the products of this model to another type; leave "
            "it, and convert the model for products of lower precision"
        )
        raise CurvescopeError(msg)


def check_batch(inputs: Any, target: Any, index: int) -> None:
    """Refuse a batch without samples, or with tensors that are not dense."""
    for tensor in pytree.tree_leaves((inputs, target)):
        if not isinstance(tensor, Tensor):
            continue
        if tensor.layout != torch.strided:
            msg = (
                f"Problem(data): batch {index} has a sparse tensor ({tensor.layout}); convert it "
                "with x.to_dense()"
            )
            raise CurvescopeError(msg)
        if tensor.ndim and len(tensor) == 0:
            msg = (
                f"Problem(data): batch {index} is empty, with a tensor of shape "
                f"{list(tensor.shape)}; leave out batches without samples"
            )
            raise CurvescopeError(msg)
