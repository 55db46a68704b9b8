"""The usual measures of sharpness and what they are measured beside (SH-1)."""

from __future__ import annotations

from curvescope.experiments.stages.context import Context
from curvescope.experiments.store import Outcome, Stage
from curvescope.problem import Problem
from curvescope.sharpness.report import SharpnessReport, has_batch_statistics
from curvescope.sharpness.report import sharpness as measure
from curvescope.sharpness.scores import on_other_data


def compute(context: Context) -> Outcome:
    """The sharpness report in the problem's mode; with batch norms in the other mode as well."""
    problem = context.problem
    modes = {problem.mode: (problem, context.test)}
    if has_batch_statistics(problem.model):
        other = "train" if problem.mode == "eval" else "eval"
        modes[other] = (on_other_data(problem, problem.data, mode=other), None)
    return Outcome({mode: _report(context, mode, *pair).to_dict() for mode, pair in modes.items()})


def _report(context: Context, mode: str, problem: Problem, test: Problem | None) -> SharpnessReport:
    return measure(
        problem,
        test=test,
        probes=max(context.settings.trace_probes // 2, 4),
        tol=context.settings.tolerance,
        generator=context.generator(f"sharpness {mode}"),
    )


def restore(stage: Stage) -> dict[str, SharpnessReport]:
    """The reports by mode, the problem's own first."""
    return {mode: SharpnessReport.from_dict(report) for mode, report in stage.values.items()}
