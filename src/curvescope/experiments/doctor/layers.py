"""What the layers of an analysis take: one of each kind and shape is tried, and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from curvescope.errors import CurvescopeError
from curvescope.experiments.configuration import Settings
from curvescope.experiments.doctor.algebra import Algebra, Cost
from curvescope.experiments.doctor.products import on
from curvescope.experiments.doctor.records import Measured
from curvescope.experiments.doctor.trials import cubic
from curvescope.experiments.doctor.watch import measured as watched
from curvescope.experiments.doctor.watch import once
from curvescope.experiments.stages.layers import layer_factors
from curvescope.experiments.stages.overview import outputs
from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem
from curvescope.record.selection import join

_DECOMPOSED = 4  # times that a factor is decomposed


class LayerCosts:
    """The layers of one problem, each beside its Kronecker product."""

    def __init__(self, problem: Problem, measured: Measured) -> None:
        self._problem, self._measured = problem, measured
        self._first = next(iter(problem.data))
        self._share = measured.gradient / max(self._gradient, 1e-9)

    @cached_property
    def _one(self) -> Problem:
        return on(self._problem, self._first)

    @cached_property
    def _gradient(self) -> float:
        self._one.gradient()
        return once(self._one.gradient, self._problem.device)

    @cached_property
    def outputs(self) -> int:
        """The network's outputs, for a sample or for a position of it."""
        return outputs(self._one)

    def all(
        self, names: Sequence[str], settings: Settings, per_pair: float, algebra: Algebra
    ) -> Cost:
        """Every layer's Hessian beside its Kronecker product."""
        seconds, peak = 0.0, 0
        for name, count in self.kinds(names):
            layer_seconds, layer_peak = self._layer(name, settings, per_pair, algebra)
            seconds, peak = seconds + count * layer_seconds, max(peak, layer_peak)
        return Cost(seconds, peak)

    def kinds(self, names: Sequence[str]) -> list[tuple[str, int]]:
        """One layer of each kind and shape, and how many there are of it."""
        shapes = {name: self._shape(name) for name in names}
        counts = Counter(shapes.values())
        first = {shape: name for name, shape in reversed(shapes.items())}
        return [(first[shape], count) for shape, count in counts.items()]

    def dimension(self, name: str) -> int:
        """The number of rows of a layer's block."""
        return self._problem.params.shapes[join(name, "weight")].numel()

    def _shape(self, name: str) -> tuple[object, ...]:
        module = self._problem.model.get_submodule(name)
        return type(module), *self._problem.params.shapes[join(name, "weight")]

    def _layer(
        self, name: str, settings: Settings, per_pair: float, algebra: Algebra
    ) -> tuple[float, int]:
        """Factors of one layer, eigenpairs of its block, and what is done with both."""
        problem, device = self._one, self._problem.device
        try:
            factors = layer_factors(problem, name, settings.sharing, _fixed())
        except CurvescopeError:
            return 0.0, 0  # left out of the analysis with its reason
        recording = once(lambda: layer_factors(problem, name, settings.sharing, _fixed()), device)
        weight = join(name, "weight")
        block = Hessian(problem, keep=True).block(weight)
        filling = once(block.for_many, device)
        n = block.shape[0]
        row = torch.ones(n, dtype=problem.dtype, device=device)
        product, product_peak = watched(lambda: block @ row, device)
        k = min(settings.layer_pairs, n)
        count = min(per_pair * k + 8, n)
        bases = algebra.pairs(count) * n / algebra.n
        held = block.plan.held
        block.release()
        seconds = (
            self._share * (recording + filling + count * product)
            + bases
            + sum(map(_decomposing, (factors.output_hessian, factors.autocorrelation)))
        )
        rows = n * row.element_size() * (count + 2 * k)
        return seconds, int(held * self._share + product_peak + rows)


def _decomposing(factor: Tensor) -> float:
    """Seconds of the eigendecompositions of a Kronecker factor; a diagonal needs none."""
    return 0.0 if factor.ndim == 1 else _DECOMPOSED * cubic(len(factor), factor.device, _eigh)


def _eigh(matrix: Tensor) -> object:
    return torch.linalg.eigh(matrix)


def _fixed() -> torch.Generator:
    return torch.Generator().manual_seed(0)
