"""Products with the networks of today, in multiples of one gradient, and what they hold.

    python benchmarks/language.py                         # everything, and the tables
    python benchmarks/language.py --parts time --workloads GPT-2
    python benchmarks/language.py --render                # the tables of results/language-cpu.json

A kept product is one of many, a column is an eighth of a block of eight, a streamed product pays
for everything. Rounds are interleaved with gradients; figures are medians in gradients, the least
times of a round stand beside them in the results. Time is that of the process on one thread, which
other users of the machine disturb less than the clock on the wall (``--clock wall``). Peak memory
is that of a process for each figure. What was measured before in other parts of the file stays.
Attention is torch's fused function for the gradient and its unfused path wherever a second
derivative by torch needs that.
"""

from __future__ import annotations

import argparse
import json
import math
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
LARGE = "GPT-2, 50,000 tokens"
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
    LARGE: (
        lambda: networks.gpt2(50000, layers=2), lambda: tokens(50000, 8, 128),
    ),
}  # fmt: skip
PARTS = ("time", "memory", "lengths")
RESULTS = Path(__file__).parent / "results" / "language-cpu.json"
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


def measure(name: str, device: str, contestant: str, rounds: int, clock: str) -> dict[str, Any]:
    """One contestant and gradients, in turns; ``checks`` are numbers that all agree on."""
    model, X, y = made(name, device)
    v, probe = torch.randn(2, sum(p.numel() for p in model.parameters()), device=device)
    plain = gradient(model, X, y)
    try:
        tasks = CONTESTANTS[contestant](model, X, y, v)
        results = {task: _flat(act()).flatten() for task, act in tasks.items()}
    except Exception as error:
        return {"failure": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    checks = {
        task: [float(r.norm()), float(r @ probe)] for task, r in results.items() if len(r) == len(v)
    }
    del results
    plain()
    gradients: list[float] = []
    times: dict[str, list[float]] = {task: [] for task in tasks}
    for _ in range(rounds):
        for task, act in tasks.items():
            gradients.append(taken(plain, device, clock))
            times[task].append(taken(act, device, clock))
    gradients.append(taken(plain, device, clock))
    columns = {task: COLUMNS if task in ("HV", "GV") else 1 for task in tasks}
    ratios = {
        task: {
            how.__name__: round(how(each) / how(gradients) / columns[task], 3)
            for how in (median, min)
        }
        for task, each in times.items()
    }
    spread = [round(f(gradients) * 1e3, 1) for f in (min, median, max)]
    return {"gradient_ms": spread, "rounds": rounds, "ratios": ratios, "checks": checks}


def differing(entry: dict[str, Any]) -> list[str]:
    """Contestants whose products are not those of the first one."""
    wrong = []
    truth: dict[str, list[float]] = {}
    for contestant, result in entry.items():
        for task, numbers in result.get("checks", {}).items():
            first = truth.setdefault(task, numbers)
            gap = max(abs(a - b) for a, b in zip(numbers, first, strict=True))
            if not gap < 1e-3 * first[0]:
                wrong.append(f"{contestant}, {task}: differs by {gap / first[0]:.1e}")
    return wrong


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


LENGTHS = (512, 1024, 2048, 4096)


def lengths(device: str) -> dict[str, Any]:
    """Peak MiB of a streamed product over the length of a sequence, and its growth: ``T^power``."""
    table: dict[str, Any] = {}
    for attention in ("ours", "unfused"):
        for task in ("gradient", "Hv", "Gv"):
            contestant = "gradient" if task == "gradient" else "curvescope, streamed"
            row = {
                T: elsewhere(f"attention {T} {attention}", device, contestant, task)
                for T in LENGTHS
            }
            table[f"{attention} {task}"] = {"mib": row, "power": power(row)}
            print(attention, task, table[f"{attention} {task}"], flush=True)
    return table


def power(row: dict[int, float | None]) -> float | None:
    """The slope of log memory over log length by least squares.

    >>> power({512: 10.0, 1024: 20.0, 2048: 40.0})
    1.0
    """
    points = [(math.log(T), math.log(mib)) for T, mib in row.items() if mib]
    if len(points) < 2:
        return None
    x, y = ([p[i] - sum(p[i] for p in points) / len(points) for p in points] for i in (0, 1))
    return round(sum(a * b for a, b in zip(x, y, strict=True)) / sum(a * a for a in x), 2)


# Tables -------------------------------------------------------------------------------------------

COLUMNS_OF_TABLE = (
    ("curvescope, streamed", "Hv"), ("double backward", "Hv"), ("torch.func, jvp of grad", "Hv"),
    ("curvlinops", "Hv"), ("curvescope, kept", "Hv"), ("curvescope, kept", "HV"),
    ("curvescope, streamed", "Gv"), ("double backward", "Gv"), ("curvlinops", "Gv"),
    ("curvescope, kept", "Gv"), ("curvescope, kept", "GV"),
)  # fmt: skip


def render(report: dict[str, Any]) -> str:
    """The tables of the README."""
    parts = []
    names = [f"{task.replace('V', '·V').replace('v', '·v')}, {c}" for c, task in COLUMNS_OF_TABLE]
    lines = [["", "gradient", *names]]
    for name, entry in report.get("time", {}).items():
        cells = [entry.get(c, {}).get("ratios", {}).get(t) for c, t in COLUMNS_OF_TABLE]
        spans = [each["gradient_ms"] for each in entry.values() if "gradient_ms" in each]
        cells_text = ["–" if cell is None else f"{cell['median']:.2f}" for cell in cells]
        gradients = f"{median(span[1] for span in spans):.0f} ms" if spans else "–"
        lines.append([name, gradients, *cells_text])
    parts.append(_table(lines))
    lines = [["", "gradient", *names]]
    for name, entry in report.get("peak_mib", {}).items():
        cells = [entry.get(c, {}).get(task) for c, task in COLUMNS_OF_TABLE]
        cells_text = ["–" if cell is None else f"{cell:.0f}" for cell in cells]
        lines.append([name, f"{entry['gradient']['Hv']:.0f}", *cells_text])
    kept = [i for i in range(len(lines[0])) if i < 2 or any(row[i] != "–" for row in lines[1:])]
    parts.append(_table([[row[i] for i in kept] for row in lines]))
    lines = [["", *map(str, LENGTHS), "growth"]]
    for name, entry in report.get("lengths", {}).items():
        values = ["–" if mib is None else f"{mib:.0f}" for mib in entry["mib"].values()]
        lines.append([name, *values, f"T^{entry['power']}"])
    parts.append(_table(lines))
    return "\n\n".join(parts)


def _table(lines: list[list[str]]) -> str:
    rule = ["---"] * len(lines[0])
    return "\n".join("| " + " | ".join(row) + " |" for row in (lines[0], rule, *lines[1:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--workloads", nargs="+", default=None)
    parser.add_argument("--contestants", nargs="+", default=list(CONTESTANTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clock", choices=("wall", "process"), default="process")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--render", action="store_true")
    parser.add_argument("--peak", nargs=3, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if options.peak:
        name, contestant, task = options.peak
        print(peak(name, options.device, contestant, task))
        return
    report: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    if not options.render:
        report |= {"versions": versions(), "device": _device(options.device),
                   "threads": options.threads, "clock": options.clock}  # fmt: skip
        for part in options.parts:
            take(part, options, report)
    print(render(report))


def take(part: str, options: Any, report: dict[str, Any]) -> None:
    """One part of the measurements, written down as it goes."""
    if part == "lengths":
        report["lengths"] = lengths(options.device)
        _write(options.out, report)
        return
    for name in options.workloads or (TIMED if part == "time" else [*TIMED, LARGE]):
        if part == "memory":
            report.setdefault("peak_mib", {})[name] = memory(
                name, options.device, options.contestants
            )
            _write(options.out, report)
            continue
        entry = report.setdefault("time", {}).setdefault(name, {})
        for contestant in options.contestants:
            done = measure(name, options.device, contestant, options.rounds, options.clock)
            entry[contestant] = done
            print(name, contestant, json.dumps(done), flush=True)
            _write(options.out, report)
        for sentence in differing(entry):
            print(f"{name}: {sentence}", flush=True)


def _write(out: Path, report: dict[str, Any]) -> None:
    out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
