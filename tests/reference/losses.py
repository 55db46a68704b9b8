"""The losses as averages of terms, each written out with its second derivative.

A loss is ``(1/M) Σ_m ℓ(z_m, y_m)`` over all terms of all batches. ``rows`` cuts a batch's output
into the rows ``z: [M, C]`` on which the terms depend (ignored positions are dropped), ``terms``
gives ``ℓ: [M]`` and ``hessians`` gives ``∂²ℓ/∂z²: [M, C, C]`` from a formula, not from autograd.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

IGNORED = -100


def _diag_minus_outer(p: Tensor) -> Tensor:
    return torch.diag_embed(p) - p[:, :, None] * p[:, None, :]


@dataclass(frozen=True)
class CrossEntropy:
    """``ℓ = log Σ exp z − z_y``, smoothed: ``(1−ε) ℓ_y + (ε/C) Σ_c ℓ_c``; ``∂²ℓ = diag(p) − p pᵀ``.

    The smoothing is linear in ``z``, so it does not enter the second derivative.
    """

    smoothing: float = 0.0
    class_axis: int = -1

    def rows(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        z = output.movedim(self.class_axis, -1)
        z, y = z.reshape(-1, z.shape[-1]), target.reshape(-1)
        counted = y != IGNORED
        return z[counted], y[counted]

    def terms(self, z: Tensor, y: Tensor) -> Tensor:
        all_classes = torch.logsumexp(z, 1, keepdim=True) - z
        own = all_classes.gather(1, y[:, None])[:, 0]
        return (1 - self.smoothing) * own + self.smoothing * all_classes.mean(1)

    def hessians(self, z: Tensor, y: Tensor) -> Tensor:
        del y
        return _diag_minus_outer(torch.exp(z - torch.logsumexp(z, 1, keepdim=True)))

    def expected_squared_gradients(self, z: Tensor) -> Tensor:
        """``Σ_y p_y (∂ℓ_y) (∂ℓ_y)ᵀ`` with ``∂ℓ_y = p − e_y``, the sum over labels written out."""
        p = torch.exp(z - torch.logsumexp(z, 1, keepdim=True))
        total = torch.zeros(*p.shape, p.shape[1], dtype=p.dtype)
        for label in range(p.shape[1]):
            g = p.clone()
            g[:, label] -= 1
            total += p[:, label, None, None] * g[:, :, None] * g[:, None, :]
        return total


@dataclass(frozen=True)
class BinaryLogistic:
    """``ℓ = log(1 + exp z) − y z``; ``∂²ℓ = p (1 − p)``."""

    def rows(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        return output.reshape(-1, 1), target.reshape(-1)

    def terms(self, z: Tensor, y: Tensor) -> Tensor:
        z = z[:, 0]
        return torch.logaddexp(torch.zeros_like(z), z) - y * z

    def hessians(self, z: Tensor, y: Tensor) -> Tensor:
        del y
        p = 1 / (1 + torch.exp(-z))
        return (p * (1 - p))[:, :, None]

    def expected_squared_gradients(self, z: Tensor) -> Tensor:
        """Both labels: ``p (p − 1)² + (1 − p) p²``."""
        p = 1 / (1 + torch.exp(-z))
        return (p * (p - 1) ** 2 + (1 - p) * p**2)[:, :, None]


class _PerSample:
    """One row per sample: all output entries of the sample."""

    def rows(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        return output.reshape(output.shape[0], -1), target.reshape(target.shape[0], -1)


@dataclass(frozen=True)
class MeanSquare(_PerSample):
    """``ℓ = (1/C) Σ_c (z_c − y_c)²``; ``∂²ℓ = (2/C) I``."""

    def terms(self, z: Tensor, y: Tensor) -> Tensor:
        return ((z - y) ** 2).sum(1) / z.shape[1]

    def hessians(self, z: Tensor, y: Tensor) -> Tensor:
        del y
        C = z.shape[1]
        return (2 / C) * torch.eye(C, dtype=z.dtype).expand(z.shape[0], C, C)

    def expected_squared_gradients(self, z: Tensor) -> Tensor:
        """``ℓ = −log N(y; z, σ² I) + const`` with ``σ² = C/2``: ``(2/C)² σ² I = (2/C) I``."""
        C = z.shape[1]
        return (2 / C) ** 2 * (C / 2) * torch.eye(C, dtype=z.dtype).expand(z.shape[0], C, C)


@dataclass(frozen=True)
class Huber(_PerSample):
    """``ℓ = (1/C) Σ_c h(z_c − y_c)``, ``h = r²/2`` to ``δ``, then linear; ``h'' = [|r| < δ]``."""

    delta: float

    def terms(self, z: Tensor, y: Tensor) -> Tensor:
        r = z - y
        inner, outer = r**2 / 2, self.delta * (r.abs() - self.delta / 2)
        return torch.where(r.abs() < self.delta, inner, outer).mean(1)

    def hessians(self, z: Tensor, y: Tensor) -> Tensor:
        return torch.diag_embed(((z - y).abs() < self.delta).to(z.dtype)) / z.shape[1]


@dataclass(frozen=True)
class Cauchy(_PerSample):
    """``ℓ = (1/C) Σ_c log(1 + r²)``, not convex: ``∂²ℓ = (1/C) diag(2 (1 − r²) / (1 + r²)²)``."""

    def terms(self, z: Tensor, y: Tensor) -> Tensor:
        return torch.log(1 + (z - y) ** 2).mean(1)

    def hessians(self, z: Tensor, y: Tensor) -> Tensor:
        r2 = (z - y) ** 2
        return torch.diag_embed(2 * (1 - r2) / (1 + r2) ** 2) / z.shape[1]
