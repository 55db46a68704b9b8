"""Which loss a name, a torch module or a callable stands for."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from curvescope._checks import CurvescopeError, one_of
from curvescope.problem.losses.base import Loss
from curvescope.problem.losses.binary import BinaryLogistic
from curvescope.problem.losses.cross_entropy import CrossEntropy
from curvescope.problem.losses.custom import UserLoss
from curvescope.problem.losses.squared import MeanSquare


def as_loss(loss: str | nn.Module | Callable[..., Tensor] | Loss) -> Loss:
    """The loss that a name, a torch loss module or a callable stands for."""
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, str):
        one_of("Problem(loss)", "loss", loss, _BY_NAME)
        return _BY_NAME[loss]()
    if isinstance(loss, nn.CrossEntropyLoss) and loss.reduction == "mean":
        if loss.weight is None and loss.label_smoothing == 0.0:
            return CrossEntropy(ignore=loss.ignore_index)
    if isinstance(loss, nn.MSELoss) and loss.reduction == "mean":
        return MeanSquare()
    if isinstance(loss, nn.BCEWithLogitsLoss) and loss.reduction == "mean":
        if loss.weight is None and loss.pos_weight is None:
            return BinaryLogistic()
    if getattr(loss, "reduction", "mean") != "mean":
        msg = f"Problem(loss): the loss must average over samples, got reduction={loss.reduction!r}"  # type: ignore[union-attr]
        raise CurvescopeError(msg)
    if not callable(loss):
        msg = f"Problem(loss): needs a name or a callable of (output, target), got {loss!r}"
        raise CurvescopeError(msg)
    return UserLoss(loss)


_BY_NAME: dict[str, Callable[[], Loss]] = {
    "cross_entropy": CrossEntropy,
    "binary_logistic": BinaryLogistic,
    "mse": MeanSquare,
}
