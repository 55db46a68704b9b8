"""Multinomial logistic regression on the canonical classification model: closed forms (TR sec. 8).

The model ``CCM(D, C)`` draws ``x = t e_c + z`` with ``z ~ N(0, I_D)`` for each class ``c`` (TR def.
8.1). With symmetric probabilities (def. 8.2), ``1 − α`` for the right class and ``α / (C − 1)`` for
each other, the Fisher information matrix of ``W ↦ softmax(W x)`` has a known expectation (lemma
8.1) and a known spectrum (theorem 8.1): ``C`` outliers, a mini-bulk, a bulk and zeros.

Matrices here are indexed as in the paper, by ``vec(W)`` with the columns of ``W: [C, D]`` stacked.

References:
    TR: Papyan (2020), *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra*.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from curvescope import _checks, _random
from curvescope.errors import CurvescopeError

_REACH = 12.0  # standard deviations over which the error is integrated
_NODES = 961  # of the trapezoidal rule, which is exact to rounding for a Gaussian times a smooth f
RATIOS = {"outliers to bulk": (0, 2), "mini-bulk to bulk": (1, 2), "outliers to mini-bulk": (0, 1)}
"""The three ratios of TR sec. 8.2, as places in :class:`ExpectedSpectrum`."""


@dataclass(frozen=True)
class CanonicalModel:
    """``CCM(D, C)`` at the signal-to-noise ratio ``t`` (TR def. 8.1); ``s = t²``.

    The class means ``t e_c`` are orthogonal, so there must be at least as many features as classes.

    >>> CanonicalModel(features=5, classes=3, signal=2.0).power
    4.0
    """

    features: int
    classes: int
    signal: float

    def __post_init__(self) -> None:
        where = "CanonicalModel"
        _checks.positive_int(where, "features", self.features)
        _checks.positive_int(where, "classes", self.classes, minimum=2)
        _checks.finite_float(where, "signal", self.signal, minimum=0.0)
        if self.features < self.classes:
            rule = f"{self.classes} orthogonal class means need at least as many features"
            raise CurvescopeError(where, rule, given=self.features)

    @property
    def power(self) -> float:
        """``s = t²``."""
        return self.signal**2

    def sample(self, per_class: int, *, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """``per_class`` points of each class: ``X: [C·n, D]`` in float64 and labels ``[C·n]``."""
        n = _checks.positive_int("CanonicalModel.sample", "per_class", per_class)
        _checks.generator("CanonicalModel.sample", generator)
        y = torch.arange(self.classes).repeat_interleave(n)
        X = _random.gaussian((len(y), self.features), generator, torch.float64, torch.device("cpu"))
        X[torch.arange(len(y)), y] += self.signal
        return X, y

    def bayes_probabilities(self, X: Tensor) -> Tensor:
        """The posterior ``softmax(t x_1, …, t x_C)``: what the best ``W = t [I_C, 0]`` predicts."""
        return torch.softmax(self.signal * X[:, : self.classes], 1)

    def bayes_error(self) -> float:
        """How often the best classifier is wrong, ``1 − ∫ φ(u) Φ(t + u)^{C−1} du``.

        It chooses the largest of the first ``C`` features; the integral is that of ``C − 1``
        independent normal numbers staying below ``t + u``.

        >>> round(CanonicalModel(2, 2, signal=0.0).bayes_error(), 12)
        0.5
        """
        u = torch.linspace(-_REACH, _REACH, _NODES, dtype=torch.float64)
        mass = torch.exp(-u.square() / 2)
        # 1 − Φ^{C−1}, so that a small error is not a difference of ones
        wrong = -torch.expm1(torch.special.log_ndtr(u + self.signal) * (self.classes - 1))
        return float((mass * wrong).sum() / mass.sum())


@dataclass(frozen=True)
class ExpectedSpectrum:
    """Distinct eigenvalues of ``E G``, best first, each with how often it occurs.

    ``names`` are ``"outliers"``, ``"mini-bulk"``, ``"bulk"`` and ``"zero"``.
    """

    names: tuple[str, str, str, str]
    values: Tensor  # [4], float64
    multiplicities: tuple[int, int, int, int]

    @property
    def outliers_to_bulk(self) -> float:
        """``λ_outlier / λ_bulk``, the predictor of misclassification (TR sec. 8.2)."""
        return float(self.values[0] / self.values[2])

    @property
    def minibulk_to_bulk(self) -> float:
        """``λ_mini-bulk / λ_bulk``."""
        return float(self.values[1] / self.values[2])

    @property
    def outliers_to_minibulk(self) -> float:
        """``λ_outlier / λ_mini-bulk``, which a larger signal also raises (TR sec. 8.2)."""
        return float(self.values[0] / self.values[1])

    def all(self) -> Tensor:
        """Every eigenvalue, descending: ``[D·C]``."""
        return self.values.repeat_interleave(torch.tensor(self.multiplicities))


def symmetric_probabilities(classes: int, alpha: float) -> Tensor:
    """``P[c, c']``: ``1 − α`` on the diagonal, ``α / (C − 1)`` off it (TR def. 8.2).

    >>> symmetric_probabilities(3, 0.5)[0]
    tensor([0.5000, 0.2500, 0.2500], dtype=torch.float64)
    """
    where = "symmetric_probabilities"
    _checks.positive_int(where, "classes", classes, minimum=2)
    alpha = _checks.finite_float(where, "alpha", alpha, minimum=0.0)
    if alpha > 1 - 1 / classes:
        rule = f"`alpha` must be at most 1 − 1/C = {1 - 1 / classes:.4g}, the rate of guessing"
        raise CurvescopeError(where, rule, given=repr(alpha))
    P = torch.full((classes, classes), alpha / (classes - 1), dtype=torch.float64)
    return P.fill_diagonal_(1 - alpha)


def output_hessians(probabilities: Tensor) -> Tensor:
    """``U = diag(p) − p pᵀ`` of each row of ``[…, C]``: ``[…, C, C]``.

    The diagonal is taken as ``p_c Σ_{c'≠c} p_c'``, which stays exact where ``p_c`` is nearly one.
    """
    C = probabilities.shape[-1]
    U = -probabilities[..., :, None] * probabilities[..., None, :]
    others = probabilities @ (1 - torch.eye(C, dtype=U.dtype, device=U.device))
    U.diagonal(dim1=-2, dim2=-1).copy_(probabilities * others)
    return U


def expected_fim(model: CanonicalModel, alpha: float) -> Tensor:
    """``E G = (s/C) blkdiag(U_1, …, U_C, 0) + I ⊗ Ū`` as a dense matrix (TR lemma 8.1).

    Args:
        model: the canonical model; only its sizes and ``s`` enter.
        alpha: the error of the symmetric probabilities, from 0 to ``1 − 1/C``.

    >>> expected_fim(CanonicalModel(2, 2, signal=2.0), alpha=0.5)[0]
    tensor([ 0.7500, -0.7500,  0.0000,  0.0000], dtype=torch.float64)
    """
    C, D = model.classes, model.features
    U = output_hessians(symmetric_probabilities(C, alpha))
    blocks = U.mean(0).expand(D, C, C).clone()
    blocks[:C] += model.power / C * U
    return torch.block_diag(*blocks)


def expected_spectrum(model: CanonicalModel, alpha: float) -> ExpectedSpectrum:
    """The spectrum of ``E G`` in closed form (TR theorem 8.1).

    With ``q = 2 − α C/(C−1)`` and the common factor ``α/(C−1)``: ``C`` outliers ``s(1−α) + q``,
    ``C(C−2)`` times ``s/C + q``, ``(D−C)(C−1)`` times ``q``, and ``D`` zeros.

    >>> spectrum = expected_spectrum(CanonicalModel(4, 3, signal=3.0), alpha=0.5)
    >>> spectrum.values, spectrum.multiplicities
    (tensor([1.4375, 1.0625, 0.3125, 0.0000], dtype=torch.float64), (3, 3, 2, 4))
    """
    C, D, s = model.classes, model.features, model.power
    symmetric_probabilities(C, alpha)
    q = 2 - alpha * C / (C - 1)
    values = torch.tensor([s * (1 - alpha) + q, s / C + q, q, 0.0], dtype=torch.float64)
    return ExpectedSpectrum(
        ("outliers", "mini-bulk", "bulk", "zero"),
        values * alpha / (C - 1),
        (C, C * (C - 2), (D - C) * (C - 1), D),
    )


def sampled_fim(X: Tensor, probabilities: Tensor) -> Tensor:
    """``G = Ave_i (x_i x_iᵀ) ⊗ U_i`` for given predictions ``[N, C]`` (TR sec. 8.1).

    Cost: ``N (D C)²`` work and ``(D C)²`` numbers.

    Args:
        X: points ``[N, D]``.
        probabilities: of each point, ``[N, C]``; ``symmetric_probabilities(C, α)[y]`` for the
            assumption of the theorem, ``model.bayes_probabilities(X)`` for the true ones.

    >>> sampled_fim(torch.tensor([[2.0]]), torch.tensor([[0.5, 0.5]])).round(decimals=5)
    tensor([[ 1., -1.],
            [-1.,  1.]])
    """
    if X.ndim != 2 or probabilities.ndim != 2 or len(X) != len(probabilities):
        rule = "needs points [N, D] and probabilities [N, C]"
        raise CurvescopeError(
            "sampled_fim", rule, given=f"{list(X.shape)} and {list(probabilities.shape)}"
        )
    D, C = X.shape[1], probabilities.shape[1]
    root = torch.eye(C, dtype=X.dtype) - probabilities[:, :, None]
    root = root * probabilities.sqrt()[:, None, :]  # U = root rootᵀ
    G = X.new_zeros(D * C, D * C)
    for x, u in zip(X.split(4096), root.split(4096), strict=True):
        rows = torch.einsum("nd,nck->nkdc", x, u).reshape(-1, D * C)
        G += rows.T @ rows
    return G / len(X)


@dataclass(frozen=True)
class MisclassificationStudy:
    """Errors and spectra of the best classifier over signals; all fields ``[len(signals)]``.

    ``errors`` are exact, ``alpha`` the mean probability that the classifier gives to wrong classes,
    ``predicted`` the ``ratio`` of theorem 8.1 at that ``alpha``, ``measured`` that of the sampled
    Fisher matrix: the mean of its eigenvalues at the places of one part over that at another's.
    """

    classes: int
    features: int
    signals: Tensor
    errors: Tensor
    alpha: Tensor
    predicted: Tensor
    measured: Tensor
    ratio: str = "outliers to bulk"

    @property
    def monotone(self) -> bool:
        """Whether a larger measured ratio always goes with a smaller error."""
        order = self.measured.argsort()
        return bool((self.errors[order].diff() < 0).all())


def misclassification_study(
    features: int,
    classes: int,
    *,
    signals: Tensor,
    per_class: int,
    generator: torch.Generator,
    ratio: str = "outliers to bulk",
) -> MisclassificationStudy:
    """Whether a ratio of parts of the spectrum predicts misclassification (TR sec. 8.2).

    For each signal ``t`` the best linear classifier ``W = t [I, 0]`` is taken; its probabilities
    are not symmetric as the theorem assumes, so that ``measured`` and ``predicted`` differ. The
    paper names all three of :data:`RATIOS` as predictive.

    Cost: for each signal ``C · per_class`` samples and the eigenvalues of a ``D·C`` matrix.

    >>> study = misclassification_study(
    ...     6, 3, signals=torch.tensor([1.0, 3.0]), per_class=500,
    ...     generator=torch.Generator().manual_seed(0))
    >>> study.monotone
    True
    """
    above, below = RATIOS[_checks.one_of("misclassification_study", "ratio", ratio, RATIOS)]
    rows = []
    for signal in torch.as_tensor(signals, dtype=torch.float64).tolist():
        model = CanonicalModel(features, classes, signal)
        X, y = model.sample(per_class, generator=generator)
        P = model.bayes_probabilities(X)
        alpha = float(1 - P[torch.arange(len(y)), y].mean())
        expected = expected_spectrum(model, min(alpha, 1 - 1 / classes))
        if min(expected.multiplicities[place] for place in (above, below)) == 0:
            raise CurvescopeError(
                "misclassification_study",
                "a bulk needs more features than classes, a mini-bulk more than two classes",
                given=f"{features} features and {classes} classes",
            )
        parts = torch.linalg.eigvalsh(sampled_fim(X, P)).flip(0).split(expected.multiplicities)
        measured_ratio = float(parts[above].mean() / parts[below].mean())
        expected_ratio = float(expected.values[above] / expected.values[below])
        rows.append((model.bayes_error(), alpha, expected_ratio, measured_ratio))
    errors, alphas, predicted, measured = torch.tensor(rows, dtype=torch.float64).T
    places = torch.as_tensor(signals).double()
    return MisclassificationStudy(
        classes, features, places, errors, alphas, predicted, measured, ratio
    )
