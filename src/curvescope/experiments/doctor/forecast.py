"""What a density and an analysis will take: the number of products times that of one.

A density and the sums take a number of products that is known beforehand. Eigenpairs take as many
as their spectrum asks for: ``PER_PAIR`` is what networks and their layers took, fresh and trained
(perceptrons, LeNet5, a GPT: from 2.0 to 9 for each pair), and the main uncertainty of a forecast.
"""

from __future__ import annotations

from collections.abc import Sequence

from curvescope.experiments.configuration import Settings
from curvescope.experiments.doctor.algebra import Algebra, Cost
from curvescope.experiments.doctor.classes import ClassCosts
from curvescope.experiments.doctor.layers import LayerCosts
from curvescope.experiments.doctor.records import Forecast, Measured, Product
from curvescope.experiments.doctor.trials import Trials, cubic
from curvescope.experiments.stages.spectra import MATRICES, most_outliers
from curvescope.flatness.measures import OUTLIERS
from curvescope.flatness.report import EXACT_UP_TO, has_batch_statistics
from curvescope.operators.gauss_newton import GaussNewton
from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem
from curvescope.problem.losses import Groups

PER_PAIR = {"H": 3.8, "G": 2.4, "E": 4.4}
_AT_AN_END = 25  # products for a single eigenvalue at the lower end
_SHARPNESS_STEPS, _SHARPNESS_PROBES = 32, 2
_REPORT = 4.0  # seconds of the report and its figures, and of each layer's part of them
_REPORT_LAYER = 0.7


class Forecaster:
    """Forecasts for one problem, from what was measured of it."""

    def __init__(self, problem: Problem, measured: Measured) -> None:
        self._problem, self._measured = problem, measured
        self._algebra = Algebra(problem)
        plan = Hessian(problem).plan
        self._keeps = plan.many is not None and plan.many.keeps

    def _product(self, matrix: str) -> Product:
        """The product that estimators take; E costs what H does."""
        name = "H" if matrix == "E" else matrix
        product = self._measured.product(name, kept=self._keeps)
        product = product or self._measured.product(name, kept=False)
        assert product is not None, "one was measured"
        return product

    # Estimators ---------------------------------------------------------------------------------

    def density(self, matrix: str, steps: int, probes: int) -> Cost:
        """A spectral density."""
        product = self._product(matrix)
        steps = min(steps, self._algebra.n)
        each = self._columns(product, probes)
        peak = product.peak_block + self._algebra.density_bytes(steps, probes)
        return Cost(steps * each + self._algebra.density(steps, probes), peak)

    def pairs(self, matrix: str, k: int) -> Cost:
        """``k`` eigenpairs."""
        product = self._product(matrix)
        count = min(PER_PAIR[matrix] * k + 8, self._algebra.n)
        peak = product.peak_one + self._algebra.pairs_bytes(k, count)
        return Cost(count * product.one + self._algebra.pairs(count), peak)

    def sums(self, matrix: str, products: int) -> Cost:
        """A trace or a norm."""
        product = self._product(matrix)
        products = min(products, self._algebra.n)
        time = self._columns(product, products) + self._algebra.sums(products)
        return Cost(time, product.peak_block + self._algebra.sums_bytes(products))

    def _columns(self, product: Product, columns: int) -> float:
        """A product with many columns, as blocks of those that were measured."""
        if columns <= 1:
            return product.one
        if columns < product.columns:
            slope = (product.block - product.one) / (product.columns - 1)
            return product.one + max(slope, 0.0) * (columns - 1)
        return product.block * columns / product.columns

    # Work ---------------------------------------------------------------------------------------

    def density_alone(self, settings: Settings) -> Forecast:
        """``spectral_measure(H)`` with the steps and probes of an analysis."""
        density = self.density("H", settings.steps, settings.probes)
        filling = self._product("H").filling
        steps = (("keeping the batches", filling), ("density", density.seconds))
        return Forecast("density", filling + density.seconds, density.bytes, steps)

    def analysis(
        self, settings: Settings, layers: Sequence[str], *, classes: bool,
        groups: Groups | None = None, test: float = 0.0,
    ) -> Forecast:  # fmt: skip
        """All stages of an analysis.

        Args:
            settings: Of the analysis.
            layers: Those that are looked into.
            classes: Whether the class structure is measured.
            groups: The classes that outputs are put into.
            test: Test samples for each training sample.
        """
        by_layer = LayerCosts(self._problem, self._measured)
        trials = Trials(self._problem, self._measured.samples)
        k = most_outliers(settings, by_layer.outputs)
        stages = {"overview": self._overview(test)}
        stages["sharpness"] = self._sharpness(settings, test)
        for name in MATRICES:
            stages[f"spectrum {name}"] = self._spectrum(name, settings, k, trials)
        if layers:
            stages["layers"] = by_layer.all(layers, settings, PER_PAIR["H"], self._algebra)
        if classes:
            by_class = ClassCosts(self._problem, by_layer, trials, settings, groups)
            stages["classes"] = by_class.all(layers)
        report = _REPORT + _REPORT_LAYER * len(layers)
        stages["report"] = Cost(report)
        steps = tuple((name, cost.seconds) for name, cost in stages.items())
        total = sum(seconds for _, seconds in steps)
        return Forecast("analysis", total, max(each.bytes for each in stages.values()), steps)

    def _overview(self, test: float) -> Cost:
        m = self._measured
        passes = 7 * m.gradient + 12 * m.forward + 2 * test * m.forward
        return Cost(passes, m.gradient_peak)

    def _sharpness(self, settings: Settings, test: float) -> Cost:
        n = self._algebra.n
        if n <= EXACT_UP_TO:
            costs = [self.sums("H", n), self.sums("G", n)]
        else:
            probes = max(settings.trace_probes // 2, 4) + OUTLIERS + 1
            quadrature = _SHARPNESS_STEPS, _SHARPNESS_PROBES
            ends = [self._end(name) for name in ("H", "G")]
            costs = [self.pairs(name, OUTLIERS) for name in ("H", "G")] + ends
            costs += [self.sums(name, probes) for name in ("H", "G")]
            costs += [self.density(name, *quadrature) for name in ("H", "G")]
        seconds = self._product("H").filling + sum(each.seconds for each in costs)
        seconds *= 2 if has_batch_statistics(self._problem.model) else 1
        scores = (2 + test) * self._measured.forward
        return Cost(seconds + scores, max(each.bytes for each in costs))

    def _exact(self, matrix: str, limit: int, trials: Trials) -> list[Cost]:
        """All eigenvalues, where the matrix or its Gram form has few enough rows."""
        n, device = self._algebra.n, self._problem.device
        dual = GaussNewton(self._problem).dual() if matrix == "G" else None
        rows = n if dual is None else min(n, dual.size)
        if rows > limit:
            return []
        values = cubic(rows, device)
        if dual is None or rows == n:
            dense = self.sums(matrix, n)
            return [Cost(dense.seconds + values, dense.bytes)]
        gram = trials.gram(_gram, rows)
        return [Cost(gram.seconds + values, gram.bytes)]

    def _end(self, matrix: str) -> Cost:
        one = self._product(matrix).one
        return Cost(_AT_AN_END * one + self._algebra.pairs(_AT_AN_END))

    def _spectrum(self, matrix: str, settings: Settings, k: int, trials: Trials) -> Cost:
        n = self._algebra.n
        pairs = self.pairs(matrix, min(k, max(1, n // 4)))
        density = self.density(matrix, settings.steps, settings.probes)
        sums = self.sums(matrix, settings.trace_probes)
        costs = [pairs, density, sums, sums]
        costs += self._exact(matrix, settings.exact_rows, trials)
        deflated = density.bytes + k * self._algebra.row
        peak = max(deflated, *(each.bytes for each in costs))
        return Cost(sum(each.seconds for each in costs), peak)


def _gram(problem: Problem) -> object:
    dual = GaussNewton(problem).dual()
    assert dual is not None, "a Gauss–Newton matrix of a loss with a root"
    return dual.matrix()
