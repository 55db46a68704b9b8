"""The logistic loss of yes-or-no questions, one or several for each sample."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from curvescope.errors import CurvescopeError, Inapplicable
from curvescope.problem.losses.base import Classes, DiagonalAt, Loss, Terms, need_tensor
from curvescope.problem.losses.probes import DiagonalRoot


class BinaryLogistic(Loss):
    """torch's ``binary_cross_entropy_with_logits``.

    ``ℓ = v (P y log(1 + e^−z) + (1 − y) log(1 + e^z))``. Every entry of the output ``[N]``,
    ``[N, 1]`` or ``[N, K]`` is a separate yes-or-no question with a target ``y`` in 0 … 1, and
    one term: the mean is over all entries of all batches.

    Args:
        weight: ``v``, for each entry of a sample, as ``[K]``.
        pos_weight: ``P``, for each entry of a sample, as ``[K]``.
    """

    average = "elements"
    modules = (nn.BCEWithLogitsLoss,)
    functions = (F.binary_cross_entropy_with_logits,)

    def __init__(self, *, weight: Tensor | None = None, pos_weight: Tensor | None = None) -> None:
        self.weight = _per_entry("weight", weight)
        self.pos_weight = _per_entry("pos_weight", pos_weight)
        weights = {"weight": weight, "pos_weight": pos_weight}
        parts = ", ".join(key for key, value in weights.items() if value is not None)
        self.name = f"binary_logistic({parts})" if parts else "binary_logistic"
        self.has_classes = not parts

    def at(self, output: Tensor, target: Any) -> BinaryLogisticAt:
        """See :class:`Loss`."""
        y = self._like(output, target)
        _check_range(y)
        v, P = (_broadcast(w, output) for w in (self.weight, self.pos_weight))
        return BinaryLogisticAt(output, y, v, P)

    def _like(self, output: Tensor, target: Any) -> Tensor:
        """The target, shaped like the output; looks at no numbers."""
        need_tensor(self.name, target)
        single = output.numel() == output.shape[0] == target.numel()
        if target.shape != output.shape and not single:
            rule = f"needs a target for each entry of the output {list(output.shape)}"
            raise CurvescopeError("binary_logistic", rule, given=f"a target {list(target.shape)}")
        return target.to(output.dtype).reshape(output.shape)

    def check_target(self, target: Any) -> None:
        """See :class:`Loss`."""
        need_tensor(self.name, target)
        _check_range(target)

    def probe(self, output: Tensor, target: Any) -> DiagonalRoot:
        """See :class:`Loss`."""
        y = self._like(output, target)
        v, P = (_broadcast(w, output) for w in (self.weight, self.pos_weight))
        value = self.mean(output, y)
        root = (0.5 * (F.logsigmoid(output) + F.logsigmoid(-output))).exp()
        scale = _scale(y, v, P)
        root = root if scale is None else root * scale.sqrt()
        return DiagonalRoot(value, float(output.numel()), root)

    def mean(self, output: Tensor, target: Any) -> Tensor:
        """See :class:`Loss`: torch's own."""
        y = self._like(output, target)
        v, P = (_broadcast(w, output) for w in (self.weight, self.pos_weight))
        return F.binary_cross_entropy_with_logits(output, y, v, pos_weight=P)

    def classes(self, outputs: int) -> int | None:
        """See :class:`Loss`: two for one question, none for several."""
        return 2 if outputs == 1 else None

    def width(self, classes: int) -> int:
        """See :class:`Loss`."""
        return 1

    def right(self, output: Tensor, target: Tensor) -> Tensor:
        """See :class:`Loss`: yes above zero."""
        return ((output > 0) == (target.reshape(output.shape) > 0.5)).sum()


class BinaryLogisticAt(DiagonalAt):
    """``∂ℓ = v ((1 + (P − 1) y) p − P y)``, ``∂²ℓ = s p (1 − p)`` with ``s = v (1 + (P − 1) y)``.

    ``1 − p`` is the sigmoid of ``−z``, so that nothing cancels where the network is sure.
    """

    def __init__(self, output: Tensor, y: Tensor, v: Tensor | None, P: Tensor | None) -> None:
        self._logits, self._y, self._v, self._P = output, y, v, P
        self.count = output.numel()
        self.weight = float(self.count)
        self._p, self._q = torch.sigmoid(output), torch.sigmoid(-output)
        self._scale = _scale(y, v, P)
        curvature = self._p * self._q
        self._curvature = curvature if self._scale is None else curvature * self._scale

    def _losses(self) -> Tensor:
        return F.binary_cross_entropy_with_logits(
            self._logits, self._y, self._v, pos_weight=self._P, reduction="none"
        )

    def value(self) -> Tensor:
        """See :class:`LossAt`."""
        return self._losses().sum()

    def gradient(self) -> Tensor:
        """See :class:`LossAt`: ``(1 − y) p − P y (1 − p)``, from which nothing is lost."""
        yes = self._y if self._P is None else self._y * self._P
        g = (1 - self._y) * self._p - yes * self._q
        return g if self._v is None else g * self._v

    def terms(self, t: Tensor) -> Tensor:
        """See :class:`LossAt`: one term for each entry."""
        return t.flatten(1).unsqueeze(-1)

    def sample(self, samples: int, generator: torch.Generator) -> Tensor:
        """See :class:`LossAt`: answers drawn from ``p``, with the weight of the entry."""
        shape = (samples, *self._p.shape)
        uniform = torch.rand(shape, generator=generator, dtype=self._p.dtype).to(self._p.device)
        g = torch.where(uniform < self._p, -self._q, self._p)
        return g if self._scale is None else g * self._scale.sqrt()

    def each(self) -> Terms:
        """See :class:`LossAt`."""
        losses = self._losses().flatten()
        wrong = ((self._logits > 0) != (self._y > 0.5)).flatten()
        return Terms(losses, torch.ones_like(losses), wrong)

    def classes(self, where: str) -> Classes:
        """See :class:`LossAt`: the classes no and yes."""
        labels = (self._y == 1).flatten()
        single = self._logits.numel() == self._logits.shape[0]
        soft = bool((self._y != labels.view_as(self._y)).any())
        if self._scale is not None or not single or soft:
            raise Inapplicable(
                where,
                "needs one label 0 or 1 for each sample, all of the same weight",
                given=f"the logistic loss of an output {list(self._logits.shape)} with other "
                "targets or weights",
            )
        z = self._logits.reshape(-1, 1)
        # log p of class 0 and of class 1, and p − 0 and p − 1, each without cancellation
        log_p = torch.cat([F.logsigmoid(-z.double()), F.logsigmoid(z.double())], 1)
        slopes = torch.cat([self._p.reshape(-1, 1), -self._q.reshape(-1, 1)], 1)

        def toward(chosen: Tensor) -> Tensor:
            share = torch.softmax(log_p.masked_fill(~chosen, -torch.inf), 1)
            return (share.to(slopes) * slopes).sum(1, keepdim=True)

        return Classes(labels.long(), log_p, toward)


def _scale(y: Tensor, v: Tensor | None, P: Tensor | None) -> Tensor | None:
    """``s = v (1 + (P − 1) y)``, the factor of ``p (1 − p)``; None for 1."""
    factor = None if P is None else 1 + (P - 1) * y
    if factor is None:
        return v
    return factor if v is None else factor * v


def _check_range(y: Tensor) -> None:
    wrong = ~((y >= 0) & (y <= 1))
    if bool(wrong.any()):
        rule = "labels must lie in 0 … 1"
        raise CurvescopeError("binary_logistic", rule, given=f"{float(y[wrong][0]):g}")


def _per_entry(name: str, weight: Any) -> Tensor | None:
    if weight is None:
        return None
    if not isinstance(weight, Tensor) or not bool(((weight >= 0) & weight.isfinite()).all()):
        rule = f"`{name}` must be a tensor of finite weights that are not negative"
        raise CurvescopeError("BinaryLogistic", rule)
    return weight.detach().clone()


def _broadcast(weight: Tensor | None, output: Tensor) -> Tensor | None:
    """A weight in the shape of the output, the same for every sample."""
    if weight is None:
        return None
    fits = weight.ndim < output.ndim or (weight.ndim == output.ndim and weight.shape[0] == 1)
    try:
        return weight.to(output).expand(output.shape) if fits else _refuse(weight, output)
    except RuntimeError:
        return _refuse(weight, output)


def _refuse(weight: Tensor, output: Tensor) -> Tensor:
    entries = f"the entries {list(output.shape[1:])} of one sample"
    rule = f"weights must fit {entries} and be the same for all samples"
    raise CurvescopeError("binary_logistic", rule, given=list(weight.shape))
