"""Cross-entropy: labels or probabilities, class weights, label smoothing, ignored positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from curvescope import _checks
from curvescope.errors import CurvescopeError
from curvescope.problem.losses import large
from curvescope.problem.losses.base import Loss, LossAt, need_tensor
from curvescope.problem.losses.probes import SoftmaxRoot
from curvescope.problem.losses.softmax import HardAt, SoftAt


class CrossEntropy(Loss):
    """torch's ``cross_entropy``: ``−Σ_c u_c log p_c`` at each position, ``p = softmax(z)``.

    A target is a class index or a probability for each class, and ``u`` what weights ``w`` and
    smoothing ``ε`` make of it: ``u = (1 − ε) w_y e_y + (ε/C) w`` for the index ``y``,
    ``u = w ⊙ ((1 − ε) q + ε/C)`` for probabilities ``q``. The mean is over all positions of all
    batches that are not ignored, each with the weight ``w_y`` (probabilities: with weight 1), as
    torch has it within one batch.

    Args:
        axis: where the classes are: 1 in torch's ``[N, C, …]``, −1 in ``[N, T, C]`` as in language
            models; None takes the one that fits the target, and refuses where both do.
        weight: ``w: [C]``, a weight for each class.
        ignore_index: the target of positions that do not count.
        label_smoothing: ``ε``.
        shift: the output at a position is compared with the label so many positions later, as in
            causal language models (1), whose labels are the tokens themselves.

    >>> z, y = torch.zeros(1, 2, 3), torch.tensor([[0, 2]])
    >>> CrossEntropy(axis=-1, shift=1).at(z, y).weight  # the last position has no next token
    1.0
    """

    average = "positions"
    modules = (nn.CrossEntropyLoss,)
    functions = (F.cross_entropy,)

    def __init__(
        self,
        *,
        axis: int | None = None,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        shift: int = 0,
    ) -> None:
        where = "CrossEntropy"
        if axis not in (None, 1, -1):
            raise CurvescopeError(where, "`axis` must be 1, -1 or None", given=repr(axis))
        if not 0.0 <= label_smoothing <= 1.0:
            rule = "`label_smoothing` must lie in 0 … 1"
            raise CurvescopeError(where, rule, given=repr(label_smoothing))
        self.axis, self.label_smoothing = axis, float(label_smoothing)
        self.ignore_index = int(ignore_index)
        self.shift = _checks.positive_int(where, "shift", shift, 0)
        if shift and axis != -1:
            rule = "`shift` needs outputs [N, T, C] with the classes last"
            raise CurvescopeError(where, rule, remedy="say `axis=-1`")
        self.weight = None if weight is None else _class_weights(where, weight)
        self.has_classes = self.even = weight is None
        self.name = self._name()

    @classmethod
    def from_torch(cls, **settings: Any) -> CrossEntropy:
        """See :class:`Loss`: torch has its classes on axis 1."""
        return cls(axis=1, **settings)

    def _name(self) -> str:
        """``cross_entropy``, with the settings that are not torch's own."""
        parts = []
        if self.weight is not None:
            parts.append("class weights")
        if self.label_smoothing:
            parts.append(f"label_smoothing={self.label_smoothing:g}")
        if self.ignore_index != -100:
            parts.append(f"ignore_index={self.ignore_index}")
        if self.shift:
            parts.append(f"shift={self.shift}")
        return f"cross_entropy({', '.join(parts)})" if parts else "cross_entropy"

    # What a target means ------------------------------------------------------------------------

    def at(self, output: Tensor, target: Any) -> LossAt:
        """See :class:`Loss`."""
        form = self._read(output, target)
        if form.probabilities:
            return self._soft_probabilities(output, form)
        labels = form.target
        counted = labels != self.ignore_index
        classes = output.shape[form.axis]
        wrong = counted & ((labels < 0) | (labels >= classes))
        if bool(wrong.any()):
            rule = f"labels must lie in 0 … {classes - 1} (the model has {classes} outputs)"
            raise CurvescopeError("cross_entropy", rule, given=int(labels[wrong][0]))
        scale, count = None, int(counted.sum())
        if count < counted.numel():
            labels, scale = labels.masked_fill(~counted, 0), counted.to(output.dtype)
        weight = self._weights(output)
        if weight is not None:
            class_weight = weight[labels]
            scale = class_weight if scale is None else class_weight * scale
        if not self.label_smoothing:
            equal = weight is None
            kind = HardAt if output.numel() < large.LARGE else large.LargeHardAt
            return kind(output, form.axis, labels, scale, counted, count, equal=equal)
        uniform = torch.ones(classes, dtype=output.dtype, device=output.device)
        w = uniform if weight is None else weight
        u = torch.zeros_like(output.movedim(form.axis, -1))
        u.scatter_(-1, labels[..., None], (1 - self.label_smoothing) * w[labels][..., None])
        u = (u + self.label_smoothing / classes * w) * counted[..., None]
        weights = counted.to(output.dtype) if scale is None else scale
        return SoftAt(output, form.axis, u, weights, counted, count, labels=labels)

    def _soft_probabilities(self, output: Tensor, form: _TargetForm) -> SoftAt:
        q = form.target.movedim(form.axis, -1).to(output.dtype)
        if bool((q < 0).any()) or not bool(torch.isfinite(q).all()):
            rule = "probabilities as targets must be finite and not negative"
            raise CurvescopeError("cross_entropy", rule)
        u = (1 - self.label_smoothing) * q + self.label_smoothing / q.shape[-1]
        weight = self._weights(output)
        u = u if weight is None else u * weight
        ones = torch.ones(u.shape[:-1], dtype=u.dtype, device=u.device)
        return SoftAt(output, form.axis, u, ones, ones.bool(), ones.numel())

    def _read(self, output: Tensor, target: Any) -> _TargetForm:
        """The class axis and the target, shifted; looks at shapes and types alone."""
        self._check_type(target)
        if target.is_floating_point():
            if target.shape != output.shape or output.ndim < 2:
                rule = f"probabilities as targets must have the output's shape {list(output.shape)}"
                raise CurvescopeError("cross_entropy", rule, given=list(target.shape))
            if self.shift:
                rule = "`shift` needs class indices as targets"
                raise CurvescopeError("cross_entropy", rule, given="probabilities")
            return _TargetForm(self._choose(output, first=True, last=True), target, True)
        z, y = output.shape, target.shape
        if self.shift and len(z) < 3:
            raise CurvescopeError("cross_entropy", "`shift` needs outputs [N, T, C]", given=list(z))
        last, first = len(z) >= 2 and y == z[:-1], len(z) >= 2 and y == z[:1] + z[2:]
        last, first = last and self.axis != 1, first and self.axis != -1
        if len(z) == 2 and y == z[:1]:
            last, first = False, True  # one and the same axis
        if not (last or first):
            expected = z[:1] + z[2:] if self.axis == 1 else z[:-1]
            raise CurvescopeError(
                "cross_entropy",
                f"an output {list(z)} with the classes {'second' if self.axis == 1 else 'last'} "
                f"needs class indices of shape {list(expected)}",
                given=f"a target of shape {list(y)}{self._hint(z, y)}",
            )
        axis = self._choose(output, first=first, last=last)
        labels = target.long()
        if self.shift:
            labels = F.pad(labels, (0, self.shift), value=self.ignore_index)[..., self.shift :]
        return _TargetForm(axis, labels, False)

    def _choose(self, output: Tensor, *, first: bool, last: bool) -> int:
        if output.ndim == 2:
            return 1
        if self.axis is not None:
            return self.axis % output.ndim
        if first and last:
            rule = f"in an output {list(output.shape)} the classes may be second or last"
            remedy = "say which with loss=cs.losses.CrossEntropy(axis=1) or axis=-1"
            raise CurvescopeError("cross_entropy", rule, remedy=remedy)
        return 1 if first else output.ndim - 1

    def _hint(self, z: torch.Size, y: torch.Size) -> str:
        if self.axis == 1 and len(z) > 2 and y == z[:-1]:
            return "; where the classes are last, say loss=cs.losses.CrossEntropy(axis=-1)"
        return ""

    def _check_type(self, target: Any) -> None:
        need_tensor("cross_entropy", target)
        if target.dtype == torch.bool or target.is_complex():
            rule = "targets must be class indices (int64)"
            raise CurvescopeError("cross_entropy", rule, given=target.dtype)
        if target.is_floating_point() and target.ndim < 2:
            rule = "targets must be class indices (int64) or a probability for each class"
            raise CurvescopeError(
                "cross_entropy", rule, given=f"{target.dtype} {list(target.shape)}"
            )
        if target.is_floating_point() and self.ignore_index >= 0:
            rule = "`ignore_index` needs class indices as targets"
            raise CurvescopeError("cross_entropy", rule, given="probabilities")

    def check_target(self, target: Any) -> None:
        """See :class:`Loss`: types, and labels that are no class of any model."""
        self._check_type(target)
        if target.is_floating_point():
            return
        wrong = (target < 0) & (target != self.ignore_index)
        if self.weight is not None:
            wrong |= (target >= len(self.weight)) & (target != self.ignore_index)
        if bool(wrong.any()):
            top = "or above" if self.weight is None else f"… {len(self.weight) - 1}"
            rule = f"labels must lie in 0 {top}"
            raise CurvescopeError("cross_entropy", rule, given=int(target[wrong][0]))

    def _weights(self, output: Tensor) -> Tensor | None:
        return None if self.weight is None else self.weight.to(output)

    # Without looking at numbers -----------------------------------------------------------------

    def probe(self, output: Tensor, target: Any) -> SoftmaxRoot:
        """See :class:`Loss`."""
        form = self._read(output, target)
        moved = output.movedim(form.axis, -1)
        rows, weight = moved.flatten(0, -2), self._weights(output)
        log_p = torch.log_softmax(rows, -1)
        smooth = self.label_smoothing
        if form.probabilities:
            q = form.target.movedim(form.axis, -1).flatten(0, -2).to(rows)
            u = (1 - smooth) * q + smooth / q.shape[1]
            u = u if weight is None else u * weight
            value, scale = -(u * log_p).sum() / len(u), u.sum(1).sqrt()
            return SoftmaxRoot(value, float(len(u)), log_p, scale, moved.shape, form.axis)
        labels = form.target.flatten()
        counted = labels != self.ignore_index
        if weight is None:
            scale, total = counted.to(rows.dtype), counted.sum()
        else:
            class_weight = weight[labels * counted] * counted
            scale = (1 - smooth) * class_weight + smooth * weight.mean() * counted
            scale, total = scale.sqrt(), class_weight.sum()
        if smooth:
            value = F.cross_entropy(
                rows, labels, weight, ignore_index=self.ignore_index, label_smoothing=smooth
            )
        else:
            value = F.nll_loss(log_p, labels, weight, ignore_index=self.ignore_index)
        return SoftmaxRoot(value, total, log_p, scale, moved.shape, form.axis)

    def mean(self, output: Tensor, target: Any) -> Tensor:
        """See :class:`Loss`: torch's own."""
        form = self._read(output, target)
        rows, y = output, form.target
        if output.ndim > 2:
            rows = output.movedim(form.axis, -1).flatten(0, -2)
            y = y.movedim(form.axis, -1).reshape(rows.shape) if form.probabilities else y.flatten()
        if form.probabilities:
            y = y.to(rows)
        return F.cross_entropy(
            rows, y, self._weights(output), ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
        )  # fmt: skip

    # Classes ------------------------------------------------------------------------------------

    def outputs(self, output: Tensor, target: Any) -> int:
        """See :class:`Loss`."""
        return output.shape[self._read(output, target).axis]

    def classes(self, outputs: int) -> int | None:
        """See :class:`Loss`."""
        return outputs

    def right(self, output: Tensor, target: Tensor) -> Tensor:
        """See :class:`Loss`: the largest output of each position."""
        form = self._read(output, target)
        return (output.argmax(form.axis) == form.target).sum()


@dataclass(frozen=True)
class _TargetForm:
    axis: int
    target: Tensor
    probabilities: bool


def _class_weights(where: str, weight: Any) -> Tensor:
    ok = isinstance(weight, Tensor) and weight.ndim == 1 and weight.is_floating_point()
    if not ok or not bool(torch.isfinite(weight).all()) or bool((weight < 0).any()):
        rule = "`weight` must be a tensor of finite weights [C] that are not negative"
        raise CurvescopeError(where, rule)
    return weight.detach().clone()
