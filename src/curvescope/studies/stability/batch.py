"""What doubling the batch brings, beside what the gradient noise scale says.

At the best rate for batches of ``B`` samples, a step lowers the loss by ``ΔL_max / (1 + 𝓑/B)``,
to second order (McCandlish et al. 2018, eq. 2.6 and 2.7), with the noise scale ``𝓑``. Doubling the
batch therefore makes a step ``(1 + 𝓑/B) / (1 + 𝓑/2B)`` times as good: 2 far below 𝓑, 1 far above.

References:
    McCandlish, Kaplan, Amodei and the OpenAI Dota Team (2018), *An Empirical Model of Large-Batch
    Training*.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import cross_entropy

from curvescope.figures.model import Curve, Panel, Picture
from curvescope.monitor import Monitor
from curvescope.studies.run import Result, Run, Value
from curvescope.studies.stability.subjects import digits, tanh_network

_RATES = 2.0 ** torch.arange(-6, 4.5, 0.5, dtype=torch.float64)


def run(run: Run) -> Result:
    """At points of a training: the noise scale, and the best progress of a step by batch size."""
    sizes, points = run["sizes"], run["points"]
    found = _found(run)
    values: dict[str, float | Value] = {}
    numbers: dict[str, Any] = {"sizes": list(sizes)}
    errors = []
    for i, point in enumerate(points):
        scale, error = (float(t) for t in found["noise"][i])
        best = found["progress"][i]  # [sizes]
        measured = best[1:] / best[:-1]
        B = torch.tensor(sizes[:-1], dtype=torch.float64)
        expected = (1 + scale / B) / (1 + scale / (2 * B))
        errors.append((measured / expected - 1).abs())
        values[f"noise scale at step {point}"] = Value(scale, f"± {error:.2g}")
        for size, ours in zip(sizes[:-1], measured, strict=True):
            values[f"gain of {2 * size} over {size} at step {point}"] = float(ours)
        numbers[f"step {point}"] = {
            "scale": scale, "error": error, "measured": measured.tolist(),
            "expected": expected.tolist(),
        }  # fmt: skip
    off = torch.cat(errors)
    values["gain by doubling: measured against expected, median error"] = float(off.median())
    values["gain by doubling: measured against expected, largest error"] = float(off.max())
    scales = found["noise"][:, 0]
    values["noise scale at the end over that at the start"] = float(scales[-1] / scales[0])
    return Result(values, (_picture(numbers),), numbers)


def _found(run: Run) -> Mapping[str, Tensor]:
    """``noise``: ``[points, 2]``, scale and error; ``progress``: ``[points, sizes]``."""
    names = ("samples", "width", "points", "sizes", "drawn", "batch", "rate")
    samples, width, points, sizes, spent, batch, rate = (run[name] for name in names)
    seed = run.seed

    def compute() -> dict[str, Tensor]:
        X, y = digits(samples)
        model = tanh_network(width, torch.Generator().manual_seed(seed))
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        generator, drawn = (torch.Generator().manual_seed(seed + i) for i in (1, 2))
        seen: dict[int, dict[str, float]] = {}
        monitor = Monitor(
            model, (X, y), optimizer=optimizer, track=("noise",), every=points[1],
            log=lambda values, step: seen.update({step: values}), generator=generator,
        )  # fmt: skip
        progress = [best_progress(model, X, y, sizes, spent, drawn)]
        for step in range(1, points[-1] + 1):
            rows = torch.randint(samples, (batch,), generator=drawn)
            optimizer.zero_grad()
            cross_entropy(model(X[rows]), y[rows]).backward()
            optimizer.step()
            monitor.step()
            if step in points:
                progress.append(best_progress(model, X, y, sizes, spent, drawn))
        noise = [[seen[point]["noise/scale"], seen[point]["noise/error"]] for point in points]
        return {
            "noise": torch.tensor(noise, dtype=torch.float64),
            "progress": torch.stack(progress),
        }

    return run.once("batch", compute)


@torch.no_grad()
def best_progress(
    model: nn.Module, X: Tensor, y: Tensor, sizes: list[int], samples: int,
    generator: torch.Generator,
) -> Tensor:  # fmt: skip
    """The mean fall of the loss of all data by one step, at the best rate for each batch size.

    For each size, so many batches are drawn, with replacement, that they hold ``samples`` together.
    """
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def loss(weights: Mapping[str, Tensor], X: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(functional_call(model, dict(weights), (X,)), y)

    def moved(gradient: Mapping[str, Tensor], rate: Tensor) -> Tensor:
        return loss({name: w - rate * gradient[name] for name, w in weights.items()}, X, y)

    start = loss(weights, X, y)
    best = []
    for size in sizes:
        count = max(samples // size, 1)
        rows = torch.randint(len(y), (count, size), generator=generator)
        gradients = vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weights, X[rows], y[rows])
        falls = [start - vmap(moved, in_dims=(0, None))(gradients, rate).mean() for rate in _RATES]
        best.append(torch.stack(falls).max())
    return torch.stack(best)


def _picture(numbers: Mapping[str, Any]) -> Picture:
    points = [key for key in numbers if key.startswith("step")]
    sizes = numbers["sizes"][:-1]
    shown = [
        Curve.of(f"{point}: measured", sizes, numbers[point]["measured"], kind="points", color=i)
        for i, point in enumerate(points)
    ]
    shown += [
        Curve.of(f"{point}: by the noise scale", sizes, numbers[point]["expected"], color=i)
        for i, point in enumerate(points)
    ]
    panel = Panel(
        title="gain of a step by doubling the batch", xlabel="samples in a batch",
        curves=tuple(shown), xscale="log",
    )  # fmt: skip
    return Picture("batch", _CAPTION, (panel,))


_CAPTION = (
    "How much more a step at its best rate lowers the loss with a batch of twice the size: "
    "measured, and (1 + 𝓑/B)/(1 + 𝓑/2B) with the monitor's noise scale 𝓑."
)
