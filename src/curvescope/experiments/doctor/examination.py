"""``doctor``: a problem tried out, and what analyzing it will take on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from curvescope.certificates.methods import Method
from curvescope.errors import CurvescopeError
from curvescope.experiments.analyze import choose_layers
from curvescope.experiments.configuration import Settings
from curvescope.experiments.doctor import questions
from curvescope.experiments.doctor.certificate import certificate
from curvescope.experiments.doctor.forecast import Forecaster
from curvescope.experiments.doctor.modules import examine
from curvescope.experiments.doctor.products import count, measure, on, passes
from curvescope.experiments.doctor.records import Diagnosis, Forecast, Measured, ModuleNote
from curvescope.experiments.groups import class_groups
from curvescope.experiments.stages.class_structure import need_one_label
from curvescope.experiments.stages.overview import outputs
from curvescope.problem import Problem
from curvescope.record import memory
from curvescope.record.samples import first_samples

CALL = "cs.eigenpairs(cs.Hessian(problem), 10, generator=torch.Generator().manual_seed(0))"


def doctor(problem: Problem, *, settings: Settings | None = None, advice: str = CALL) -> Diagnosis:
    """Try a problem out: can it be analyzed, which way will products go, what will they take.

    Loss, determinism and weights are looked at on the first batch; every module is examined, on the
    tape and for its second derivative, on a few samples; a gradient and products with H and G are
    timed, and their memory is measured, on the first batch; from these follow the forecasts of a
    density, of an analysis and of a certificate. Nothing of the problem is changed.

    Cost: about a hundred gradients on the first batch, and one pass over the data without the
    model. Products that are made before or after are not faster or slower for it.

    Args:
        problem: The model with its data.
        settings: Of the analysis that is forecast.
        advice: The call or command that the diagnosis ends with.

    Returns:
        A :class:`Diagnosis`: ``print`` it, or look at ``ok``, ``modules``, ``measured`` and
        ``forecast("analysis")``.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    >>> problem = Problem(model, (torch.randn(30, 4), torch.arange(30) % 3))
    >>> diagnosis = doctor(problem)
    >>> diagnosis.ok, [note.closed_form for note in diagnosis.modules if note.parameters]
    (True, [('G',), ('H', 'G')])
    """
    if not isinstance(problem, Problem):
        raise CurvescopeError("doctor(problem)", "needs a Problem", given=type(problem).__name__)
    settings = settings or Settings()
    answers = questions.ask(problem)
    refusal = next((each.answer for each in answers if not each.ok), "")
    modules: tuple[ModuleNote, ...] = ()
    measured: Measured | None = None
    forecasts: tuple[Forecast, ...] = ()
    if not refusal:
        modules = examine(on(problem, first_samples(next(iter(problem.data)))))
        refusal = _not_twice(modules)
    if not refusal:
        measured = measure(problem)
        forecasts = forecast(problem, measured, settings)
    everything = problem.model.parameters()
    return Diagnosis(
        model=getattr(getattr(problem.model, "spec", None), "name", type(problem.model).__name__),
        parameters=sum(p.numel() for p in everything),
        variables=problem.params.size,
        dtype=str(problem.dtype).removeprefix("torch."),
        device=str(problem.device),
        threads=torch.get_num_threads(),
        free=memory.free(problem.device),
        loss="" if refusal else problem.loss.name,
        questions=answers,
        attention=None if refusal else questions.attention(problem),
        tied=questions.tied(problem),
        frozen=questions.frozen(problem),
        modules=modules,
        measured=measured,
        forecasts=forecasts,
        refusal=refusal,
        advice="" if refusal else advice,
    )


def forecast(problem: Problem, measured: Measured, settings: Settings) -> tuple[Forecast, ...]:
    """What a density, an analysis of all layers, and a certificate will take."""
    forecaster = Forecaster(problem, measured)
    layers = choose_layers(problem, None)
    return (
        forecaster.density_alone(settings),
        forecaster.analysis(settings, layers, classes=has_classes(problem)),
        certificate(problem, measured),
    )


def estimate_analysis(
    problem: Problem,
    *,
    settings: Settings | None = None,
    layers: Sequence[str] | None = None,
    classes: Any = True,
    test: Problem | None = None,
) -> Forecast:
    """What :func:`curvescope.experiments.analyze.analyze` with these arguments will take.

    Cost: about fifty gradients on the first batch.

    Raises:
        CurvescopeError: If the model is random there, or its output not finite.
    """
    on(problem, next(iter(problem.data))).check()
    measured = measure(problem, lean=True)
    groups, _ = class_groups(problem, classes, outputs(problem))
    tested = 0.0 if test is None else count(test)[0] / measured.samples
    return Forecaster(problem, measured).analysis(
        settings or Settings(),
        choose_layers(problem, layers),
        classes=classes is not False and (groups is not None or has_classes(problem)),
        groups=groups,
        test=tested,
    )


def estimate_certificate(problem: Problem, method: Method | None = None) -> Forecast:
    """What a certificate on the data of a problem will take.

    Cost: about twenty gradients on the first batch, and a few steps of the optimization.
    """
    return certificate(problem, passes(problem), method)


def has_classes(problem: Problem) -> bool:
    """Whether an analysis looks into the class structure."""
    if not problem.loss.has_classes:
        return False
    try:
        need_one_label(problem)
    except CurvescopeError:
        return False
    return True


def _not_twice(modules: tuple[ModuleNote, ...]) -> str:
    """The sentence for a model without a second derivative; empty where it has one."""
    for note in modules:
        if not note.twice:
            name = f"module {note.name!r}" if note.name else "the model"
            return f"{name} ({note.kind}) has no second derivative: {note.problem}"
    return ""
