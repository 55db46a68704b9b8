"""Matrices in output space: what stands between ``J`` and ``Jᵀ`` in a curvature matrix.

Each is a block-diagonal matrix over the terms of the loss, applied to ``t: [k, *z.shape]``.

References:
    TR: Papyan (2020), *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra*.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from curvescope.errors import Inapplicable
from curvescope.problem.losses import Classes, Groups, LossAt


@dataclass(frozen=True)
class LossHessian:
    """``∂²ℓ/∂z²``: the Gauss–Newton matrix, for cross-entropy the Fisher matrix (TR 5.1)."""

    def apply(self, loss: LossAt, batch: int, t: Tensor) -> Tensor:
        """The product with each column."""
        return loss.hessian(t)


@dataclass(frozen=True)
class SampledFisher:
    """``(1/S) Σ_s g_s g_sᵀ`` with ``g_s`` the gradient at a target drawn from the model."""

    samples: int
    seed: int

    def apply(self, loss: LossAt, batch: int, t: Tensor) -> Tensor:
        """The product with each column; the draws depend on the seed and the batch alone."""
        gradients = loss.draws.get(self)
        if gradients is None:
            generator = generator_of(self.seed, batch)
            gradients = loss.terms(loss.sample(self.samples, generator))
            loss.draws[self] = gradients
        return _outer(loss, gradients, t) / self.samples


def generator_of(seed: int, batch: int) -> torch.Generator:
    """The source of a batch's draws, which depend on the seed and the number of the batch alone."""
    return torch.Generator().manual_seed((seed + 0x9E3779B9 * batch) % 2**63)


@dataclass(frozen=True)
class GradientOuter:
    """``g gᵀ`` with ``g`` the gradient of each term at its own target: the empirical Fisher."""

    def apply(self, loss: LossAt, batch: int, t: Tensor) -> Tensor:
        """The product with each column."""
        return _outer(loss, loss.slopes(), t)


@dataclass(frozen=True)
class ClassOuter:
    """``Σ_c' p_c' d_c' d_c'ᵀ`` of the terms of one class, ``d_c' = ∂ℓ(z, y_c')/∂z`` (TR 6.2).

    The sum over classes is the :class:`LossHessian`. With ``cross`` one summand alone is taken, the
    would-be class ``c'``; other losses than those of :meth:`LossAt.classes` are refused. With
    ``groups`` the class of a term and the would-be classes are groups of outputs.
    """

    label: int
    cross: int | None = None
    groups: Groups | None = None

    def apply(self, loss: LossAt, batch: int, t: Tensor) -> Tensor:
        """The product with each column."""
        if self.cross is not None:
            return _outer(loss, self.vectors(loss), t)
        members = (self._labels(loss) == self.label)[:, None]
        return loss.hessian(loss.scatter(loss.terms(t) * members, t))

    def vectors(self, loss: LossAt) -> Tensor:
        """``√p_c' d_c'``: one for each output, or each of the would-be class, ``[k, terms, c]``.

        They are zero for terms of other classes.
        """
        vectors = loss.draws.get(self)
        if vectors is None:
            roots = self._classes(loss).roots().movedim(1, 0)  # [C, terms, c]
            if self.cross is not None:
                roots = roots[self._members(len(roots), roots.device)]
            vectors = roots * (self._labels(loss) == self.label)[:, None]
            loss.draws[self] = vectors
        return vectors

    def _classes(self, loss: LossAt) -> Classes:
        classes = loss.classes("ClassOuter")
        if classes is None:
            raise Inapplicable("ClassOuter", "needs a loss that tells classes apart")
        return classes

    def _labels(self, loss: LossAt) -> Tensor:
        labels = self._classes(loss).labels
        return labels if self.groups is None else self.groups.labels(labels)

    def _members(self, outputs: int, device: torch.device) -> Tensor:
        """Which outputs are of the would-be class."""
        numbers = torch.arange(outputs, device=device)
        classes = numbers if self.groups is None else self.groups.tensor(device)
        return classes == torch.tensor(self.cross, device=device)


OutputMatrix = LossHessian | SampledFisher | GradientOuter | ClassOuter


def _outer(loss: LossAt, vectors: Tensor, t: Tensor) -> Tensor:
    """``Σ_s g_s ⟨g_s, t⟩`` term by term: ``vectors: [s, terms, c]``, ``t: [k, *z.shape]``."""
    weights = torch.einsum("snc,knc->ksn", vectors, loss.terms(t))
    return loss.scatter(torch.einsum("ksn,snc->knc", weights, vectors), t)


@dataclass(frozen=True)
class Mix:
    """``residual · E + Jᵀ (Σ c_i B_i) J``, the general curvature matrix; ``H = E + Jᵀ ∂²ℓ J``.

    ``E`` is the part of the Hessian that comes from the model's own second derivative (TR 5.2).
    """

    residual: float
    outputs: tuple[tuple[OutputMatrix, float], ...]

    def __add__(self, other: Mix) -> Mix:
        total: dict[OutputMatrix, float] = {}
        for matrix, c in (*self.outputs, *other.outputs):
            total[matrix] = total.get(matrix, 0.0) + c
        outputs = tuple((m, c) for m, c in total.items() if c != 0.0)
        return Mix(self.residual + other.residual, outputs)

    def __mul__(self, factor: float) -> Mix:
        outputs = tuple((m, c * factor) for m, c in self.outputs if factor != 0.0)
        return Mix(self.residual * factor, outputs)

    def middle(self, loss: LossAt, batch: int, t: Tensor) -> Tensor:
        """``Σ c_i B_i t``."""
        total = None
        for matrix, c in self.outputs:
            part = matrix.apply(loss, batch, t)
            part = part if c == 1.0 else part * c
            total = part if total is None else total + part
        return torch.zeros_like(t) if total is None else total

    def psd(self, *, convex: bool) -> bool:
        """Whether the matrix is positive semi-definite by its form, given that of the loss."""
        return self.residual == 0.0 and all(
            c >= 0 and (convex or not isinstance(matrix, LossHessian)) for matrix, c in self.outputs
        )
