"""What the class structure of an analysis takes.

The Gram matrix of G over all samples, where it is not too large, decides: its size is known, and so
is what is done with it. Beyond, and for the layers, the work is tried on two small numbers of
samples and grows like them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from curvescope.experiments.configuration import Settings
from curvescope.experiments.doctor.algebra import Cost
from curvescope.experiments.doctor.layers import LayerCosts
from curvescope.experiments.doctor.trials import Trials, cubic, dense_product
from curvescope.experiments.stages.class_structure import GRAM_ROWS
from curvescope.problem import Problem
from curvescope.problem.losses import Groups
from curvescope.structure.class_factors import layer_approximations
from curvescope.structure.knockouts import class_dual
from curvescope.structure.layers import layer_statistics
from curvescope.structure.outliers import attribute_outliers

_SEARCHED = 1024  # rows of a Gram matrix from which on its eigenvectors are searched for
_PRODUCTS = 150  # of such a search
_SPECTRA = 4  # all eigenvalues of G and of G without each part


class ClassCosts:
    """The class structure of one problem.

    Args:
        problem: The problem.
        layers: What its layers take.
        trials: Work on a few samples.
        settings: Of the analysis.
        groups: The classes that outputs are put into; None: each is one.
    """

    def __init__(
        self, problem: Problem, layers: LayerCosts, trials: Trials, settings: Settings,
        groups: Groups | None,
    ) -> None:  # fmt: skip
        self._problem, self._layers, self._settings = problem, layers, settings
        self._groups, self._device = groups, problem.device
        self._trials = trials
        self._rows = trials.samples * trials.terms * layers.outputs

    def all(self, names: Sequence[str]) -> Cost:
        """The attribution of outliers, and the class structure of every layer."""
        attribution = self._attribution()
        seconds, peak_bytes = attribution.seconds, attribution.bytes
        for name, count in self._layers.kinds(names):
            layer = self._trials.batch(self._statistics(name))
            size = min(self._rows, self._layers.dimension(name))
            exact = 2 * cubic(size, self._device) if size <= self._settings.class_rows else 0.0
            seconds += count * (layer.seconds + exact)
            peak_bytes = max(peak_bytes, layer.bytes)
        return Cost(seconds, peak_bytes)

    def _attribution(self) -> Cost:
        rows, device = self._rows, self._device
        if rows > GRAM_ROWS * self._settings.class_rows:
            return self._trials.batch(
                lambda p: attribute_outliers(p, classes=self._groups, limit=0, generator=_fixed())
            )
        gram = self._trials.gram(lambda p: class_dual(p, classes=self._groups), rows)
        seconds = gram.seconds + cubic(rows, device, torch.linalg.inv) / 3
        if rows <= _SEARCHED:
            seconds += 2 * cubic(rows, device)
        else:
            seconds += _PRODUCTS * dense_product(rows, device)
        if rows <= self._settings.class_rows:
            seconds += _SPECTRA * cubic(rows, device)
        return Cost(seconds, gram.bytes)

    def _statistics(self, name: str) -> Callable[[Problem], object]:
        settings, groups = self._settings, self._groups
        exact = min(self._rows, self._layers.dimension(name)) <= settings.class_rows

        def act(problem: Problem) -> None:
            layer_statistics(problem, layers=[name], classes=groups)
            if groups is None:
                layer_approximations(
                    problem, layers=[name], limit=settings.class_rows if exact else 0,
                    steps=settings.steps, sharing=settings.sharing, generator=_fixed(),
                )  # fmt: skip

        return act


def _fixed() -> torch.Generator:
    return torch.Generator().manual_seed(0)
