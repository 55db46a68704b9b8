"""Extended gradients in output space: what the loss would say about every class (TR sec. 1.8, 6).

A term of class ``c`` with probabilities ``p`` has one gradient ``∂ℓ(z, y_c')/∂z = p − e_c'`` for
each would-be class ``c'``. Weighted by ``p_c'`` their second moment is the output Hessian,
``Σ_c' p_c' (p − e_c')(p − e_c')ᵀ = diag(p) − p pᵀ``, so that their pull-backs ``g_{icc'}`` with the
weights ``w_{icc'} = p_{icc'} / N`` make up the Gauss–Newton matrix (TR 6.2), balanced or not. With
one logistic output the two classes have ``p − c'`` and the same identity.

References:
    TR: Papyan (2020), *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra*.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from curvescope.errors import Inapplicable
from curvescope.problem.losses import Classes, Groups, Loss, LossAt


def extended(
    loss: Loss, z: Tensor, target: Any, where: str = "extended", groups: Groups | None = None
) -> Classes:
    """The extended gradients of a batch with output ``z``, by class or by group of classes.

    Raises:
        CurvescopeError: for a loss without classes, or a cross-entropy over a single class.

    >>> from curvescope.problem.losses import CrossEntropy
    >>> e = extended(CrossEntropy(), torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
    >>> e.labels, e.directions
    (tensor([1]), tensor([[[-0.5000,  0.5000],
             [ 0.5000, -0.5000]]]))
    """
    classes = loss.at(z, target).classes(where)
    if classes is None:
        rule = "needs a loss that tells classes apart, such as `loss='cross_entropy'`"
        raise Inapplicable(where, rule, given=repr(loss.name))
    return classes if groups is None else classes.grouped(groups)


def class_directions(loss: Loss, z: Tensor, target: Any) -> Tensor:
    """``[B, K, *z.shape[1:]]``: the roots as output directions of each sample (TR 6.2).

    ``K`` is the number of a sample's terms times ``C``; term by term, class by class. Unlike
    :func:`curvescope.record.roots.root`, whose ``C − 1`` directions suffice for the
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
    old_share, new_share = (torch.exp(part - total).nan_to_num(0.0) for part in (old, new))
    return total, old_share, new_share
