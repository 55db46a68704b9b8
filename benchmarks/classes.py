"""Class means and exact spectra, in multiples of one gradient over the same data.

    python benchmarks/classes.py means                      # CPU: VGG11-W64, 10 classes
    python benchmarks/classes.py spectrum --device cuda     # VGG11 with 28 M parameters

``means``: the C² cross-class means by ``class_structure``, beside one backward pass per pair of
classes. ``spectrum``: the exact spectrum of G through its Gram matrix, 136 examples per class (TR
fig. 5), beside Lanczos with M steps, and the distance between the two on a logarithmic axis.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from workloads import WORKLOADS

import curvescope as cs
from curvescope.data.embedded import load_embedded
from curvescope.operators.gram import GramForm
from curvescope.record.extended import class_directions
from curvescope.spectra.exact import exact_spectrum, log_distance
from curvescope.structure.classes import class_structure
from curvescope.structure.knockouts import class_knockouts
from curvescope.structure.outliers import attribute_outliers
from curvescope.structure.traces import class_traces


def timed(run: Callable[[], Any], device: str) -> tuple[Any, float]:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    result = run()
    if device == "cuda":
        torch.cuda.synchronize()
    return result, time.perf_counter() - start


def seconds(run: Callable[[], Any], device: str) -> float:
    return timed(run, device)[1]


def by_pairs(model: nn.Module, X: Tensor, y: Tensor, pairs: int) -> None:
    """The plain way, for some of the pairs: a masked backward pass over the data for each."""
    params = list(model.parameters())
    z = model(X)
    p = z.detach().softmax(1)
    for pair in range(pairs):
        c, k = divmod(pair, p.shape[1])
        slope = p - F.one_hot(torch.full_like(y, k), p.shape[1])
        weight = p[:, k] * (y == c)
        torch.autograd.grad(z, params, weight[:, None] * slope, retain_graph=True)


def means(device: str, rounds: int) -> dict[str, float]:
    model, X, y = WORKLOADS["VGG11-W64"].make(device)
    problem = cs.Problem(model, (X, y))
    structure = class_structure(problem)
    tasks = {
        "gradient": problem.gradient,
        "class_structure": lambda: class_structure(problem),
        "class_traces": lambda: class_traces(structure),
        "ten pairs": lambda: by_pairs(model, X, y, 10),
    }
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(rounds):
        for name, run in tasks.items():
            times[name].append(seconds(run, device))
    unit = median(times["gradient"])
    found = {name: median(values) / unit for name, values in times.items()}
    found["a hundred pairs"] = 10 * found.pop("ten pairs")
    return found


def trained_vgg(device: str, per_class: int, epochs: int) -> tuple[nn.Module, Tensor, Tensor]:
    """VGG11 with 28 M parameters, trained on a few digits of the embedded MNIST."""
    images, labels = load_embedded("mnist-6k", device=device)
    chosen = torch.cat([(labels == c).nonzero().flatten()[:per_class] for c in range(10)])
    X = F.pad(images[chosen], (2, 2, 2, 2)).expand(-1, 3, 32, 32).contiguous()
    X, y = (X - X.mean()) / X.std(), labels[chosen]
    torch.manual_seed(0)
    model = WORKLOADS["VGG11-28M"].build()
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            nn.init.zeros_(module.bias)
    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    for _ in range(epochs):
        for i in torch.randperm(len(y)).to(device).split(128):
            optimizer.zero_grad()
            F.cross_entropy(model(X[i]), y[i]).backward()
            optimizer.step()
    return model, X, y


def spectrum(device: str, per_class: int, epochs: int, steps: int) -> dict[str, Any]:
    torch.backends.cudnn.allow_tf32 = False  # for Lanczos; the exact form never uses it
    model, X, y = trained_vgg(device, per_class, epochs)
    problem = cs.Problem(model, (X, y), batch_size=512)
    G = cs.GaussNewton(problem)
    found: dict[str, Any] = {
        "parameters": problem.params.size,
        "samples": len(y),
        "loss": float(problem.value()),
        "gradient seconds": seconds(problem.gradient, device),
        "footprint": str(GramForm(problem, class_directions).footprint()),
    }
    exact, took = timed(lambda: exact_spectrum(G), device)
    found["exact spectrum seconds, C − 1 rows a sample"] = took
    K, took = timed(GramForm(problem, class_directions).matrix, device)
    found["Gram matrix seconds, C rows a sample"] = took
    values, took = timed(lambda: torch.linalg.eigvalsh(K).flip(0).cpu(), device)
    found["its eigenvalues, seconds"] = took
    found["largest"] = exact.values.flip(0)[:12].tolist()
    largest = exact.values.flip(0)
    found["both forms differ by"] = float(
        (values[: len(largest)] - largest).abs().max() / largest[0]
    )
    generator = torch.Generator().manual_seed(0)
    measure, took = timed(
        lambda: cs.spectral_measure(G, steps=steps, reorthogonalize=False, generator=generator),
        device,
    )
    found[f"Lanczos seconds, {steps} steps"] = took
    found["log distance, eps=1e-5"] = log_distance(exact, measure, eps=1e-5)
    above = torch.logspace(-4, 2, 7, dtype=torch.float64)
    n = problem.params.size
    found["eigenvalues above"] = {
        f"{x:g}": [round(n * (1 - float(s.cdf(x[None]))), 1) for s in (exact, measure)]
        for x in above
    }
    return found


def attribution(device: str, per_class: int, epochs: int) -> dict[str, Any]:
    model, X, y = trained_vgg(device, per_class, epochs)
    problem = cs.Problem(model, (X, y), batch_size=512)
    table, took = timed(lambda: attribute_outliers(problem), device)
    groups = [[g.name, g.expected, g.outliers, g.subtracted, g.projected] for g in table.groups]
    knocked = seconds(lambda: class_knockouts(problem), device)
    return {
        "seconds": took, "knockouts seconds": knocked, "outliers": table.outliers,
        "edge": table.edge, "table": groups,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("task", choices=["means", "spectrum", "attribution"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--per-class", type=int, default=136)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--steps", type=int, default=2048)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.task == "means":
        found: dict[str, Any] = means(options.device, options.rounds)
    elif options.task == "spectrum":
        found = spectrum(options.device, options.per_class, options.epochs, options.steps)
    else:
        found = attribution(options.device, options.per_class, options.epochs)
    text = json.dumps(found, indent=2, ensure_ascii=False)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
