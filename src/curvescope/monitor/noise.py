"""The gradient noise scale from gradients of two batch sizes, with its error.

Let ``g_1, …, g_k`` be the gradients of ``k`` disjoint random pieces of ``b`` samples and ``ḡ``
their mean, the gradient of ``kb`` samples. With the true gradient ``G`` and the covariance ``Σ`` of
the gradient of one sample,

    E ‖g_i‖² = ‖G‖² + tr Σ / b,      E ‖ḡ‖² = ‖G‖² + tr Σ / (kb),

so that two averages give both unknowns without bias (McCandlish et al. 2018, appendix A.1), and

    B_simple = tr Σ / ‖G‖²

is their ratio: that of averages, not the average of ratios. It is the batch size at which a step
makes about half of the progress of a step with the whole gradient, the critical batch size.

References:
    McCandlish, Kaplan, Amodei and the OpenAI Dota Team (2018), *An Empirical Model of Large-Batch
    Training*.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from curvescope.spectra.estimate import student

PIECES = 16


@dataclass(frozen=True)
class NoiseScale:
    """``tr Σ``, ``‖G‖²`` and their ratio, each with its standard error.

    The ratio is infinite where ``‖G‖²`` cannot be told from zero, see :attr:`resolved`; ``low`` and
    ``high`` hold it with 95 % probability (Fieller's interval, which may be open above).
    """

    variance: float
    variance_error: float
    square: float
    square_error: float
    scale: float
    scale_error: float
    low: float
    high: float
    samples: int

    @property
    def resolved(self) -> bool:
        """Whether the gradient stands out from its noise."""
        return math.isfinite(self.high)


def noise_scale(pieces: Tensor, samples: int) -> NoiseScale:
    """The noise scale from the gradients ``[k, n]`` of pieces of ``samples`` samples.

    Errors are those of the jackknife over pieces. They say how far the numbers are off those of the
    distribution that the samples were drawn from.

    >>> g = torch.Generator().manual_seed(0)
    >>> pieces = 1.0 + torch.randn(64, 50, generator=g)  # ‖G‖² = 50, tr Σ = 50 with one sample each
    >>> noise = noise_scale(pieces, 1)
    >>> abs(noise.scale - 1) < 3 * noise.scale_error
    True
    """
    k = len(pieces)
    gram = _gram(pieces)
    variance, square = _unbiased(gram, samples)
    left_out = [
        _unbiased(gram[keep][:, keep], samples) for keep in (torch.arange(k) != i for i in range(k))
    ]
    v, s = (torch.tensor(column, dtype=torch.float64) for column in zip(*left_out, strict=True))
    spread = (k - 1) / k * torch.stack([v - v.mean(), s - s.mean()])
    covariance = spread @ spread.T * k / (k - 1)
    vv, vs, ss = float(covariance[0, 0]), float(covariance[0, 1]), float(covariance[1, 1])
    low, high = _fieller(variance, square, vv, vs, ss, student(0.025, k - 1))
    scale = variance / square if square > 0 else math.inf
    error = math.inf
    if square > 0:
        error = math.sqrt(max(vv - 2 * scale * vs + scale**2 * ss, 0.0)) / square
    return NoiseScale(
        variance, math.sqrt(vv), square, math.sqrt(ss), scale, error, low, high, k * samples
    )


def _gram(pieces: Tensor) -> Tensor:
    return (pieces @ pieces.T).double().cpu()


def _unbiased(gram: Tensor, samples: int) -> tuple[float, float]:
    """``tr Σ`` and ``‖G‖²`` from inner products of ``k`` gradients."""
    k = len(gram)
    small, large = float(gram.diagonal().mean()), float(gram.mean())
    variance = samples * (small - large) * k / (k - 1)
    return variance, large - variance / (k * samples)


def _fieller(v: float, s: float, vv: float, vs: float, ss: float, t: float) -> tuple[float, float]:
    """All ratios ``r`` for which ``v − r s`` is within ``t`` standard errors of zero."""
    a, b, c = s * s - t * t * ss, v * s - t * t * vs, v * v - t * t * vv
    root = b * b - a * c
    if a <= 0 or s <= 0:  # open above
        low = (b - math.sqrt(root)) / a if a < 0 < root else (c / (2 * b) if b > 0 else 0.0)
        return max(low, 0.0), math.inf
    root = math.sqrt(max(root, 0.0))
    return max((b - root) / a, 0.0), (b + root) / a
