"""Kronecker factors and layer blocks beside other libraries, in multiples of one gradient.

    python benchmarks/layers.py --tasks factors mlp --out benchmarks/results/layers-cpu.json
    python benchmarks/layers.py --tasks lenet --samples 10000 --root DATA

``factors``: E[M] and E[x xᵀ] of all layers, exact over the outputs; everybody computes the same
numbers (the tests compare them). ``mlp``: the 50 largest eigenpairs of the first layer's block of
the MLP, to a residual of 1e-4 relative to each eigenvalue, for digits and for Gaussian inputs.
``lenet``: the 120 largest of fc1's block of a trained LeNet5 on CIFAR-10 against the papers'
method, the full product of a vector that is zero outside the layer: the cost of one such product
times the number that SciPy's ``eigsh`` takes for this matrix, its own overhead not counted.

Everything that a user waits for is included; figures are medians over rounds that are interleaved
with the gradient's own.
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
from estimators import counted, generator, residual, trained
from products import _device, gradient, seconds, versions
from scipy.sparse.linalg import eigsh
from torch import Tensor, nn
from workloads import WORKLOADS

import curvescope as cs
from curvescope import io
from curvescope.data import dataset
from curvescope.networks import network
from curvescope.structure.factors import kronecker_factors
from curvescope.structure.layer_pairs import layer_eigenpairs

Run = Callable[[], dict[str, Any]]


def ratios(runs: dict[str, Run], grad: Callable[[], Any], rounds: int) -> dict[str, Any]:
    """Median time of each run over the median of the gradient, rounds interleaved."""
    results: dict[str, Any] = {}
    times: dict[str, list[float]] = {}
    for name, run in runs.items():
        try:
            results[name] = run()  # the first run loads and warms up what is needed
            times[name] = []
        except Exception as error:
            results[name] = {"failed": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    grads = []
    for _ in range(rounds):
        grads += [seconds(grad, "cpu") for _ in range(3)]
        for name, found in times.items():
            found.append(seconds(runs[name], "cpu"))
    for name, found in times.items():
        results[name]["gradients"] = round(median(found) / median(grads), 1)
    return results


def factors(workload: str) -> tuple[dict[str, Run], Callable[[], Any]]:
    """All factors of a network."""
    model, X, y = WORKLOADS[workload].make("cpu")

    def ours() -> dict[str, Any]:
        kronecker_factors(cs.Problem(model, (X, y)))
        return {}

    def curvlinops() -> dict[str, Any]:
        from curvlinops import KFACLinearOperator

        params: Any = list(model.parameters())
        K = KFACLinearOperator(
            model, nn.CrossEntropyLoss(), params, [(X, y)], fisher_type="type-2",
            check_deterministic=False, num_data=len(X), num_per_example_loss_terms=1,
        )  # fmt: skip
        K.compute_kronecker_factors()
        return {}

    return {"curvescope": ours, "curvlinops": curvlinops}, gradient(model, X, y)


def eigenpairs_of_block(
    model: nn.Module, X: Tensor, y: Tensor, layer: str, k: int
) -> dict[str, Run]:
    """The k largest eigenpairs of the Hessian's block of one weight."""
    weight = f"{layer}.weight"

    def block() -> Any:
        return cs.Hessian(cs.Problem(model, (X, y))).block(weight)

    def ours() -> dict[str, Any]:
        pairs = layer_eigenpairs(block(), k, tol=1e-4, generator=generator())
        return {"products": pairs.products, "pairs": (pairs.values, pairs.vectors)}

    def without_onednn() -> dict[str, Any]:
        with torch.backends.mkldnn.flags(enabled=False):
            return ours()

    def plain() -> dict[str, Any]:
        pairs = cs.eigenpairs(block(), k, tol=1e-4, relative="value", generator=generator())
        return {"products": pairs.products, "pairs": (pairs.values, pairs.vectors)}

    def by_eigsh(A: Any) -> dict[str, Any]:
        operator, calls = counted(A)
        start = torch.randn(A.shape[0], generator=generator()).numpy()
        values, vectors = eigsh(operator, k=k, which="LA", tol=1e-4, v0=start)
        theta, V = torch.as_tensor(values.copy()), torch.as_tensor(vectors.copy())
        return {"products": calls[0], "pairs": (theta.flip(0), V.flip(1))}

    def curvlinops() -> dict[str, Any]:
        from curvlinops import HessianLinearOperator

        params: Any = [model.get_parameter(weight)]
        H = HessianLinearOperator(
            model, nn.CrossEntropyLoss(), params, [(X, y)], check_deterministic=False
        )
        return by_eigsh(H.to_scipy())

    return {
        "curvescope, layer_eigenpairs": ours,
        "curvescope, layer_eigenpairs, torch's matrix products": without_onednn,
        "curvescope, eigenpairs": plain,
        "curvescope's block, SciPy eigsh": lambda: by_eigsh(block().to_scipy()),
        "curvlinops' block, SciPy eigsh": curvlinops,
    }


def mlp(data: str, rounds: int) -> dict[str, Any]:
    model, X, y = trained("MLP") if data == "digits" else WORKLOADS["MLP"].make("cpu")
    results = ratios(eigenpairs_of_block(model, X, y, "0", 50), gradient(model, X, y), rounds)
    double = copy.deepcopy(model).double()
    exact = cs.Hessian(cs.Problem(double, (X.double(), y))).block("0.weight")
    for row in results.values():
        if "pairs" in row:
            row["residual"] = residual(exact, *row.pop("pairs"))
    return results


def cifar(samples: int, root: Path) -> tuple[nn.Module, Tensor, Tensor]:
    """LeNet5 with the weights of ``reproductions/training``, and its first training images."""
    weights, _ = io.read_tensors(
        Path(__file__).parents[1] / "reproductions/training/cifar-10.safetensors"
    )
    start = "seed0."
    data = dataset("cifar-10", root=root, normalize="channel")
    model = network("LeNet5", data.input_shape, data.classes)
    own = {k.removeprefix(start): v for k, v in weights.items() if k.startswith(start)}
    model.load_state_dict(own)
    return model, data.X[:samples], data.y[:samples]


def lenet(samples: int, rounds: int, root: Path) -> dict[str, Any]:
    """Top 120 of fc1 against masked products of the whole network."""
    model, X, y = cifar(samples, root)
    batches = list(zip(X.split(1000), y.split(1000), strict=True))
    problem = cs.Problem(model, batches)
    fc1 = problem.params.slice("fc1.weight")

    def masked() -> dict[str, Any]:
        from curvlinops import HessianLinearOperator

        params: Any = list(model.parameters())
        H = HessianLinearOperator(
            model, nn.CrossEntropyLoss(), params, batches, check_deterministic=False
        )
        v = torch.zeros(problem.params.size)
        v[fc1] = torch.randn(fc1.stop - fc1.start, generator=generator())
        H @ v
        return {}

    def ours() -> dict[str, Any]:
        L = cs.Hessian(cs.Problem(model, batches)).block("fc1.weight")
        pairs = layer_eigenpairs(L, 120, tol=1e-4, generator=generator())
        return {"products": pairs.products}

    results = ratios(
        {"curvescope, all of it": ours, "curvlinops, one masked product": masked},
        lambda: cs.Problem(model, batches).gradient(),
        rounds,
    )
    operator, calls = counted(cs.Hessian(problem).block("fc1.weight").to_scipy())
    eigsh(operator, k=120, which="LA", tol=1e-4, v0=torch.ones(fc1.stop - fc1.start).numpy())
    one = results["curvlinops, one masked product"]["gradients"]
    results["curvlinops, eigsh on masked products"] = {
        "products": calls[0], "gradients": round(calls[0] * one, 1),
    }  # fmt: skip
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", default=["factors", "mlp", "lenet"])
    parser.add_argument("--workloads", nargs="+", default=["MLP", "LeNet5", "VGG11-W64"])
    parser.add_argument("--data", nargs="+", default=["digits", "gaussian"])
    parser.add_argument("--samples", type=int, default=10_000, help="of LeNet5's layer")
    parser.add_argument("--root", type=Path, help="the folder with CIFAR-10")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    report: dict[str, Any] = {"versions": versions(), "device": _device("cpu"), "tasks": {}}

    def note(name: str, result: dict[str, Any]) -> None:
        report["tasks"][name] = result
        print(name)
        for contestant, row in result.items():
            print(f"  {contestant:38} {row}", flush=True)
        if options.out:
            options.out.write_text(json.dumps(report, indent=1) + "\n")

    if "factors" in options.tasks:
        for workload in options.workloads:
            note(f"factors, {workload}", ratios(*factors(workload), 2 * options.rounds + 1))
    if "mlp" in options.tasks:
        for data in options.data:
            note(f"top 50 of the first layer, MLP, {data}", mlp(data, options.rounds))
    if "lenet" in options.tasks:
        note(
            f"top 120 of fc1, LeNet5, {options.samples} samples",
            lenet(options.samples, options.rounds, options.root),
        )


if __name__ == "__main__":
    main()
