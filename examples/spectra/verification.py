"""TR fig. 15, the verification of the spectrum estimators, against exact eigenvalues.

(a) The spiked matrix ``Y = X + Z Zᵀ / 2000``, ``X = diag(5, 4, 3, 0, …)``, Gaussian ``Z``: density.
(b) ``Y = Zᵀ Z / 1000`` with ``Z: [500, 1000]`` of Pareto(1) entries: log-spectrum. (The caption has
    ``Z Zᵀ``, which for its ``Z`` would be 500 × 500; with ``Zᵀ Z`` the matrix is 1000 × 1000 as it
    says, and half of its eigenvalues are zero.)

Run from the repository's root; it writes two pictures and their numbers:

    python examples/spectra/verification.py reproductions/verification
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import torch
from torch import Tensor

from curvescope.operators.simple import Dense
from curvescope.spectra import (
    Curve,
    ExactSpectrum,
    SpectralMeasure,
    eigenpairs,
    exact_spectrum,
    spectral_measure,
)

matplotlib.use("Agg")
matplotlib.rcParams["svg.hashsalt"] = "curvescope"  # the same picture, the same file

BLUE, RED, GREY = "#4C78A8", "#D62728", "#5A5A5A"


def spiked_matrix(generator: torch.Generator) -> Dense:
    """The matrix of fig. 15a."""
    Z = torch.randn(2000, 2000, dtype=torch.float64, generator=generator)
    Y = Z @ Z.T / 2000
    Y[range(3), range(3)] += torch.tensor([5.0, 4.0, 3.0], dtype=torch.float64)
    return Dense(Y, symmetric=True, psd=True)


def pareto_matrix(generator: torch.Generator) -> Dense:
    """The matrix of fig. 15b."""
    uniform = torch.rand(500, 1000, dtype=torch.float64, generator=generator)
    Z = 1 / (1 - uniform)  # P[Z > z] = 1/z
    Y = Z.T @ Z / 1000
    return Dense((Y + Y.T) / 2, psd=True)


def kolmogorov(measure: SpectralMeasure, exact: ExactSpectrum, shift: float) -> float:
    """The largest distance of the distribution functions, at and just below every step.

    Steps closer than ``shift`` count as one: an eigenvalue that is zero only up to rounding has no
    side on which to lie.
    """
    points = torch.cat([exact.values, measure.nodes.flatten()])
    gaps = [(measure.cdf(points + s) - exact.cdf(points + s)).abs().max() for s in (shift, -shift)]
    return float(max(gaps))


def peak_near(curve: Curve, value: float) -> float:
    """Where the curve peaks within a tenth of a value."""
    near = (curve.grid - value).abs() < 0.1 * abs(value)
    return float(curve.grid[near][curve.values[near].argmax()])


def spiked(seed: int) -> tuple[dict[str, object], plt.Figure]:
    """Fig. 15a: its numbers and its picture."""
    generator = torch.Generator().manual_seed(seed)
    A = spiked_matrix(generator)
    exact = exact_spectrum(A)
    top = exact.values[-3:].flip(0)
    pairs = eigenpairs(A, 3, tol=1e-7, generator=generator)
    measure = spectral_measure(A, steps=128, probes=10, generator=generator)
    curve = measure.density(points=1024, kappa=3.0)
    peaks = [peak_near(curve, value) for value in top.tolist()]
    numbers: dict[str, object] = {
        "matrix": "X + Z Z^T / 2000, X = diag(5, 4, 3, 0, ...)",
        "seed": seed,
        "steps": 128,
        "probes": 10,
        "outliers_exact": top.tolist(),
        "outliers_eigenpairs": pairs.values.tolist(),
        "eigenpairs_products": pairs.products,
        "eigenpairs_largest_error": float((pairs.values - top).abs().max()),
        "outliers_density_peaks": peaks,
        "peaks_largest_relative_error": float((torch.tensor(peaks) / top - 1).abs().max()),
        "kolmogorov_distance": kolmogorov(measure, exact, 1e-9),
        "density_mass": curve.mass,
    }
    figure, axes = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
    histogram(axes, exact.values, curve.grid)
    line(axes, curve.grid, curve, 1.0)
    axes.set(
        yscale="log",
        ylim=(2e-4, 8),
        xlim=(float(curve.grid[0]), float(curve.grid[-1])),
        xlabel="eigenvalue",
        ylabel="density",
    )
    for value in top.tolist():
        axes.annotate(
            f"{value:.3f}",
            (value, 6e-2),
            ha="center",
            fontsize=8,
            color=GREY,
            annotation_clip=True,
        )
    finish(axes, "Spiked matrix, 2000 × 2000, M = 128, 10 probes")
    return numbers, figure


def pareto(seed: int) -> tuple[dict[str, object], plt.Figure]:
    """Fig. 15b: its numbers and its picture."""
    generator = torch.Generator().manual_seed(seed)
    A = pareto_matrix(generator)
    exact = exact_spectrum(A)
    eps = 1.0  # below the smallest eigenvalue that is not zero
    fast = spectral_measure(A, steps=2048, probes=10, reorthogonalise=False, generator=generator)
    slow = spectral_measure(A, steps=256, probes=10, reorthogonalise=True, generator=generator)
    curve = fast.log_density(eps=eps, kappa=1.0005)  # σ of about one bin
    zero = float(fast.cdf(torch.tensor([1.0])))
    numbers: dict[str, object] = {
        "matrix": "Z^T Z / 1000, Z: 500 x 1000 Pareto(1)",
        "seed": seed,
        "eps": eps,
        "probes": 10,
        "largest_eigenvalue": float(exact.values[-1]),
        "smallest_nonzero_eigenvalue": float(exact.values[500]),
        "zero_share_exact": float((exact.values < 1).double().mean()),
        "zero_share_fast_2048_steps": zero,
        "kolmogorov_distance_fast_2048_steps": kolmogorov(fast, exact, 1e-2),
        "kolmogorov_distance_reorthogonalised_256_steps": kolmogorov(slow, exact, 1e-2),
        "log_density_mass": curve.mass,
    }
    decades = torch.log(torch.tensor(10.0, dtype=torch.float64))
    figure, axes = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
    histogram(axes, torch.log(exact.values.abs() + eps) / decades, curve.grid / decades)
    line(axes, curve.grid / decades, curve, float(decades))
    axes.set(
        yscale="log",
        ylim=(2e-3, 10),
        xlim=(-0.5, 9.5),
        xlabel=r"$\log_{10}(|\lambda| + 1)$",
        ylabel="density",
    )
    axes.annotate("500 zeros", (0.2, 3), fontsize=8, color=GREY)
    finish(axes, "Pareto(1) matrix, 1000 × 1000, log-spectrum, M = 2048, 10 probes")
    return numbers, figure


def histogram(axes: plt.Axes, values: Tensor, grid: Tensor) -> None:
    """Exact eigenvalues, 100 bins, under the curve."""
    span = (float(grid[0]), float(grid[-1]))
    label = f"exact eigenvalues ({len(values)})"
    axes.hist(
        values.numpy(), bins=100, range=span, density=True, color=BLUE, alpha=0.75, label=label
    )


def line(axes: plt.Axes, grid: Tensor, curve: Curve, scale: float) -> None:
    """The estimated density with its band."""
    low, high = (scale * side for side in curve.band(2.0))
    axes.fill_between(
        grid, low.clamp(min=1e-12), high, color=RED, alpha=0.25, lw=0, label="± 2 standard errors"
    )
    values = scale * curve.values
    axes.plot(grid, values, color=RED, lw=1.3, label="curvescope")


def finish(axes: plt.Axes, title: str) -> None:
    """Title, frame and legend."""
    axes.set_title(title, fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    order = [labels.index(label) for label in sorted(labels, key=lambda s: s[0] != "e")]
    axes.legend([handles[i] for i in order], [labels[i] for i in order], frameon=False, fontsize=8)


def main(folder: Path) -> None:
    """Both parts, written to ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = {}
    for name, make in (("spiked", spiked), ("pareto", pareto)):
        numbers[name], figure = make(seed=0)
        figure.savefig(folder / f"{name}.png", dpi=160)
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
        plt.close(figure)
    text = json.dumps(numbers, indent=2) + "\n"
    (folder / "numbers.json").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "reproductions/verification"))
