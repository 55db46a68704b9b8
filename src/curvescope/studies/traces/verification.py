"""TR fig. 15: the estimators of spectra against exact eigenvalues of random matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from curvescope.figures.model import Curve, Panel, Picture
from curvescope.operators.simple import Dense
from curvescope.spectra.density import Curve as Density
from curvescope.spectra.eigensolver import eigenpairs
from curvescope.spectra.exact import ExactSpectrum, exact_spectrum
from curvescope.spectra.measure import SpectralMeasure, spectral_measure
from curvescope.studies.entry import Entry, Outcome, Row, Settings
from curvescope.studies.traces import subjects

SPIKES = (5.0, 4.0, 3.0)
PROBES = 10
_LOG10 = torch.log(torch.tensor(10.0, dtype=torch.float64))


def run(settings: Settings) -> Outcome:
    """Both matrices of the figure."""
    settings.tell("spiked matrix")
    rows, spiked = _spiked(settings)
    settings.tell("Pareto matrix")
    more, pareto = _pareto(settings)
    notes = (
        "The caption of fig. 15b has Z Zᵀ, which for its Z of 500 × 1000 entries would be 500 × "
        "500; with Zᵀ Z the matrix is 1000 × 1000 as it says, and half of its eigenvalues are 0.",
        subjects.RANGES,
        "κ = 1.0005 in (b): Gaussians of about one bin.",
    )
    return Outcome(rows + more, (spiked, pareto), {}, notes)


def spiked_matrix(size: int, generator: torch.Generator) -> Dense:
    """``X + Z Zᵀ / n`` with ``X = diag(5, 4, 3, 0, …)`` and Gaussian ``Z: [n, n]`` (fig. 15a)."""
    Z = torch.randn(size, size, dtype=torch.float64, generator=generator)
    Y = Z @ Z.T / size
    Y[range(3), range(3)] += torch.tensor(SPIKES, dtype=torch.float64)
    return Dense(Y, symmetric=True, psd=True)


def pareto_matrix(size: int, generator: torch.Generator) -> Dense:
    """``Zᵀ Z / n`` with ``Z: [n/2, n]`` of Pareto(1) entries (fig. 15b)."""
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


def _far(settings: Settings) -> float:
    """What the distance may be; the noise of ten probes is larger for a small matrix."""
    return settings.pick(smoke=0.05, small=0.02, paper=0.02)


def _spiked(settings: Settings) -> tuple[tuple[Row, ...], Picture]:
    size = settings.pick(smoke=300, small=2000, paper=2000)
    generator = settings.generator()
    A = spiked_matrix(size, generator)
    exact = exact_spectrum(A)
    top = exact.values[-3:].flip(0)
    pairs = eigenpairs(A, 3, tol=1e-7, generator=generator)
    measure = spectral_measure(A, steps=128, probes=PROBES, generator=generator)
    density = measure.density(points=1024, kappa=3.0)
    peaks = torch.tensor([_peak_near(density, value) for value in top.tolist()])
    rows = (
        Row("(a) outliers by eigenpairs against eigh, largest difference",
            float((pairs.values - top).abs().max()), 0.0, high=1e-6,
            note=f"{pairs.products} products"),
        Row("(a) peaks of the density at the outliers, largest relative difference",
            float((peaks / top - 1).abs().max()), 0.0, high=0.01),
        Row("(a) Kolmogorov distance", kolmogorov(measure, exact, 1e-9), 0.0, high=_far(settings)),
        Row("(a) mass of the density", density.mass, 1.0, low=0.99, high=1.01),
    )  # fmt: skip
    panel = _panel(exact.values, density, "eigenvalue", scale=1.0)
    caption = f"Spiked matrix, {size} × {size}, M = 128, {PROBES} probes (TR fig. 15a)."
    return rows, Picture("spiked", caption, (panel,), columns=1)


def _pareto(settings: Settings) -> tuple[tuple[Row, ...], Picture]:
    size = settings.pick(smoke=200, small=1000, paper=1000)
    steps = settings.pick(smoke=600, small=2048, paper=2048)
    generator = settings.generator(1)
    A = pareto_matrix(size, generator)
    exact = exact_spectrum(A)
    eps = 1.0  # below the smallest eigenvalue that is not zero
    fast = spectral_measure(
        A, steps=steps, probes=PROBES, reorthogonalize=False, generator=generator
    )
    slow = spectral_measure(
        A, steps=min(256, size), probes=PROBES, reorthogonalize=True, generator=generator
    )
    density = fast.log_density(eps=eps, kappa=1.0005)
    zeros = float(fast.cdf(torch.tensor([eps])))
    rows = (
        Row("(b) share of zeros, Lanczos", zeros, float((exact.values < eps).double().mean()),
            low=0.45, high=0.55),
        Row(f"(b) Kolmogorov distance, {steps} steps, no re-orthogonalization",
            kolmogorov(fast, exact, 1e-2), 0.0, high=_far(settings)),
        Row(f"(b) Kolmogorov distance, {min(256, size)} steps, re-orthogonalized",
            kolmogorov(slow, exact, 1e-2), 0.0, high=_far(settings)),
        Row("(b) decades spanned by the eigenvalues that are not 0",
            float((exact.values[-1] / exact.values[size // 2]).log10())),
    )  # fmt: skip
    logs = torch.log(exact.values.abs() + eps) / _LOG10
    panel = _panel(logs, density, "log₁₀(|λ| + 1)", scale=float(_LOG10))
    caption = (
        f"Pareto(1) matrix, {size} × {size}, log-spectrum, M = {steps}, {PROBES} probes, no "
        "re-orthogonalization (TR fig. 15b)."
    )
    return rows, Picture("pareto", caption, (panel,), columns=1)


def _peak_near(density: Density, value: float) -> float:
    """Where the curve peaks within a tenth of a value."""
    near = (density.grid - value).abs() < 0.1 * abs(value)
    return float(density.grid[near][density.values[near].argmax()])


def _panel(values: Tensor, density: Density, label: str, *, scale: float) -> Panel:
    """A histogram of exact eigenvalues with 100 bins, and the estimate over it with its band."""
    grid = density.grid / scale
    edges = torch.linspace(float(grid[0]), float(grid[-1]), 101, dtype=torch.float64)
    counts = torch.histogram(values, edges).hist
    width = float(edges[1] - edges[0])
    heights = counts / counts.sum() / width
    low, high = (scale * side for side in density.band())
    curves = (
        Curve.of("exact eigenvalues", (edges[1:] + edges[:-1]) / 2, heights, kind="bars"),
        Curve.of(
            "curvescope, 95 % of runs", grid[::2], scale * density.values[::2],
            low=low[::2].clamp(min=1e-12), high=high[::2], color=1,
        ),
    )  # fmt: skip
    return Panel(
        xlabel=label, ylabel="density", curves=curves, yscale="log",
        ylim=(2e-4, 3 * float(heights.max())),
    )  # fmt: skip


ENTRY = Entry(
    name="traces/verification",
    source="TR app. C: fig. 15",
    shows=(
        "The Lanczos density and log-density lie on the histograms of exact eigenvalues of a "
        "spiked matrix and of one with a power law."
    ),
    cost={
        "smoke": "2 s, smaller matrices",
        "small": "15 s, the paper's matrices",
        "paper": "15 s, the same",
    },
    run=run,
    subject={
        "smoke": "Random matrices",
        "small": "Random matrices",
        "paper": "Random matrices",
    },
    reduced={
        "smoke": "matrices of 300 and 200 rows instead of 2000 and 1000",
        "small": "nothing",
        "paper": "nothing",
    },
)
