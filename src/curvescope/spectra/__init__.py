"""Estimators: pure functions of a symmetric operator, a generator and keyword settings.

Each returns a frozen result that carries its error, its cost in products and how it ended. Nothing
here knows of networks; :mod:`curvescope.operators.base` is all it needs. An estimate is an
:class:`Estimator`, a loop in steps, and :func:`run` takes them, with progress, ctrl-C and saved
states around it.
"""

from curvescope.spectra.chebyshev import ChebyshevMoments, kpm
from curvescope.spectra.control import Progress, Status
from curvescope.spectra.convergence import LanczosBounds, lanczos_bounds
from curvescope.spectra.density import Curve
from curvescope.spectra.eigensolver import EigenPairs, eigenpairs
from curvescope.spectra.estimate import Estimate
from curvescope.spectra.exact import ExactSpectrum, exact_spectrum, log_distance
from curvescope.spectra.log_determinant import logdet
from curvescope.spectra.measure import SpectralMeasure, spectral_measure
from curvescope.spectra.normalization import Normalization, NormalizedOperator, normalized
from curvescope.spectra.rank import (
    RankDegeneracy,
    neuron_rank_bound,
    path_rank_bound,
    rank_bound,
    rank_degeneracy,
)
from curvescope.spectra.resumable import End, Estimator, run
from curvescope.spectra.subspace import subspace_iteration
from curvescope.spectra.tails import (
    PowerLaw,
    TailDensity,
    power_law,
    tail_density,
    tail_masses,
)
from curvescope.spectra.traces import diagonal, frobenius, trace
from curvescope.spectra.tridiagonal import BlockTridiagonal, Tridiagonal, block_lanczos, lanczos

__all__ = [
    "BlockTridiagonal",
    "ChebyshevMoments",
    "Curve",
    "EigenPairs",
    "End",
    "Estimate",
    "Estimator",
    "ExactSpectrum",
    "LanczosBounds",
    "Normalization",
    "NormalizedOperator",
    "PowerLaw",
    "Progress",
    "RankDegeneracy",
    "SpectralMeasure",
    "Status",
    "TailDensity",
    "Tridiagonal",
    "block_lanczos",
    "diagonal",
    "eigenpairs",
    "exact_spectrum",
    "frobenius",
    "kpm",
    "lanczos",
    "lanczos_bounds",
    "log_distance",
    "logdet",
    "neuron_rank_bound",
    "normalized",
    "path_rank_bound",
    "power_law",
    "rank_bound",
    "rank_degeneracy",
    "run",
    "spectral_measure",
    "subspace_iteration",
    "tail_density",
    "tail_masses",
    "trace",
]
