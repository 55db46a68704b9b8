"""Cross-entropy of class labels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from curvescope._checks import CurvescopeError
from curvescope.problem.losses.base import Loss, LossAt, need_tensor


class CrossEntropy(Loss):
    """``−log softmax(z)[y]`` averaged over all positions but those whose target is ``ignore``.

    Classes are the last dimension when ``target.shape == output.shape[:-1]`` (``[N, C]``, and
    ``[N, T, C]`` as in language models), else the second one (torch's ``[N, C, …]``).
    """

    name = "cross_entropy"

    def __init__(self, ignore: int = -100) -> None:
        self._ignore = ignore

    @property
    def ignore(self) -> int:
        """The target of positions that do not count."""
        return self._ignore

    def at(self, output: Tensor, target: Any) -> CrossEntropyAt:
        """See :class:`Loss`."""
        need_tensor(self.name, target)
        if target.is_floating_point() or target.dtype == torch.bool:
            msg = f"cross_entropy: targets must be class indices (int64), got {target.dtype}"
            raise CurvescopeError(msg)
        if output.ndim >= 2 and target.shape == output.shape[:-1]:
            dim = output.ndim - 1
        elif output.ndim >= 3 and target.shape == output.shape[:1] + output.shape[2:]:
            dim = 1
        else:
            msg = (
                f"cross_entropy: an output {list(output.shape)} needs class indices of shape "
                f"{list(output.shape[:-1])}, got a target of shape {list(target.shape)}"
            )
            raise CurvescopeError(msg)
        counted = target != self._ignore
        classes = output.shape[dim]
        wrong = counted & ((target < 0) | (target >= classes))
        if bool(wrong.any()):
            msg = (
                f"cross_entropy: labels must lie in 0 … {classes - 1} (the model has {classes} "
                f"outputs), got {int(target[wrong][0])}"
            )
            raise CurvescopeError(msg)
        return CrossEntropyAt(output, target.long(), dim, counted)


class CrossEntropyAt(LossAt):
    """``∂ℓ = p − e_y``, ``∂²ℓ[t] = p ⊙ t − p ⟨p, t⟩`` (TR 5.1).

    A network that fits its data has ``p_y`` so close to 1 that ``p_y − 1`` and ``t_y − ⟨p, t⟩``
    would be nothing but rounding. The first is taken as ``−Σ p_c`` over the other classes, and
    ``t`` is counted from its entry at the likeliest class, which changes nothing else.
    """

    def __init__(self, output: Tensor, target: Tensor, dim: int, counted: Tensor) -> None:
        self._logits, self._dim, self._shape = output, dim, output.shape
        self.count = int(counted.sum())
        self._all = self.count == counted.numel()
        self._target = target if self._all else target.masked_fill(~counted, 0)
        self._counted = counted.unsqueeze(dim)
        self._p = torch.softmax(output, dim)
        self._top = output.argmax(dim, keepdim=True)
        if not self._all:
            self._p = self._p * self._counted

    def value(self) -> Tensor:
        """See :class:`LossAt`."""
        losses = -torch.log_softmax(self._logits, self._dim).gather(
            self._dim, self._target.unsqueeze(self._dim)
        )
        return (losses if self._all else losses * self._counted).sum()

    def _minus_label(self, p: Tensor, target: Tensor) -> Tensor:
        label = target.unsqueeze(self._dim)
        others = p.scatter(self._dim, label, 0.0)
        return others.scatter(self._dim, label, -others.sum(self._dim, keepdim=True))

    def gradient(self) -> Tensor:
        """See :class:`LossAt`."""
        return self._minus_label(self._p, self._target)

    def hessian(self, t: Tensor) -> Tensor:
        """See :class:`LossAt`."""
        pt = self._p * (t - t.gather(self._dim + 1, self._top.expand(len(t), *self._top.shape)))
        return pt.addcmul_(self._p.expand_as(t), pt.sum(self._dim + 1, keepdim=True), value=-1)

    def terms(self, t: Tensor) -> Tensor:
        """See :class:`LossAt`: one term per position."""
        return t.movedim(self._dim + 1, -1).flatten(1, -2)

    def scatter(self, t: Tensor, like: Tensor) -> Tensor:
        """See :class:`LossAt`."""
        moved = like.movedim(self._dim + 1, -1)
        return t.reshape(moved.shape).movedim(-1, self._dim + 1)

    def sample(self, samples: int, generator: torch.Generator) -> Tensor:
        """See :class:`LossAt`."""
        p = torch.softmax(self._logits, self._dim).movedim(self._dim, -1)
        drawn = torch.multinomial(
            p.flatten(0, -2).cpu(), samples, replacement=True, generator=generator
        ).to(p.device)
        labels = drawn.T.reshape(samples, *p.shape[:-1])
        return torch.stack([self._minus_label(self._p, label) for label in labels])
