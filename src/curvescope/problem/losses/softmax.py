"""Cross-entropy at an output: labels with a weight each, or a weight for every class.

References:
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
    TR: Papyan (2020), *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra*.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from curvescope.errors import Inapplicable
from curvescope.problem.losses.base import Classes, LossAt, Terms


class SoftmaxAt(LossAt):
    """``ℓ = s log Σ exp z − ⟨u, z⟩`` with ``s = Σ_c u_c``: ``∂²ℓ[t] = s (p ⊙ t − p ⟨p, t⟩)``.

    A network that fits its data has ``p_y`` so close to 1 that ``p_y − 1`` and ``t_y − ⟨p, t⟩``
    would be nothing but rounding. The first is taken as ``−Σ p_c`` over the other classes, and
    ``t`` is counted from its entry at the likeliest class, which changes nothing else.

    Args:
        output: the logits.
        axis: where the classes are.
        scale: ``s`` of each position; None where it is 1 everywhere.
        counted: which positions are not ignored.
        count: how many those are.
    """

    def __init__(
        self, output: Tensor, axis: int, scale: Tensor | None, counted: Tensor, count: int
    ) -> None:
        self._logits, self._axis, self._shape = output, axis, output.shape
        self._counted, self.count = counted, count
        self._scale = None if scale is None else scale.unsqueeze(axis)
        self._p = torch.softmax(output, axis)
        self._sp = self._p if self._scale is None else self._p * self._scale
        self._top = output.argmax(axis, keepdim=True)

    def hessian(self, t: Tensor) -> Tensor:
        """See :class:`LossAt`."""
        pt = self._sp * (t - t.gather(self._axis + 1, self._top.expand(len(t), *self._top.shape)))
        return pt.addcmul_(self._p.expand_as(t), pt.sum(self._axis + 1, keepdim=True), value=-1)

    def terms(self, t: Tensor) -> Tensor:
        """See :class:`LossAt`: one term per position."""
        return t.movedim(self._axis + 1, -1).flatten(1, -2)

    def scatter(self, t: Tensor, like: Tensor) -> Tensor:
        """See :class:`LossAt`."""
        moved = like.movedim(self._axis + 1, -1)
        return t.reshape(moved.shape).movedim(-1, self._axis + 1)

    def root(self) -> Tensor:
        """See :class:`LossAt`: ``C − 1`` directions for each position."""
        p = torch.softmax(self._rows(), -1)
        return multinomial_root(p if self._scale is None else p * self._scale.flatten()[:, None])

    @property
    def rank(self) -> int:
        """See :class:`LossAt`."""
        return max(self._shape[self._axis] - 1, 1)

    def sample(self, samples: int, generator: torch.Generator) -> Tensor:
        """See :class:`LossAt`: labels drawn from the softmax, with the weight of the position."""
        drawn = torch.multinomial(
            torch.softmax(self._rows(), -1).cpu(), samples, replacement=True, generator=generator
        ).to(self._p.device)
        labels = drawn.T.reshape(samples, *self._counted.shape)
        p = self._p if self._scale is None else self._p * self._scale.sqrt()
        return torch.stack([self._minus_label(p, label) for label in labels])

    def classes(self, where: str) -> Classes:
        """See :class:`LossAt`."""
        rule = "needs one class label for each term, all of the same weight"
        raise Inapplicable(
            where, rule, given="cross-entropy with probabilities as targets or class weights"
        )

    def _rows(self) -> Tensor:
        return self._logits.movedim(self._axis, -1).flatten(0, -2)

    def _minus_label(self, p: Tensor, target: Tensor) -> Tensor:
        """``p − e_y`` times what ``p`` sums to."""
        label = target.unsqueeze(self._axis)
        others = p.scatter(self._axis, label, 0.0)
        return others.scatter(self._axis, label, -others.sum(self._axis, keepdim=True))

    def _log_p(self) -> Tensor:
        return torch.log_softmax(self._logits, self._axis)

    def _classes(self, where: str, labels: Tensor) -> Classes:
        rows = self._rows()
        if rows.shape[1] < 2:
            rule = "needs at least two classes"
            raise Inapplicable(where, rule, given=f"an output {list(self._shape)}")
        ignored = ~self._counted.flatten()
        labels = labels.flatten().masked_fill(ignored, -1)
        log_p = F.log_softmax(rows.double(), 1).masked_fill(ignored[:, None], -torch.inf)
        p = log_p.exp()

        def toward(chosen: Tensor) -> Tensor:
            return _toward(log_p, p, chosen).to(rows.dtype)

        return Classes(labels, log_p, toward)


class HardAt(SoftmaxAt):
    """One label for each position, with a weight ``s = w_y``: ``∂ℓ = s (p − e_y)`` (TR 5.1)."""

    def __init__(
        self, output: Tensor, axis: int, labels: Tensor, scale: Tensor | None, counted: Tensor,
        count: int, *, equal: bool,
    ) -> None:  # fmt: skip
        super().__init__(output, axis, scale, counted, count)
        self._labels, self._equal = labels, equal
        self.weight = float(count if equal or scale is None else scale.double().sum())

    def _losses(self) -> Tensor:
        """``[…]``, a number for each position, without its weight."""
        label = self._labels.unsqueeze(self._axis)
        return -self._log_p().gather(self._axis, label)

    def value(self) -> Tensor:
        """See :class:`LossAt`."""
        losses = self._losses()
        return (losses if self._scale is None else losses * self._scale).sum()

    def gradient(self) -> Tensor:
        """See :class:`LossAt`."""
        return self._minus_label(self._sp, self._labels)

    def slopes(self) -> Tensor:
        """See :class:`LossAt`."""
        if self._equal:
            return super().slopes()
        assert self._scale is not None
        return self.terms(self._minus_label(self._p * self._scale.sqrt(), self._labels)[None])

    def each(self) -> Terms:
        """See :class:`LossAt`."""
        counted = self._counted
        losses = self._losses().squeeze(self._axis)[counted]
        scale = torch.ones_like(losses) if self._scale is None else (
            self._scale.squeeze(self._axis)[counted]
        )  # fmt: skip
        return Terms(losses, scale, self._top.squeeze(self._axis)[counted] != self._labels[counted])

    def classes(self, where: str) -> Classes:
        """See :class:`LossAt`."""
        return self._classes(where, self._labels) if self._equal else super().classes(where)


class SoftAt(SoftmaxAt):
    """A weight ``u_c`` for every class: ``∂ℓ = s p − u``.

    Args:
        output: the logits.
        axis: where the classes are.
        u: ``[…, C]``, classes last; zero at ignored positions.
        weights: of each position in the mean, which need not be ``s``.
        counted: which positions are not ignored.
        count: how many those are.
        labels: the classes that the positions have, if one each.
    """

    def __init__(
        self, output: Tensor, axis: int, u: Tensor, weights: Tensor, counted: Tensor, count: int,
        *, labels: Tensor | None = None,
    ) -> None:  # fmt: skip
        super().__init__(output, axis, u.sum(-1), counted, count)
        self._u, self._weights, self._labels = u.movedim(-1, axis), weights, labels
        self.weight = float(weights.double().sum())

    def value(self) -> Tensor:
        """See :class:`LossAt`."""
        return -(self._u * self._log_p()).sum()

    def gradient(self) -> Tensor:
        """See :class:`LossAt`: the entry of the likeliest class is summed from the others."""
        g = (self._sp - self._u).scatter(self._axis, self._top, 0.0)
        return g.scatter(self._axis, self._top, -g.sum(self._axis, keepdim=True))

    def slopes(self) -> Tensor:
        """See :class:`LossAt`."""
        weights = self._weights.unsqueeze(self._axis)
        g = self.gradient()
        if bool(((weights == 0) & (g != 0)).any()):
            rule = "label smoothing and a class of weight 0 make terms of weight 0 that are not 0"
            raise Inapplicable("EmpiricalFisher", rule, remedy="give every class a positive weight")
        return self.terms((g / weights.clamp_min(torch.finfo(g.dtype).tiny).sqrt())[None])

    def each(self) -> Terms | None:
        """See :class:`LossAt`; terms of weight 0 that are not 0 cannot be shown."""
        counted, weights = self._counted, self._weights[self._counted]
        if bool((weights == 0).any()):
            return None
        losses = -(self._u * self._log_p()).sum(self._axis)[counted] / weights
        if self._labels is None:
            return Terms(losses, weights, None)
        top = self._top.squeeze(self._axis)
        return Terms(losses, weights, top[counted] != self._labels[counted])

    def classes(self, where: str) -> Classes:
        """See :class:`LossAt`: smoothing is linear in the output and does not enter ``G``."""
        equal = bool((self._weights == self._counted).all())
        if self._labels is None or not equal:
            return super().classes(where)
        return self._classes(where, self._labels)


def multinomial_root(p: Tensor) -> Tensor:
    """``[C − 1, N, C]`` with ``Σ_k q_k q_kᵀ = s (diag(p̂) − p̂ p̂ᵀ)`` for ``p = s p̂: [N, C]``.

    This is its Cholesky factor (Tanabe and Sagae 1992): with the tail sums ``t_j = Σ_{i>j} p_i``,
    ``q_j = √(p_j t_j / (p_j + t_j)) · (e_j − p_{>j} / t_j)``, class ``j`` against the later ones.
    Unlike DH eq. 28 it has no superfluous row, and it is exact to rounding for confident outputs.
    Probabilities ``p̂`` that were multiplied by ``s`` give the root of ``s`` times the matrix.

    >>> q = multinomial_root(torch.tensor([[0.5, 0.25, 0.25]]))
    >>> torch.einsum("knc,knd->ncd", q, q)[0, 0]  # p_0 (e_0 − p)
    tensor([ 0.2500, -0.1250, -0.1250])
    """
    classes = p.shape[-1]
    if classes == 1:
        return torch.zeros_like(p)[None]
    tail = (p.flip(-1).cumsum(-1).flip(-1))[:, 1:]  # t_j for j < C − 1
    head = p[:, :-1]
    tiny = torch.finfo(p.dtype).tiny
    scale = (head * (tail / (head + tail).clamp_min(tiny))).sqrt()  # [N, C − 1]
    later = torch.ones(classes - 1, classes, dtype=p.dtype, device=p.device).triu(1)
    against = p[:, None] / tail.clamp_min(tiny)[..., None] * later
    first = torch.eye(classes - 1, classes, dtype=p.dtype, device=p.device)
    return (scale[..., None] * (first - against)).transpose(0, 1)


def _toward(log_p: Tensor, p: Tensor, chosen: Tensor) -> Tensor:
    """``p − q: [terms, C]`` with ``q`` the probabilities of the chosen classes among themselves.

    There it is ``−q Σ p`` over the other classes: at the end of training these are small, and a
    difference would keep nothing of them but rounding.
    """
    q = torch.softmax(log_p.masked_fill(~chosen, -torch.inf), 1).nan_to_num(0.0)
    others = p.masked_fill(chosen, 0.0)
    return others - q * others.sum(1, keepdim=True)
