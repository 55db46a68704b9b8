"""Several reports side by side: does sharpness go with generalization, as FF ask?

References:
    FF: Granziol (2020), *Flatness is a False Friend*.
    PP: *A Practical PAC-Bayes Generalisation Bound for Deep Learning* (2020).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from curvescope.errors import CurvescopeError
from curvescope.flatness.ranks import chance, kendall, spearman
from curvescope.flatness.report import SharpnessReport
from curvescope.spectra.estimate import Estimate

Column = Callable[[SharpnessReport], Estimate[float] | float | None]

SHARPNESS: dict[str, Column] = {
    "λ_max(H)": lambda r: r.hessian.largest,
    "tr H": lambda r: r.hessian.trace,
    "tr H / P": lambda r: r.hessian.mean_eigenvalue,
    "‖H‖_F": lambda r: r.hessian.frobenius,
    "tr H² / P": lambda r: r.hessian.mean_square,
    "λ_max(G)": lambda r: r.gauss_newton.largest,
    "tr G": lambda r: r.gauss_newton.trace,
    "‖G‖_F": lambda r: r.gauss_newton.frobenius,
    "log det(G + δI)": lambda r: r.log_determinant,
}
"""Measures that are said to be small for models that generalize well."""

PLAIN = ("λ_max(H)", "tr H", "‖H‖_F")
"""The measures of FF, on which :meth:`Comparison.verdict` is based."""
_COIN = 0.5
"""A rank correlation with a larger probability under random order does not count."""

GENERALIZATION: dict[str, Column] = {
    "test error": lambda r: None if r.test is None else r.test.error,
    "test loss": lambda r: None if r.test is None else r.test.loss,
    "error gap": lambda r: r.error_gap,
    "loss gap": lambda r: r.loss_gap,
}
"""Measures of generalization; smaller is better."""

OTHERS: dict[str, Column] = {
    "λ_min(H)": lambda r: r.hessian.smallest,
    "effective rank of H": lambda r: r.hessian.effective_rank,
    "tr G + ½‖w‖²": lambda r: r.gauss_newton.trace.value + 0.5 * r.weights.squared,
    "‖w‖": lambda r: r.weights.norm,
    "training loss": lambda r: r.train.loss,
    "training error": lambda r: r.train.error,
}


@dataclass(frozen=True)
class RankCorrelation:
    """How the order of the runs by a measure agrees with that by a generalization figure.

    ``kendall`` (τ-b) and ``spearman`` are 1 for the same order, −1 for the opposite one, NaN where
    one of the two does not vary. ``chance`` is the probability that runs in random order would
    agree or disagree as much in ``kendall``: exact without ties, else by the normal approximation.
    """

    mode: str
    measure: str
    generalization: str
    kendall: float
    spearman: float
    chance: float


@dataclass(frozen=True)
class Comparison:
    """A table of runs by columns, and rank correlations over the runs.

    ``table[column][i]`` is the figure of the i-th run, or None. ``modes`` are those of the batch
    norms; correlations are taken over the runs of one mode, wherever there are two or more, between
    every measure and every generalization figure that all of them have.
    """

    runs: tuple[str, ...]
    modes: tuple[str, ...]
    table: dict[str, tuple[Estimate[float] | None, ...]]
    correlations: tuple[RankCorrelation, ...]

    def correlation(
        self, measure: str, generalization: str, *, mode: str = "eval"
    ) -> RankCorrelation:
        """The correlation of one measure with one generalization figure."""
        for c in self.correlations:
            if (c.measure, c.generalization, c.mode) == (measure, generalization, mode):
                return c
        rule = f"no {measure!r} against {generalization!r} in mode {mode!r}"
        remedy = f"measures are {_listed([c.measure for c in self.correlations])}"
        raise CurvescopeError("Comparison.correlation", rule, remedy=remedy)

    def verdict(self, generalization: str = "test error", *, mode: str = "eval") -> str:
        """FF's question in one sentence: which runs are better, the sharper or the flatter ones?

        It is answered by the signs of the rank correlations of λ_max, trace and Frobenius norm of H
        with the generalization figure, where they agree and random orders would show as much in at
        most half of the cases.
        """
        chosen = [
            c
            for c in self.correlations
            if (c.generalization, c.mode) == (generalization, mode) and c.measure in PLAIN
        ]
        if not chosen:
            return f"no two runs in mode {mode!r} have a {generalization}: nothing can be said"
        if all(math.isnan(c.kendall) for c in chosen):
            return f"all runs have the same {generalization}: nothing can be said"
        signs = {(c.kendall > 0) - (c.kendall < 0) for c in chosen}
        taus = ", ".join(f"{c.measure} {c.kendall:+.2g}" for c in chosen)
        luck = min(c.chance for c in chosen)
        basis = f"(Kendall's τ: {taus}; {self.modes.count(mode)} runs, chance {luck:.2g})"
        if luck <= _COIN and signs == {-1}:
            return f"sharper runs have the lower {generalization}, as Granziol (2020) finds {basis}"
        if luck <= _COIN and signs == {1}:
            other = f"the lower {generalization}, other than Granziol (2020) finds"
            return f"flatter runs have {other} {basis}"
        return f"sharpness does not tell which runs have the lower {generalization} {basis}"

    def finding(self, generalization: str = "test error", *, mode: str = "eval") -> str:
        """One sentence: by which measures flatter runs generalize better, and by which worse."""
        chosen = [
            c
            for c in self.correlations
            if (c.generalization, c.mode) == (generalization, mode) and c.measure in SHARPNESS
        ]
        if not chosen:
            return f"no two runs in mode {mode!r} have a {generalization}: nothing can be said"
        friends = [c.measure for c in chosen if c.kendall > 0]
        false_friends = [c.measure for c in chosen if c.kendall < 0]
        ends = (min(c.chance for c in chosen), max(c.chance for c in chosen))
        luck = " to ".join(dict.fromkeys(f"{end:.2g}" for end in ends))
        return (
            f"over {self.modes.count(mode)} runs, flatter goes with a lower {generalization} by "
            f"{_listed(friends)}; sharper goes with a lower {generalization} by "
            f"{_listed(false_friends)} (chance of such an order: {luck})"
        )


def compare_reports(reports: Mapping[str, SharpnessReport]) -> Comparison:
    """Table and rank correlations of several reports of one network (FF §4 and 5, PP §5).

    Args:
        reports: By the name of the run; at least two, of networks of the same size and with the
            same damping, because sums over eigenvalues would not compare otherwise.

    Raises:
        CurvescopeError: If there are fewer than two, or they cannot be compared.

    >>> import torch
    >>> from curvescope.problem import Problem
    >>> from curvescope.flatness.report import sharpness
    >>> data = (torch.tensor([[1.0], [2.0]]).double(), torch.tensor([0, 1]))
    >>> reports = {}
    >>> for scale in (0.0, 1.0, 5.0):
    ...     model = torch.nn.Linear(1, 2, bias=False).double()
    ...     _ = model.weight.detach().copy_(torch.tensor([[scale], [-scale]]))
    ...     problem = Problem(model, data)
    ...     reports[f"{scale:g}"] = sharpness(problem, test=data, generator=torch.Generator())
    >>> compared = compare_reports(reports)
    >>> compared.correlation("tr H", "test loss").kendall  # here flat is bad
    -1.0
    >>> compared.finding("test loss")[:57]
    'over 3 runs, flatter goes with a lower test loss by none;'
    """
    where = "compare_reports(reports)"
    if len(reports) < 2:
        raise CurvescopeError(where, "needs at least two reports", given=len(reports))
    sizes = {r.hessian.dimension for r in reports.values()}
    dampings = {r.damping for r in reports.values()}
    for what, values in (("number of parameters", sizes), ("damping", dampings)):
        if len(values) > 1:
            listed = ", ".join(f"{value:g}" for value in sorted(values))
            raise CurvescopeError(where, f"all reports must have the same {what}", given=listed)
    columns = {**SHARPNESS, **OTHERS, **GENERALIZATION}
    table = {
        name: tuple(_as_estimate(column(r)) for r in reports.values())
        for name, column in columns.items()
    }
    modes = tuple(r.mode for r in reports.values())
    correlations = [
        _correlation(mode, measure, figure, table, modes)
        for mode in dict.fromkeys(modes)
        for figure in GENERALIZATION
        for measure in (*SHARPNESS, *OTHERS)
    ]
    computed = tuple(c for c in correlations if c is not None)
    return Comparison(tuple(reports), modes, table, computed)


def _as_estimate(value: Estimate[float] | float | None) -> Estimate[float] | None:
    return value if value is None or isinstance(value, Estimate) else Estimate(value, 0.0, 0, 1)


def _correlation(
    mode: str,
    measure: str,
    figure: str,
    table: Mapping[str, Sequence[Estimate[float] | None]],
    modes: Sequence[str],
) -> RankCorrelation | None:
    """None where fewer than two runs are in the mode, or one of them lacks a figure."""
    pairs = [
        (x, y)
        for x, y, run_mode in zip(table[measure], table[figure], modes, strict=True)
        if run_mode == mode
    ]
    a = [x.value for x, _ in pairs if x is not None]
    b = [y.value for _, y in pairs if y is not None]
    if len(pairs) < 2 or not len(a) == len(b) == len(pairs):
        return None
    tau = kendall(a, b)
    return RankCorrelation(mode, measure, figure, tau, spearman(a, b), chance(a, b))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(names)) or "none"
