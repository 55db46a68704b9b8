"""Products of recurrent networks beside plain double backward, in multiples of torch's gradient.

    python benchmarks/recurrent.py                     # one thread; seconds of the process
    python benchmarks/recurrent.py --out results/recurrent-cpu.json

The gradient is torch's with its fused kernels, oneDNN's for an LSTM in float32. These have no
second derivative, so that double backward runs without them, as everybody would have to do it.
Rounds are interleaved, figures are medians, and all results are compared with each other first.
Time is that of the process, which others on the machine disturb less than the clock on the wall.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import curvescope as cs

COLUMNS = 8


class Classifier(nn.Module):
    """A class from the last result of a recurrent layer."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer
        self.head = nn.Linear(layer.hidden_size * (1 + layer.bidirectional), 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of ``[B, T, inputs]``."""
        return self.head(self.layer(x)[0][:, -1])


# (layer, inputs, width, layers, times, samples)
SIZES: dict[str, tuple[Any, int, int, int, int, int]] = {
    "LSTM, 2 × 64": (nn.LSTM, 32, 64, 2, 64, 16),
    "LSTM, 2 × 128": (nn.LSTM, 64, 128, 2, 50, 32),
    "LSTM, 2 × 256": (nn.LSTM, 128, 256, 2, 32, 64),
    "GRU, 2 × 128": (nn.GRU, 64, 128, 2, 50, 32),
    "RNN, 2 × 128": (nn.RNN, 64, 128, 2, 50, 32),
}


def tasks(model: nn.Module, X: Tensor, y: Tensor) -> dict[str, Callable[[], Any]]:
    """Everything that is measured; products return the product."""
    leaves = list(model.parameters())
    problem = cs.Problem(model, (X, y))
    V = torch.randn(problem.params.size, COLUMNS)
    v = V[:, 0].contiguous()
    pieces = [problem.params.unflatten(v)[n] for n in problem.params.names]
    made = {
        (kind, keep): make(problem, keep=keep)
        for kind, make in (("H", cs.Hessian), ("G", cs.GaussNewton))
        for keep in (True, False)
    }

    def gradient() -> Any:
        return torch.autograd.grad(F.cross_entropy(model(X), y), leaves)

    def double() -> Tensor:
        with torch.backends.mkldnn.flags(enabled=False):
            first = torch.autograd.grad(F.cross_entropy(model(X), y), leaves, create_graph=True)
            return torch.cat([g.flatten() for g in torch.autograd.grad(first, leaves, pieces)])

    return {
        "gradient": gradient,
        "H·v kept": lambda: made["H", True] @ v,
        "H·v streamed": lambda: made["H", False] @ v,
        "G·v kept": lambda: made["G", True] @ v,
        "G·v streamed": lambda: made["G", False] @ v,
        "a column of H·V kept": lambda: made["H", True] @ V,
        "a column of G·V kept": lambda: made["G", True] @ V,
        "double backward": double,
    }


def measure(name: str, rounds: int) -> dict[str, float]:
    kind, inputs, width, layers, times, samples = SIZES[name]
    torch.manual_seed(0)
    model = Classifier(kind(inputs, width, layers, batch_first=True))
    todo = tasks(model, torch.randn(samples, times, inputs), torch.randint(10, (samples,)))
    exact = todo["double backward"]()
    for task in ("H·v kept", "H·v streamed"):
        error = float((todo[task]() - exact).norm() / exact.norm())
        assert error < 1e-4, f"{name}: {task} is off by {error:.1e}"
    spent: dict[str, list[float]] = {task: [] for task in todo}
    for task in todo.values():
        task()
    for _ in range(rounds):
        for task, run in todo.items():
            start = time.process_time()
            run()
            spent[task].append(time.process_time() - start)
    unit = median(spent["gradient"])
    result = {task: median(each) / unit for task, each in spent.items() if task != "gradient"}
    result = {t: r / COLUMNS if t.startswith("a column") else r for t, r in result.items()}
    return {"gradient, ms": unit * 1e3, **result}


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = {}
    for name in SIZES:
        results[name] = measure(name, options.rounds)
        print(name, "  ".join(f"{k} {v:.2f}" for k, v in results[name].items()), flush=True)
    if options.out:
        machine = {"torch": torch.__version__, "python": platform.python_version(), "threads": 1}
        options.out.write_text(json.dumps(machine | {"results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
