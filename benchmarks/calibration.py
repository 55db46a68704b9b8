"""How often ``eigenpairs`` skips an eigenvalue, beside how often it says that it may.

    python benchmarks/calibration.py --seeds 400

Over spectra with clusters, repeated and nearly repeated eigenvalues and tails of small gaps: the
share of runs in which one of the true top ``k`` was skipped, that is, a value is worse than the
true one of its place by more than its tolerance, beside the mean of ``missed``. Diagonal operators,
whose products cost nothing; the results do not depend on the machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy.stats import binom
from torch import Tensor

import curvescope as cs


@dataclass(frozen=True)
class Case:
    """A spectrum and what is asked of it."""

    name: str
    eigenvalues: Tensor
    k: int
    which: str = "largest"
    tol: float = 1e-5
    dtype: torch.dtype = torch.float64


def _with(values: list[float], *parts: Tensor) -> Tensor:
    return torch.cat([torch.tensor(values, dtype=torch.float64), *(p.double() for p in parts)])


def _pairs_apart(gap: float, count: int = 10) -> Tensor:
    """``count`` pairs of eigenvalues ``gap`` apart, above a bulk."""
    tops = torch.linspace(1, 0.4, count).double()
    return torch.cat([tops, tops[:-1] - gap, tops[-1:] + gap, torch.linspace(0.3, 0, 380).double()])


def cases() -> list[Case]:
    """Twenty spectra, most of them under several tolerances."""
    crowd = _with(
        [1.0973, 1.0172, 0.2412, 0.2, 0.1972, 0.1831, 0.1649, 0.16, 0.1507, 0.1387],
        torch.linspace(0.13, 0, 110),
        torch.zeros(651),
    )
    u = torch.linspace(0.001, 0.999, 780).double()
    semicircle = torch.linspace(-1, 1, 780).double() * (1 - 0.3 * torch.linspace(-1, 1, 780) ** 4)
    j = torch.arange(1, 401).double()
    twice = (1 / j).repeat_interleave(2)
    stairs = torch.linspace(1, 0, 10).repeat_interleave(80)
    repeated = _with([5, 5, 5, 4, 4, 3, 3, 3, 3, 2], 0.5 * torch.linspace(-1, 1, 390))
    mirrored = _with([5, -5, 5, -5, 4, -4, 3, -3, 3], 0.3 * torch.linspace(-1, 1, 291))
    cluster = _with([2, 2 + 1e-3, 2 + 1e-6, 2 + 1e-9, 1.5, 1.5], torch.linspace(-1, 1, 294))
    marchenko = _with([6, 5.9, 4, 3.9, 3.8, 3.1], 2.9 * u**3)
    noisy = _with([9, 7, 6.5, 3, 2.9, 2.8], torch.special.ndtri(u) * 0.5)
    return [
        Case("crowded tail", crowd, 7, tol=1e-2),
        Case("crowded tail", crowd, 7, tol=1e-3),
        Case("crowded tail", crowd, 7, tol=1e-4),
        Case("crowded tail", crowd, 7),
        Case("crowded tail, float32", crowd, 7, tol=1e-4, dtype=torch.float32),
        Case("repeated", repeated, 8, tol=1e-3),
        Case("repeated", repeated, 8),
        Case("repeated, the lower end", -repeated, 8, which="smallest", tol=1e-2),
        Case("at both ends", mirrored, 8, which="magnitude"),
        Case("at both ends", mirrored, 8, which="magnitude", tol=1e-2),
        Case("cluster", cluster, 5),
        Case("cluster", cluster, 5, tol=1e-2),
        Case("pairs 1.2 tolerances apart", _pairs_apart(1.2e-3), 7, tol=1e-3),
        Case("pairs 3 tolerances apart", _pairs_apart(3e-3), 7, tol=1e-3),
        Case("pairs 3 tolerances apart", _pairs_apart(3e-5), 7),
        Case("pairs 10 tolerances apart", _pairs_apart(1e-3), 7, tol=1e-4),
        Case("pairs 10 tolerances apart, one", _pairs_apart(1e-3, 1), 1, tol=1e-4),
        Case(
            "pairs 10 tolerances apart, float32",
            _pairs_apart(1e-2),
            9,
            tol=1e-3,
            dtype=torch.float32,
        ),
        Case("line", torch.linspace(-1, 1, 400).double(), 5, which="magnitude", tol=1e-2),
        Case("line", torch.linspace(-1, 1, 400).double(), 3, tol=1e-3),
        Case("semicircle", semicircle, 4, which="smallest", tol=1e-2),
        Case("outliers of a Wishart matrix", marchenko, 6, tol=1e-3),
        Case("outliers of a Wishart matrix", marchenko, 6, tol=1e-6),
        Case("outliers in noise", noisy, 5, tol=1e-2),
        Case("outliers in noise", noisy, 5, which="magnitude"),
        Case("1/j, each twice", twice, 10, tol=1e-3),
        Case("1/j, each twice", twice, 4),
        Case("1/j", 1 / j, 20, tol=1e-4),
        Case("1/j²", 1 / j**2, 12, tol=1e-3),
        Case("geometric", 0.9**j, 15),
        Case("geometric", 0.9**j, 15, tol=1e-2),
        Case("geometric, float32", 0.8**j, 10, tol=1e-3, dtype=torch.float32),
        Case("rank 20 of 400", _with([], torch.linspace(2, 1, 20), torch.zeros(380)), 12, tol=1e-3),
        Case("twenty copies", _with([1.0] * 20, torch.linspace(0.5, 0, 280)), 8, tol=1e-3),
        Case("stairs", stairs, 3, tol=1e-3),
        Case("stairs, the lower end", stairs, 2, which="smallest", tol=1e-2),
        Case("logarithmic", torch.logspace(0, -8, 600).double(), 10, tol=1e-3),
        Case("small gaps at the end", _with([], 1 + torch.linspace(1, 0, 30) ** 3, 0.5 * u), 10),
        Case(
            "small gaps at the end",
            _with([], 1 + torch.linspace(1, 0, 30) ** 3, 0.5 * u),
            10,
            tol=1e-3,
        ),
        Case(
            "copy of the last but one",
            _with([3, 2, 2, 1.5], torch.linspace(1, 0, 396)),
            3,
            tol=1e-2,
        ),
    ]


@dataclass(frozen=True)
class Skips:
    """What came of many searches with different seeds."""

    seeds: int
    converged: int
    skipped: int
    missed: float  # the mean of what they said
    products: float  # mean

    @property
    def surprise(self) -> float:
        """The probability of so many skips, had they said the truth (one-sided binomial test)."""
        return float(binom.sf(self.skipped - 1, self.seeds, min(self.missed, 1.0)))


def search(case: Case, seeds: range, **settings: float) -> Skips:
    """Search with every seed; a run that did not converge skips nothing."""
    A = cs.Diagonal(case.eigenvalues.to(case.dtype))
    exact = case.eigenvalues.to(case.dtype).double()
    good: Callable[[Tensor], Tensor] = {
        "largest": lambda x: x,
        "smallest": lambda x: -x,
        "magnitude": torch.abs,
    }[case.which]
    truth = good(exact).sort(descending=True).values[: case.k]
    runs = []
    for seed in seeds:
        g = torch.Generator().manual_seed(seed)
        pairs = cs.eigenpairs(A, case.k, which=case.which, tol=case.tol, generator=g, **settings)
        found = good(pairs.values.double()).sort(descending=True).values
        skipped = bool((truth - found > pairs.tolerance.double()).any()) and pairs.converged
        runs.append([float(pairs.converged), float(skipped), pairs.missed, float(pairs.products)])
    converged, skipped, missed, products = torch.tensor(runs, dtype=torch.float64).T
    return Skips(
        len(seeds),
        int(converged.sum()),
        int(skipped.sum()),
        float(missed.mean()),
        float(products.mean()),
    )


def pairs(seeds: int) -> None:
    """Print the table of skips."""
    print("| spectrum | n | k | which | tol | skipped | said | products | without the look |")
    print("|---|---|---|---|---|---|---|---|---|")
    total = 0
    for case in cases():
        found, plain = search(case, range(seeds)), search(case, range(min(seeds, 20)), overlook=1.0)
        total += found.skipped
        print(
            f"| {case.name} | {len(case.eigenvalues)} | {case.k} | {case.which} | {case.tol:g} "
            f"| {found.skipped} of {found.converged} | {found.missed:.1e} "
            f"| {found.products:.0f} | {plain.products:.0f} |",
            "" if found.surprise > 1e-3 else f"UNLIKELY {found.surprise:.1e}",
            flush=True,
        )
    print(f"skipped in all: {total} of {seeds * len(cases())}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=400)
    arguments = parser.parse_args()
    pairs(arguments.seeds)


if __name__ == "__main__":
    main()
