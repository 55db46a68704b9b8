"""The posterior: a Gaussian whose covariance is diagonal in one basis for each layer.

References:
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from curvescope.certificates.bases import Bases, Pair
from curvescope.certificates.blocks import Layout
from curvescope.certificates.bound import GridPoint, PriorGrid
from curvescope.certificates.divergence import gaussian_kl, total_upwards
from curvescope.errors import CurvescopeError

_FLAT = ("mean", "prior_mean", "variance", "curvature")


@dataclass(frozen=True)
class Posterior:
    """``Q = N(m, B Diag(s) Bᵀ)`` beside the prior mean ``m₀`` (DH §6, App. G).

    Args:
        mean: ``m``, flat, in the standard basis.
        prior_mean: ``m₀``, likewise.
        variance: ``s``, the variances of the coordinates in ``bases``.
        bases: ``B``, an orthonormal pair for each layer.
        curvature: The approximate Hessian's eigenvalues of the same coordinates (zeros where there
            is no basis), for DH fig. 7.
    """

    mean: Tensor
    prior_mean: Tensor
    variance: Tensor
    bases: Bases
    curvature: Tensor

    @property
    def layout(self) -> Layout:
        """The layers."""
        return self.bases.layout

    def kl(self, group: int, prior_variance: float) -> float:
        """``KL(Q_l‖N(m₀, λ I))`` of one block, rounded up.

        The distance of the means does not depend on the basis. A stored basis is orthonormal up to
        rounding, ``e = ‖UᵀU − I‖_F``; with ``f`` likewise for V the trace of the covariance grows
        by at most ``(1+e)(1+f)`` and its log-determinant moves by at most
        ``n √m e/(1−e) + m √n f/(1−f)``; both are added.
        """
        mean, variance, center = (
            self.layout.split(x)[group] for x in (self.mean, self.variance, self.prior_mean)
        )
        plain = gaussian_kl(mean, variance, center, prior_variance)
        pair = self.bases.pairs[group]
        if pair is None:
            return plain
        e, f = (_defect(matrix) for matrix in pair)
        if max(e, f) >= 0.01:
            rule = f"the basis of block {group} is not orthonormal (off by {max(e, f):g})"
            raise CurvescopeError("Posterior", rule)
        m, n = mean.shape
        trace = float(variance.double().sum()) / prior_variance * (e + f + e * f)
        logdet = n * math.sqrt(m) * e / (1 - e) + m * math.sqrt(n) * f / (1 - f)
        charge = 0.5 * (trace + logdet) * (1 + (variance.numel() + 16) * 2.0**-52)
        return total_upwards([plain, charge])

    def best_prior(self, variances: Sequence[float], grid: PriorGrid) -> tuple[GridPoint, ...]:
        """The better grid point next to each block's prior variance."""
        return tuple(
            grid.best(variance, lambda value, group=group: self.kl(group, value))  # type: ignore[misc]
            for group, variance in enumerate(variances)
        )

    def best_common_prior(self, variance: float, grid: PriorGrid) -> GridPoint:
        """The better grid point next to a prior variance that all blocks share."""
        groups = range(len(self.layout.blocks))
        return grid.best(variance, lambda value: total_upwards(self.kl(g, value) for g in groups))

    def sample(self, noise: Tensor) -> Tensor:
        """``m + B (√s ∘ noise)``, flat, for standard normal ``noise: [size]``."""
        return self.mean + self.bases.restore(self.variance.sqrt() * noise)

    def to(self, device: torch.device | str) -> Posterior:
        """The posterior on another device."""
        flat = {name: getattr(self, name).to(device) for name in _FLAT}
        return replace(self, **flat, bases=self.bases.to(device, self.mean.dtype))

    def tensors(self) -> dict[str, Tensor]:
        """Everything but the layout, by name."""
        tensors = {
            "mean": self.mean,
            "prior_mean": self.prior_mean,
            "variance": self.variance,
            "curvature": self.curvature,
        }
        for block, pair in zip(self.layout.blocks, self.bases.pairs, strict=True):
            if pair is not None:
                tensors[f"{block.name}.U"], tensors[f"{block.name}.V"] = pair
        return tensors

    @classmethod
    def from_tensors(cls, layout: Layout, tensors: Mapping[str, Tensor]) -> Posterior:
        """The inverse of :meth:`tensors`.

        Raises:
            CurvescopeError: If the tensors are not those of a posterior on this layout.
        """
        shapes: dict[str, tuple[int, ...]] = {name: (layout.size,) for name in _FLAT}
        for block in layout.blocks:
            if f"{block.name}.U" in tensors or f"{block.name}.V" in tensors:
                shapes[f"{block.name}.U"] = (block.rows, block.rows)
                shapes[f"{block.name}.V"] = (block.columns, block.columns)
        if {name: tuple(tensor.shape) for name, tensor in tensors.items()} != shapes:
            raise CurvescopeError(
                "Posterior",
                f"the file must hold mean, prior_mean, variance and curvature of {layout.size} "
                "numbers and a pair U, V for each basis, and nothing else",
                remedy="it belongs to another network, or is damaged",
            )
        kinds = {tensor.dtype for tensor in tensors.values()}
        if kinds not in ({torch.float32}, {torch.float64}):
            got = ", ".join(sorted(map(str, kinds)))
            rule = "all tensors must be float32, or all float64"
            raise CurvescopeError("Posterior", rule, given=got)
        if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
            rule = "the tensors contain NaN or infinity"
            raise CurvescopeError("Posterior", rule, remedy="the file is damaged")
        pairs: list[Pair] = []
        for block in layout.blocks:
            U, V = tensors.get(f"{block.name}.U"), tensors.get(f"{block.name}.V")
            pairs.append(None if U is None or V is None else (U, V))
        mean, prior_mean, variance, curvature = (tensors[name] for name in _FLAT)
        return cls(mean, prior_mean, variance, Bases(layout, tuple(pairs)), curvature)


def _defect(matrix: Tensor) -> float:
    """``‖QᵀQ − I‖_F``, rounded up generously."""
    Q = matrix.detach().double()
    gap = Q.T @ Q - torch.eye(Q.shape[1], dtype=torch.float64, device=Q.device)
    return float(torch.linalg.matrix_norm(gap)) * (1 + 1e-9) + Q.shape[0] ** 2 * 2.0**-52
