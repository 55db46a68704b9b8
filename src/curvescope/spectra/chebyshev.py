"""The kernel polynomial method (Weiße et al. 2006; Lin, Saad and Yang 2016), for comparison.

TR App. C tried it beside Lanczos and found it "temperamental": it needs the range of the spectrum
beforehand, and its resolution is that of the whole range, outliers included. It is the independent
check of a density: no quadrature, no bumps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from curvescope import _checks
from curvescope.operators.base import LinearOperator
from curvescope.spectra import probes as probing
from curvescope.spectra.control import Status, Watch, require_finite, require_symmetric
from curvescope.spectra.density import Curve
from curvescope.spectra.estimate import Samples
from curvescope.spectra.measure import spectral_measure
from curvescope.spectra.rows import dots, multiply

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from curvescope.spectra.control import Control


@dataclass(frozen=True)
class ChebyshevMoments:
    """``μ_j = (1/n) tr T_j((A − c I) / d)``, one row per probe, ``support = (c − d, c + d)``."""

    moments: Tensor  # [probes, degree + 1], float64
    support: tuple[float, float]
    products: int
    status: Status

    def density(self, points: int = 1024) -> Curve:
        """``φ(t) = (g_0 μ_0 + 2 Σ_j g_j μ_j T_j(t)) / (π √(1 − t²))`` with Jackson's kernel ``g``.

        The kernel keeps the curve non-negative (for exact moments); a point mass becomes a bump of
        width ``π / degree`` in the scaled variable.
        """
        points = _checks.positive_int("ChebyshevMoments.density", "points", points, minimum=2)
        low, high = self.support
        center, half = (low + high) / 2, (high - low) / 2
        # Inside the open interval: the weight 1/√(1 − t²) ends at ±1.
        t = torch.linspace(-1, 1, points + 2, dtype=torch.float64)[1:-1]
        count = self.moments.shape[1]
        damped = self.moments * jackson(count)
        damped[:, 1:] *= 2
        cosines = torch.cos(torch.arange(count, dtype=torch.float64)[:, None] * torch.acos(t))
        samples = Samples((points,))
        samples.add(damped @ cosines / (math.pi * torch.sqrt(1 - t * t)) / half)
        empty = torch.empty(0, dtype=torch.float64)
        grid = center + half * t
        width, probes = math.pi / count * half, len(self.moments)
        return Curve(grid, samples.mean, samples.stderr, empty, width, probes)


def jackson(count: int) -> Tensor:
    """Jackson's damping factors ``g_0 = 1 ≥ g_1 ≥ …`` for ``count`` moments.

    >>> jackson(3)
    tensor([1.0000, 0.7071, 0.2500], dtype=torch.float64)
    """
    j, n = torch.arange(count, dtype=torch.float64), count + 1
    rising = (n - j) * torch.cos(math.pi * j / n)
    return (rising + torch.sin(math.pi * j / n) / math.tan(math.pi / n)) / n


def kpm(
    A: LinearOperator,
    *,
    generator: torch.Generator,
    degree: int = 128,
    probes: int = 1,
    margin: float = 0.05,
    **control: Unpack[Control],
) -> ChebyshevMoments:
    """Chebyshev moments of the spectrum from Rademacher probes (SP-9).

    The range comes from 32 Lanczos steps with a ``margin`` (TR alg. 4). ``T_{2j} = 2 T_j² − 1``
    and ``T_{2j+1} = 2 T_{j+1} T_j − T_1`` give two moments a product.

    Cost: ``32 + probes · ⌈degree / 2⌉`` products, ``3 · probes · n`` numbers of memory.

    >>> from curvescope.operators.simple import Diagonal
    >>> A = Diagonal(torch.linspace(-1, 1, 50, dtype=torch.float64))
    >>> curve = kpm(A, probes=4, generator=torch.Generator().manual_seed(0)).density()
    >>> abs(curve.mass - 1) < 0.02
    True
    """
    where = f"kpm({A})"
    require_symmetric(where, A)
    degree = _checks.positive_int(where, "degree", degree)
    probes = _checks.positive_int(where, "probes", probes)
    _checks.generator(where, generator)
    path = control.get("checkpoint")
    pilot_path = None if path is None else Path(f"{path}.range")
    began = generator.get_state()
    pilot = spectral_measure(A, steps=32, generator=generator, checkpoint=pilot_path)
    low, high = pilot.support
    width = max(high - low, 1e-6 * max(abs(low), abs(high))) or 1.0
    center, half = (low + high) / 2, width * (0.5 + margin)
    products = pilot.products
    now = probing.draw(A, probes, generator=generator) / A.shape[0] ** 0.5
    before, moments = torch.zeros_like(now), [dots(now, now)]

    def state() -> dict[str, Tensor]:
        count = torch.tensor(products)
        return {"before": before, "now": now, "moments": torch.stack(moments), "products": count}

    settings = {"degree": degree, "probes": probes, "margin": margin, "generator": began}
    watch = Watch("kpm", A, settings, state, **control)
    with watch:
        saved = watch.restore()
        if saved is not None:
            before, now = saved["before"].to(now), saved["now"].to(now)
            moments = list(saved["moments"].to(moments[0]))
            products = int(saved["products"])
        while (
            len(moments) <= degree
        ):  # before, now = T_{j−1} v, T_j v, and 2j + 1 moments are known
            image = (multiply(A, now) - center * now) / half
            products += probes
            following = image if len(moments) == 1 else 2 * image - before
            first = dots(now, following)
            odd = first if len(moments) == 1 else 2 * first - moments[1]
            moments += [odd, 2 * dots(following, following) - moments[0]]
            before, now = now, following
            watch.tick(min(len(moments) - 1, degree), degree, products)
    table = torch.stack(moments[: degree + 1], dim=1).cpu()
    require_finite(where, table)
    status = Status.INTERRUPTED if watch.interrupted else Status.DONE
    return ChebyshevMoments(
        table, (center - half, center + half), products + watch.products, status
    )
