"""H·v, H·V, G·v and G·V of curvescope beside its peers, in multiples of one gradient.

    python benchmarks/products.py                        # CPU: MLP, LeNet5, VGG11-W64
    python benchmarks/products.py --device cuda --workloads VGG11-28M LeNet5

All contestants do the same work on the same batch in one process. Rounds are interleaved, so that a
disturbance hits everybody; each figure is the median over the rounds divided by the median of the
plain gradient of the same loss. Peak memory is measured in a process of its own per contestant.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from workloads import WORKLOADS

COLUMNS = 16
TASKS = ("Hv", "HV", "Gv", "GV")
Product = Callable[[], Any]
Contestant = Callable[[nn.Module, Tensor, Tensor, Tensor], dict[str, Product]]


def gradient(model: nn.Module, X: Tensor, y: Tensor) -> Product:
    params = list(model.parameters())
    return lambda: torch.autograd.grad(F.cross_entropy(model(X), y), params)


# Contestants: each returns the tasks that it can do, as thunks ------------------------------------


def curvescope_kept(model: nn.Module, X: Tensor, y: Tensor, V: Tensor) -> dict[str, Product]:
    return _curvescope(model, X, y, V, keep=True)


def curvescope_streamed(model: nn.Module, X: Tensor, y: Tensor, V: Tensor) -> dict[str, Product]:
    return _curvescope(model, X, y, V, keep=False)


def _curvescope(
    model: nn.Module, X: Tensor, y: Tensor, V: Tensor, keep: bool
) -> dict[str, Product]:
    import curvescope as cs

    # Two problems, so that the Gauss–Newton operator does not profit from the Hessian's recording.
    H = cs.Hessian(cs.Problem(model, (X, y)), keep=keep)
    G = cs.GaussNewton(cs.Problem(model, (X, y)), keep=keep)
    return _four(H, G, V)


def _four(H: Any, G: Any, V: Tensor) -> dict[str, Product]:
    v = V[:, 0].contiguous()
    return {"Hv": lambda: H @ v, "HV": lambda: H @ V, "Gv": lambda: G @ v, "GV": lambda: G @ V}


def curvlinops(model: nn.Module, X: Tensor, y: Tensor, V: Tensor) -> dict[str, Product]:
    from curvlinops import GGNLinearOperator, HessianLinearOperator

    loss, data = nn.CrossEntropyLoss(), [(X, y)]
    params: Any = [p for p in model.parameters() if p.requires_grad]
    make = lambda kind: kind(model, loss, params, data, check_deterministic=False)  # noqa: E731
    return _four(make(HessianLinearOperator), make(GGNLinearOperator), V)


def pyhessian(model: nn.Module, X: Tensor, y: Tensor, V: Tensor) -> dict[str, Product]:
    """Keeps one double-backward graph, made when the object is built; one vector at a time."""
    from pyhessian import hessian
    from pyhessian.utils import hessian_vector_product

    h = hessian(model, nn.CrossEntropyLoss(), data=(X, y), cuda=X.is_cuda)
    vectors = [_split(model, V[:, k]) for k in range(V.shape[1])]
    one = lambda v: hessian_vector_product(h.gradsH, h.params, v)  # noqa: E731
    return {"Hv": lambda: one(vectors[0]), "HV": lambda: [one(v) for v in vectors]}


def backpack(model: nn.Module, X: Tensor, y: Tensor, V: Tensor) -> dict[str, Product]:
    from backpack.hessianfree.ggnvp import ggn_vector_product
    from backpack.hessianfree.hvp import hessian_vector_product

    params = list(model.parameters())
    vectors = [_split(model, V[:, k]) for k in range(V.shape[1])]

    def hv(v: list[Tensor]) -> Any:
        return hessian_vector_product(F.cross_entropy(model(X), y), params, v)

    def gv(v: list[Tensor]) -> Any:
        z = model(X)
        return ggn_vector_product(F.cross_entropy(z, y), z, model, v)

    return {
        "Hv": lambda: hv(vectors[0]),
        "HV": lambda: [hv(v) for v in vectors],
        "Gv": lambda: gv(vectors[0]),
        "GV": lambda: [gv(v) for v in vectors],
    }


def nngeometry(model: nn.Module, X: Tensor, y: Tensor, V: Tensor) -> dict[str, Product]:
    from nngeometry.layercollection import LayerCollection
    from nngeometry.metrics import FIM
    from nngeometry.object import PMatImplicit, PVector
    from torch.utils.data import DataLoader, TensorDataset

    loader = DataLoader(TensorDataset(X, y), batch_size=len(X))
    F_ = FIM(model, loader, PMatImplicit, variant="classif_logits", device=X.device)
    collection = LayerCollection.from_model(model)
    vectors = [PVector(collection, vector_repr=V[:, k].contiguous()) for k in range(V.shape[1])]
    return {"Gv": lambda: F_.mv(vectors[0]), "GV": lambda: [F_.mv(v) for v in vectors]}


def autograd(model: nn.Module, X: Tensor, y: Tensor, V: Tensor) -> dict[str, Product]:
    """Double backward, and two vector-Jacobian products for G, as one writes them by hand."""
    params = list(model.parameters())
    vectors = [_split(model, V[:, k]) for k in range(V.shape[1])]

    def hv(v: list[Tensor]) -> Any:
        g = torch.autograd.grad(F.cross_entropy(model(X), y), params, create_graph=True)
        return torch.autograd.grad(g, params, v)

    def gv(v: list[Tensor]) -> Any:
        z = model(X)
        u = torch.zeros_like(z, requires_grad=True)
        g = torch.autograd.grad(z, params, u, create_graph=True)
        (jv,) = torch.autograd.grad(g, u, v)
        p = torch.softmax(z.detach(), -1)
        t = (p * jv - p * (p * jv).sum(-1, keepdim=True)) / len(y)
        return torch.autograd.grad(z, params, t)

    return {
        "Hv": lambda: hv(vectors[0]),
        "HV": lambda: [hv(v) for v in vectors],
        "Gv": lambda: gv(vectors[0]),
        "GV": lambda: [gv(v) for v in vectors],
    }


def autograd_reused(model: nn.Module, X: Tensor, y: Tensor, V: Tensor) -> dict[str, Product]:
    """One double-backward graph, made once and kept."""
    params = list(model.parameters())
    vectors = [_split(model, V[:, k]) for k in range(V.shape[1])]
    z = model(X)
    g = torch.autograd.grad(F.cross_entropy(z, y), params, create_graph=True)
    one = lambda v: torch.autograd.grad(g, params, v, retain_graph=True)  # noqa: E731
    return {"Hv": lambda: one(vectors[0]), "HV": lambda: [one(v) for v in vectors]}


CONTESTANTS: dict[str, Contestant] = {
    "curvescope, kept": curvescope_kept,
    "curvescope, streamed": curvescope_streamed,
    "curvlinops": curvlinops,
    "PyHessian": pyhessian,
    "BackPACK": backpack,
    "nngeometry": nngeometry,
    "autograd": autograd,
    "autograd, graph reused": autograd_reused,
}


def _split(model: nn.Module, flat: Tensor) -> list[Tensor]:
    params = list(model.parameters())
    pieces = flat.split([p.numel() for p in params])
    return [piece.reshape(p.shape) for piece, p in zip(pieces, params, strict=True)]


# Measuring --------------------------------------------------------------------------------------


def seconds(thunk: Product, device: str, repeats: int = 1) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        thunk()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats


def reference(thunk: Product, columns: int, size: int) -> Tensor:
    """A contestant's result as [P, k], to see that all compute the same thing."""
    out = thunk()
    if isinstance(out, Tensor):
        return out.reshape(size, -1)
    if hasattr(out, "to_torch"):  # nngeometry's vector
        return out.to_torch().reshape(size, -1)
    columns_ = out if columns > 1 and isinstance(out, list) else [out]
    flat = [
        c.to_torch() if hasattr(c, "to_torch") else torch.cat([t.reshape(-1) for t in c])
        for c in columns_
    ]
    return torch.stack(flat, 1)


def measure(workload: str, device: str, names: list[str], rounds: int) -> dict[str, Any]:
    model, X, y = WORKLOADS[workload].make(device)
    size = sum(p.numel() for p in model.parameters())
    V = torch.randn(size, COLUMNS, device=device)
    grad = gradient(model, X, y)
    thunks: dict[tuple[str, str], Product] = {}
    truth: dict[str, Tensor] = {}
    failures: dict[str, str] = {}
    for name in names:
        try:
            tasks = CONTESTANTS[name](model, X, y, V)
        except Exception as error:
            failures[name] = (
                f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            )
            continue
        for task, thunk in tasks.items():
            try:
                result = reference(thunk, COLUMNS if task[1] == "V" else 1, size).detach().double()
            except Exception as error:
                failures[f"{name} {task}"] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
                continue
            truth.setdefault(task, result)
            gap = float((result - truth[task]).norm() / truth[task].norm())
            if not gap < 1e-3:
                failures[f"{name} {task}"] = f"differs from the first contestant by {gap:.1e}"
            thunks[name, task] = thunk
    grads: list[float] = []
    times: dict[tuple[str, str], list[float]] = {key: [] for key in thunks}
    for _ in range(3):
        grad()
    for _ in range(rounds):
        for key, thunk in thunks.items():
            # Gradients and single products come in threes, as they do in use: the first one after
            # somebody else's work pays for that one's memory.
            grads.append(seconds(grad, device, 3))
            times[key].append(seconds(thunk, device, 3 if key[1] in ("Hv", "Gv") else 1))
    base = median(grads)
    ratios = {
        name: {
            task: round(median(times[name, task]) / base, 3)
            for task in TASKS
            if (name, task) in times
        }
        for name in names
    }
    return {"gradient_ms": round(base * 1e3, 3), "parameters": size, "samples": len(X),
            "ratios": ratios, "failures": failures}  # fmt: skip


def peak_memory(workload: str, device: str, name: str, task: str) -> float:
    """MiB above the model, the data and the vectors; meant for a process of its own."""
    model, X, y = WORKLOADS[workload].make(device)
    V = torch.randn(sum(p.numel() for p in model.parameters()), COLUMNS, device=device)
    small = WORKLOADS[workload].make(device)
    gradient(small[0], small[1][:2], small[2][:2])()  # libraries loaded, kernels chosen
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    else:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    thunk = gradient(model, X, y) if name == "gradient" else CONTESTANTS[name](model, X, y, V)[task]
    thunk()
    thunk()
    if device == "cuda":
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before) / 2**20


def memories(workload: str, device: str, names: list[str]) -> dict[str, dict[str, float]]:
    table: dict[str, dict[str, float]] = {}
    for name in ["gradient", *names]:
        for task in ("Hv", "Gv"):
            call = [sys.executable, __file__, "--device", device, "--peak", workload, name, task]
            done = subprocess.run(call, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                table.setdefault(name, {})[task] = round(float(done.stdout.split()[-1]), 1)
            if name == "gradient":
                break
    return table


def versions() -> dict[str, str]:
    packages = [
        "torch",
        "curvlinops-for-pytorch",
        "PyHessian",
        "backpack-for-pytorch",
        "nngeometry",
    ]
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return {"python": platform.python_version(), **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workloads", nargs="+", default=["MLP", "LeNet5", "VGG11-W64"])
    parser.add_argument("--contestants", nargs="+", default=list(CONTESTANTS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tuned", action="store_true", help="cuDNN benchmark mode for everybody")
    parser.add_argument("--memory", action="store_true", help="measure peak memory too")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--peak", nargs=3, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = options.tuned
    if options.peak:
        print(peak_memory(options.peak[0], options.device, *options.peak[1:]))
        return
    report: dict[str, Any] = {
        "versions": versions(),
        "device": _device(options.device),
        "columns": COLUMNS,
        "cudnn_benchmark": options.tuned,
        "workloads": {},
    }
    for workload in options.workloads:
        result = measure(workload, options.device, options.contestants, options.rounds)
        if options.memory:
            result["peak_mib"] = memories(workload, options.device, options.contestants)
        report["workloads"][workload] = result
        _show(workload, result)
        if options.out:
            options.out.write_text(json.dumps(report, indent=1) + "\n")


def _device(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


def _show(workload: str, result: dict[str, Any]) -> None:
    print(f"\n{workload}: {result['parameters']:,} parameters, {result['samples']} samples, "
          f"one gradient {result['gradient_ms']:.1f} ms", flush=True)  # fmt: skip
    print(f"{'':26}" + "".join(f"{t:>9}" for t in TASKS) + "   peak MiB (Hv, Gv)")
    for name, row in result["ratios"].items():
        cells = "".join(f"{row[t]:9.2f}" if t in row else f"{'–':>9}" for t in TASKS)
        peak = result.get("peak_mib", {}).get(name, {})
        print(f"{name:26}{cells}   {peak.get('Hv', '')} {peak.get('Gv', '')}", flush=True)
    for name, why in result["failures"].items():
        print(f"  {name}: {why}")


if __name__ == "__main__":
    main()
