"""Ratios of outliers, mini-bulk and bulk of a measured spectrum (TR 8.2).

TR proves for the canonical model, and conjectures for networks, that "the ratio of outliers to
mini-bulk, the ratio of outliers to bulk, and the ratio of mini-bulk to bulk are all predictive of
misclassification". The parts are eigenvalues by their place: ``C``, then ``C(C − 2)``, then the
rest. ``C(C − 2)`` is the rank of the cross part, what TR draws in fig. 6 and what theorem 8.1 has
with ``C < i ≤ C(C − 1)``; fig. 1 speaks of ``C(C − 1)``.

References:
    TR: Papyan (2020), *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra*.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from curvescope import _checks
from curvescope._checks import AnyFloat
from curvescope.errors import CurvescopeError
from curvescope.spectra.exact import ExactSpectrum
from curvescope.structure.logistic import RATIOS

_ROUNDING = 1000 * torch.finfo(torch.float64).eps  # of the largest eigenvalue: below is zero


@dataclass(frozen=True)
class SpectrumRatios:
    """The mean eigenvalue of each part; NaN for a part without eigenvalues."""

    outliers: AnyFloat
    mini_bulk: AnyFloat
    bulk: AnyFloat

    def ratio(self, name: str) -> float:
        """``"outliers to mini-bulk"``, ``"outliers to bulk"`` or ``"mini-bulk to bulk"``."""
        above, below = RATIOS[_checks.one_of("SpectrumRatios.ratio", "name", name, RATIOS)]
        means = (self.outliers, self.mini_bulk, self.bulk)
        return means[above] / means[below]


def spectrum_ratios(spectrum: ExactSpectrum | Tensor, classes: int) -> SpectrumRatios:
    """The means of the ``C`` largest eigenvalues, of the next ``C(C − 2)``, and of the rest.

    The bulk is that of eigenvalues which are not zero: those above rounding, ``1000 eps`` of the
    largest in float64.

    Args:
        spectrum: all eigenvalues of ``G``, for example ``exact_spectrum(GaussNewton(problem))``, or
            the largest ones as a tensor; the bulk is then that of those given.
        classes: ``C``.

    >>> found = spectrum_ratios(torch.tensor([9.0, 8.0, 7.0, 4.0, 2.0, 3.0, 1.0, 1.0, 0.0]), 3)
    >>> found
    SpectrumRatios(outliers=8.0, mini_bulk=3.0, bulk=1.0)
    >>> found.ratio("outliers to bulk")
    8.0
    """
    where = "spectrum_ratios"
    C = _checks.positive_int(where, "classes", classes, minimum=2)
    values = spectrum.values if isinstance(spectrum, ExactSpectrum) else spectrum
    if values.ndim != 1 or not bool(values.isfinite().all()):
        raise CurvescopeError(where, "needs finite eigenvalues [k]", given=list(values.shape))
    falling = values.double().sort(descending=True).values
    falling = falling[falling > _ROUNDING * falling[:1]]
    parts = falling[:C], falling[C : C * (C - 1)], falling[C * (C - 1) :]
    return SpectrumRatios(*(float(part.mean()) for part in parts))
