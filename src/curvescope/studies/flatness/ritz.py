"""Spectra as FF draw them: the Ritz values of one Lanczos run with their masses (FF app. B)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from curvescope.figures.model import Curve, Panel
from curvescope.operators.base import LinearOperator
from curvescope.spectra import spectral_measure
from curvescope.studies.entry import Settings

_CONVERGED = 1e-2  # residual over |value|: an eigenvalue, not a stretch of the bulk
_LARGEST_MASS = 30.0  # in units of 1/P; one eigenvalue has more with probability 4e-8
_SHOWN = 1e-11  # masses below are rounding


@dataclass(frozen=True)
class Ritz:
    """Ritz values ``θ`` in ascending order, their masses ``ω`` and residuals, of ``P`` dimensions.

    FF and PP read everything off such a run. With one random vector the mass of a single
    eigenvalue is ``χ²/P`` instead of ``1/P``, which moves ``tr H²`` by its own size where few
    eigenvalues make it up. :meth:`moment` therefore counts every converged value as one eigenvalue
    and takes only the rest at its sampled mass.
    """

    values: Tensor
    masses: Tensor
    residuals: Tensor
    dimension: int

    @property
    def largest(self) -> float:
        """``λ_max``, from below."""
        return float(self.values[-1])

    @property
    def smallest(self) -> float:
        """``λ_min``, from above."""
        return float(self.values[0])

    def moment(self, k: int) -> float:
        """``tr H^k / P``.

        >>> eigenvalue = torch.tensor([0.0, 4.0]), torch.tensor([0.7, 0.3]), torch.tensor([0.1, 0])
        >>> Ritz(*eigenvalue, dimension=8).moment(1)              # one eigenvalue of eight is 4
        0.5
        """
        single = self.residuals <= _CONVERGED * self.values.abs()
        single &= self.masses * self.dimension <= _LARGEST_MASS
        masses = torch.where(single, torch.full_like(self.masses, 1 / self.dimension), self.masses)
        return float((masses * self.values**k).sum())


def ritz(settings: Settings, key: str, A: LinearOperator, *, steps: int) -> Ritz:
    """One Lanczos run with full re-orthogonalization, from ``work`` if it was made before."""

    def compute() -> dict[str, Tensor]:
        measure = spectral_measure(
            A, steps=steps, reorthogonalize=True, generator=settings.generator(2)
        )
        return {
            "values": measure.nodes[0],
            "masses": measure.weights[0],
            "residuals": measure.residuals[0],
        }

    found = {name: value.cpu() for name, value in settings.once(key, compute).items()}
    return Ritz(**found, dimension=A.shape[0])


def panel(title: str, spectra: Mapping[str, Ritz]) -> Panel:
    """Mass against Ritz value, the spectra over each other by their labels."""
    curves = []
    for label, spectrum in spectra.items():
        shown = spectrum.masses > _SHOWN
        curves.append(
            Curve.of(label, spectrum.values[shown], spectrum.masses[shown], kind="points")
        )
    return Panel(
        title=title, xlabel="Ritz value of H", ylabel="mass", curves=tuple(curves), yscale="log"
    )
