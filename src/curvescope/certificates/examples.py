"""The examples that a certificate is about: tensors, checked, and known by their checksum."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from curvescope._state import held
from curvescope.errors import CurvescopeError
from curvescope.problem.calling import output_of
from curvescope.problem.losses.recognize import classifier_loss


def home(where: str, model: nn.Module) -> tuple[torch.device, torch.dtype]:
    """The one device and the one floating-point type of all parameters."""
    kinds = {(p.device, p.dtype) for p in model.parameters()}
    if len(kinds) != 1 or next(iter(kinds))[1] not in (torch.float32, torch.float64):
        places = ", ".join(sorted(f"{dtype} on {device}" for device, dtype in kinds)) or "none"
        rule = "all parameters must share one device and be float32 or float64"
        raise CurvescopeError(f"{where}(model)", rule, given=places)
    return kinds.pop()


def as_examples(
    where: str, data: Any, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Inputs ``[N, …]`` and labels ``[N]`` on the device.

    Raises:
        CurvescopeError: If data is no pair of tensors that fit together, an input is not finite, or
            the inputs were normalized by statistics of the examples themselves.
    """
    kind = getattr(getattr(data, "normalization", None), "kind", "none")
    if kind != "none":
        rule = (
            f"the inputs were normalized by {kind} statistics of the training examples, so the "
            "network would depend on them outside the bound"
        )
        raise CurvescopeError(
            f"{where}(data)",
            rule,
            remedy="load them with normalize='none'",
            remedy_cli="train it anew with --normalize none",
        )
    pair = getattr(data, "tensors", data)
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        rule = "needs (X, y) or a data set"
        raise CurvescopeError(f"{where}(data)", rule, given=type(data).__name__)
    X, y = pair
    if not isinstance(X, Tensor) or not isinstance(y, Tensor) or len(X) != len(y) or y.ndim != 1:
        raise CurvescopeError(f"{where}(data)", "needs tensors X [N, …] and y [N] with the same N")
    if y.is_floating_point() or y.dtype == torch.bool:
        rule = "labels must be integers"
        raise CurvescopeError(f"{where}(data)", rule, given=y.dtype, remedy="use y.long()")
    X = X.to(device, dtype) if X.is_floating_point() else X.to(device)
    if X.is_floating_point() and not bool(X.isfinite().all()):
        rule = "the inputs contain NaN or infinity"
        raise CurvescopeError(f"{where}(data)", rule, remedy="remove them")
    return X, y.to(device, torch.int64)


def logits(model: nn.Module, X: Tensor) -> Tensor:
    """The model's output as a tensor: what it returns, or the ``logits`` in it."""
    return output_of("certify(model)", model(X))


def check_labels(where: str, model: nn.Module, data: tuple[Tensor, Tensor]) -> None:
    """Refuse labels that the model's outputs do not cover."""
    with held(model, "eval"), torch.no_grad():
        output = logits(model, data[0][:2])
    classes = classifier_loss(output).classes(output[:1].numel())
    assert classes is not None, "the loss of a classifier"
    low, high = int(data[1].min()), int(data[1].max())
    if low < 0 or high >= classes:
        rule = f"labels must lie in 0 … {classes - 1}, as the model's outputs say"
        raise CurvescopeError(f"{where}(data)", rule, given=f"{low} … {high}")


def split(
    data: tuple[Tensor, Tensor], share: float, seed: int
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """A random part of the examples, and the others; the same for the same seed.

    Raises:
        CurvescopeError: If one of the two parts would be too small.
    """
    X, y = data
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(seed)).to(X.device)
    cut = round(share * len(X))
    if cut < 1 or len(X) - cut < 8:
        rule = f"{share:g} leaves {cut} and {len(X) - cut} examples"
        raise CurvescopeError("certify(prior_split)", rule)
    first, rest = order[:cut], order[cut:]
    return (X[first], y[first]), (X[rest], y[rest])


def overlap(first: Tensor, second: Tensor) -> int:
    """How many rows of ``second`` also occur in ``first``, byte for byte.

    >>> overlap(torch.eye(3), torch.tensor([[0.0, 1.0, 0.0], [2.0, 0.0, 0.0]]))
    1
    """
    rows = {row.tobytes() for row in first.detach().cpu().flatten(1).float().numpy()}
    return sum(row.tobytes() in rows for row in second.detach().cpu().flatten(1).float().numpy())
