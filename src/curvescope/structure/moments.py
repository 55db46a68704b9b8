"""Second moments of a layer's features and errors, with the means of all classes (TR 7.4, 7.7).

References:
    TR: Papyan (2020), *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra*.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from curvescope.problem.losses import Classes
from curvescope.record.extended import merge
from curvescope.record.layers import LayerRecord


class LayerMoments:
    """Running moments of one layer with ``n`` inputs, ``m`` outputs and ``T`` positions, float64.

    Replications are (sample, position) pairs. Features weigh ``1/(N T)``; ``second_features``
    is ``H``. The error ``δ_{icc't}`` weighs ``w_{icc'}``, so that ``second_errors`` is ``Δ`` with
    positions summed. Weights are carried as logarithms (:func:`merge`).
    """

    def __init__(self, record: LayerRecord, classes: int) -> None:
        _, T, n = record.inputs.shape
        m = record.errors.shape[3]
        device = record.inputs.device

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.float64, device=device)

        self.classes, self.positions = classes, T
        self._eps = torch.finfo(record.errors.dtype).eps
        self.counts = zeros(classes)
        self._features, self._feature_sums = zeros(n, n), zeros(classes, n)
        self._errors, self._label_sums = zeros(m, m), zeros(classes, m)
        self.error_means = zeros(classes, classes, m)  # δ_{cc'}
        self._logs = torch.full_like(zeros(classes, classes), -torch.inf)

    def add(self, record: LayerRecord, e: Classes) -> None:
        """Add a batch, recorded with the directions ``∂ℓ(z, y_c')/∂z`` in the order of classes."""
        X, E = record.inputs.double(), record.errors.double()  # [B, T, n], [B, C, T, m]
        member = torch.nn.functional.one_hot(e.labels.clamp(min=0), self.classes).double()
        member = member * (e.labels >= 0)[:, None]
        counted = member.sum(1)
        flat = (X * counted[:, None, None]).flatten(0, 1)
        self._features.addmm_(flat.T, X.flatten(0, 1))
        self.counts += member.sum(0)
        self._feature_sums += member.T @ X.mean(1)
        rooted = (E * torch.exp(0.5 * e.log_p)[..., None, None]).flatten(0, 2)
        self._errors.addmm_(rooted.T, rooted)
        middle = E.mean(2)  # over positions: [B, C, m]
        at_label = middle[torch.arange(len(X), device=X.device), e.labels.clamp(min=0)]
        self._label_sums += member.T @ at_label
        logs = e.log_p[:, None].masked_fill(member[..., None] == 0, -torch.inf)  # [B, c, c']
        batch = torch.logsumexp(logs, 0)
        shares = torch.exp(logs - batch).nan_to_num(0.0)
        self._logs, keep, new = merge(self._logs, batch)
        means = torch.einsum("bcd,bdm->cdm", shares, middle)
        self.error_means = keep[..., None] * self.error_means + new[..., None] * means

    @property
    def rounding(self) -> float:
        """The eigenvalue that rounding may leave, over the largest one.

        Moments are sums in float64; features and errors have the relative error of their own type,
        some tens of its ``eps`` after the layers they came through, whose square enters.
        """
        return max(1000 * torch.finfo(torch.float64).eps, (32 * self._eps) ** 2)

    # Features -----------------------------------------------------------------------------------

    @property
    def _total(self) -> Tensor:
        return self.counts.sum()

    @property
    def second_features(self) -> Tensor:
        """``H: [n, n]``."""
        return self._features / (self._total * self.positions)

    @property
    def feature_means(self) -> Tensor:
        """``h_c: [C, n]``; 0 for a class without examples."""
        return self._feature_sums / self.counts.clamp(min=1)[:, None]

    @property
    def class_shares(self) -> Tensor:
        """``n_c / N: [C]``, the weights of the feature means."""
        return self.counts / self._total

    # Errors -------------------------------------------------------------------------------------

    @property
    def second_errors(self) -> Tensor:
        """``Δ: [m, m]``."""
        return self._errors / self._total

    @property
    def log_weights(self) -> Tensor:
        """``log(T w_{cc'}): [C, C]``, of the cross-class means of the errors."""
        return self._logs - self._total.log() + math.log(self.positions)

    @property
    def label_errors(self) -> Tensor:
        """``δ̄_cc: [C, m]``: the mean error at the true label over class ``c`` and positions."""
        return self._label_sums / self.counts.clamp(min=1)[:, None]

    def weight_class(self) -> Tensor:
        """``η W_class = −Σ_c (n_c/N) (Σ_t δ̄_cc) h_cᵀ: [m, n]`` (TR 7.13)."""
        left, right = self.weight_factors()
        return left @ right

    def weight_factors(self) -> tuple[Tensor, Tensor]:
        """The same as a product ``[m, C] [C, n]``: its rank is at most ``C``."""
        weighted = self.class_shares[:, None] * self.label_errors * self.positions
        return -weighted.T, self.feature_means
