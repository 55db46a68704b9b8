"""The sharpness report of the network, in each mode of its batch norms."""

from __future__ import annotations

from dataclasses import dataclass

from curvescope.experiments.stages.context import Context
from curvescope.experiments.store import Outcome, RunDirectory
from curvescope.flatness.network_scores import on_other_data
from curvescope.flatness.report import SharpnessReport, has_batch_statistics
from curvescope.flatness.report import sharpness as measure
from curvescope.problem import Problem

NAME = "sharpness"


@dataclass(frozen=True)
class Sharpness:
    """A report for each mode of the batch norms, that of the problem first."""

    reports: tuple[SharpnessReport, ...]

    @property
    def primary(self) -> SharpnessReport:
        """The report in the mode of the problem."""
        return self.reports[0]


def compute(context: Context) -> Outcome[Sharpness]:
    """The sharpness report in the problem's mode; with batch norms in the other mode as well."""
    problem = context.problem
    reports = [_report(context, problem, context.test)]
    if has_batch_statistics(problem.model):
        other = "train" if problem.mode == "eval" else "eval"
        reports.append(_report(context, on_other_data(problem, problem.data, mode=other), None))
    return Outcome(Sharpness(tuple(reports)))


def _report(context: Context, problem: Problem, test: Problem | None) -> SharpnessReport:
    return measure(
        problem,
        test=test,
        probes=max(context.settings.trace_probes // 2, 4),
        tol=context.settings.tolerance,
        generator=context.generator(f"sharpness {problem.mode}"),
    )


def sharpness_of(run: RunDirectory) -> Sharpness | None:
    """The sharpness of a run; None while its stage is not finished."""
    return run.result(NAME, Sharpness) if run.has(NAME) else None
