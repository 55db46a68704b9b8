"""KFAC and CFAC of every layer beside the exact Gauss–Newton block (TR 7.10–7.12).

The block of a layer's weight is ``G^l = Σ w_{icc'} (δ δᵀ) ⊗ (h hᵀ)`` with the layer's input ``h``,
on the row-major weight ``[m, n]``. Two approximations treat errors and inputs as independent,

    KFAC   Δ ⊗ H                     over all examples       (TR def. 7.1)
    CFAC   Σ_c (n_c/N) Δ_c ⊗ H_c     within each class       (TR def. 7.2)

where ``H_c`` averages over the examples of class ``c`` and ``Δ_c`` is the layer's mean output
Hessian over them (TR's weights include the ``1/N`` that stands before the sum here). CFAC is exact
when the features do not vary within a class, KFAC when they do not vary at all.

References:
    TR: Papyan (2020), *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra*.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from curvescope._checks import AnyFloat
from curvescope._state import full_precision
from curvescope.layers import LayerKind, as_matrix
from curvescope.operators.algebra import Sum
from curvescope.operators.base import LinearOperator
from curvescope.operators.gauss_newton import GaussNewton
from curvescope.operators.kronecker import KroneckerOperator
from curvescope.problem import Problem
from curvescope.record.layers import record_layers
from curvescope.record.outputs import LossHessian
from curvescope.record.roots import root
from curvescope.record.samples import pieces
from curvescope.record.selection import linear_layers, matrix_layer
from curvescope.spectra.eigensolver import eigenpairs
from curvescope.spectra.exact import ExactSpectrum, exact_spectrum, log_distance
from curvescope.spectra.measure import SpectralMeasure, spectral_measure
from curvescope.structure.classes import class_structure
from curvescope.structure.factors import KroneckerFactors, kronecker_factors
from curvescope.structure.moments import LayerMoments, layer_moments

Spectrum = ExactSpectrum | SpectralMeasure
_PIECE = 64  # samples recorded at a time for inner products


def cfac(
    problem: Problem, *, layers: str | Iterable[str] | None = None
) -> dict[str, LinearOperator]:
    """``Σ_c (n_c/N) Δ_c ⊗ H_c`` of linear and convolution layers, as operators (TR def. 7.2).

    Cost: that of :func:`curvescope.structure.factors.kronecker_factors` with ``by_class=True``; a
    product costs ``C`` Kronecker products.

    >>> from torch import nn
    >>> model = nn.Linear(1, 2, bias=False).double()
    >>> with torch.no_grad():
    ...     _ = model.weight.zero_()
    >>> X, y = torch.tensor([[1.0], [1.0], [3.0]]).double(), torch.tensor([0, 0, 1])
    >>> problem = Problem(model, (X, y))
    >>> cfac(problem)[""].dense() - GaussNewton(problem).dense()  # inputs vary only between classes
    tensor([[0., 0.],
            [0., 0.]], dtype=torch.float64)
    """
    factors = kronecker_factors(problem, layers=layers, by_class=True)
    return {name: _sum(each) for name, each in factors.items()}


def _sum(factors: KroneckerFactors) -> LinearOperator:
    return Sum([(c.share, c.operator()) for c in factors.classes if c.share > 0])


@dataclass(frozen=True)
class Misalignment:
    """How far an approximation is from ``G^l``.

    ``distance`` is the Wasserstein distance of the two spectra of ``log(λ + eps)``, ``outliers``
    the mean ``|log λ_i − log λ̂_i|`` over the ``C`` largest, ``frobenius`` the relative error
    ``‖G^l − Ĝ‖_F / ‖G^l‖_F``.
    """

    distance: AnyFloat
    outliers: AnyFloat
    frobenius: AnyFloat


@dataclass(frozen=True)
class LayerApproximation:
    """The spectra of one layer's block and its approximations (TR fig. 11, 12), and numbers.

    ``class_cosines[c]`` is that between ``g_c`` and ``δ_c ⊗ h_c``, ``cross_cosines[c, c']`` that
    between ``g_{cc'}`` and ``δ_{cc'} ⊗ h_c`` (TR 7.12); NaN for a class without examples.
    """

    name: str
    classes: int
    exact: Spectrum
    kfac: Spectrum
    cfac: Spectrum
    kfac_error: Misalignment
    cfac_error: Misalignment
    class_cosines: Tensor  # [C]
    cross_cosines: Tensor  # [C, C]


def layer_approximations(
    problem: Problem,
    *,
    generator: torch.Generator,
    layers: str | Iterable[str] | None = None,
    limit: int = 4096,
    steps: int = 128,
    probes: int = 1,
    eps: float = 1e-5,
    sharing: str = "expand",
) -> dict[str, LayerApproximation]:
    """KFAC and CFAC of every layer against the exact ``G^l``: spectra, errors, cosines.

    A spectrum is exact where the matrix or its Gram form has at most ``limit`` rows (KFAC's always
    is), else from Lanczos with ``steps · probes`` products.

    Args:
        problem: cross-entropy with one label a sample, or the logistic loss.
        generator: the source of Lanczos probes.
        layers: names of linear or convolution layers (None: all among the variables).
        limit: rows up to which spectra are exact.
        steps: Lanczos steps.
        probes: Lanczos probes.
        eps: what is added to eigenvalues before their logarithm is taken.
        sharing: how positions share the weight, as for
            :func:`curvescope.structure.kronecker_factors`.
    """
    names = linear_layers(problem, layers)
    factors = kronecker_factors(problem, layers=names, by_class=True, sharing=sharing)
    moments = layer_moments(problem, layers=names)

    def spectrum(A: LinearOperator) -> Spectrum:
        if isinstance(A, KroneckerOperator):
            return ExactSpectrum(A.eigenvalues().double().flip(0).cpu(), 0, "factors", 0)
        dual = A.dual()
        if min(A.shape[0], A.shape[0] if dual is None else dual.size) <= limit:
            return exact_spectrum(A, limit=limit)
        return spectral_measure(A, steps=steps, probes=probes, generator=generator)

    approximations = {}
    for name in names:
        layer, weight = factors[name], f"{name}.weight" if name else "weight"
        matrices = GaussNewton(problem).block(weight), layer.operator(), _sum(layer)
        spectra = [spectrum(A) for A in matrices]
        C = len(layer.classes)
        pairs = zip(spectra, matrices, strict=True)
        tops = [_largest(s, A, C, generator) for s, A in pairs]
        frobenius = _frobenius(problem, name, spectra[0], layer)
        kfac_error, cfac_error = (
            Misalignment(
                log_distance(spectra[0], spectra[i], eps=eps),
                float((tops[0] / tops[i]).log().abs().mean()),
                frobenius[i - 1],
            )
            for i in (1, 2)
        )
        exact, kfac, by_class = spectra
        approximations[name] = LayerApproximation(
            name, C, exact, kfac, by_class, kfac_error, cfac_error,
            *_cosines(problem.restrict(weight), matrix_layer(problem.model, name), moments[name]),
        )  # fmt: skip
    return approximations


def _largest(spectrum: Spectrum, A: LinearOperator, k: int, generator: torch.Generator) -> Tensor:
    """The ``k`` largest eigenvalues, from an exact spectrum or by search."""
    k = min(k, A.shape[0])
    if isinstance(spectrum, ExactSpectrum):
        values = torch.cat([spectrum.values, spectrum.values.new_zeros(spectrum.zeros and k)])
        return values.sort(descending=True).values[:k].clamp(min=0)
    return eigenpairs(A, k, generator=generator).values.double().cpu()


def _frobenius(
    problem: Problem, name: str, exact: Spectrum, factors: KroneckerFactors
) -> tuple[float, float]:
    """``‖G − A‖_F / ‖G‖_F = √(1 − 2⟨G, A⟩/‖G‖² + ‖A‖²/‖G‖²)`` of KFAC and of CFAC.

    ``⟨G, A ⊗ B⟩`` is the sum of ``rowᵀ (A ⊗ B) row`` over the rows of ``G``.
    """
    square = _square(exact)
    kfac = [(1.0, factors)]
    by_class = [(factor.share, factor) for factor in factors.classes if factor.share > 0]
    inner = _inner_products(problem, name, [factor for _, factor in kfac + by_class])
    errors = []
    for parts, products in ((kfac, inner[:1]), (by_class, inner[1:])):
        shares = torch.tensor([share for share, _ in parts], dtype=torch.float64)
        gram = _gram([factor.output_hessian for _, factor in parts])
        gram = gram * _gram([factor.autocorrelation for _, factor in parts])
        error = square - 2 * float(shares @ products) + float(shares @ gram @ shares)
        errors.append(max(error, 0.0) ** 0.5 / square**0.5)
    return errors[0], errors[1]


def _square(spectrum: Spectrum) -> float:
    """``‖A‖_F²``; estimated where the spectrum is."""
    if isinstance(spectrum, ExactSpectrum):
        return float(spectrum.values.square().sum())
    return spectrum.dimension * spectrum.moment(2).value


def _gram(matrices: list[Tensor]) -> Tensor:
    flat = torch.stack([m.double().flatten() for m in matrices])
    return (flat @ flat.T).cpu()


def _inner_products(problem: Problem, name: str, parts: list[KroneckerFactors]) -> Tensor:
    """``⟨G, A ⊗ B⟩`` for several Kronecker products at once; one pass over the data."""
    total = torch.zeros(len(parts), dtype=torch.float64, device=problem.device)
    terms = 0
    factors = [
        (factor.output_hessian.double(), factor.autocorrelation.double()) for factor in parts
    ]

    def directions(z: Tensor, target: Any) -> Tensor:
        return root(LossHessian(), problem.loss.at(z, target), z, 0)

    for batch in problem.batches():
        for piece in pieces(problem, batch, _PIECE):
            with full_precision(problem.device):
                record = record_layers(problem, piece, name, directions)[name]
            total += quadratic_forms(record.errors.double(), record.inputs.double(), factors)
            terms += len(record.inputs)
    return problem.sum_(total).cpu() / problem.count(terms)


def quadratic_forms(e: Tensor, x: Tensor, factors: list[tuple[Tensor, Tensor]]) -> Tensor:
    """``Σ_bk g_bkᵀ (A ⊗ B) g_bk`` of the rows ``g_bk = Σ_t e_bkt ⊗ x_bt``, for all ``(A, B)``.

    Either the rows are written out, as matrices ``g: [m, n]`` with ``⟨g, A g B⟩``, or each is taken
    as ``Σ_{t,t'} (eₜᵀ A eₜ')(xₜᵀ B xₜ')``. With many positions (the first convolutions) the former
    is less work by orders of magnitude, with few (linear layers, wide kernels) the latter.

    >>> e, x = torch.tensor([[[[2.0]]]]), torch.tensor([[[3.0]]])
    >>> quadratic_forms(e, x, [(torch.tensor([[1.0]]), torch.tensor([[5.0]]))])  # (2·3)² · 5
    tensor([180.])
    """
    K, T, m, n = *e.shape[1:], x.shape[2]
    outright = K * m * n * (T / len(factors) + m + n)
    by_position = K * T * m * (m + T) + T * n * (n + T)
    if outright < by_position:
        g = torch.einsum("bktm,btn->bkmn", e, x)
        forms = [torch.einsum("bkmn,bkmn->", g, A @ g @ B) for A, B in factors]
    else:
        forms = [torch.einsum("bkst,bst->", e @ A @ e.mT, x @ B @ x.mT) for A, B in factors]
    return torch.stack(forms)


def _cosines(problem: Problem, layer: LayerKind, moments: LayerMoments) -> tuple[Tensor, Tensor]:
    structure = class_structure(problem)
    C, h = structure.classes, moments.feature_means  # [C, n]

    def matrices(g: Tensor) -> Tensor:
        return as_matrix(g.double(), layer.matrix_shape[0], transposed=layer.transposed)

    g = matrices(structure.means)
    cross = _cosine(g, moments.error_means, h[:, None])
    eye = torch.eye(C, dtype=torch.bool, device=h.device)
    shares = torch.softmax(moments.log_weights.masked_fill(eye, -torch.inf), 1).nan_to_num(0.0)
    errors = torch.einsum("cd,cdm->cm", shares, moments.error_means)
    of_classes = _cosine(matrices(structure.class_means), errors, h)
    return of_classes.cpu(), cross.cpu()


def _cosine(g: Tensor, delta: Tensor, h: Tensor) -> Tensor:
    """Between ``g: […, m, n]`` and ``δ hᵀ``; NaN where one of them is zero."""
    inner = torch.einsum("...mn,...m,...n->...", g, delta, h.expand(*delta.shape[:-1], -1))
    return inner / (g.flatten(-2).norm(dim=-1) * delta.norm(dim=-1) * h.norm(dim=-1))
