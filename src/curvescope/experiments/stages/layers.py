"""One layer: how well a Kronecker product explains its Hessian (DH sec. 4 and 5).

References:
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from curvescope._checks import AnyFloat
from curvescope.errors import Inapplicable
from curvescope.experiments.checks import Check
from curvescope.experiments.stages.context import Context
from curvescope.experiments.store import Finding, Outcome
from curvescope.operators.hessian import Hessian
from curvescope.spectra.eigensolver import eigenpairs
from curvescope.structure.autocorrelation import autocorrelation_structure
from curvescope.structure.correspondences import correspondence, singular_structure
from curvescope.structure.factors import KroneckerFactors, kronecker_factors
from curvescope.structure.overlaps import compare_eigenpairs

_ROWS = 40
"""Eigenvectors of each factor in a correspondence matrix."""


@dataclass(frozen=True)
class LayerFindings:
    """One layer's Hessian beside its Kronecker approximation."""

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
    output_eigenvalues: Tensor  # of E[M]
    correspondences: dict[str, Tensor]  # "true input", "approximate input", … -> [rows, k]
    products: int


def compute(context: Context, layer: str) -> Outcome[Finding[LayerFindings]]:
    """Compare a layer's Hessian with ``E[M] ⊗ E[x xᵀ]``; where it does not apply, the reason."""
    try:
        factors = kronecker_factors(context.problem, layers=[layer])[layer]
    except Inapplicable as error:
        return Outcome(Finding(layer, None, str(error)))
    m, n = len(factors.output_hessian), len(factors.autocorrelation)
    k = min(context.settings.layer_pairs, m * n)
    pairs = eigenpairs(
        Hessian(context.problem).block(f"{layer}.weight" if layer else "weight"),
        k,
        tol=context.settings.tolerance,
        generator=context.generator(f"{layer} pairs"),
        **context.control("pairs"),
    )
    guess = factors.operator().top(k)
    compared = compare_eigenpairs(pairs, guess)
    structure = autocorrelation_structure(factors)
    vectors = {
        "true": factors.by_outputs(pairs.vectors),
        "approximate": factors.by_outputs(guess.vectors),
    }
    findings = LayerFindings(
        name=layer,
        outputs=m,
        inputs=n,
        alignment=structure.alignment,
        spectral_ratio=structure.spectral_ratio,
        dominance=structure.dominance,
        true=compared.true.cpu().double(),
        approximate=compared.approximate.cpu().double(),
        overlap=compared.overlap.cpu().double(),
        ratio=singular_structure(vectors["true"], m).ratio.cpu().double(),
        output_eigenvalues=torch.linalg.eigvalsh(factors.output_hessian.double()).flip(0).cpu(),
        correspondences=_correspondences(factors, vectors),
        products=pairs.products,
    )
    worst, allowed = float(pairs.residuals.max()), float(pairs.tolerance.max())
    converged = Check(
        f"the {k} eigenpairs of {layer or 'the layer'} have residuals up to {worst:.2g}, "
        f"{allowed:.2g} allowed",
        bool(pairs.converged),
    )
    return Outcome(Finding(layer, findings), (converged, _columns(findings)))


def _correspondences(factors: KroneckerFactors, vectors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Correspondence matrices of both kinds of eigenvectors with both factors (DH def. 4.3)."""
    patterns = {}
    for side, matrix in (
        ("input", factors.autocorrelation),
        ("output", factors.output_hessian),
    ):
        basis = torch.linalg.eigh(matrix.double())[1].flip(1)[:, :_ROWS].to(matrix.dtype)
        for name, columns in vectors.items():
            pattern = correspondence(columns, basis, side=side).matrix
            patterns[f"{name} {side}"] = pattern.cpu().float()
    return patterns


def _columns(findings: LayerFindings) -> Check:
    """No column of a correspondence matrix sums to more than one."""
    most = max(float(each.double().sum(0).max()) for each in findings.correspondences.values())
    return Check(
        f"columns of the correspondence matrices of {findings.name or 'the layer'} sum to at most "
        f"{most:.6f}, 1 allowed",
        most <= 1 + 1e-3,
    )
