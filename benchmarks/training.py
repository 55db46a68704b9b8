r"""What a training step costs, and the optimizer's part of it, beside the obvious loop.

    python benchmarks/training.py
    python benchmarks/training.py --networks F-200^2 --rounds 50 --cpu-time

"The obvious loop" is zero_grad, forward, backward and step of ``torch.optim`` as it comes. "train"
is a step of curvescope.train. Beside them stands the update alone, by the ways torch has: what
curvescope.train calls, the classes with ``fused`` or ``foreach`` kernels, and the classes as they
come. All work on batches of 128 in one process, in interleaved rounds; times are medians.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F

from curvescope.networks import network
from curvescope.training import Recipe
from curvescope.training.engine import make_engine
from curvescope.training.learner import Learner
from curvescope.training.optimizers import Optimizer

NETWORKS = {"F-200^2": (1, 28, 28), "LeNet5": (3, 32, 32), "VGG11-W16-BN": (3, 32, 32)}
RATE = 1e-12  # too small to change anything
SETTINGS: dict[str, tuple[dict[str, Any], Callable[..., torch.optim.Optimizer]]] = {
    "sgd": (
        {"momentum": 0.9, "weight_decay": 1e-3},
        lambda p, **how: torch.optim.SGD(p, lr=RATE, momentum=0.9, weight_decay=1e-3, **how),
    ),
    "adamw": (
        {"weight_decay": 1e-3},
        lambda p, **how: torch.optim.AdamW(p, lr=RATE, weight_decay=1e-3, **how),
    ),
}


def contestants(name: str, optimizer: str) -> dict[str, tuple[Callable[[], Any], int]]:
    """What each of them does, and how often in one measurement."""
    torch.manual_seed(0)
    shape = NETWORKS[name]
    model = network(name, shape, 10).train()
    X, y = torch.randn(128, *shape), torch.randint(10, (128,))
    settings, make = SETTINGS[optimizer]
    recipe = Recipe(seed=0, epochs=1, lr=RATE, optimizer=optimizer, **settings)

    looped = copy.deepcopy(model)
    plain = make(looped.parameters())

    def loop() -> None:
        plain.zero_grad()
        F.cross_entropy(looped(X), y).backward()
        plain.step()

    engine = make_engine([Learner(copy.deepcopy(model), recipe)], X, y, capture=True)
    order = torch.arange(len(y))[None]
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(F.cross_entropy(model(X), y), parameters)
    ours = Optimizer(recipe, parameters)
    steps: dict[str, tuple[Callable[[], Any], int]] = {
        "the obvious loop": (loop, 1),
        "train": (lambda: list(engine.epoch(order)), 1),
        "update of train": (lambda: ours.step(gradients), 20),
    }
    for p, g in zip(parameters, gradients, strict=True):
        p.grad = g
    for key, how in (
        ("fused", {"fused": True}),
        ("foreach", {"foreach": True}),
        ("as it comes", {}),
    ):
        steps[f"update, {key}"] = (make(parameters, **how).step, 20)
    return steps


def measure(
    steps: dict[str, tuple[Callable[[], Any], int]], rounds: int, now: Callable[[], float]
) -> dict[str, float]:
    """Median microseconds of each."""
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for i in range(rounds + 2):
        for name, (step, times) in steps.items():
            start = now()
            for _ in range(times):
                step()
            if i >= 2:  # the first rounds warm up
                taken[name].append((now() - start) / times)
    return {name: round(1e6 * median(values), 1) for name, values in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument(
        "--cpu-time", action="store_true", help="time of the process, where others are at work"
    )
    parser.add_argument("--out", type=Path, help="a JSON file for the results")
    args = parser.parse_args()
    now = time.process_time if args.cpu_time else time.perf_counter
    results: dict[str, Any] = {
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "clock": "time of the process" if args.cpu_time else "wall-clock",
        "microseconds": {},
    }
    for name in args.networks:
        for optimizer in SETTINGS:
            taken = measure(contestants(name, optimizer), args.rounds, now)
            results["microseconds"][f"{name}, {optimizer}"] = taken
            print(f"{name}, {optimizer}: {json.dumps(taken)}", flush=True)
    if args.out is not None:
        args.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
