"""The demonstration: train a small network in seconds and look at its curvature.

The network is piecewise linear, so every layer's diagonal block of the residual ``E = H − G``
vanishes: ``Tr E = 0`` exactly, and the trace of ``H`` is estimated from ``G``. The self-check
compares it with the first moment of the spectrum of ``H``, which comes from products with ``H``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from math import hypot

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from curvescope import _random
from curvescope.data.embedded import load_embedded
from curvescope.operators.base import LinearOperator
from curvescope.operators.gauss_newton import GaussNewton
from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem
from curvescope.spectra.control import Progress
from curvescope.spectra.eigenpairs import eigenpairs
from curvescope.spectra.measure import spectral_measure
from curvescope.spectra.trace import frobenius, trace

DATA = "mnist-6k"


@dataclass(frozen=True)
class Fit:
    """Mean loss and accuracy of a network on one split."""

    loss: float
    accuracy: float


@dataclass(frozen=True)
class Number:
    """An estimate with its standard error."""

    value: float
    stderr: float


@dataclass(frozen=True)
class Curvature:
    """What the demonstration measures of one matrix."""

    name: str
    eigenvalues: tuple[float, ...]  # largest magnitude first
    residuals: tuple[float, ...]  # ‖A v − θ v‖, one for each eigenvalue
    converged: bool
    trace: Number
    frobenius: Number
    products: int


@dataclass(frozen=True)
class Demonstration:
    """The numbers that ``curvescope demo`` shows."""

    data: str
    network: str
    parameters: int
    seed: int
    train: Fit
    test: Fit
    curvature: tuple[Curvature, ...]  # of H, G and E
    discrepancy: Number  # Tr H less n times the mean of H's spectrum, from independent probes

    @property
    def consistent(self) -> bool:
        """Whether both traces of H agree within four standard errors and all pairs converged."""
        agrees = abs(self.discrepancy.value) <= 4 * self.discrepancy.stderr
        return agrees and all(matrix.converged for matrix in self.curvature)


def demonstrate(
    *,
    seed: int,
    epochs: int = 15,
    eigenvalues: int = 10,
    probes: int = 60,
    tell: Callable[[str], None] = lambda stage: None,
    progress: Callable[[Progress], None] | None = None,
) -> Demonstration:
    """Train, then measure H, G and E on the training set; the same seed gives the same numbers.

    Args:
        seed: Decides initial weights, the order of the batches and the probes.
        epochs: Passes of SGD over the 5,000 training images.
        eigenvalues: How many eigenvalues of each matrix, largest magnitude first.
        probes: Products for each trace and each Frobenius norm.
        tell: Called with a few words at the beginning of each stage.
        progress: Called after every step of an estimate.
    """
    generator = torch.Generator().manual_seed(seed)
    X, y = load_embedded(DATA, split="train")
    X_test, y_test = load_embedded(DATA, split="test")
    tell("training")
    model = train(X, y, epochs=epochs, generator=generator)

    problem = Problem(model, (X, y), loss="cross_entropy")
    H, G = Hessian(problem), GaussNewton(problem)
    matrices: dict[str, LinearOperator] = {"H": H, "G": G, "E": H - G}
    curvature = []
    for name, A in matrices.items():
        tell(f"curvature of {name}")
        measured = measure(
            A,
            name=name,
            eigenvalues=eigenvalues,
            probes=probes,
            generator=generator,
            progress=progress,
        )
        curvature.append(measured)
    tell("self-check")
    spectrum = spectral_measure(
        H, steps=1, probes=probes, generator=_random.child(generator), progress=progress
    )
    mean, n, tr = spectrum.moment(1), problem.params.size, curvature[0].trace
    return Demonstration(
        data=DATA,
        network="784-64-10 ReLU",
        parameters=problem.params.size,
        seed=seed,
        train=evaluate(model, X, y),
        test=evaluate(model, X_test, y_test),
        curvature=tuple(curvature),
        discrepancy=Number(tr.value - n * mean.value, hypot(tr.stderr, n * mean.stderr)),
    )


def train(
    X: Tensor, y: Tensor, *, epochs: int, generator: torch.Generator, batch: int = 100
) -> nn.Sequential:
    """A 784-64-10 ReLU network after ``epochs`` passes of SGD with momentum 0.9."""
    # torch initialises layers from its global generator; the caller's is left as it was.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        model = nn.Sequential(
            OrderedDict(
                flatten=nn.Flatten(), fc1=nn.Linear(784, 64), relu=nn.ReLU(), fc2=nn.Linear(64, 10)
            )
        )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(epochs):
        for rows in torch.randperm(len(X), generator=generator).split(batch):
            optimizer.zero_grad()
            F.cross_entropy(model(X[rows]), y[rows]).backward()
            optimizer.step()
    return model


@torch.no_grad()
def evaluate(model: nn.Module, X: Tensor, y: Tensor) -> Fit:
    """Mean loss and accuracy on ``(X, y)``."""
    output = model(X)
    accuracy = (output.argmax(1) == y).double().mean()
    return Fit(loss=F.cross_entropy(output, y).item(), accuracy=accuracy.item())


def measure(
    A: LinearOperator,
    *,
    name: str,
    eigenvalues: int,
    probes: int,
    generator: torch.Generator,
    progress: Callable[[Progress], None] | None = None,
) -> Curvature:
    """Eigenvalues of largest magnitude, trace and Frobenius norm, each from its own probes."""
    seeds = [_random.child(generator) for _ in range(3)]
    pairs = eigenpairs(
        A, eigenvalues, which="magnitude", tol=1e-4, generator=seeds[0], progress=progress
    )
    tr = trace(A, probes=probes, method="xtrace", generator=seeds[1], progress=progress)
    norm = frobenius(A, probes=probes, method="hutch++", generator=seeds[2], progress=progress)
    return Curvature(
        name=name,
        eigenvalues=tuple(pairs.values.tolist()),
        residuals=tuple(pairs.residuals.tolist()),
        converged=bool(pairs.converged),
        trace=Number(float(tr.value), float(tr.stderr)),
        frobenius=Number(float(norm.value), float(norm.stderr)),
        products=pairs.products + tr.products + norm.products,
    )
