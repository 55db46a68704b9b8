"""Spectral measures and eigenpairs among the finished parts of a study: as tensors, and back."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from curvescope.spectra.control import Status
from curvescope.spectra.eigensolver import EigenPairs
from curvescope.spectra.measure import SpectralMeasure

_PAIRS = ("values", "vectors", "residuals", "tolerance")


def saved(measure: SpectralMeasure) -> dict[str, Tensor]:
    """A measure as tensors, to be kept; :func:`restored` reads them."""
    return {
        "nodes": measure.nodes,
        "weights": measure.weights,
        "residuals": measure.residuals,
        "outliers": measure.outliers,
        "support": torch.tensor(measure.support, dtype=torch.float64),
        "dimension": torch.tensor([measure.dimension]),
    }


def restored(tensors: Mapping[str, Tensor], start: str = "") -> SpectralMeasure:
    """What :func:`saved` wrote, from the tensors whose names begin with ``start``."""
    nodes, weights, residuals, outliers = (
        tensors[f"{start}{key}"].cpu() for key in ("nodes", "weights", "residuals", "outliers")
    )
    low, high = tensors[f"{start}support"].tolist()
    return SpectralMeasure(
        nodes, weights, residuals, outliers, int(tensors[f"{start}dimension"]), (low, high),
        nodes.numel(), Status.DONE,
    )  # fmt: skip


def saved_pairs(pairs: EigenPairs) -> dict[str, Tensor]:
    """Eigenpairs as tensors, with what is known of their errors; :func:`restored_pairs` reads them.

    >>> from curvescope.operators.simple import Diagonal
    >>> from curvescope.spectra.eigensolver import eigenpairs
    >>> A, generator = Diagonal(torch.tensor([3.0, 1.0, 2.0])), torch.Generator().manual_seed(0)
    >>> restored_pairs(saved_pairs(eigenpairs(A, 2, generator=generator))).values.round(decimals=4)
    tensor([3., 2.])
    """
    tensors = {name: getattr(pairs, name) for name in _PAIRS}
    tensors["missed"] = torch.tensor([pairs.missed], dtype=torch.float64)
    tensors["counts"] = torch.tensor([pairs.products, int(pairs.converged)])
    return tensors


def restored_pairs(tensors: Mapping[str, Tensor], start: str = "") -> EigenPairs:
    """What :func:`saved_pairs` wrote, from the tensors whose names begin with ``start``."""
    values, vectors, residuals, tolerance = (tensors[f"{start}{name}"] for name in _PAIRS)
    products, converged = tensors[f"{start}counts"].tolist()
    status = Status.DONE if converged else Status.BUDGET
    return EigenPairs(
        values, vectors, residuals, tolerance, bool(converged), float(tensors[f"{start}missed"]),
        products, status,
    )  # fmt: skip
