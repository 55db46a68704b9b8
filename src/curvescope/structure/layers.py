"""Features, back-propagated errors and weights of every layer, with their class parts.

For a layer with input ``h`` (TR's ``h^{l−1}``) and back-propagated errors
``δ_{icc'} = ∂ℓ(z, y_c')/∂y`` at its output, TR sec. 7.4 and 7.7 decompose two second moments,

    H = Ave h hᵀ = H_class + H_within,         H_class = Σ_c (n_c/N) h_c h_cᵀ
    Δ = Σ w_{icc'} δ δᵀ = Δ_class + Δ_cross + Δ_within + Δ_{c=c'}

the second exactly like ``G`` (:mod:`curvescope.structure.classes`; TR's extra factor in 7.7 and its
``δ_c'`` in the cross part are misprints). For the weights, TR 7.13 compares ``W`` with
``W_class = −(1/η) Σ_c (n_c/N) δ̄_cc h_cᵀ``, what the stationary point under weight decay ``η`` would
be if features did not vary within a class; knockouts by projection do not depend on ``η``.

A layer that acts at ``T`` positions (a convolution, with unfolded inputs, or along a sequence) has
its features averaged over positions and its errors summed, so that ``Δ ⊗ H`` is its KFAC matrix.

References:
    TR: Papyan (2020), *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra*.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from curvescope import _checks
from curvescope.problem import Problem
from curvescope.record.selection import matrix_layer
from curvescope.structure.moments import LayerMoments, layer_moments
from curvescope.structure.outlier_search import bulk_edge

_EPS = torch.finfo(torch.float64).eps


@dataclass(frozen=True)
class MomentStatistics:
    """The spectrum of a second moment beside those of its class parts; all descending, float64.

    ``total`` against ``without_class`` is the scatter of TR fig. 7 and 9a, ``without_class``
    against ``without_cross`` that of fig. 9b; ``total``, ``class_part`` and ``class_and_cross`` are
    the scree plots of fig. 8 and 10. A part has at most as many eigenvalues as it has vectors.
    """

    total: Tensor  # [d]
    class_part: Tensor  # [≤ C]
    class_and_cross: Tensor  # [≤ C²]; for features the class part again
    diagonal: Tensor  # [≤ C]; empty for features
    within: Tensor  # [d]
    without_class: Tensor  # [d], class means projected out
    without_cross: Tensor  # [d], class and cross-class means projected out
    global_mean: float  # of the second moment of the global mean, which makes the top outlier
    rounding: float  # over the largest eigenvalue: what the dtype of features and errors leaves

    @property
    def edge(self) -> float:
        """The edge of the bulk: the largest of ``without_class``, and not below rounding.

        Errors of the last layer sum to zero, so that nothing is left beside the class means of
        ``C`` classes in ``C`` dimensions: an eigenvalue of ``5e-20`` beside one of ``1e-4`` is then
        far above what is left, and rounding all the same.
        """
        floor = self.rounding * float(self.total[0])
        return max(bulk_edge(float(self.without_class[0]), 0.0, torch.float64), floor)

    @property
    def whiskers(self) -> tuple[float, float]:
        """The second largest and the smallest eigenvalue of the class part (TR fig. 8, 10).

        The smallest is that above rounding: class means of errors may be linearly dependent.
        """
        alive = self.class_part[self.class_part > len(self.total) * _EPS * self.class_part[:1]]
        return (float(alive[:2][-1]), float(alive[-1])) if len(alive) else (0.0, 0.0)

    @property
    def whitening(self) -> float:
        """The ratio of the whiskers: 1 if all eigenvalues of the class part below the top agree."""
        high, low = self.whiskers
        return high / low if low > 0 else float("nan")

    @property
    def separation(self) -> float:
        """The mean eigenvalue of the class part over the largest of ``without_class``.

        Infinite where the class means leave nothing but rounding.
        """
        left = float(self.without_class[0])
        above = left > self.rounding * float(self.total[0])
        return float(self.class_part.mean()) / left if above else float("inf")

    @property
    def outliers(self) -> int:
        """How many eigenvalues of ``total`` lie above the :attr:`edge`."""
        return int((self.total > self.edge).sum())


@dataclass(frozen=True)
class WeightStatistics:
    """Singular values of ``W``, of ``η W_class`` and of ``W`` without it (TR 7.13, fig. 13)."""

    total: Tensor
    class_part: Tensor
    without_class: Tensor


@dataclass(frozen=True)
class LayerStatistics:
    """One layer: spectra of its inputs, of its back-propagated errors and of its weights."""

    name: str
    classes: int
    features: MomentStatistics
    errors: MomentStatistics
    weights: WeightStatistics


def layer_statistics(
    problem: Problem, *, layers: str | Iterable[str] | None = None, classes: Any = None
) -> dict[str, LayerStatistics]:
    """Spectra of features, back-propagated errors and weights with their class parts (TR sec. 7).

    With a label at every position of a sample a position is an example of its own. That is defined
    for layers behind which positions do not meet, such as the head of a language model and its
    last norm's neighbors: elsewhere an error belongs to the labels of several positions.

    Cost: one forward pass and ``C`` backward passes without parameter gradients over the data, and
    some eigendecompositions for each layer, ``O(n³ + m³)``. Memory: ``n² + m²`` float64 numbers a
    layer, and the inputs and errors of a few samples.

    Args:
        problem: cross-entropy with class labels, or the logistic loss.
        layers: names of linear or convolution layers (None: all among the variables).
        classes: groups of outputs, as for :func:`class_structure`.

    Raises:
        CurvescopeError: another loss or kind of layer; labels at several positions that meet.

    >>> from torch import nn
    >>> model = nn.Linear(2, 2, bias=False).double()
    >>> X = torch.tensor([[3.0, 1.0], [3.0, -1.0], [-3.0, 1.0], [-3.0, -1.0]]).double()
    >>> layer = layer_statistics(Problem(model, (X, torch.tensor([0, 0, 1, 1]))))[""]
    >>> layer.features.total, layer.features.without_class  # means ±3, scatter ±1
    (tensor([9., 1.], dtype=torch.float64), tensor([1., 0.], dtype=torch.float64))
    >>> layer.features.outliers, layer.features.global_mean
    (1, 0.0)
    """
    statistics = {}
    for name, moment in layer_moments(problem, layers=layers, classes=classes).items():
        _checks.all_finite(
            f"layer_statistics, layer {name!r}", moment.second_features, moment.second_errors
        )
        W = matrix_layer(problem.model, name).matrix.detach().double()
        statistics[name] = LayerStatistics(
            name,
            moment.classes,
            _features(moment),
            _errors(moment),
            _weights(W, *moment.weight_factors()),
        )
    return statistics


# Statistics from moments ------------------------------------------------------------------------


def _features(moments: LayerMoments) -> MomentStatistics:
    shares, means = moments.class_shares, moments.feature_means
    rows = shares.sqrt()[:, None] * means
    none = rows[:0]
    center = shares @ means
    size = float(center.square().sum())
    return _statistics(moments.second_features, rows, none, none, size, moments.rounding)


def _errors(moments: LayerMoments) -> MomentStatistics:
    """The rows ``√w_c δ_c``, ``√w_{cc'} (δ_{cc'} − δ_c)`` and ``√w_{cc} δ_{cc}``."""
    logs, means, C = moments.log_weights, moments.error_means, moments.classes
    eye = torch.eye(C, dtype=torch.bool, device=means.device)
    others = logs.masked_fill(eye, -torch.inf)
    log_c = torch.logsumexp(others, 1)
    shares = torch.softmax(others, 1).nan_to_num(0.0)
    class_means = torch.einsum("cd,cdm->cm", shares, means)
    deviations = (means - class_means[:, None])[~eye]
    center = torch.softmax(log_c, 0) @ class_means
    return _statistics(
        moments.second_errors,
        torch.exp(0.5 * log_c)[:, None] * class_means,
        torch.exp(0.5 * logs[~eye])[:, None] * deviations,
        torch.exp(0.5 * logs.diagonal())[:, None] * means.diagonal(dim1=0, dim2=1).T,
        float(log_c.exp().sum() * center.square().sum()),
        moments.rounding,
    )


def _statistics(
    total: Tensor,
    class_part: Tensor,
    cross: Tensor,
    diagonal: Tensor,
    center: float,
    rounding: float,
) -> MomentStatistics:
    """Spectra of ``total`` and of its parts ``Σ r rᵀ``, each given by rows ``r``."""
    both = torch.cat([class_part, cross])
    between = torch.cat([both, diagonal])
    return MomentStatistics(
        total=_spectrum(total),
        class_part=_of_rows(class_part),
        class_and_cross=_of_rows(both),
        diagonal=_of_rows(diagonal),
        within=_spectrum(total - between.T @ between),
        without_class=_spectrum(_without(total, class_part)),
        without_cross=_spectrum(_without(total, both)),
        global_mean=center,
        rounding=rounding,
    )


def _spectrum(matrix: Tensor) -> Tensor:
    """Eigenvalues of a positive semi-definite matrix, descending; rounding below 0 is 0."""
    values: Tensor = torch.linalg.eigvalsh((matrix + matrix.T) / 2)
    return values.flip(0).clamp(min=0).cpu()


def _of_rows(rows: Tensor) -> Tensor:
    values: Tensor = torch.linalg.svdvals(rows.cpu())  # a few rows: no work for a GPU
    return values.square()


def _span(rows: Tensor) -> Tensor:
    """An orthonormal basis of the span of rows: ``[d, r]``."""
    _, s, vh = torch.linalg.svd(rows.cpu(), full_matrices=False)
    return vh[s > max(rows.shape) * _EPS * s[:1]].T.to(rows.device)


def _singular_values(M: Tensor) -> Tensor:
    """Descending, on the host."""
    values: Tensor = torch.linalg.svdvals(M) if M.device.type == "cpu" else by_eigenvalues(M)
    return values.cpu()


def by_eigenvalues(M: Tensor) -> Tensor:
    """The singular values of ``M`` as the eigenvalues of ``[[0, M], [Mᵀ, 0]]``, descending.

    A GPU takes seconds for the singular values of two thousand rows, a tenth of one for symmetric
    eigenvalues; the absolute error is the same, ``eps ‖M‖``.

    >>> by_eigenvalues(torch.tensor([[0.0, 3.0], [-4.0, 0.0], [0.0, 0.0]]))
    tensor([4., 3.])
    """
    m, n = M.shape
    both = M.new_zeros(m + n, m + n)
    both[:m, m:], both[m:, :m] = M, M.T
    values: Tensor = torch.linalg.eigvalsh(both)
    return values.flip(0)[: min(m, n)].clamp(min=0)


def _without(total: Tensor, rows: Tensor) -> Tensor:
    """``total ⫽ Σ r rᵀ`` (TR def. 3.2)."""
    Q = _span(rows)
    left = total - Q @ (Q.T @ total)
    return left - (left @ Q) @ Q.T


def _weights(W: Tensor, errors: Tensor, features: Tensor) -> WeightStatistics:
    """TR def. 3.2 for a rectangular matrix: both singular spaces of ``W_class`` are removed.

    ``W_class`` is given as a product of ``[m, C]`` and ``[C, n]``, whose decomposition is that of
    a matrix of at most ``C`` rows.
    """
    Q, R = torch.linalg.qr(errors)
    P, S = torch.linalg.qr(features.T)
    u, s, vh = torch.linalg.svd((R @ S.T).cpu(), full_matrices=False)
    nonzero = s > max(W.shape) * _EPS * s[:1]
    left, right = Q @ u[:, nonzero].to(W.device), P @ vh[nonzero].T.to(W.device)
    rest = W - left @ (left.T @ W)
    rest = rest - (rest @ right) @ right.T
    class_values = torch.cat([s, s.new_zeros(min(W.shape) - len(s))])
    return WeightStatistics(_singular_values(W), class_values, _singular_values(rest))
