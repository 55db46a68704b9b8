"""``analyze``: the curvature of one network, measured stage by stage into a directory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from curvescope import io
from curvescope._checks import positive_int
from curvescope.errors import CurvescopeError
from curvescope.experiments.configuration import Analysis, DataNote, ModelNote, Settings
from curvescope.experiments.groups import class_groups
from curvescope.experiments.stages import overview
from curvescope.experiments.stages.context import Context, derived
from curvescope.experiments.stages.plan import Extra, Part, parts_of
from curvescope.experiments.store import OpenRun, Outcome, RunDirectory, open_for_work
from curvescope.layers import kind_of as layer_kind_of
from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem
from curvescope.record.samples import first_samples
from curvescope.spectra.control import Progress


def analyze(
    problem: Problem,
    out: io.PathLike,
    *,
    seed: int,
    test: Problem | None = None,
    layers: Sequence[str] | None = None,
    classes: Any = True,
    extra: Sequence[Extra] = (),
    settings: Settings | None = None,
    names: Mapping[str, str] | None = None,
    tell: Callable[[str], None] = lambda stage: None,
    progress: Callable[[Progress], None] | None = None,
) -> RunDirectory:
    """Measure a network's curvature stage by stage and keep the results in ``out``.

    Stages that are finished in ``out`` are read, not computed again; an interrupted one goes on
    from its last checkpoint. The same seed gives the same numbers, interrupted or not, up to
    rounding.

    Args:
        problem: The network, its loss and its training data.
        out: A folder: new, empty, or with an analysis of the same configuration.
        seed: Decides every random number.
        test: The same network on its test data.
        layers: The layers to analyze; all linear and convolutional ones if none are named.
        classes: Whether to measure the class structure, where the loss has classes; or which ones
            these are (:func:`curvescope.experiments.groups.class_groups`): a number k for the k
            most frequent labels and all others, a map from outputs to classes, or a function. Text,
            with a label at every position, needs such classes.
        extra: Stages of the user, which come last; their code is part of the configuration.
        settings: How much work to do.
        names: Names of the ``"model"`` and the ``"data"`` for reports.
        tell: Called with a few words at the beginning of each stage.
        progress: Called after every step of an estimate.

    Raises:
        CurvescopeError: If the problem is not sound, or ``out`` holds something else; a run with
            another configuration is refused with the difference.

    >>> import tempfile
    >>> from torch import nn
    >>> g = torch.Generator().manual_seed(0)
    >>> X, y = torch.randn(30, 4, generator=g), torch.arange(30) % 3
    >>> model = nn.Linear(4, 3)
    >>> run = analyze(Problem(model, (X, y)), tempfile.mkdtemp(), seed=0,
    ...               settings=Settings(steps=8, trace_probes=16))
    >>> run.complete, run.result("overview", overview.Overview).parameters
    (True, 15)
    """
    seed = positive_int("analyze", "seed", seed, minimum=0)
    settings = settings or Settings()
    chosen = choose_layers(problem, layers)
    outputs = overview.outputs(problem)
    groups, note = class_groups(problem, classes, outputs)
    plan = [*parts_of(chosen, classes=classes is not False and problem.loss.has_classes), *extra]
    config = Analysis(
        stages=tuple(part.name for part in plan),
        seed=seed,
        layers=chosen,
        settings=settings,
        classes=note,
        extra={part.name: part.measures for part in extra},
        **describe(problem, test, names or {}),
    )
    if not (Path(out) / "stages" / "overview" / "result.json").exists():
        _try_out(problem, test)  # what cannot be analyzed is refused before anything is written

    def perform(run: OpenRun, part: Part) -> None:
        stage_seed = derived(seed, part.name)

        def work(folder: Path) -> Outcome[Any]:
            context = Context(
                problem, test, run, settings, outputs, chosen, stage_seed, folder, groups, progress
            )
            return part.compute(context)

        if not run.has(part.name):
            tell(part.name)
        run.compute(part.name, part.kind, work, seed=stage_seed, device=problem.device)

    with open_for_work(out, config, problem.group) as run:
        for part in plan:
            perform(run, part)
    return RunDirectory(out)


def _try_out(problem: Problem, test: Problem | None) -> None:
    """Refuse a model that is no function of its weights or has no second derivative, and bad data.

    Cost: that of :meth:`Problem.check`, a product on a few samples, a forward pass over the test
    data.
    """
    problem.check()
    few = first_samples(next(iter(problem.data)))
    small = Problem(
        problem.model,
        [(few.inputs, few.target)],
        loss=problem.loss,
        params=list(problem.params.names),
        mode=problem.mode,
    )
    Hessian(small) @ torch.ones(small.params.size, dtype=small.dtype, device=small.device)
    if test is not None:
        try:
            test.value()
        except CurvescopeError as error:
            error.where = "test data"
            raise


def choose_layers(problem: Problem, layers: Sequence[str] | None) -> tuple[str, ...]:
    """The layers of a known kind with variables, or those that are named."""
    modules = dict(problem.model.named_modules())
    able = [
        name
        for name in problem.params.layers
        if layer_kind_of(modules[name]) is not None
        and f"{name}.weight".lstrip(".") in problem.params.shapes  # a model may be one layer itself
    ]
    if layers is None:
        return tuple(able)
    for name in layers:
        if name not in able:
            rule = f"{name!r} is no layer of a known kind with variables"
            remedy = f"such layers are {', '.join(able) or 'none'}"
            raise CurvescopeError("analyze(layers)", rule, remedy=remedy)
    return tuple(name for name in able if name in layers)


# The configuration ----------------------------------------------------------------------


def describe(problem: Problem, test: Problem | None, names: Mapping[str, str]) -> dict[str, Any]:
    """Model, loss and data by name and content; fields of ``Analysis``."""
    spec = getattr(problem.model, "spec", None)
    called = names.get("model") or getattr(spec, "name", None) or type(problem.model).__name__
    return {
        "model": ModelNote(
            called,
            {name: tuple(shape) for name, shape in problem.params.shapes.items()},
            problem.model_identity,
        ),
        "loss": problem.loss.name,
        "loss_identity": problem.loss.identity,
        "mode": problem.mode,
        "dtype": str(problem.dtype).removeprefix("torch."),
        "data": _contents(problem, names.get("data", "data")),
        "test": None if test is None else _contents(test, "test"),
    }


def _contents(problem: Problem, name: str) -> DataNote:
    """The samples of a problem by number and content, which must be finite."""
    samples = 0
    for index, batch in enumerate(problem.batches()):
        leaves = pytree.tree_leaves((batch.inputs, batch.target))
        leaves = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if not all(bool(leaf.isfinite().all()) for leaf in leaves):
            rule = f"the data has NaN or infinite numbers, in batch {index}"
            raise CurvescopeError("analyze", rule, remedy="remove them")
        samples += next(len(leaf) for leaf in leaves if leaf.ndim)
    return DataNote(name, int(problem.count(samples)), problem.data_identity)
