"""Eigenpairs, density and trace of H beside other libraries, in multiples of one gradient.

    python benchmarks/estimators.py --workloads MLP LeNet5

Everything that a user waits for is included: building the operator, linearizing, keeping a basis
orthogonal. All contestants work on the same weights (a short training run, so that the spectrum has
outliers) and the same data in one process; each figure is a median over rounds. Products are
columns multiplied.
"""

from __future__ import annotations

import argparse
import copy
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from products import _device, gradient, seconds, versions
from scipy.sparse.linalg import LinearOperator as SciPyOperator
from scipy.sparse.linalg import eigsh
from torch import Tensor, nn
from workloads import WORKLOADS

import curvescope as cs
from curvescope.data.embedded import load_embedded

Run = Callable[[], dict[str, Any]]


def trained(workload: str) -> tuple[nn.Module, Tensor, Tensor]:
    """Weights after some SGD, so that the spectrum has outliers, a bulk and negative curvature.

    The MLP sees 2048 digits of the embedded part of MNIST for ten epochs. The other workloads, and
    "MLP, separated", see ten noisy class means until the loss is nearly zero, which leaves small
    eigenvalues close together.
    """
    name, _, separated = workload.partition(", ")
    model, X, y = WORKLOADS[name].make("cpu")
    generator = torch.Generator().manual_seed(0)
    if name == "MLP" and not separated:
        digits, labels = load_embedded("mnist-6k")
        chosen = torch.randperm(len(digits), generator=generator)[: len(X)]
        X, y = digits[chosen].flatten(1), labels[chosen]
        epochs, lr, batch = 10, 0.05, 128
    else:
        X = torch.randn(10, *X.shape[1:], generator=generator)[y] + 2.0 * X
        epochs, lr, batch = 40, 0.02, len(X)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    for _ in range(epochs):
        for rows in torch.randperm(len(X), generator=generator).split(batch):
            optimizer.zero_grad()
            F.cross_entropy(model(X[rows]), y[rows]).backward()
            optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return model, X, y


def problem(model: nn.Module, X: Tensor, y: Tensor) -> cs.Problem:
    return cs.Problem(model, (X, y))


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def counted(A: Any) -> tuple[SciPyOperator, list[int]]:
    """A SciPy operator that counts its products."""
    calls = [0]

    def product(v: Any) -> Any:
        calls[0] += 1
        return A @ v

    return SciPyOperator(A.shape, matvec=product, dtype=A.dtype), calls


# Tasks ----------------------------------------------------------------------------------------


def eigenpairs(model: nn.Module, X: Tensor, y: Tensor, k: int) -> dict[str, Run]:
    """The k largest eigenpairs to a residual of 1e-4 relative to each eigenvalue."""

    def ours(overlook: float | None = None) -> dict[str, Any]:
        H = cs.Hessian(problem(model, X, y), keep=True)
        pairs = cs.eigenpairs(
            H, k, tol=1e-4, relative="value", overlook=overlook, generator=generator()
        )
        return {"products": pairs.products, "pairs": (pairs.values, pairs.vectors)}

    def by_eigsh(A: Any) -> dict[str, Any]:
        operator, calls = counted(A)
        start = torch.randn(A.shape[0], generator=generator()).numpy()
        values, vectors = eigsh(operator, k=k, which="LA", tol=1e-4, v0=start)
        theta, V = torch.as_tensor(values.copy()), torch.as_tensor(vectors.copy())
        return {"products": calls[0], "pairs": (theta.flip(0), V.flip(1))}

    def ours_eigsh() -> dict[str, Any]:
        return by_eigsh(cs.Hessian(problem(model, X, y), keep=True).to_scipy())

    def curvlinops_eigsh() -> dict[str, Any]:
        from curvlinops import HessianLinearOperator

        params: Any = [p for p in model.parameters() if p.requires_grad]
        H = HessianLinearOperator(
            model, nn.CrossEntropyLoss(), params, [(X, y)], check_deterministic=False
        )
        return by_eigsh(H.to_scipy())

    def pyhessian() -> dict[str, Any]:
        from pyhessian import hessian

        h = hessian(model, nn.CrossEntropyLoss(), data=(X, y), cuda=False)
        values, vectors = h.eigenvalues(maxIter=200, tol=1e-4, top_n=k)
        flat = [torch.cat([part.reshape(-1) for part in vector]) for vector in vectors]
        return {"pairs": (torch.tensor(values), torch.stack(flat, 1))}

    runs: dict[str, Run] = {"curvescope": ours}
    runs["curvescope, no look for copies"] = lambda: ours(overlook=1.0)
    runs["curvescope's H, SciPy eigsh"] = ours_eigsh
    runs["curvlinops, SciPy eigsh"] = curvlinops_eigsh
    if k <= 10:
        runs["PyHessian, power iteration"] = pyhessian
    return runs


def density(model: nn.Module, X: Tensor, y: Tensor) -> dict[str, Run]:
    """A spectral density from 64 Lanczos steps and 2 probes."""

    def ours(reorthogonalize: bool = True) -> dict[str, Any]:
        H = cs.Hessian(problem(model, X, y), keep=True)
        measure = cs.spectral_measure(
            H, steps=64, probes=2, reorthogonalize=reorthogonalize, generator=generator()
        )
        measure.density()
        return {"products": measure.products}

    def curvlinops() -> dict[str, Any]:
        from curvlinops import HessianLinearOperator
        from curvlinops.papyan2020traces.spectrum import lanczos_approximate_spectrum

        params: Any = [p for p in model.parameters() if p.requires_grad]
        H = HessianLinearOperator(
            model, nn.CrossEntropyLoss(), params, [(X, y)], check_deterministic=False
        )
        lanczos_approximate_spectrum(H, 64, num_repeats=2)
        return {}

    def pyhessian() -> dict[str, Any]:
        from pyhessian import hessian

        hessian(model, nn.CrossEntropyLoss(), data=(X, y), cuda=False).density(iter=64, n_v=2)
        return {"products": 128}

    runs: dict[str, Run] = {"curvescope": ours}
    runs["curvescope, no re-orthogonalization"] = lambda: ours(reorthogonalize=False)
    return runs | {"curvlinops, no re-orthogonalization": curvlinops, "PyHessian": pyhessian}


def trace(model: nn.Module, X: Tensor, y: Tensor) -> dict[str, Run]:
    """A trace from 32 random vectors."""

    def ours() -> dict[str, Any]:
        H = cs.Hessian(problem(model, X, y), keep=True)
        estimate = cs.trace(H, probes=32, generator=generator())
        return {"products": estimate.products, "value": float(estimate.value)}

    def curvlinops() -> dict[str, Any]:
        from curvlinops import HessianLinearOperator, hutchinson_trace

        params: Any = [p for p in model.parameters() if p.requires_grad]
        H = HessianLinearOperator(
            model, nn.CrossEntropyLoss(), params, [(X, y)], check_deterministic=False
        )
        return {"products": 32, "value": float(hutchinson_trace(H, num_matvecs=32))}

    def pyhessian() -> dict[str, Any]:
        from pyhessian import hessian

        h = hessian(model, nn.CrossEntropyLoss(), data=(X, y), cuda=False)
        values = h.trace(maxIter=32, tol=0.0)
        return {"products": 32, "value": float(sum(values) / len(values))}

    return {"curvescope": ours, "curvlinops": curvlinops, "PyHessian": pyhessian}


# Measuring ------------------------------------------------------------------------------------


def residual(exact: cs.Hessian, values: Tensor, vectors: Tensor) -> float:
    """The largest ``‖H v − θ v‖ / |θ|``, with H in float64."""
    V, theta = vectors.double(), values.double()
    gap = torch.linalg.vector_norm(exact @ V - V * theta, dim=0) / theta.abs()
    return float(f"{float(gap.max()):.1e}")


def measure(
    runs: dict[str, Run], grad: Callable[[], Any], rounds: int, exact: cs.Hessian
) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for name, run in runs.items():
        try:
            info = run()
        except Exception as error:
            results[name] = {"failed": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
            continue
        grads, times = [], []
        for _ in range(rounds):
            grads.append(median(seconds(grad, "cpu") for _ in range(3)))
            times.append(seconds(run, "cpu"))
        results[name] = {"gradients": round(median(times) / median(grads), 1)} | {
            key: value for key, value in info.items() if key != "pairs"
        }
        if "pairs" in info:
            values, vectors = info["pairs"]
            results[name]["first_and_last"] = [round(float(values[i]), 4) for i in (0, -1)]
            results[name]["residual"] = residual(exact, values, vectors)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", nargs="+", default=["MLP", "MLP, separated", "LeNet5"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--k", type=int, nargs="+", default=[10, 50])
    parser.add_argument("--contestants", nargs="+", default=[""], help="parts of their names")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    report: dict[str, Any] = {"versions": versions(), "device": _device("cpu"), "workloads": {}}
    for workload in options.workloads:
        model, X, y = trained(workload)
        grad = gradient(model, X, y)
        double = copy.deepcopy(model).double()
        exact = cs.Hessian(cs.Problem(double, (X.double(), y)))
        tasks = {f"top {k} eigenpairs": eigenpairs(model, X, y, k) for k in options.k}
        tasks |= {"density": density(model, X, y), "trace": trace(model, X, y)}
        report["workloads"][workload] = {}
        for task, runs in tasks.items():
            runs = {n: r for n, r in runs.items() if any(part in n for part in options.contestants)}
            result = measure(runs, grad, options.rounds, exact)
            report["workloads"][workload][task] = result
            print(workload, task)
            for name, row in result.items():
                print(f"  {name:32} {row}", flush=True)
            if options.out:
                options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
