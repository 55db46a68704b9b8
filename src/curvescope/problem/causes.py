"""Likely causes of what goes wrong in a forward pass, in words for the errors of a problem."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from curvescope.errors import ModelError
from curvescope.problem.batches import Batch, Batches


def model_error(error: Exception, batch: Batch, dtype: torch.dtype) -> ModelError:
    """The error for a forward pass that raised: the batch, the reason, and the remedy if known."""
    x = batch.inputs
    batch_inputs = f"{x.dtype} {list(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
    remedy = None
    if isinstance(x, Tensor) and x.is_floating_point() and x.dtype != dtype:
        remedy = f"the model is {dtype}: convert the data with x.to({dtype})"
    reason = str(error).strip().splitlines()[0] if str(error).strip() else ""
    if not reason or not isinstance(error, RuntimeError | TypeError | ValueError | IndexError):
        reason = f"{type(error).__name__}{': ' if reason else ''}{reason}"  # KeyError: 'x'
    rule = f"the model refused batch {batch.index} ({batch_inputs}): {reason}"
    return ModelError("Problem", rule, remedy=remedy)


def random_output(model: nn.Module) -> str:
    """The likely cause where the same batch gives two different outputs."""
    dropout = [n for n, m in model.named_modules() if "dropout" in type(m).__name__.lower()]
    if dropout:
        return f"a dropout module that ignores eval mode is likely ({', '.join(dropout)})"
    return "its forward draws random numbers (functional dropout with training=True, noise?)"


def different_passes(data: Batches, mode: str) -> str:
    """The likely cause where two passes over the data give different losses."""
    if not data.rebatched:
        return data.why_passes_differ()
    cause = "batch norm in mode='train'" if mode == "train" else "a model of this kind"
    return (
        f"{cause} with a shuffling loader makes other batches each time, whose samples see "
        "each other; use shuffle=False"
    )
