"""Products with the networks of today, in multiples of one gradient, and what they hold.

    python benchmarks/language.py                         # time: GPT-2, Llama, ViT, ResNet-18, LSTM
    python benchmarks/language.py --memory                # peak memory, a process for each figure
    python benchmarks/language.py --lengths               # attention: peak memory over the length

A kept product is one of many, a column is an eighth of a block of eight, a streamed product pays
for everything. Rounds are interleaved with gradients, figures are medians; ``--clock process``
takes the time of the process instead of the clock on the wall, for a machine that others use too.
Attention is torch's fused function for the gradient and its unfused path wherever a second
derivative by torch needs that.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import networks
import torch
import torch.nn.functional as F
from networks import VOCABULARY
from products import _device, seconds, versions
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

COLUMNS = 8
Task = Callable[[], Any]


@contextmanager
def unfused() -> Iterator[None]:
    with sdpa_kernel(SDPBackend.MATH):
        yield


def tokens(vocabulary: int, samples: int, length: int) -> tuple[Tensor, Tensor]:
    return tuple(torch.randint(0, vocabulary, (samples, length)) for _ in range(2))  # type: ignore[return-value]


def images(samples: int) -> tuple[Tensor, Tensor]:
    return torch.randn(samples, 3, 32, 32), torch.randint(0, 10, (samples,))


WORKLOADS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, Tensor]]]] = {
    "GPT-2": (networks.gpt2, lambda: tokens(VOCABULARY, 8, 128)),
    "Llama": (networks.llama, lambda: tokens(VOCABULARY, 8, 128)),
    "ViT": (networks.VisionTransformer, lambda: images(32)),
    "ResNet-18": (networks.resnet18, lambda: images(16)),
    "LSTM": (networks.Recurrent, lambda: tokens(VOCABULARY, 16, 64)),
    "GPT-2, 50,000 tokens": (
        lambda: networks.gpt2(50000, layers=2), lambda: tokens(50000, 8, 128),
    ),
}  # fmt: skip
TIMED = ("GPT-2", "Llama", "ViT", "ResNet-18", "LSTM")


def made(name: str, device: str) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    build, data = WORKLOADS[name]
    model = build().eval().to(device)
    X, y = data()
    return model, X.to(device), y.to(device)


def mean_loss(z: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(z.flatten(0, -2), y.flatten())


# Contestants --------------------------------------------------------------------------------------


def split(model: nn.Module, v: Tensor) -> list[Tensor]:
    params = list(model.parameters())
    pieces = v.split([p.numel() for p in params])
    return [piece.view_as(p) for piece, p in zip(pieces, params, strict=True)]


def ours(model: nn.Module, X: Tensor, y: Tensor, v: Tensor, *, keep: bool) -> dict[str, Task]:
    import curvescope as cs
    from curvescope.problem.losses import CrossEntropy

    loss: Any = CrossEntropy(axis=-1) if y.ndim == 2 else "cross_entropy"
    H = cs.Hessian(cs.Problem(model, (X, y), loss=loss), keep=keep)
    G = cs.GaussNewton(cs.Problem(model, (X, y), loss=loss), keep=keep)
    tasks = {"Hv": lambda: H @ v, "Gv": lambda: G @ v}
    if keep:
        V = torch.randn(len(v), COLUMNS, device=v.device)
        tasks |= {"HV": lambda: H @ V, "GV": lambda: G @ V}
    return tasks


def double_backward(model: nn.Module, X: Tensor, y: Tensor, v: Tensor) -> dict[str, Task]:
    params, pieces = list(model.parameters()), split(model, v)

    def hv() -> Any:
        with unfused():
            g = torch.autograd.grad(mean_loss(model(X), y), params, create_graph=True)
            return torch.autograd.grad(g, params, pieces)

    def gv() -> Any:
        with unfused():
            z = model(X)
            u = torch.zeros_like(z, requires_grad=True)
            g = torch.autograd.grad(z, params, u, create_graph=True)
            (jv,) = torch.autograd.grad(g, u, pieces)
            p = torch.softmax(z.detach(), -1)
            t = (p * jv - p * (p * jv).sum(-1, keepdim=True)) / y.numel()
            return torch.autograd.grad(z, params, t)

    return {"Hv": hv, "Gv": gv}


def jvp_of_grad(model: nn.Module, X: Tensor, y: Tensor, v: Tensor) -> dict[str, Task]:
    names = [name for name, _ in model.named_parameters()]
    params = {name: p.detach() for name, p in model.named_parameters()}
    direction = dict(zip(names, split(model, v), strict=True))

    def loss(w: dict[str, Tensor]) -> Tensor:
        return mean_loss(torch.func.functional_call(model, w, (X,)), y)

    def hv() -> Any:
        with unfused():
            return list(torch.func.jvp(torch.func.grad(loss), (params,), (direction,))[1].values())

    return {"Hv": hv}


def curvlinops(model: nn.Module, X: Tensor, y: Tensor, v: Tensor) -> dict[str, Task]:
    from curvlinops import GGNLinearOperator, HessianLinearOperator

    class Rows(nn.Module):
        """Positions as samples, as the library has them."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor) -> Tensor:
            return self.model(x).flatten(0, -2)

    rows, data = Rows().eval(), [(X, y.flatten())]
    params: Any = list(rows.parameters())
    settings: Any = {"check_deterministic": False, "batch_size_fn": lambda x: len(x)}
    with unfused():
        H = HessianLinearOperator(rows, nn.CrossEntropyLoss(), params, data, **settings)
        G = GGNLinearOperator(rows, nn.CrossEntropyLoss(), params, data, **settings)

    def under(A: Any) -> Task:
        def act() -> Any:
            with unfused():
                return A @ v

        return act

    return {"Hv": under(H), "Gv": under(G)}


CONTESTANTS: dict[str, Callable[..., dict[str, Task]]] = {
    "curvescope, kept": lambda *given: ours(*given, keep=True),
    "curvescope, streamed": lambda *given: ours(*given, keep=False),
    "double backward": double_backward,
    "torch.func, jvp of grad": jvp_of_grad,
    "curvlinops": curvlinops,
}


def gradient(model: nn.Module, X: Tensor, y: Tensor) -> Task:
    params = list(model.parameters())
    return lambda: torch.autograd.grad(mean_loss(model(X), y), params)


# Time ---------------------------------------------------------------------------------------------


def taken(task: Task, device: str, clock: str) -> float:
    if clock == "wall":
        return seconds(task, device)
    start = time.process_time()
    task()
    return time.process_time() - start


def measure(
    name: str, device: str, contestants: list[str], rounds: int, clock: str
) -> dict[str, Any]:
    model, X, y = made(name, device)
    v = torch.randn(sum(p.numel() for p in model.parameters()), device=device)
    plain = gradient(model, X, y)
    tasks: dict[tuple[str, str], Task] = {}
    truth: dict[str, Tensor] = {}
    failures: dict[str, str] = {}
    for contestant in contestants:
        try:
            offered = CONTESTANTS[contestant](model, X, y, v)
            for task, act in offered.items():
                result = _flat(act())
                gap = float((result - truth.setdefault(task, result)).norm() / result.norm())
                if not gap < 1e-3:
                    failures[f"{contestant} {task}"] = f"differs from the first by {gap:.1e}"
                tasks[contestant, task] = act
        except Exception as error:
            failures[contestant] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    plain()
    gradients: list[float] = []
    times: dict[tuple[str, str], list[float]] = {key: [] for key in tasks}
    for _ in range(rounds):
        for key, act in tasks.items():
            gradients.append(taken(plain, device, clock))
            times[key].append(taken(act, device, clock))
    base = median(gradients)
    ratios: dict[str, dict[str, float]] = {}
    for (contestant, task), each in times.items():
        columns = COLUMNS if task in ("HV", "GV") else 1
        ratios.setdefault(contestant, {})[task] = round(median(each) / base / columns, 3)
    return {"gradient_ms": round(base * 1e3, 2), "parameters": len(v), "batch": list(X.shape),
            "ratios": ratios, "failures": failures}  # fmt: skip


def _flat(out: Any) -> Tensor:
    if isinstance(out, Tensor):
        return out.detach()
    return torch.cat([t.detach().flatten() for t in out])


# Memory -------------------------------------------------------------------------------------------


def peak(name: str, device: str, contestant: str, task: str) -> float:
    """MiB above the model, the data and a vector; meant for a process of its own."""
    small = networks.gpt2(10, 8, 1, 64).eval()
    few = torch.randint(0, 10, (2, 8))
    for warm in ("gradient", contestant):  # what libraries load and allocate for themselves
        _task(warm, task, small.to(device), few.to(device), few.to(device))()
    if name.startswith("attention"):
        model, X, y = _long(*name.split()[1:], device=device)
    else:
        model, X, y = made(name, device)
    act = _task(contestant, task, model, X, y)
    before = _resident(device, reset=True)
    act()
    return (_resident(device) - before) / 2**20


def _task(contestant: str, task: str, model: nn.Module, X: Tensor, y: Tensor) -> Task:
    if contestant == "gradient":
        return gradient(model, X, y)
    v = torch.randn(sum(p.numel() for p in model.parameters()), device=X.device)
    return CONTESTANTS[contestant](model, X, y, v)[task]


def _resident(device: str, *, reset: bool = False) -> int:
    """The peak so far; with ``reset`` what is there now, from which a new peak is counted."""
    if device == "cuda":
        if reset:
            torch.cuda.reset_peak_memory_stats()
            return torch.cuda.memory_allocated()
        return torch.cuda.max_memory_allocated()
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
    lines = Path("/proc/self/status").read_text().splitlines()
    high = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return 1024 * min(high, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def _long(length: str, attention: str, device: str) -> tuple[nn.Module, Tensor, Tensor]:
    """One sequence; ``attention`` is ours or torch's unfused path, written out."""
    torch.manual_seed(0)
    T = int(length)
    model = networks.gpt2(100, T, layers=2, width=128).eval().to(device)
    X, y = tokens(100, 1, T)
    if attention == "unfused":
        F.scaled_dot_product_attention = _written_out  # type: ignore[assignment]
    return model, X.to(device), y.to(device)


def _written_out(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool, enable_gqa: bool) -> Tensor:
    scores = q @ k.mT / q.shape[-1] ** 0.5
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(future, -torch.inf).softmax(-1) @ v


def elsewhere(name: str, device: str, contestant: str, task: str) -> float | None:
    """:func:`peak` in a process of its own; None where it failed."""
    call = [sys.executable, __file__, "--device", device, "--peak", name, contestant, task]
    call += ["--threads", str(torch.get_num_threads())]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    return round(float(done.stdout.split()[-1]), 1) if done.returncode == 0 else None


def memory(name: str, device: str, contestants: list[str]) -> dict[str, Any]:
    table: dict[str, Any] = {"gradient": {"Hv": elsewhere(name, device, "gradient", "Hv")}}
    for contestant in contestants:
        for task in ("Hv", "Gv"):
            if (contestant, task) != ("torch.func, jvp of grad", "Gv"):
                table.setdefault(contestant, {})[task] = elsewhere(name, device, contestant, task)
        print(name, contestant, table[contestant], "gradient", table["gradient"], flush=True)
    return table


def lengths(device: str) -> dict[str, Any]:
    """Peak MiB of a streamed product over the length of a sequence."""
    table: dict[str, Any] = {}
    for attention in ("ours", "unfused"):
        for task in ("Hv", "Gv"):
            row = {}
            for T in (512, 1024, 2048, 4096):
                name = f"attention {T} {attention}"
                row[T] = elsewhere(name, device, "curvescope, streamed", task)
            table[f"{attention} {task}"] = row
            print(attention, task, row, flush=True)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--workloads", nargs="+", default=list(TIMED))
    parser.add_argument("--contestants", nargs="+", default=list(CONTESTANTS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--clock", choices=("wall", "process"), default="wall")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--lengths", action="store_true")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--peak", nargs=3, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if options.peak:
        name, contestant, task = options.peak
        print(peak(name, options.device, contestant, task))
        return
    report: dict[str, Any] = {"versions": versions(), "device": _device(options.device),
                              "clock": options.clock, "workloads": {}}  # fmt: skip
    if options.lengths:
        report["lengths"] = lengths(options.device)
    for name in () if options.lengths else options.workloads:
        if options.memory:
            result: dict[str, Any] = {"peak_mib": memory(name, options.device, options.contestants)}
        else:
            result = measure(
                name, options.device, options.contestants, options.rounds, options.clock
            )
            print(f"\n{name}: one gradient {result['gradient_ms']} ms", flush=True)
            for contestant, row in result["ratios"].items():
                print(f"{contestant:26}", row, flush=True)
            for contestant, why in result["failures"].items():
                print(f"  {contestant}: {why}", flush=True)
        report["workloads"][name] = result
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
