"""One layer's Hessian beside its Kronecker product, in all the ways of DH sec. 4 and 5.

References:
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from curvescope import _checks
from curvescope._checks import AnyFloat
from curvescope.errors import CurvescopeError
from curvescope.spectra.eigensolver import EigenPairs
from curvescope.structure.autocorrelation import autocorrelation_structure
from curvescope.structure.correspondences import correspondence, singular_structure
from curvescope.structure.factors import KroneckerFactors
from curvescope.structure.overlaps import compare_eigenpairs


@dataclass(frozen=True)
class LayerComparison:
    """The top of one layer's Hessian beside that of ``E[M] ⊗ E[x xᵀ]``.

    ``correspondences`` are those of both kinds of eigenvectors with both factors (DH def. 4.3), a
    row for each eigenvector of the factor: ``"true input"``, ``"approximate output"`` and so on.
    """

    name: str
    outputs: int  # m
    inputs: int  # n
    alignment: AnyFloat  # (v₁ᵀ Ê[x])²
    spectral_ratio: AnyFloat  # λ₁/λ₂ of E[xxᵀ]
    dominance: AnyFloat  # ‖E[x]E[x]ᵀ‖/‖Σ_x‖
    true: Tensor  # [k] eigenvalues
    approximate: Tensor  # [k]
    overlap: Tensor  # [k]
    ratio: Tensor  # [k], ‖Mat(h)‖/‖Mat(h)‖_F
    singular_values: Tensor  # [k, r], the largest of each Mat(h)
    output_eigenvalues: Tensor  # [m], of E[M]
    input_eigenvalues: Tensor  # [n], of E[xxᵀ]
    correspondences: dict[str, Tensor]  # [rows, k] each
    products: int
    sharing: str = "expand"  # how positions share the weight in the product
    draws: int | None = None  # labels drawn at each output for E[M]; None: none


def compare_layer(
    factors: KroneckerFactors, pairs: EigenPairs, *, rows: int = 40
) -> LayerComparison:
    """Eigenvalues, eigenspaces, rank and correspondence of a layer's top eigenvectors.

    Everything is on the CPU. No product is made: the cost is that of the factors' eigenpairs.

    Args:
        factors: of the layer, from :func:`kronecker_factors` without the bias.
        pairs: of its weight's block, by :func:`layer_eigenpairs` or :func:`curvescope.eigenpairs`.
        rows: how many eigenvectors of each factor the correspondences have.

    >>> import torch
    >>> from curvescope.spectra.eigensolver import eigenpairs
    >>> M, A = torch.diag(torch.tensor([2.0, 1.0])), torch.diag(torch.tensor([9.0, 1.0]))
    >>> factors = KroneckerFactors("fc", M, A, torch.tensor([1.0, 0.0]), bias=False)
    >>> pairs = eigenpairs(factors.operator(), 2, generator=torch.Generator().manual_seed(0))
    >>> compared = compare_layer(factors, pairs)
    >>> compared.approximate, compared.overlap.round(decimals=4)
    (tensor([18.,  9.], dtype=torch.float64), tensor([1., 1.], dtype=torch.float64))
    >>> compared.correspondences["true input"][0].round(decimals=4)  # both on E[xxᵀ]'s first
    tensor([1., 1.])
    """
    rows = _checks.positive_int("compare_layer", "rows", rows)
    if factors.bias:
        rule = "needs factors without the bias, use `bias=False`"
        raise CurvescopeError("compare_layer(factors)", rule)
    m, n = len(factors.output_hessian), len(factors.autocorrelation)
    if len(pairs.vectors) != m * n:
        rule = f"needs eigenvectors of the layer's weight, of {m * n} entries"
        raise CurvescopeError("compare_layer(pairs)", rule, given=len(pairs.vectors))
    guess = factors.operator().top(len(pairs.values))
    compared = compare_eigenpairs(pairs, guess)
    structure = autocorrelation_structure(factors)
    vectors = {
        "true": factors.by_outputs(pairs.vectors),
        "approximate": factors.by_outputs(guess.vectors),
    }
    singular = singular_structure(vectors["true"], m)
    return LayerComparison(
        name=factors.name,
        outputs=m,
        inputs=n,
        alignment=structure.alignment,
        spectral_ratio=structure.spectral_ratio,
        dominance=structure.dominance,
        true=compared.true.cpu().double(),
        approximate=compared.approximate.cpu().double(),
        overlap=compared.overlap.cpu().double(),
        ratio=singular.ratio.cpu().double(),
        singular_values=singular.values.cpu().double(),
        output_eigenvalues=factors.eigen("output").values.cpu(),
        input_eigenvalues=structure.eigenvalues.cpu().double(),
        correspondences=_correspondences(factors, vectors, rows),
        products=pairs.products,
        sharing=factors.sharing,
        draws=factors.draws,
    )


def _correspondences(
    factors: KroneckerFactors, vectors: dict[str, Tensor], rows: int
) -> dict[str, Tensor]:
    patterns = {}
    for side in ("input", "output"):
        basis = factors.eigen(side).first(rows).to(factors.output_hessian)
        for name, columns in vectors.items():
            pattern = correspondence(columns, basis, side=side).matrix
            patterns[f"{name} {side}"] = pattern.cpu().float()
    return patterns
