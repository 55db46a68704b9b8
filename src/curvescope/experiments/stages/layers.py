"""One layer: how well a Kronecker product explains its Hessian (DH sec. 4 and 5).

References:
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
"""

from __future__ import annotations

import torch

from curvescope.errors import Inapplicable
from curvescope.experiments.checks import Check
from curvescope.experiments.stages.context import Context
from curvescope.experiments.store import Finding, Outcome
from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem
from curvescope.spectra.eigensolver import eigenpairs
from curvescope.structure.factors import KroneckerFactors, exact_passes, kronecker_factors
from curvescope.structure.layer_comparison import LayerComparison, compare_layer

_PASSES = 1024
"""Backward passes up to which the expectation over labels is exact; beyond, labels are drawn."""
_DRAWS = 16
"""Labels drawn at every output."""


def compute(context: Context, layer: str) -> Outcome[Finding[LayerComparison]]:
    """Compare a layer's Hessian with ``E[M] ⊗ E[x xᵀ]``; where it does not apply, the reason."""
    problem = context.problem
    try:
        generator = context.generator(f"{layer} labels")
        factors = layer_factors(problem, layer, context.settings.sharing, generator)
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
    findings = compare_layer(factors, pairs)
    worst, allowed = float(pairs.residuals.max()), float(pairs.tolerance.max())
    converged = Check(
        f"the {k} eigenpairs of {layer or 'the layer'} have residuals up to {worst:.2g}, "
        f"{allowed:.2g} allowed",
        bool(pairs.converged),
    )
    return Outcome(Finding(layer, findings), (converged, _columns(findings)))


def layer_factors(
    problem: Problem, layer: str, sharing: str, generator: torch.Generator
) -> KroneckerFactors:
    """The factors of one layer: over all labels, or over drawn ones where these are too many."""
    exact = exact_passes(problem) <= _PASSES
    return kronecker_factors(
        problem,
        layers=[layer],
        sharing=sharing,
        draws=None if exact else _DRAWS,
        generator=generator,
    )[layer]


def _columns(findings: LayerComparison) -> Check:
    """No column of a correspondence matrix sums to more than one."""
    most = max(float(each.double().sum(0).max()) for each in findings.correspondences.values())
    return Check(
        f"columns of the correspondence matrices of {findings.name or 'the layer'} sum to at most "
        f"{most:.6f}, 1 allowed",
        most <= 1 + 1e-3,
    )
