"""The estimators of spectra against exact eigenvalues of random matrices (Papyan 2020, fig. 15)."""

from __future__ import annotations

import torch
from torch import Tensor

from curvescope.figures.model import Curve, Panel, Picture
from curvescope.operators.simple import Dense
from curvescope.spectra.density import Curve as Density
from curvescope.spectra.eigensolver import eigenpairs
from curvescope.spectra.exact import ExactSpectrum, exact_spectrum
from curvescope.spectra.measure import SpectralMeasure, spectral_measure
from curvescope.spectra.normalization import normalized
from curvescope.studies.run import Result, Run, Value

SPIKES = (5.0, 4.0, 3.0)
PROBES = 10
_LOG10 = torch.log(torch.tensor(10.0, dtype=torch.float64))


def run(run: Run) -> Result:
    """Both matrices of the figure."""
    run.tell("spiked matrix")
    values, spiked = _spiked(run)
    run.tell("Pareto matrix")
    more, pareto = _pareto(run)
    caption = (
        "Exact eigenvalues and the Lanczos density of a spiked matrix, and of a matrix with a "
        f"power law on a logarithmic axis; {PROBES} probes (fig. 15)."
    )
    return Result(values | more, (Picture("verification", caption, (spiked, pareto)),))


def spiked_matrix(size: int, generator: torch.Generator) -> Dense:
    """``X + Z Zᵀ / n`` with ``X = diag(5, 4, 3, 0, …)`` and Gaussian ``Z: [n, n]`` (fig. 15a)."""
    Z = torch.randn(size, size, dtype=torch.float64, generator=generator)
    Y = Z @ Z.T / size
    Y[range(3), range(3)] += torch.tensor(SPIKES, dtype=torch.float64)
    return Dense(Y, symmetric=True, psd=True)


def pareto_matrix(size: int, generator: torch.Generator) -> Dense:
    """``Zᵀ Z / n`` with ``Z: [n/2, n]`` of Pareto(1) entries (fig. 15b).

    The caption has ``Z Zᵀ``, which for its ``Z`` of 500 × 1000 entries would be 500 × 500.
    """
    uniform = torch.rand(size // 2, size, dtype=torch.float64, generator=generator)
    Z = 1 / (1 - uniform)  # P[Z > z] = 1/z
    Y = Z.T @ Z / size
    return Dense((Y + Y.T) / 2, psd=True)


def kolmogorov(measure: SpectralMeasure, exact: ExactSpectrum, shift: float) -> float:
    """The largest distance of the distribution functions, at and just below every step.

    Steps closer than ``shift`` count as one: an eigenvalue that is zero only up to rounding has no
    side on which to lie.
    """
    points = torch.cat([exact.values, measure.nodes.flatten()])
    gaps = [(measure.cdf(points + s) - exact.cdf(points + s)).abs().max() for s in (shift, -shift)]
    return float(max(gaps))


def _spiked(run: Run) -> tuple[dict[str, float | Value], Panel]:
    generator = run.generator()
    A = spiked_matrix(run["spiked"], generator)
    exact = exact_spectrum(A)
    top = exact.values[-3:].flip(0)
    pairs = eigenpairs(A, 3, tol=1e-7, generator=generator)
    measure = spectral_measure(A, steps=128, probes=PROBES, generator=generator)
    density = measure.density(points=1024, kappa=3.0)
    peaks = torch.tensor([_peak_near(density, value) for value in top.tolist()])
    low, high = normalized(A, generator=generator).interval
    outside = max(low - float(exact.values[0]), float(exact.values[-1]) - high)
    values: dict[str, float | Value] = {
        "(a) outliers by eigenpairs against eigh, largest difference": Value(
            float((pairs.values - top).abs().max()), f"{pairs.products} products"
        ),
        "(a) peaks of the density at the outliers, largest relative difference": float(
            (peaks / top - 1).abs().max()
        ),
        "(a) Kolmogorov distance": kolmogorov(measure, exact, 1e-9),
        "(a) mass of the density": density.mass,
        "(a) eigenvalues outside of the interval of algorithm 4, by at most": outside,
    }
    return values, _panel("(a) spiked", exact.values, density, "eigenvalue", scale=1.0)


def _pareto(run: Run) -> tuple[dict[str, float | Value], Panel]:
    size, steps = run["pareto"], run["steps"]
    generator = run.generator(1)
    A = pareto_matrix(size, generator)
    exact = exact_spectrum(A)
    eps = 1.0  # below the smallest eigenvalue that is not zero
    fast = spectral_measure(
        A, steps=steps, probes=PROBES, reorthogonalize=False, generator=generator
    )
    slow = spectral_measure(
        A, steps=min(256, size), probes=PROBES, reorthogonalize=True, generator=generator
    )
    density = fast.log_density(eps=eps, kappa=1.0005)  # Gaussians of about one bin
    zeros = float((exact.values < eps).double().mean())
    values: dict[str, float | Value] = {
        "(b) share of zeros, Lanczos less exact": float(fast.cdf(torch.tensor([eps]))) - zeros,
        "(b) Kolmogorov distance, no re-orthogonalization": Value(
            kolmogorov(fast, exact, 1e-2), f"{steps} steps"
        ),
        "(b) Kolmogorov distance, re-orthogonalized": Value(
            kolmogorov(slow, exact, 1e-2), f"{min(256, size)} steps"
        ),
        "(b) decades spanned by the eigenvalues that are not 0": float(
            (exact.values[-1] / exact.values[size // 2]).log10()
        ),
    }
    logs = torch.log(exact.values.abs() + eps) / _LOG10
    return values, _panel("(b) Pareto", logs, density, "log₁₀(|λ| + 1)", scale=float(_LOG10))


def _peak_near(density: Density, value: float) -> float:
    """Where the curve peaks within a tenth of a value."""
    near = (density.grid - value).abs() < 0.1 * abs(value)
    return float(density.grid[near][density.values[near].argmax()])


def _panel(title: str, values: Tensor, density: Density, label: str, *, scale: float) -> Panel:
    """A histogram of exact eigenvalues with 100 bins, and the estimate over it with its band."""
    grid = density.grid / scale
    edges = torch.linspace(float(grid[0]), float(grid[-1]), 101, dtype=torch.float64)
    counts = torch.histogram(values, edges).hist
    heights = counts / counts.sum() / float(edges[1] - edges[0])
    low, high = (scale * side for side in density.band())
    curves = (
        Curve.of("exact eigenvalues", (edges[1:] + edges[:-1]) / 2, heights, kind="bars"),
        Curve.of(
            "Lanczos, 95 % of runs", grid[::2], scale * density.values[::2],
            low=low[::2].clamp(min=1e-12), high=high[::2], color=1,
        ),
    )  # fmt: skip
    return Panel(
        title=title, xlabel=label, ylabel="density", curves=curves, yscale="log",
        ylim=(2e-4, 3 * float(heights.max())),
    )  # fmt: skip
