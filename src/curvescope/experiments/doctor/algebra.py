"""What an estimator takes besides products: its basis and the orthogonalization.

It is run on a diagonal matrix of the problem's size, with which a product costs next to nothing.
``s`` steps take ``a s + b s²`` seconds; ``a`` and ``b`` follow from two short runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch

from curvescope.experiments.doctor.watch import once
from curvescope.operators.simple import Diagonal
from curvescope.problem import Problem
from curvescope.spectra.eigensolver import eigenpairs
from curvescope.spectra.measure import spectral_measure
from curvescope.spectra.traces import trace

_SHORT, _LONG = 4, 12  # steps of the two runs
_QUICK = 0.05  # seconds of a run that is repeated
_BASIS = 2 << 30  # bytes up to which a density keeps its basis
_PAIRS = 4 << 30  # of the basis of eigenpairs


@dataclass(frozen=True)
class Cost:
    """Seconds of a piece of work, and its bytes at the peak."""

    seconds: float
    bytes: int = 0


@dataclass(frozen=True)
class Law:
    """``a s + b s²`` seconds for ``s`` steps."""

    a: float
    b: float

    @classmethod
    def of(cls, run: Callable[[int], float]) -> Law:
        """From the times of two numbers of steps; neither part is negative."""
        if run(_SHORT) < _QUICK:
            short, long = (min(run(steps) for _ in range(2)) for steps in (_SHORT, _LONG))
        else:
            short, long = run(_SHORT), run(_LONG)
        b = (long / _LONG - short / _SHORT) / (_LONG - _SHORT)
        b = min(max(b, 0.0), long / _LONG**2)
        return cls(max(long / _LONG - b * _LONG, 0.0), b)

    def __call__(self, steps: float) -> float:
        """The seconds of some steps."""
        return self.a * steps + self.b * steps**2


class Algebra:
    """Seconds and bytes of estimators with the dimension and type of a problem."""

    def __init__(self, problem: Problem) -> None:
        self.n, self._device = problem.params.size, problem.device
        generator = torch.Generator().manual_seed(0)
        values = torch.randn(self.n, generator=generator).to(problem.device, problem.dtype)
        self._matrix = Diagonal(values)
        self.row = self.n * values.element_size()  # bytes of a vector
        self._densities: dict[int, Law] = {}

    def density(self, steps: int, probes: int) -> float:
        """Seconds of a density besides its products."""
        law = self._densities.get(probes)
        if law is None:
            keep = self._keeps(steps, probes)

            def run(short: int) -> float:
                return once(
                    lambda: spectral_measure(
                        self._matrix, steps=short, probes=probes, generator=_fixed(),
                        reorthogonalize=keep,
                    ),
                    self._device,
                )  # fmt: skip

            law = self._densities.setdefault(probes, Law.of(run))
        return law(min(steps, self.n))

    def density_bytes(self, steps: int, probes: int) -> int:
        """Bytes of its basis and of the vectors of a step."""
        basis = steps + 1 if self._keeps(steps, probes) else 0
        return self.row * probes * (min(basis, self.n) + 5)

    def _keeps(self, steps: int, probes: int) -> bool:
        return probes * self.row * (steps + 1) <= _BASIS

    @cached_property
    def _pairs(self) -> Law:
        def run(products: int) -> float:
            k = min(2, self.n)
            return once(
                lambda: eigenpairs(
                    self._matrix, k, max_products=products, tol=0.0, overlook=1.0,
                    generator=_fixed(),
                ),
                self._device,
            )  # fmt: skip

        return Law.of(run)

    def pairs(self, products: float) -> float:
        """Seconds of a search for eigenpairs besides its products."""
        return self._pairs(min(products, self.n))

    def pairs_bytes(self, k: int, products: float) -> int:
        """Bytes of its basis, as far as it is used, and of the result."""
        capacity = min(max(3 * k + 64, k + 128), _PAIRS // self.row, self.n)
        return int(self.row * (min(products + 1, capacity) + k + 4))

    @cached_property
    def _sampling(self) -> float:
        probes = 8
        if self.n <= probes:
            return 0.0

        def run() -> object:
            return trace(self._matrix, probes=probes, method="xtrace", generator=_fixed())

        run()
        return once(run, self._device) / probes

    def sums(self, products: int) -> float:
        """Seconds of a trace or a norm besides its products."""
        return self._sampling * products

    def sums_bytes(self, products: int) -> int:
        """Bytes of its test vectors and their images."""
        return self.row * 3 * products


def _fixed() -> torch.Generator:
    return torch.Generator().manual_seed(0)
