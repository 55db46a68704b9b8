"""Estimators, factors, class structure and measures of data on several ranks: as in one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import curvescope as cs
from curvescope import flatness, structure
from curvescope.operators.gauss_newton import GaussNewton
from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem
from curvescope.structure.clustering import logit_means
from curvescope.structure.full_hessian import full_output_hessian
from curvescope.structure.grouping import frequent_classes
from tests.ranks.processes import on_ranks
from tests.ranks.shards import Comparison, agreeing

pytestmark = pytest.mark.ranks


def _seed() -> torch.Generator:
    return torch.Generator().manual_seed(5)


ESTIMATES: dict[str, Callable[[Problem], Any]] = {
    "trace": lambda p: cs.trace(Hessian(p), probes=4, generator=_seed()),
    "diagonal": lambda p: cs.diagonal(Hessian(p), probes=4, generator=_seed()),
    "frobenius": lambda p: cs.frobenius(GaussNewton(p), probes=4, generator=_seed()),
    "eigenvalues": lambda p: cs.eigenpairs(Hessian(p), 3, generator=_seed()).values,
    "spectrum": lambda p: cs.spectral_measure(Hessian(p), steps=12, probes=2, generator=_seed()),
    "kpm": lambda p: cs.kpm(Hessian(p), degree=12, probes=2, generator=_seed()),
    "logdet": lambda p: cs.logdet(
        GaussNewton(p), damping=0.1, steps=12, probes=2, generator=_seed()
    ),
    "exact": lambda p: cs.exact_spectrum(GaussNewton(p)).values,
    "scores": flatness.scores,
    "sharpness": lambda p: flatness.sharpness(p, generator=_seed(), probes=2),
    "factors": lambda p: cs.kronecker_factors(p),
    "drawn factors": lambda p: cs.kronecker_factors(p, draws=2, generator=_seed()),
}
OF_CLASSES: dict[str, Callable[[Problem], Any]] = {
    "factors by class": lambda p: cs.kronecker_factors(p, by_class=True, bias=True),
    "class structure": cs.class_structure,
    "layer statistics": cs.layer_statistics,
    "frequent classes": lambda p: frequent_classes(p, 2),
}
OF_LINEAR_LAYERS: dict[str, Callable[[Problem], Any]] = {
    "network KFAC": structure.network_kfac,
    "network CFAC": structure.network_cfac,
    "full output Hessian": full_output_hessian,
    "logit means": lambda p: logit_means(p, "fc1"),
    "approximations": lambda p: structure.layer_approximations(p, generator=_seed(), eps=0.1),
    "subsampling": lambda p: flatness.subsampling_study(p, sizes=[3], generator=_seed()),
}
CHECKS = {
    "cross_entropy": {**ESTIMATES, **OF_CLASSES, **OF_LINEAR_LAYERS},
    "conv-stride-padding": {"spectrum": ESTIMATES["spectrum"], **OF_CLASSES},
    "batch-norm-eval": {**{name: ESTIMATES[name] for name in ("factors", "scores")}, **OF_CLASSES},
    "tied-embedding": {name: ESTIMATES[name] for name in ("trace", "exact", "drawn factors")},
}


def _estimates(rank: int, size: int) -> Any:
    compared = Comparison(rank, size)
    for name, checks in CHECKS.items():
        compared.begin(name)
        for what, act in checks.items():
            compared.check(what, act)
    return compared.outcome


@pytest.mark.parametrize("size", [2, 3, 4])
def test_estimates_are_those_of_one_process(size: int, tmp_path: Path) -> None:
    agreeing(on_ranks(size, tmp_path, _estimates))
