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
from curvescope.experiments.doctor.watch import once, peak
from curvescope.experiments.stages.layers import layer_factors
from curvescope.experiments.stages.overview import outputs
from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem
from curvescope.problem.losses import Groups
from curvescope.record.samples import choose
from curvescope.record.selection import join
from curvescope.structure.class_factors import layer_approximations
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

    def layers(
        self, names: Sequence[str], settings: Settings, per_pair: float, algebra: Algebra
    ) -> Taken:
        """Every layer's Hessian beside its Kronecker product."""
        seconds, peak = 0.0, 0
        for name, count in self._kinds(names):
            layer_seconds, layer_peak = self._layer(name, settings, per_pair, algebra)
            seconds, peak = seconds + count * layer_seconds, max(peak, layer_peak)
        return Taken(seconds, peak)

    def _kinds(self, names: Sequence[str]) -> list[tuple[str, int]]:
        """One layer of each kind and shape, and how many there are of it."""
        shapes = {name: self._shape(name) for name in names}
        counts = Counter(shapes.values())
        first = {shape: name for name, shape in reversed(shapes.items())}
        return [(first[shape], count) for shape, count in counts.items()]

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

    # Classes ------------------------------------------------------------------------------------

    def classes(
        self, layers: Sequence[str], settings: Settings, product: float, groups: Groups | None
    ) -> Taken:
        """The attribution of outliers, and the class structure of every layer.

        Args:
            layers: Those that are looked into.
            settings: Of the analysis.
            product: Seconds of a Gauss–Newton product over all data.
            groups: The classes that outputs are put into; None: each is one.
        """
        seconds, peak = self._counted(
            lambda p: attribute_outliers(
                p, classes=groups, limit=settings.class_rows, generator=_fixed()
            )
        )
        count = self.outputs if groups is None else groups.count
        seconds += 20 * count * product
        for name, count in self._kinds(layers):
            layer_seconds, layer_peak = self._counted(self._statistics(name, settings, groups))
            seconds, peak = seconds + count * layer_seconds, max(peak, layer_peak)
        return Taken(seconds, peak)

    def _statistics(
        self, name: str, settings: Settings, groups: Groups | None
    ) -> Callable[[Problem], object]:
        rows = self._measured.samples * self.outputs
        limit = settings.class_rows if rows <= settings.class_rows else 0

        def act(problem: Problem) -> None:
            layer_statistics(problem, layers=[name], classes=groups)
            if groups is None:
                layer_approximations(
                    problem, layers=[name], limit=limit, steps=settings.steps,
                    sharing=settings.sharing, generator=_fixed(),
                )  # fmt: skip

        return act

    def _counted(self, act: Callable[[Problem], object]) -> tuple[float, int]:
        """Seconds and bytes of an action, from two small numbers of samples.

        Both grow like the samples; nothing is held beyond those of a batch.
        """
        device, all_samples = self._problem.device, self._measured.samples
        sizes = [min(size, self._in_batch) for size in _TRIED]
        try:
            few, more = (self._samples(size) for size in sizes)
            act(few)
            short, long = once(partial(act, few), device), once(partial(act, more), device)
            peaks = [peak(partial(act, p), device)[0] for p in (few, more)]
        except CurvescopeError:
            return 0.0, 0  # left out of the analysis with its reason
        if sizes[0] == sizes[1]:
            return long * all_samples / sizes[1], peaks[1]
        grown = sizes[1] - sizes[0]
        seconds = long + max(long - short, 0.0) / grown * (all_samples - sizes[1])
        slope = max(peaks[1] - peaks[0], 0) / grown
        return seconds, int(peaks[1] + slope * (self._in_batch - sizes[1]))

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


def _fixed() -> torch.Generator:
    return torch.Generator().manual_seed(0)
