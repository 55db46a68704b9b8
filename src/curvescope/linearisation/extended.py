"""Extended gradients in output space: what the loss would say about every class (TR sec. 1.8, 6).

A term of class ``c`` with probabilities ``p`` has one gradient ``∂ℓ(z, y_c')/∂z = p − e_c'`` for
each would-be class ``c'``. Weighted by ``p_c'`` their second moment is the output Hessian,
``Σ_c' p_c' (p − e_c')(p − e_c')ᵀ = diag(p) − p pᵀ``, so that their pull-backs ``g_{icc'}`` with the
weights ``w_{icc'} = p_{icc'} / N`` make up the Gauss–Newton matrix (TR 6.2), balanced or not. With
one logistic output the two classes have ``p − c'`` and the same identity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from curvescope._checks import Inapplicable
from curvescope.problem.losses import BinaryLogistic, CrossEntropy, Loss, LossAt


@dataclass(frozen=True)
class Extended:
    """The extended gradients of a batch at its output; ``terms`` counts ignored ones too.

    Probabilities are kept as logarithms in float64: they may underflow, their ratios within a
    class must not. An ignored term has the label −1 and the probability 0 for every class.
    """

    labels: Tensor  # [terms], int64
    log_p: Tensor  # [terms, C], float64
    directions: Tensor  # [terms, C, c]: c' ↦ ∂ℓ(z, y_c')/∂z, c entries of the output for a term
    count: int  # terms that are not ignored

    @property
    def classes(self) -> int:
        """``C``."""
        return self.log_p.shape[1]

    def roots(self) -> Tensor:
        """``√p_c' · ∂ℓ(z, y_c')/∂z``: ``[terms, C, c]`` with ``Σ_c' r rᵀ = ∂²ℓ/∂z²``."""
        half = torch.exp(0.5 * self.log_p).to(self.directions.dtype)
        return half[..., None] * self.directions


def has_classes(loss: Loss) -> bool:
    """Whether a loss has extended gradients."""
    return isinstance(loss, CrossEntropy | BinaryLogistic)


def extended(loss: Loss, z: Tensor, target: Any, where: str = "extended") -> Extended:
    """The extended gradients of a batch with output ``z``.

    Raises:
        CurvescopeError: for a loss without classes, or a cross-entropy over a single class.

    >>> e = extended(CrossEntropy(), torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
    >>> e.labels, e.directions
    (tensor([1]), tensor([[[-0.5000,  0.5000],
             [ 0.5000, -0.5000]]]))
    """
    if not has_classes(loss):
        msg = (
            f"{where}: needs classes, that is loss='cross_entropy' or 'binary_logistic', got "
            f"{loss.name!r}"
        )
        raise Inapplicable(msg)
    at = loss.at(z, target)
    logits = at.terms(z[None])[0]
    if isinstance(loss, BinaryLogistic):
        labels = (_uninformed(loss, z, target)[:, 0] < 0).long()
        # log p of class 0 and of class 1, and p − 0 and p − 1, each without cancellation
        log_p = torch.cat([F.logsigmoid(-logits.double()), F.logsigmoid(logits.double())], 1)
        slopes = torch.cat([torch.sigmoid(logits), -torch.sigmoid(-logits)], 1)
        return Extended(labels, log_p, slopes[..., None], at.count)
    C = logits.shape[1]
    if C < 2:
        msg = f"{where}: needs at least two classes, got an output {list(z.shape)}"
        raise Inapplicable(msg)
    slope = _uninformed(loss, z, target)
    ignored = (slope == 0).all(1)
    labels = slope.argmin(1).masked_fill(ignored, -1)
    log_p = F.log_softmax(logits.double(), 1).masked_fill(ignored[:, None], -torch.inf)
    return Extended(labels, log_p, _minus_classes(log_p.exp()).to(z.dtype), at.count)


def _uninformed(loss: Loss, z: Tensor, target: Any) -> Tensor:
    """The loss gradient at ``z = 0``: there it is ``1/C − e_y`` and tells label and weight apart.

    At the true output a term that is fitted perfectly has the gradient of an ignored one: zero.
    """
    at: LossAt = loss.at(torch.zeros_like(z), target)
    return at.terms(at.gradient()[None])[0]


def _minus_classes(p: Tensor) -> Tensor:
    """``p − e_c'`` for every ``c'``: ``[terms, C, C]``.

    Its diagonal ``p_c' − 1`` is summed from the other probabilities: at the end of training they
    are small, and ``1 − p`` would keep nothing of them but rounding.
    """
    C = p.shape[1]
    others = p @ (1 - torch.eye(C, dtype=p.dtype, device=p.device))
    directions = p[:, None, :].repeat(1, C, 1)
    directions.diagonal(dim1=1, dim2=2).copy_(-others)
    return directions


def class_directions(loss: Loss, z: Tensor, target: Any) -> Tensor:
    """``[B, K, *z.shape[1:]]``: the roots as output directions of each sample (TR 6.2).

    ``K`` is the number of a sample's terms times ``C``; term by term, class by class. Unlike
    :func:`curvescope.linearisation.roots.root`, whose ``C − 1`` directions suffice for the
    spectrum, each direction belongs to one would-be class.
    """
    roots = extended(loss, z, target, "class_directions").roots()
    B, (terms, C, c) = z.shape[0], roots.shape
    each = terms // B
    apart = torch.eye(each, dtype=z.dtype, device=z.device)[:, None, None, :, None]
    spread = roots.reshape(B, each, C, c).movedim(2, 0) * apart  # [t, C, B, each, c]
    return scatter(loss.at(z, target), spread.reshape(each * C, terms, c), z).transpose(0, 1)


def scatter(at: LossAt, terms: Tensor, z: Tensor) -> Tensor:
    """``[k, terms, c]`` to ``[k, *z.shape]``: the inverse of ``LossAt.terms``."""
    return at.scatter(terms, z.detach()[None].expand(terms.shape[0], *z.shape))


def merge(old: Tensor, new: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Two weights given as logarithms: that of their sum, and the shares of both in it.

    Running means stay right where the weights themselves underflow; two empty weights share 0.
    """
    total = torch.logaddexp(old, new)
    kept, added = (torch.exp(part - total).nan_to_num(0.0) for part in (old, new))
    return total, kept, added
