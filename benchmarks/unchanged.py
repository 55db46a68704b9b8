"""What it costs to make sure, before every product, that the model is unchanged.

    python benchmarks/unchanged.py --samples 500

The comparison of all weights and buffers with their copy, in percent of one kept product of H and
of G over all parameters, and of H over the last layer, which is the cheapest. Medians of
interleaved rounds in one process.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

import curvescope as cs

NETWORKS = {
    "F-200^2": (1, 28, 28),
    "F-600^2": (1, 28, 28),
    "LeNet5": (1, 28, 28),
    "VGG11-W16": (3, 32, 32),
}


def seconds(run: Callable[[], object]) -> float:
    """One call."""
    began = perf_counter()
    run()
    return perf_counter() - began


def measure(name: str, samples: int, rounds: int) -> dict[str, Any]:
    """Medians of interleaved rounds, in milliseconds, and the shares."""
    generator = torch.Generator().manual_seed(0)
    shape = NETWORKS[name]
    model = cs.network(name, shape, 10, generator=generator)
    X = torch.randn(samples, *shape, generator=generator)
    problem = cs.Problem(model, (X, torch.arange(samples) % 10))
    last = problem.params.layers[-1]
    operators = {
        "H": cs.Hessian(problem, keep=True),
        "G": cs.GaussNewton(problem, keep=True),
        f"H, {last}": cs.Hessian(problem, keep=True).block(last),
    }
    runs: dict[str, Callable[[], object]] = {"check": problem.check_unchanged}
    for key, A in operators.items():
        v = torch.randn(A.shape[1], generator=generator)
        A @ v
        runs[key] = lambda A=A, v=v: A @ v  # type: ignore[misc]
    times = [{key: seconds(run) for key, run in runs.items()} for _ in range(rounds)]
    found = {key: 1000 * median(each[key] for each in times) for key in runs}
    percent = {key: 100 * found["check"] / found[key] for key in operators}
    return {"network": name, "samples": samples, "milliseconds": found, "percent": percent}


def main() -> None:
    """Measure all networks and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, nargs="+", default=[60, 500])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results/unchanged.json"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for samples in arguments.samples:
        for name in NETWORKS:
            rows.append(measure(name, samples, arguments.rounds))
            shares = ", ".join(f"{key} {share:.2f} %" for key, share in rows[-1]["percent"].items())
            check = rows[-1]["milliseconds"]["check"]
            print(f"{name}, {samples} samples: {1000 * check:.0f} µs; {shares}")
    arguments.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
