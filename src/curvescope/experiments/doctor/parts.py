"""What the layers and the classes of an analysis take: tried out on few samples, counted up.

Layers of one kind and shape take the same, so that one of each is tried. The class structure is
tried on two small numbers of samples; with passes its time grows like the samples, with Gram
matrices like their square.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property, partial

import torch
from torch import Tensor

from curvescope.errors import CurvescopeError
from curvescope.experiments.configuration import Settings
from curvescope.experiments.doctor.algebra import Algebra, Taken
from curvescope.experiments.doctor.products import on
from curvescope.experiments.doctor.records import Measured
from curvescope.experiments.doctor.watch import measured as watched
from curvescope.experiments.doctor.watch import once
from curvescope.experiments.stages.overview import outputs
from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem
from curvescope.record.samples import choose
from curvescope.record.selection import join
from curvescope.structure.class_factors import layer_approximations
from curvescope.structure.factors import kronecker_factors
from curvescope.structure.layers import layer_statistics
from curvescope.structure.outliers import attribute_outliers

_TRIED = (24, 48)  # samples
_PART = 256  # rows of a matrix that is decomposed


class Costs:
    """The parts of an analysis of one problem."""

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

    def layers(self, names: Sequence[str], pairs: int, per_pair: float, algebra: Algebra) -> Taken:
        """Every layer's Hessian beside its Kronecker product."""
        seconds, most = 0.0, 0
        for name, count in self._kinds(names):
            each, peak = self._layer(name, pairs, per_pair, algebra)
            seconds, most = seconds + count * each, max(most, peak)
        return Taken(seconds, most)

    def _kinds(self, names: Sequence[str]) -> list[tuple[str, int]]:
        """One layer of each kind and shape, and how many there are of it."""
        shapes = {name: self._shape(name) for name in names}
        counts = Counter(shapes.values())
        first = {shape: name for name, shape in reversed(shapes.items())}
        return [(first[shape], count) for shape, count in counts.items()]

    def _shape(self, name: str) -> tuple[object, ...]:
        module = self._problem.model.get_submodule(name)
        return type(module), *self._problem.params.shapes[join(name, "weight")]

    def _layer(self, name: str, pairs: int, per_pair: float, algebra: Algebra) -> tuple[float, int]:
        """Factors of one layer, eigenpairs of its block, and what is done with both."""
        problem, device = self._one, self._problem.device
        try:
            factors = kronecker_factors(problem, layers=[name])[name]
        except CurvescopeError:
            return 0.0, 0  # left out of the analysis with its reason
        recording = once(lambda: kronecker_factors(problem, layers=[name]), device)
        weight = join(name, "weight")
        block = Hessian(problem, keep=True).block(weight)
        filling = once(block.for_many, device)
        n = block.shape[0]
        row = torch.ones(n, dtype=problem.dtype, device=device)
        product, peak = watched(lambda: block @ row, device)
        k = min(pairs, n)
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
        return seconds, int(held * self._share + peak + rows)

    # Classes ------------------------------------------------------------------------------------

    def classes(self, layers: Sequence[str], settings: Settings, product: float) -> Taken:
        """The attribution of outliers, and the class structure of every layer.

        Args:
            layers: Those that are looked into.
            settings: Of the analysis.
            product: Seconds of a Gauss–Newton product over all data.
        """
        generator = torch.Generator().manual_seed(0)
        whole = self._counted(
            lambda p: attribute_outliers(p, limit=settings.class_rows, generator=generator)
        )
        seconds = whole + 20 * self.outputs * product
        for name, count in self._kinds(layers):
            seconds += count * self._counted(self._statistics(name, settings))
        return Taken(seconds)

    def _statistics(self, name: str, settings: Settings) -> Callable[[Problem], object]:
        rows = self._measured.samples * self.outputs
        limit = settings.class_rows if rows <= settings.class_rows else 0

        def act(problem: Problem) -> None:
            layer_statistics(problem, layers=[name])
            layer_approximations(
                problem, layers=[name], limit=limit, steps=settings.steps,
                generator=torch.Generator().manual_seed(0),
            )  # fmt: skip

        return act

    def _counted(self, act: Callable[[Problem], object]) -> float:
        """The time of an action that grows like the samples, from two small numbers of them."""
        sizes = [min(size, self._in_batch) for size in _TRIED]
        try:
            few = [self._samples(size) for size in sizes]
            act(few[0])
            short, long = (once(partial(act, p), self._problem.device) for p in few)
        except CurvescopeError:
            return 0.0  # left out of the analysis with its reason
        if sizes[0] == sizes[1]:
            return long * self._measured.samples / sizes[1]
        slope = max(long - short, 0.0) / (sizes[1] - sizes[0])
        return long + slope * (self._measured.samples - sizes[1])

    @property
    def _in_batch(self) -> int:
        target = self._first.target
        return len(target) if isinstance(target, Tensor) else 1

    def _samples(self, count: int) -> Problem:
        """The problem on samples from all over the first batch, so that classes are among them."""
        chosen = torch.linspace(0, self._in_batch - 1, count).long().to(self._problem.device)
        return on(self._problem, choose(self._first, chosen))


def _decomposing(matrix: Tensor) -> float:
    """Seconds of the eigendecompositions of a Kronecker factor, about four; a diagonal needs none.

    Of a large one, a part is decomposed, and the time grows with the third power.
    """
    if matrix.ndim == 1:
        return 0.0
    part = matrix[:_PART, :_PART].double()
    return (
        4 * once(partial(torch.linalg.eigh, part), matrix.device) * (len(matrix) / len(part)) ** 3
    )
