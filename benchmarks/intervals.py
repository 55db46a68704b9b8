"""How often intervals hold, and whether standard errors are right, at few probes.

    python benchmarks/intervals.py --seeds 400

For every estimator and 4 to 32 probes, over nine spectra from flat to a single dominant eigenvalue:
the root mean square of the errors beside that of ``stderr`` (1: right), and the share of runs whose
``interval`` holds the truth at 95 and at 99.7 %. Matrices of order 100; the results do not depend
on the machine.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections import defaultdict
from collections.abc import Iterator

import torch
from scipy.stats import binom
from torch import Tensor

import curvescope as cs
from curvescope.spectra import Estimate, SpectralMeasure, diagonal

SIZE = 100
PROBES = (4, 8, 16, 32)
DAMPING = 0.1


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def spectra() -> dict[str, Tensor]:
    """Every kind of spectrum that a standard error may meet."""
    n, g = SIZE, generator()
    j = torch.arange(1, n + 1).double()
    signs = torch.where(torch.rand(n, generator=g) < 0.5, -1.0, 1.0).double()
    small = torch.rand(n - 1, generator=g).double()
    return {
        "flat": 1 + 0.1 * torch.randn(n, generator=g).double(),
        "one dominant": torch.cat([torch.tensor([100.0]).double(), 0.1 * small]),
        "decaying": j**-1.5,
        "geometric": 0.8**j,
        "signed": signs * j**-0.7,
        "signed, one dominant": torch.cat([torch.tensor([30.0]).double(), -0.2 * small]),
        "clustered": torch.cat([torch.full((4,), 5.0).double(), (1 + 1e-3 * small)[: n - 4]]),
        "rank 5": torch.cat([torch.tensor([3.0, 2, 2, 1, 0.5]), torch.zeros(n - 5)]).double(),
        "network": network(),
    }


def network() -> Tensor:
    """The eigenvalues of the Hessian of a small trained network."""
    g = generator()
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4)
    ).double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.4 * torch.randn(p.shape, generator=g))
    X = torch.randn(200, 6, generator=g).double()
    y = (X @ torch.randn(6, 4, generator=g).double()).argmax(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(200):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(X), y).backward()
        optimizer.step()
    return torch.linalg.eigvalsh(cs.Hessian(cs.Problem(model, (X, y))).dense())


def rotated(eigenvalues: Tensor) -> cs.LinearOperator:
    """A dense matrix with these eigenvalues and random eigenvectors."""
    n = len(eigenvalues)
    Q = torch.linalg.qr(torch.randn(n, n, generator=generator(1), dtype=torch.float64)).Q
    return cs.Dense((Q * eigenvalues) @ Q.T, symmetric=True)


def measures(eigenvalues: Tensor, probes: int, seeds: int) -> Iterator[SpectralMeasure]:
    """Measures of 24 steps; Gaussian probes do not tell a diagonal matrix from a rotated one."""
    many = cs.spectral_measure(
        cs.Diagonal(eigenvalues), steps=24, probes=probes * seeds, generator=generator()
    )
    for i in range(0, probes * seeds, probes):
        run = slice(i, i + probes)
        yield dataclasses.replace(
            many, nodes=many.nodes[run], weights=many.weights[run], residuals=many.residuals[run]
        )


Runs = dict[str, tuple[float, list[Estimate[float]]]]
"""Estimator -> the truth and what all seeds say."""


def runs(eigenvalues: Tensor, probes: int, seeds: int) -> Runs:
    """All estimators on one spectrum."""
    A, total = rotated(eigenvalues), float(eigenvalues.sum())
    norm, first = float(eigenvalues.norm()), float(A.dense()[0, 0])
    found: dict[str, tuple[float, list[Estimate[float]]]] = {
        "trace": (total, []),
        "trace, XTrace": (total, []),
        "Frobenius norm": (norm, []),
        "Frobenius norm, Hutch++": (norm, []),
        "an entry of the diagonal": (first, []),
    }
    for seed in range(seeds):
        g = generator(seed)
        entry = diagonal(A, probes=probes, generator=g)
        said = [
            cs.trace(A, probes=probes, generator=g),
            cs.trace(A, probes=probes, method="xtrace", generator=g),
            cs.frobenius(A, probes=probes, generator=g),
            cs.frobenius(A, probes=max(probes, 6), method="hutch++", generator=g),
            Estimate(float(entry.value[0]), float(entry.stderr[0]), 0, entry.probes),
        ]
        for (_, estimates), estimate in zip(found.values(), said, strict=True):
            estimates.append(estimate)
    for measure in measures(eigenvalues, probes, seeds):
        for k in (1, 2, 4):
            truth = float((eigenvalues**k).mean())
            found.setdefault(f"moment {k}", (truth, []))[1].append(measure.moment(k))
        if bool((eigenvalues >= 0).all()):
            truth = float((eigenvalues + DAMPING).log().mean())
            logarithm = measure.expectation(lambda x: (x.clamp(min=0) + DAMPING).log())
            found.setdefault("mean logarithm", (truth, []))[1].append(logarithm)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=400)
    seeds = parser.parse_args().seeds
    rows: dict[tuple[str, int], list[tuple[float, float, float, str]]] = defaultdict(list)
    for name, eigenvalues in spectra().items():
        for probes in PROBES:
            for estimator, (truth, said) in runs(eigenvalues, probes, seeds).items():
                errors = torch.tensor([e.value - truth for e in said], dtype=torch.float64)
                if float(errors.abs().max()) < 1e-9 * abs(truth):
                    continue  # exact: XTrace and Hutch++ have the whole range
                stated = torch.tensor([e.stderr for e in said], dtype=torch.float64)
                ratio = float((errors.square().mean() / stated.square().mean()).sqrt())
                held = []
                for level in (0.95, 0.997):
                    inside = [
                        low <= truth <= high for low, high in (e.interval(level) for e in said)
                    ]
                    held.append(sum(inside))
                    if held[-1] < binom.ppf(1e-5, seeds, level):
                        print(f"UNLIKELY: {estimator}, {name}, {probes}: {held[-1]} at {level}")
                rows[estimator, probes].append((ratio, held[0] / seeds, held[1] / seeds, name))
    print("| estimate | probes | error / stderr | held at 95 % | at 99.7 % | least on |")
    print("|---|---|---|---|---|---|")
    for (estimator, probes), found in rows.items():
        ratios, first, second, _ = zip(*found, strict=True)
        worst = min(found, key=lambda row: row[1])[3]
        print(
            f"| {estimator} | {probes} | {min(ratios):.2f} – {max(ratios):.2f} | {min(first):.1%} "
            f"| {min(second):.1%} | {worst} |"
        )


if __name__ == "__main__":
    main()
