r"""What a monitor costs, what warm starts save, and how its numbers compare at equal time.

    python benchmarks/monitor.py share --network MLP --budget 0.05
    python benchmarks/monitor.py warm --network LeNet5
    python benchmarks/monitor.py accuracy --network MLP
    python benchmarks/monitor.py noise --picture docs/assets/monitor-noise.svg

"share" trains two copies of a network in turns of a few steps in one process, one of them with a
monitor, and compares their times with the budget and with what the monitor itself says. "warm"
counts products of searches that begin at the last eigenvector and at a random one, along one
training. "accuracy" measures sharpness beside critical sharpness by line search (forward passes
alone, Kalra et al. 2026, written out here) and PyHessian's power iteration in as much time. "noise"
puts the noise scale's errors to the test, over 200 probes drawn from a population that is known.

Times are those of the process: other programs on the machine do not count.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from workloads import lenet5, mlp

import curvescope as cs
from curvescope.monitor import largest, noise_scale
from curvescope.networks import network

now = time.process_time


class Task:
    """A network with data that can be learned, in seeded batches."""

    def __init__(self, name: str, batch: int) -> None:
        torch.manual_seed(0)
        self.name, self.batch = name, batch
        g = torch.Generator().manual_seed(0)
        if name == "GPT":
            self.model: nn.Module = network("GPT-2x64", (64,), 64)
            text = torch.randint(0, 64, (2048, 65), generator=g)
            text[:, 1::2] = (
                text[:, :-1:2] * 7 + 3
            ) % 64  # every second token follows from the last
            self.X, self.y = text[:, :-1], text[:, 1:]
            self.loss: Any = cs.losses.CrossEntropy(axis=-1)
        else:
            build, shape = (mlp, (784,)) if name == "MLP" else (lenet5, (3, 32, 32))
            self.model = build()
            means = torch.randn(10, *shape, generator=g)
            self.y = torch.randint(0, 10, (4096,), generator=g)
            self.X = 0.3 * means[self.y] + torch.randn(4096, *shape, generator=g)
            self.loss = "cross_entropy"

    def probe(self, samples: int) -> tuple[Tensor, Tensor]:
        """The first samples."""
        return self.X[:samples], self.y[:samples]

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches in random order, without end."""
        g = torch.Generator().manual_seed(1)
        while True:
            for rows in torch.randperm(len(self.X), generator=g).split(self.batch):
                if len(rows) == self.batch:
                    yield self.X[rows], self.y[rows]


SIZES = {"MLP": 128, "LeNet5": 64, "GPT": 16}


def steps(
    model: nn.Module, opt: torch.optim.Optimizer, batches: Iterator[Any], count: int,
    after: Callable[[], Any] = lambda: None,
) -> None:  # fmt: skip
    for _ in range(count):
        X, y = next(batches)
        output = model(X)
        F.cross_entropy(output.reshape(-1, output.shape[-1]), y.reshape(-1)).backward()
        opt.step()
        opt.zero_grad()
        after()


def share(name: str, budget: float | None, seconds: float) -> dict[str, Any]:
    """The time of watched steps over that of steps alone, in turns."""
    task = Task(name, SIZES[name])
    models = [task.model, copy.deepcopy(task.model)]
    opts = [torch.optim.AdamW(model.parameters(), lr=1e-3) for model in models]
    streams = [task.batches(), task.batches()]
    away = 0.0  # while the other one trains, the monitor's clock stands still
    monitor = cs.Monitor(
        models[0], task.probe(SIZES[name]), loss=task.loss, optimizer=opts[0], budget=budget or 0.0,
        clock=lambda: now() - away, generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    if budget is None:
        monitor.close()
    for model, opt, stream in zip(models, opts, streams, strict=True):
        steps(model, opt, stream, 10)
    taken, measured, start = [0.0, 0.0], 0, now()

    def after() -> None:
        nonlocal measured
        measured += budget is not None and monitor.step() is not None

    turn = 0
    while now() - start < seconds or turn % 4:
        begin = now()
        which = (0, 1, 1, 0)[turn % 4]
        steps(models[which], opts[which], streams[which], 20, (after, lambda: None)[which])
        spent = now() - begin
        taken[which] += spent
        away += spent if which else 0.0
        turn += 1
    equal = all(
        torch.equal(a, b)
        for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True)
    )
    return {
        "budget": budget,
        "share, measured": round(taken[0] / taken[1] - 1, 4),
        "share, by the monitor": round(monitor.share, 4),
        "steps": 10 * turn,
        "looks": measured,
        "weights equal to the bit": equal,
    }


def warm(name: str) -> dict[str, Any]:
    """Products of warm and cold searches at the same weights, every ten steps of AdamW and SGD."""
    task = Task(name, SIZES[name])
    results: dict[str, Any] = {}
    makers = {
        "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
        "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-3),
    }
    for kind, make in makers.items():
        model = copy.deepcopy(task.model)
        opt, stream = make(model.parameters()), task.batches()
        start, counts, errors = None, ([], []), ([], [])
        for _ in range(25):
            steps(model, opt, stream, 10)
            problem = cs.Problem(model, task.probe(256 if name != "GPT" else 32), loss=task.loss)
            A: cs.LinearOperator = cs.Hessian(problem).for_many()
            limits = cs.monitor.stability_limits(opt, list(model.parameters()))
            assert limits is not None
            if limits.inverse_root is not None:
                A = cs.monitor.Preconditioned(A, limits.inverse_root, limits.decay)
            g = torch.Generator().manual_seed(0)
            found = [largest(A, start=s, generator=g) for s in (start, None)]
            exact = largest(A, start=found[1].start, tol=1e-5, max_products=200, generator=g)
            start = found[0].start
            for pairs, count, error in zip(found, counts, errors, strict=True):
                count.append(pairs.products)
                error.append(abs(pairs.values[0] / exact.values[0] - 1))
        results[kind] = {
            "products, warm": sum(counts[0][1:]),
            "products, cold": sum(counts[1][1:]),
            "largest error, warm": max(errors[0][1:]),
            "largest error, cold": max(errors[1][1:]),
            "within 5 %, warm": sum(e < 0.05 for e in errors[0]) / len(errors[0]),
        }
    return results


def critical_sharpness(
    loss_at: Callable[[float], float], rate: float, halvings: int = 4
) -> tuple[float, int]:
    """``2/η_c``: ``η_c`` is the smallest rate along the step at which the loss does not fall.

    Rates are doubled (or halved) until they hold it between them, then the interval is halved four
    times, to a sixteenth.
    """
    base, passes = loss_at(0.0), 2
    rises = loss_at(rate) > base
    low = high = rate
    for _ in range(40):
        low, high = (low / 2, low) if rises else (high, high * 2)
        passes += 1
        if (loss_at(low if rises else high) > base) != rises:
            break
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (low, middle) if loss_at(middle) > base else (middle, high)
        passes += 1
    return 4 / (low + high), passes


def along(
    model: nn.Module, X: Tensor, y: Tensor, gradient: Sequence[Tensor]
) -> Callable[[float], float]:
    """The loss after a step of a given rate against the gradient; the model is left there."""
    weights = [p.detach().clone() for p in model.parameters()]

    def loss_at(rate: float) -> float:
        with torch.no_grad():
            for p, w, d in zip(model.parameters(), weights, gradient, strict=True):
                p.copy_(w - rate * d)
            return float(F.cross_entropy(model(X), y))

    return loss_at


def accuracy(name: str) -> dict[str, Any]:
    """Estimates of ``λ_max(H)`` along gradient descent, each with its time in gradients."""
    from pyhessian import hessian as pyhessian

    warnings.filterwarnings("ignore")
    task = Task(name, SIZES[name])
    X, y = task.probe(512 if name == "MLP" else 256)
    model = task.model
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    problem = cs.Problem(model, X, y, loss=task.loss)
    names = (
        "monitor, warm",
        "critical sharpness",
        "PyHessian, as much time",
        "PyHessian, tol 1e-3",
    )
    times: dict[str, list[float]] = {each: [] for each in (*names, "gradient")}
    errors: dict[str, list[float]] = {each: [] for each in names}
    start, last = None, None
    for look in range(16):
        for _ in range(10):
            F.cross_entropy(model(X), y).backward()
            opt.step()
            opt.zero_grad()
        g = torch.Generator().manual_seed(look)
        begin = now()
        gradient = torch.autograd.grad(F.cross_entropy(model(X), y), list(model.parameters()))
        times["gradient"].append(now() - begin)

        begin = now()
        problem = problem.renewed()
        H = cs.Hessian(problem).for_many()
        found = largest(H, start=start, generator=g)
        ours = now() - begin
        start = found.start
        exact = largest(H, start=start, tol=1e-6, max_products=300, generator=g).values[0]

        loss_at = along(model, X, y, gradient)
        begin = now()
        critical, _ = critical_sharpness(loss_at, last or 2 / exact)
        line = now() - begin
        last = 2 / critical
        loss_at(0.0)

        begin = now()
        h = pyhessian(model, nn.CrossEntropyLoss(), data=(X, y), cuda=False)
        values, _ = h.eigenvalues(maxIter=300, tol=1e-3, top_n=1)
        full = now() - begin
        limited, count = math.nan, 0
        for count in range(1, 60):  # the most iterations that fit into our time
            begin = now()
            torch.manual_seed(look)
            h = pyhessian(model, nn.CrossEntropyLoss(), data=(X, y), cuda=False)
            value = h.eigenvalues(maxIter=count, tol=0.0, top_n=1)[0][0]
            if count > 1 and now() - begin > ours:
                break
            limited, spent = value, now() - begin
        found_values = (found.values[0], critical, limited, values[0])
        if look:  # the first has no earlier eigenvector
            for each, value, took in zip(
                names, found_values, (ours, line, spent, full), strict=True
            ):
                times[each].append(took)
                errors[each].append(abs(value / exact - 1))
    unit = median(times.pop("gradient"))
    return {
        each: {
            "gradients": round(median(times[each]) / unit, 1),
            "median error": float(f"{median(errors[each]):.2g}"),
            "largest error": float(f"{max(errors[each]):.2g}"),
        }
        for each in names
    }


def noise(picture: Path | None) -> dict[str, Any]:
    """z-scores of the noise scale over 200 probes of 512 samples, in three sizes of pieces."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 5)).double()
    X = torch.randn(4000, 20).double()
    y = (X[:, :5] + 0.5 * torch.randn(4000, 5)).argmax(1)
    opt = torch.optim.SGD(model.parameters(), lr=0.5)
    steps(model, opt, iter([(X, y)] * 20), 20)

    def loss(weights: dict[str, Tensor], x: Tensor, t: Tensor) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(model, weights, x[None]), t[None])

    weights = {name: p.detach() for name, p in model.named_parameters()}
    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weights, X, y)
    rows = torch.cat([g.flatten(1) for g in each.values()], 1)
    G = rows.mean(0)
    truth = float((rows - G).square().sum(1).mean() / G.square().sum())
    scores, covered = [], 0
    for seed in range(200):
        g = torch.Generator().manual_seed(seed)
        drawn = rows[torch.randint(len(rows), (16, 32), generator=g)].mean(1)
        found = noise_scale(drawn, 32)
        scores.append((found.scale - truth) / found.scale_error)
        covered += found.low <= truth <= found.high
    if picture is not None:
        _picture(scores, picture)
    z = torch.tensor(scores)
    return {
        "noise scale": round(truth, 2),
        "mean z": round(float(z.mean()), 3),
        "standard deviation of z": round(float(z.std()), 3),
        "covered by 95 % intervals": covered / 200,
    }


def _picture(scores: list[float], place: Path) -> None:
    import matplotlib.pyplot as plt
    from scipy.stats import t

    ranks = (torch.arange(1, len(scores) + 1) - 0.5) / len(scores)
    expected = t.ppf(ranks.numpy(), 15)
    figure, axes = plt.subplots(figsize=(4, 4))
    axes.plot(expected, sorted(scores), ".", markersize=3)
    axes.plot([-3, 3], [-3, 3], color="gray", linewidth=0.8)
    axes.set_xlabel("quantiles of Student's t, 15 degrees of freedom")
    axes.set_ylabel("(noise scale − truth) / error, 200 probes")
    figure.tight_layout()
    figure.savefig(place, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["share", "warm", "accuracy", "noise"])
    parser.add_argument("--network", choices=list(SIZES), default="MLP")
    parser.add_argument("--budget", type=float, help="none: two copies alone, for comparison")
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--out", type=Path, help="a JSON file, to which the results are added")
    args = parser.parse_args()
    results: Any
    if args.part == "share":
        results = share(args.network, args.budget, args.seconds)
    elif args.part == "noise":
        results = noise(args.picture)
    else:
        results = {"warm": warm, "accuracy": accuracy}[args.part](args.network)
    print(json.dumps(results, indent=1), flush=True)
    if args.out is not None:
        before = json.loads(args.out.read_text()) if args.out.exists() else {}
        key = args.part if args.part == "noise" else f"{args.part}, {args.network}"
        key += f", {args.budget}" if args.part == "share" else ""
        how = {"threads": torch.get_num_threads(), "torch": torch.__version__}
        args.out.write_text(json.dumps({**before, **how, key: results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
