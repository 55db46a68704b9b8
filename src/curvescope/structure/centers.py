"""Centers of the logit gradients, predicted from weights and mean input, and measured (DH F.1).

At initialization the mean logit gradients of a layer cluster around one center for each logit. DH
predicts these centers from the product ``S`` of the later weights (eq. 57),

    Γ̌_j = (Sᵀ Q)_j,    Δ̌_j = ((E[x] ⊗ Sᵀ) E[Q])_j,    Q = diag(√p) (I − 1 pᵀ),

by output and by weight. Here, and as the derivation by eq. 53 and 54 says:

- ``j`` picks a row of ``E[Q]``, which is a column of ``Sᵀ Qᵀ``. Eq. 57 prints ``Q`` for ``Qᵀ``, the
  same matrix at ``p = 1/c``, where ``Q`` is symmetric, and not elsewhere; and it takes the
  expectation of ``Q`` in the second line only.
- A gate that is open half of the time leaves the factor ½ for each of the later layers, whose
  square is the ``4^{−(L−p)}`` of eq. 56. Eq. 57 leaves it out; directions do not depend on it.
- Centers are means of class means, each class counting the same, and so are the two expectations.
- Weights are in the order ``[m, n]``, so that the Kronecker product is ``Sᵀ Q ⊗ E[x]``.

DH's text calls the logit centers ``Δ̂`` for weights and ``Γ̌`` for outputs; they are of one kind.

References:
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from curvescope.errors import Inapplicable
from curvescope.problem.problem import Problem
from curvescope.structure.clustering import logit_means
from curvescope.structure.output_hessian import later_product, later_weights


@dataclass(frozen=True)
class CenterMatch:
    """A center for each logit, ``[c, d]`` in float64, as measured and as predicted."""

    measured: Tensor
    predicted: Tensor

    @property
    def cosines(self) -> Tensor:
        """``[c]``: 1 where the directions agree; NaN where a center is zero."""
        lengths = self.measured.norm(dim=1) * self.predicted.norm(dim=1)
        return (self.measured * self.predicted).sum(1) / lengths

    @property
    def lengths(self) -> Tensor:
        """``[c]``: the length of a measured center over that of the predicted one."""
        return self.measured.norm(dim=1) / self.predicted.norm(dim=1)

    @property
    def overlap(self) -> float:
        """Of the two spans of centers (DH def. 4.1); at most ``c − 1`` dimensions each.

        ``Q·1 = 0``, so that predicted centers lie in ``R(S) ∖ {S·1}``.
        """
        U, V = self.basis(), _span(self.measured)
        k = min(U.shape[1], V.shape[1])
        return float((U.T @ V).square().sum() / k) if k else float("nan")

    def basis(self) -> Tensor:
        """An orthonormal basis ``[d, r]`` of the span of the predicted centers.

        To compare by :func:`overlap` with the top eigenvectors of a layer's Hessian, of which DH
        says that the centers are these.
        """
        return _span(self.predicted)


def _span(centers: Tensor) -> Tensor:
    """The leading ``c − 1`` right singular vectors, less those of zero singular values."""
    _, s, vh = torch.linalg.svd(centers, full_matrices=False)
    nonzero = s > max(centers.shape) * torch.finfo(s.dtype).eps * s[:1]
    return vh[: int(nonzero.sum().clamp(max=len(centers) - 1))].T


@dataclass(frozen=True)
class LogitCenters:
    """The logit centers of one layer: ``Δ`` by its weight and ``Γ`` by its output (DH eq. 57)."""

    name: str
    weight: CenterMatch
    output: CenterMatch


def logit_centers(problem: Problem, layer: str) -> LogitCenters:
    """The centers of :func:`logit_clusters` by logit, and those that DH predicts (eq. 57).

    The prediction is for a ReLU network at its random initialization. It needs no gradient, only
    the weights after the layer, the layer's mean input and the outputs.

    Cost: that of :func:`logit_clusters`.

    Args:
        problem: cross-entropy with one label for each sample.
        layer: one of the fully connected layers at the end of the network.

    Raises:
        CurvescopeError: for another loss, or a layer after which not all are plain matrices.

    >>> model = torch.nn.Linear(1, 2, bias=False).double()
    >>> with torch.no_grad():
    ...     _ = model.weight.zero_()
    >>> problem = Problem(model, (torch.tensor([[1.0], [3.0]]).double(), torch.tensor([0, 1])))
    >>> centers = logit_centers(problem, "").weight  # E[x] = 2, Q = √½ (I − ½)
    >>> centers.predicted, centers.cosines.round(decimals=6)
    (tensor([[ 0.7071, -0.7071],
            [-0.7071,  0.7071]], dtype=torch.float64), tensor([1., 1.], dtype=torch.float64))
    """
    means = logit_means(problem, layer)
    weights = later_weights(problem)
    if means.name not in weights:
        rule = f"layer {layer!r} and all layers after it must be plain matrices"
        raise Inapplicable("logit_centers", rule, given=f"they are {', '.join(weights) or 'none'}")
    present = (means.counts > 0).cpu()

    def over_classes(by_class: Tensor) -> Tensor:
        return by_class.double().cpu()[present].mean(0)

    later = weights[means.name]
    S = later_product(later, len(present)) / 2.0 ** len(later)
    output = over_classes(means.roots) @ S  # [c, m]: a row for each logit
    weight = (output[:, :, None] * over_classes(means.inputs)).flatten(1)
    return LogitCenters(
        means.name,
        CenterMatch(over_classes(means.weight), weight),
        CenterMatch(over_classes(means.output), output),
    )
