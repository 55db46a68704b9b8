"""The kernel polynomial method (Weiße et al. 2006; Lin, Saad and Yang 2016), for comparison.

TR App. C tried it beside Lanczos and found it "temperamental": it needs the range of the spectrum
beforehand, and its resolution is that of the whole range, outliers included. It is the independent
check of a density: no quadrature, no bumps.

References:
    TR: Papyan (2020), *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra*.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from curvescope import _checks
from curvescope.operators.base import LinearOperator
from curvescope.spectra.control import Status, require_finite, require_symmetric
from curvescope.spectra.course import below, nested
from curvescope.spectra.density import Curve
from curvescope.spectra.estimate import Samples
from curvescope.spectra.measure import Quadrature
from curvescope.spectra.resumable import End, Estimator, State, run

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
    """Chebyshev moments of the spectrum from Rademacher probes.

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
    margin = _checks.finite_float(where, "margin", margin, minimum=0.0)
    return run(
        Chebyshev, A, control, generator=generator, degree=degree, probes=probes, margin=margin
    )


class Chebyshev(Estimator[ChebyshevMoments]):
    """The range of the spectrum, then the recurrence of the polynomials."""

    task = "kpm"
    vectors = ("basis", "now", "before")

    def __init__(
        self,
        A: LinearOperator,
        *,
        generator: torch.Generator,
        degree: int,
        probes: int,
        margin: float,
    ) -> None:
        self._operator, self._generator = A, generator
        self._degree, self._probes, self._margin = degree, probes, margin
        self._range = Quadrature(A, generator=generator, steps=32)
        self._polynomials: State = {}

    @property
    def done(self) -> int:
        """Steps for the range, and moments that took products."""
        if not self._polynomials:
            return self._range.done
        return self._range.total + min(len(self._polynomials["moments"]) - 1, self._degree)

    @property
    def total(self) -> int:
        """The number of all such steps and moments."""
        return self._range.total + self._degree

    @property
    def has_result(self) -> bool:
        """True once the range is computed."""
        return bool(self._polynomials)

    @property
    def state(self) -> State:
        """The state of the Lanczos run; afterwards two polynomials of each probe, and moments."""
        return self._polynomials or nested("range", self._range.state)

    @state.setter
    def state(self, state: State) -> None:
        if "moments" in state:
            device = self._operator.device
            moved = {name: state[name].to(device) for name in ("before", "now", "moments")}
            self._polynomials = {**moved, "range": state["range"].cpu()}
        else:
            self._range.state = below("range", state)

    def step(self) -> None:
        """One product for the range, or one for each probe."""
        if self._polynomials:
            self._polynomials = self._next(**self._polynomials)
            return
        if not self._range.finished:
            self._range.step()
        if self._range.finished:
            space, generator = self._operator.domain, self._generator
            now = space.random(self._probes, generator=generator) / space.size**0.5
            low, high = self._range.result(End(0, complete=True)).support
            self._polynomials = {
                "before": torch.zeros_like(now),
                "now": now,
                "moments": space.dots(now, now)[None],
                "range": torch.tensor([low, high], dtype=torch.float64),
            }

    def _scale(self, ends: Tensor) -> tuple[float, float]:
        """Middle and half width of the interval, with its margin."""
        low, high = ends.tolist()
        width = max(high - low, 1e-6 * max(abs(low), abs(high))) or 1.0
        return (low + high) / 2, width * (0.5 + self._margin)

    def _next(self, *, before: Tensor, now: Tensor, moments: Tensor, range: Tensor) -> State:
        """From ``T_{j−1} v``, ``T_j v`` and ``2j + 1`` moments to the next."""
        center, half = self._scale(range)
        image = (self._operator.on_rows(now) - center * now) / half
        dots = self._operator.domain.dots
        first_time = len(moments) == 1
        following = image if first_time else 2 * image - before
        first = dots(now, following)
        odd = first if first_time else 2 * first - moments[1]
        even = 2 * dots(following, following) - moments[0]
        moments = torch.cat([moments, torch.stack([odd, even])])
        return {"before": now, "now": following, "moments": moments, "range": range}

    def result(self, end: End) -> ChebyshevMoments:
        """The moments so far."""
        center, half = self._scale(self._polynomials["range"])
        table = self._polynomials["moments"][: self._degree + 1].T.cpu().contiguous()
        require_finite(f"kpm({self._operator})", table)
        return ChebyshevMoments(table, (center - half, center + half), end.products, end.status)
