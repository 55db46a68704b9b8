r"""What a step with the trace penalty costs, and PP's metric from a mini-batch, in plain steps.

    python benchmarks/sharpness.py                                     # CPU
    python benchmarks/sharpness.py --device cuda --workloads VGG16-BN --inner 5 --graphs
    python benchmarks/sharpness.py --device cuda --workloads WideResNet-28x10 \
        --contestants "train, ggn"

A plain step is forward, backward and SGD with momentum on one batch. All contestants do their steps
on the same batch in one process, in interleaved rounds; each figure is the median over the rounds
divided by that of the plain step. "PP" is the paper's way: differentiate vᵀGv or vᵀHv by autograd
alone. "train" is a step of curvescope.train as it runs there, without and with the penalty, in
plain steps of its own: launched one by one on a CPU, on a GPU recorded as a CUDA graph of a few
steps. The relative deviation is that of one draw of the penalty's value from draw to draw. "ggn
without …" puts what autograd does by itself in the place of one of the penalty's own functions.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from workloads import WORKLOADS, mlp

from curvescope.flatness import TraceRegularizer, minibatch_metric
from curvescope.flatness.trace_gradient import capture, pullback
from curvescope.flatness.trace_gradient.convolution import Settings
from curvescope.networks import network
from curvescope.training import Recipe
from curvescope.training.engine import make_engine
from curvescope.training.learner import Learner

Step = Callable[[], Any]
WEIGHT = 1e-4
CONTESTANTS = [
    *("ggn, objective", "ggn, call", "hessian, objective", "ggn, PP", "hessian, PP"),
    *("mini-batch metric", "train, ggn", "train, hessian"),
]
OWN = {
    "ggn without batch norm": (capture, "batch_norm", F.batch_norm),
    "ggn without convolution": (capture, "convolve", lambda x, w, b, s, _: s.forward(x, w, b)),
    "ggn without correlation": (pullback, "correlate", lambda *a, **k: unfolded(*a, **k)),
}
"""Where each of the penalty's own functions is called, and what autograd does without it."""
RECORDED = 8
"""Steps of curvescope.train in a CUDA graph (in a training 32: recording them takes as long)."""


def vgg_bn_small() -> nn.Module:
    """Six convolutions with batch norm, 32 to 128 channels."""
    layers: list[nn.Module] = []
    channels = 3
    for width, pool in ((32, 1), (64, 1), (64, 0), (64, 1), (128, 1), (128, 1)):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if pool else []
        channels = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128, 10))


def gelu_mlp() -> nn.Module:
    """784-200-200-10 with GELU, for which tr H and tr G differ."""
    model = mlp()
    model[1], model[3] = nn.GELU(), nn.GELU()
    return model


def make(name: str, batch: int | None, device: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A seeded model in train mode and one batch."""
    torch.manual_seed(0)
    own = {"VGG-BN-small": (vgg_bn_small, 64), "MLP-GELU": (gelu_mlp, 1024)}
    if name in own:
        model, size = own[name][0](), own[name][1]
    elif name in WORKLOADS:
        model, size = WORKLOADS[name].build(), {"MLP": 1024}.get(name, 64)
    else:
        model, size = network(name, (3, 32, 32), 10), 128
    shape = (784,) if name.startswith("MLP") else (3, 32, 32)
    X = torch.randn(batch or size, *shape)
    y = torch.randint(0, 10, (len(X),))
    return model.to(device).train(), X.to(device), y.to(device)


# Contestants ------------------------------------------------------------------------------------


def signs(tensors: list[Tensor]) -> list[Tensor]:
    return [torch.randint_like(t, 2) * 2 - 1 for t in tensors]


def papers_way(model: nn.Module, X: Tensor, y: Tensor, kind: str) -> Tensor:
    """One random vector in weight space; vᵀGv as (Jv)ᵀB(Jv) by double backward."""
    params = list(model.parameters())
    v = signs(params)
    z = model(X)
    if kind == "hessian":
        loss = F.cross_entropy(z, y)
        g = torch.autograd.grad(loss, params, create_graph=True)
        hv = torch.autograd.grad(g, params, v, create_graph=True)
        return loss + WEIGHT * sum((a * b).sum() for a, b in zip(hv, v, strict=True))
    u = torch.zeros_like(z, requires_grad=True)
    g = torch.autograd.grad(z, params, u, create_graph=True)
    (jv,) = torch.autograd.grad(g, u, v, create_graph=True)
    p = z.softmax(1)
    form = (p * jv.square()).sum(1) - (p * jv).sum(1).square()
    return F.cross_entropy(z, y) + WEIGHT * form.mean()


def unfolded(delta: Tensor, x: Tensor, kernel: Any, settings: Settings, *, apart: bool) -> Tensor:
    """Gradients by the weights of a convolution of images, from unfolded inputs."""
    s, batch = settings, len(x) * settings.groups
    columns = F.unfold(x, kernel, s.dilation, s.padding, s.stride).reshape(
        batch, -1, delta[0, 0].numel()
    )
    g = torch.bmm(delta.reshape(batch, -1, columns.shape[-1]), columns.mT)
    g = g.unflatten(0, (len(x), s.groups))
    return g if apart else g.sum(0)


def without(name: str, objective: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """The objective with one of the penalty's own functions replaced."""
    module, attribute, other = OWN[name]

    def replaced() -> Tensor:
        ours = getattr(module, attribute)
        setattr(module, attribute, other)
        try:
            return objective()
        finally:
            setattr(module, attribute, ours)

    return replaced


def contestants(model: nn.Module, X: Tensor, y: Tensor) -> dict[str, Callable[[], Tensor]]:
    """What each of them minimizes."""
    g = torch.Generator().manual_seed(0)
    ggn = TraceRegularizer("ggn", weight=WEIGHT, generator=g)
    hessian = TraceRegularizer("hessian", weight=WEIGHT, generator=g)
    return {
        "plain": lambda: F.cross_entropy(model(X), y),
        "ggn, objective": lambda: ggn.objective(model, X, y).total,
        "ggn, call": lambda: F.cross_entropy(model(X), y) + ggn(model, X, y),
        "hessian, objective": lambda: hessian.objective(model, X, y).total,
        **{name: without(name, lambda: ggn.objective(model, X, y).total) for name in OWN},
        "ggn, PP": lambda: papers_way(model, X, y, "ggn"),
        "hessian, PP": lambda: papers_way(model, X, y, "hessian"),
    }


def stepper(model: nn.Module, objective: Callable[[], Tensor]) -> Step:
    """Forward, backward and an update that is too small to change anything."""
    params = list(model.parameters())
    optimizer = torch.optim.SGD(params, lr=1e-12, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        objective().backward()
        optimizer.step()

    return step


def captured(model: nn.Module, objective: Callable[[], Tensor]) -> Step:
    """The same step as a CUDA graph; its gradients stay where they are."""
    params = list(model.parameters())
    held: list[Any] = []

    def step() -> None:
        gradients = torch.autograd.grad(objective(), params)
        torch._foreach_add_([p.detach() for p in params], gradients, alpha=-1e-12)
        held[:] = [gradients]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay(held: list[Any] = held) -> None:
        graph.replay()

    return replay


def trainers(
    model: nn.Module, X: Tensor, y: Tensor, chosen: list[str]
) -> tuple[dict[str, Step], int]:
    """A few steps of curvescope.train on this batch, without and with a penalty, and how many."""
    g = torch.Generator().manual_seed(0)
    count = RECORDED if X.is_cuda else 1
    data = X.repeat(count, *(1,) * (X.ndim - 1)), y.repeat(count)
    recipe = Recipe(seed=0, epochs=1, lr=1e-12, momentum=0.9, batch_size=len(y))
    order = torch.arange(len(data[1]), device=X.device)[None]
    made: dict[str, Step] = {}
    for name in ("plain", "ggn", "hessian"):
        if f"train, {name}" not in chosen:
            continue
        penalty = None if name == "plain" else TraceRegularizer(name, weight=WEIGHT, generator=g)
        learner = Learner(copy.deepcopy(model), recipe, penalty)
        engine = make_engine([learner], *data, capture=True)
        made[f"train, {name}"] = lambda engine=engine: list(engine.epoch(order))
    return made, count


# Measuring --------------------------------------------------------------------------------------


def times(
    steps: dict[str, Step], device: str, rounds: int, inner: int, *, cpu_time: bool = False
) -> dict[str, float]:
    """Median seconds of a step, rounds interleaved."""
    now = time.process_time if cpu_time else time.perf_counter
    sync = torch.cuda.synchronize if device == "cuda" else lambda: None
    found: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
        step()
    for _ in range(rounds):
        for name, step in steps.items():
            sync()
            start = now()
            for _ in range(inner):
                step()
            sync()
            found[name].append((now() - start) / inner)
    return {name: median(values) for name, values in found.items()}


def deviations(model: nn.Module, X: Tensor, y: Tensor, draws: int = 20) -> dict[str, float]:
    """Standard deviation over mean of one draw of tr G, ours and vᵀGv."""
    ours = TraceRegularizer("ggn", weight=1.0, generator=torch.Generator().manual_seed(1))
    plain = F.cross_entropy(model(X), y).detach()
    values = {
        "ours": torch.stack([ours(model, X, y).detach() for _ in range(draws)]),
        "PP": torch.stack(
            [(papers_way(model, X, y, "ggn").detach() - plain) / WEIGHT for _ in range(draws)]
        ),
    }
    return {name: float(v.std() / v.mean()) for name, v in values.items()}


def measure(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """One workload."""
    model, X, y = make(name, args.batch, args.device)
    chosen = ["plain", "train, plain", *args.contestants]
    objectives = contestants(model, X, y)
    steps = {key: stepper(model, f) for key, f in objectives.items() if key in chosen}
    if "mini-batch metric" in chosen:
        g = torch.Generator().manual_seed(0)
        steps["mini-batch metric"] = lambda: minibatch_metric(model, X, y, generator=g)
    found = times(steps, args.device, args.rounds, args.inner, cpu_time=args.cpu_time)
    steps, count = trainers(model, X, y, chosen)
    trained = times(steps, args.device, args.rounds, args.inner, cpu_time=args.cpu_time)
    result: dict[str, Any] = {
        "workload": name,
        "batch": len(X),
        "parameters": sum(p.numel() for p in model.parameters()),
        "plain step, ms": 1e3 * found["plain"],
        "plain step of train, ms": 1e3 * trained["train, plain"] / count,
        "ratio": {
            **{key: value / found["plain"] for key, value in found.items()},
            **{key: value / trained["train, plain"] for key, value in trained.items()},
        },
    }
    if "ggn, PP" in chosen:
        result["relative deviation of one draw"] = deviations(model, X, y)
    if args.graphs:
        del steps  # and the memory of their graphs
        graphs = {key: captured(model, objectives[key]) for key in ("plain", "ggn, objective")}
        replayed = times(graphs, args.device, args.rounds, args.inner)
        result["plain step as a CUDA graph, ms"] = 1e3 * replayed["plain"]
        result["ratio as CUDA graphs"] = replayed["ggn, objective"] / replayed["plain"]
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", nargs="+", default=["MLP", "VGG11-W64", "VGG-BN-small"])
    parser.add_argument(
        "--contestants", nargs="+", default=CONTESTANTS, choices=[*CONTESTANTS, *OWN],
        metavar="NAME",
        help=f"beside the plain steps, some of: {'; '.join([*CONTESTANTS, *OWN])} (default: those "
        "before 'without')",
    )  # fmt: skip
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--batch", type=int, help="samples (default: by workload)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--inner", type=int, default=1, help="steps per measurement")
    parser.add_argument(
        "--cpu-time", action="store_true", help="time of the process, where others are at work"
    )
    parser.add_argument("--no-tf32", action="store_true", help="convolutions in full float32")
    parser.add_argument("--tune", action="store_true", help="cuDNN's benchmark mode")
    parser.add_argument("--graphs", action="store_true", help="also as CUDA graphs")
    parser.add_argument("--out", type=Path, help="a JSON file for the results")
    args = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = not args.no_tf32
    torch.backends.cudnn.benchmark = args.tune
    where = torch.cuda.get_device_name() if args.device == "cuda" else platform.machine()
    results = {
        "device": where,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "tf32": not args.no_tf32,
        "tuned": args.tune,
        "clock": "time of the process" if args.cpu_time else "wall-clock",
        "workloads": [],
    }
    for name in args.workloads:
        found = measure(name, args)
        results["workloads"].append(found)
        print(json.dumps(found, indent=1, ensure_ascii=False), flush=True)
        if args.out is not None:
            args.out.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
