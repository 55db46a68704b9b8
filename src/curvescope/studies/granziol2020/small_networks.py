"""Sec. 3.2 and app. B: the rank bound and the Lanczos theorem, with all eigenvalues at hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from curvescope.data import Dataset
from curvescope.figures.model import Curve, Panel, Picture
from curvescope.operators.base import LinearOperator
from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem
from curvescope.spectra import LanczosBounds, lanczos, lanczos_bounds, path_rank_bound
from curvescope.studies.networks import fresh
from curvescope.studies.run import Result, Run, Value
from curvescope.training import train

KEY = "small"


def run(run: Run) -> Result:
    """Train a small network, form its Hessians, compare ranks and Ritz values with the bounds."""
    model, data = _network(run)
    neurons = [m.out_features for m in model.modules() if isinstance(m, nn.Linear)]
    inputs = data.X[0].numel()
    paths = path_rank_bound(neurons, inputs)
    bound = 2 * run["classes"] * paths
    problems = {n: Problem(model, (data.X[:n], data.y[:n])) for n in run["samples"]}
    ranks = {n: _Spectrum.of(run, n, problem) for n, problem in problems.items()}
    count, whole = list(ranks.items())[-1]
    single, outputs = _of_one(run, model, data)
    theta, limits = _lanczos(run, Hessian(problems[count]), whole)
    values: dict[str, float | Value] = {
        "parameters": whole.size,
        "4 d_y (Σ N + d_x)": bound,
        "rank of one output's paths over 2 (Σ N + d_x), largest": max(outputs) / paths,
        "rank of one sample's Hessian over 4 d_y (Σ N + d_x), largest": max(single) / bound,
        "rank of the Hessian over 4 d_y (Σ N + d_x), all samples": Value(
            whole.rank / bound, f"rank {whole.rank} of {whole.size}, {count} samples"
        ),
        "rank of the Hessian over 4 d_y (Σ N + d_x), a tolerance 1000 times larger": whole.above(
            1e3
        )
        / bound,
        "share of tr H² in so many eigenvalues as the bound has": whole.share(bound),
        **_against_theorem(theta, limits),
    }
    for n, spectrum in ranks.items():
        values[f"rank of the Hessian, {n} samples"] = spectrum.rank
    shown = (_ranks(ranks, bound), _ritz(theta, limits))
    return Result(values, (Picture("bounds", CAPTION, shown),))


CAPTION = (
    "The rank of the Hessian by the number of samples, beside the bound, and the relative error of "
    "the largest Ritz value beside that of the theorem."
)


@dataclass(frozen=True)
class _Spectrum:
    """All eigenvalues of a Hessian, in float64, and the eigenvectors of the two at the ends."""

    values: Tensor  # [P], ascending
    ends: Tensor  # [P, 2]: of the smallest, of the largest

    @classmethod
    def of(cls, run: Run, samples: int, problem: Problem) -> _Spectrum:
        """By a dense matrix."""
        run.tell(f"dense Hessian, {samples} samples")

        def compute() -> dict[str, Tensor]:
            values, vectors = torch.linalg.eigh(Hessian(problem).dense())
            return {"values": values, "ends": vectors[:, [0, -1]]}

        return cls(**run.once(f"small-networks-{samples}", compute))

    @property
    def size(self) -> int:
        """The number of parameters."""
        return len(self.values)

    def above(self, factor: float) -> int:
        """How many eigenvalues are larger than so many times the rounding of the largest."""
        sizes = self.values.abs()
        return int((sizes > factor * self.size * torch.finfo(sizes.dtype).eps * sizes.max()).sum())

    @property
    def rank(self) -> int:
        """The number of eigenvalues above rounding."""
        return self.above(1.0)

    def share(self, count: int) -> float:
        """Of the sum of squares, in the ``count`` largest of them."""
        squares = self.values.square().sort(descending=True).values
        return float(squares[:count].sum() / squares.sum())


def _network(run: Run) -> tuple[nn.Module, Dataset]:
    """A network trained on the first classes of the coarse images, in float64."""
    described = run.describe(KEY)
    images = replace(described.images, coarse=run["coarse"])
    data = images.load(root=run.root, seed=run.seed, device="cpu")
    chosen = data.y < run["classes"]
    data = replace(data, X=data.X[chosen].double(), y=data.y[chosen], classes=run["classes"])
    model = fresh(replace(described, outputs=run["classes"]), data, run.seed).double()
    folder = run.work / "training" / "granziol2020" / f"small-networks-{run.scale}"
    train(model, data, described.recipe, folder=folder, resume=True)
    return model, data


def _of_one(run: Run, model: nn.Module, data: Dataset) -> tuple[list[int], list[int]]:
    """Ranks for single samples: of the loss's Hessian, and of eq. 10 for one output."""
    losses, outputs = [], []
    for i in range(run["outputs"]):
        x, y = data.X[i : i + 1], data.y[i : i + 1]
        losses.append(_rank(Hessian(Problem(model, (x, y))).dense()))
        output = Problem(model, (x, y), loss=lambda z, _, c=i % run["classes"]: z[:, c].mean())
        g = output.gradient()
        outputs.append(_rank(Hessian(output).dense() + torch.outer(g, g)))
    return losses, outputs


def _rank(matrix: Tensor) -> int:
    return int(torch.linalg.matrix_rank(matrix, hermitian=True))


def _lanczos(run: Run, H: LinearOperator, whole: _Spectrum) -> tuple[Tensor, LanczosBounds]:
    """The outermost Ritz values ``[steps, 2]`` of one start vector, and the theorem's bounds."""
    start = torch.randn(whole.size, dtype=torch.float64, generator=run.generator(5))
    low, high = (start @ whole.ends / start.norm()).abs().tolist()
    T = lanczos(H, max(run["steps"]), start=start)
    theta = torch.stack([torch.linalg.eigvalsh(T.matrix()[:k, :k])[[0, -1]] for k in run["steps"]])
    return theta, lanczos_bounds(whole.values, run["steps"], cosines=(high, low))


def _against_theorem(theta: Tensor, limits: LanczosBounds) -> dict[str, float | Value]:
    """How far Ritz values leave the theorem's intervals, and how fast both come near ``λ₁``."""
    low, high = theta.T
    above, below = (
        torch.tensor(b, dtype=torch.float64)
        for b in (limits.largest_at_least, limits.smallest_at_most)
    )
    top = torch.maximum(high - limits.largest, above - high).max() / limits.largest
    bottom = torch.maximum(limits.smallest - low, low - below).max() / limits.largest
    ours, theorem = (_first(limits.steps, errors) for errors in _errors(theta, limits))
    largest = "relative, largest of all steps"
    return {
        f"largest Ritz value: excess over λ₁ or below its bound, {largest}": float(top),
        f"smallest Ritz value: excess over its bound or below λ_n, {largest}": float(bottom),
        "steps after which the largest Ritz value is within a hundredth": ours,
        "steps after which the theorem says so": theorem,
    }


def _errors(theta: Tensor, limits: LanczosBounds) -> tuple[list[float], list[float]]:
    """Of the largest Ritz value, relative: as it is, and at most by the theorem."""
    ours = [1 - t / limits.largest for t in theta[:, 1].tolist()]
    return ours, [1 - low / limits.largest for low in limits.largest_at_least]


def _first(steps: Sequence[int], errors: Sequence[float]) -> int:
    """The first number of steps with an error below a hundredth, or twice the last one."""
    return next((k for k, e in zip(steps, errors, strict=True) if e < 0.01), 2 * steps[-1])


def _ranks(ranks: dict[int, _Spectrum], bound: int) -> Panel:
    n = list(ranks)
    size = next(iter(ranks.values())).size
    return Panel(
        title="rank of the Hessian",
        xlabel="samples",
        ylabel="rank",
        curves=(
            Curve.of("measured", n, [s.rank for s in ranks.values()], kind="points"),
            Curve.of("4 d_y (Σ N + d_x)", n, [bound] * len(n), dash="dashed"),
            Curve.of("parameters", n, [size] * len(n), dash="dotted"),
        ),
        xscale="log",
        yscale="log",
    )


def _ritz(theta: Tensor, limits: LanczosBounds) -> Panel:
    steps = limits.steps
    ours, theorem = _errors(theta, limits)
    return Panel(
        title="largest Ritz value",
        xlabel="Lanczos steps",
        ylabel="relative error",
        curves=(
            Curve.of("measured", steps, [max(e, 1e-16) for e in ours], kind="points"),
            Curve.of("at most, by the theorem", steps, [max(e, 1e-16) for e in theorem]),
        ),
        yscale="log",
    )
