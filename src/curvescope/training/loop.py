"""``train`` and ``train_many``: networks from their recipes to their last epochs.

Here everything is checked and the epochs are counted. A network in training, with its folder, is a
:class:`curvescope.training.run.Run`; the steps of an epoch are taken by the engines of
:mod:`curvescope.training.engine`, one by one or as CUDA graphs. All random numbers of an epoch come
from the run's generator, which begins with the recipe's seed and is saved with the weights, so that
a resumed run ends with the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from curvescope import _state, io
from curvescope.errors import CurvescopeError
from curvescope.problem.losses import Loss, as_loss
from curvescope.training import watch
from curvescope.training.engine import make_engine
from curvescope.training.folder import RunFolder
from curvescope.training.objective import (
    Fit,
    Penalty,
    as_tensors,
    check_even,
    check_fit,
    home,
    labeled,
    totals,
)
from curvescope.training.recipe import Recipe
from curvescope.training.records import Epoch
from curvescope.training.run import (
    Run,
    Trained,
    configuration,
    describe,
    finished,
    refuse_lonely_samples,
)

Split = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Progress:
    """Where a training is: steps done and to do, and the last complete epoch of every run."""

    done: int
    total: int
    epochs: tuple[Epoch | None, ...]


Tell = Callable[[Progress], None]


def train(
    model: nn.Module,
    data: Any,
    recipe: Recipe,
    *,
    test: Any = None,
    folder: io.PathLike | None = None,
    resume: bool = False,
    loss: nn.Module | Callable[..., Tensor] | Loss | None = None,
    penalty: Penalty | None = None,
    monitor: watch.Options | None = None,
    tell: Tell | None = None,
) -> Trained:
    """Train ``model`` on ``data`` as ``recipe`` says; the weights change in place.

    Each epoch passes over a fresh permutation of the samples, drawn from the recipe's seed; nothing
    else is random, and torch's global generator ends as it was (a model with dropout draws from
    it, seeded anew for each epoch). On the CPU the same recipe, weights, data and number of threads
    give the same result bit for bit, resumed or not.

    With a ``folder`` the run is kept there: configuration, log, weights (initial, after the
    recipe's checkpoints, final) and, until it is finished, the state after the last epochs. A
    finished run is read, not repeated; one with another configuration is refused.

    The data lies on the model's device as a whole. On a GPU, stretches of steps are replayed as
    CUDA graphs, unless there is a ``penalty``; one that works on the device alone and draws no
    random numbers on the host may say so with an attribute ``capturable = True``.

    Args:
        model: The network; in evaluation mode afterwards. A part that is in evaluation mode while
            the model is in training mode (a frozen batch norm) stays so during the training.
        data: A pair of tensors ``(X, y)`` or a data set; labels ``[N]``, or ``[N, T]`` at the
            positions of each sample, of which the mean is taken.
        recipe: See :class:`Recipe`.
        test: Data to measure the model on after each epoch.
        folder: Where the run is kept; made if need be.
        resume: Continue an unfinished run in ``folder``; one that is not there is begun.
        loss: A loss in place of the recipe's; it must weigh all samples alike. A folder recognizes
            it by its identity.
        penalty: A term to add to the loss of each batch, ``penalty(model, X, y)``, such as
            :class:`curvescope.TraceRegularizer`. If it has a method ``objective``, that gives the
            outputs of the model as well, from one pass. If it draws random numbers, a resumed run
            draws the same ones when it has a method ``tensors(device)``, whose tensors are kept
            with the state, or ``reseed(seed)``, which is called before each epoch. A folder
            recognizes it by its ``repr``, or by its code and attributes where it has none.
        monitor: Watch the curvature meanwhile: ``"economy"``, ``"standard"``, ``"full"``, or the
            keywords of :class:`curvescope.Monitor` (``track``, ``budget``, ``every``, …) as a
            mapping; ``probe`` may be a number of training samples, drawn at random, and
            ``on_start`` a function of the monitor, called before the first step. The log is
            ``monitor.jsonl`` in the ``folder``; a resumed run goes on with it. The weights are the
            same bits without a monitor. On a GPU no step is captured in a graph then.
        tell: Called with a :class:`Progress` after each step, or each stretch of them on a GPU.

    Raises:
        CurvescopeError: If data, model, recipe or folder do not fit; nothing has been written then.

    >>> X = torch.tensor([[-1.0], [1.0]])
    >>> model = nn.Linear(1, 2)
    >>> trained = train(model, (X, torch.tensor([0, 1])), Recipe(seed=0, epochs=20, lr=1.0))
    >>> trained.train.accuracy, len(trained.history)
    (1.0, 20)
    """
    trained = train_many(
        [model],
        data,
        [recipe],
        test=test,
        folders=None if folder is None else [folder],
        resume=resume,
        loss=loss,
        penalty=penalty,
        monitor=monitor,
        tell=tell,
    )
    return trained[0]


def train_many(
    models: Sequence[nn.Module],
    data: Any,
    recipes: Sequence[Recipe],
    *,
    test: Any = None,
    folders: Sequence[io.PathLike] | None = None,
    resume: bool = False,
    loss: nn.Module | Callable[..., Tensor] | Loss | None = None,
    penalty: Penalty | None = None,
    monitor: watch.Options | None = None,
    tell: Tell | None = None,
) -> tuple[Trained, ...]:
    """Train several networks on the same data, side by side on a GPU.

    Each run is the same as by :func:`train`. Small networks use a small part of a GPU; captured as
    branches of one CUDA graph, several take hardly longer than one. Recipes may differ in
    everything but epochs and batch size: seeds, learning rates, optimizers.

    Args:
        models: The networks, on one device; the same or different ones.
        data: As for :func:`train`.
        recipes: One for each model.
        test: As for :func:`train`.
        folders: One for each run, or none.
        resume: As for :func:`train`; runs that were stopped at different epochs catch up first.
        loss: As for :func:`train`, the same for all.
        penalty: As for :func:`train`, the same for all.
        monitor: As for :func:`train`, where there is one run alone.
        tell: As for :func:`train`.

    Raises:
        CurvescopeError: As :func:`train`, or if the runs do not fit together.

    >>> X, y = torch.tensor([[-1.0], [1.0]]), torch.tensor([0, 1])
    >>> recipes = [Recipe(seed=seed, epochs=2) for seed in range(3)]
    >>> [run.recipe.seed for run in train_many([nn.Linear(1, 2) for _ in recipes], (X, y), recipes)]
    [0, 1, 2]
    """
    where = "train" if len(models) == 1 else "train_many"
    device, dtype = _check(where, models, recipes, folders)
    if monitor is not None:
        watch.check(where, monitor, len(models), folders)
    _check_randomness(models, penalty)
    shared_loss = None if loss is None else as_loss(loss)
    losses = _losses(where, recipes, shared_loss)
    if shared_loss is not None:
        recipes = [replace(recipe, loss=None) for recipe in recipes]
    X, y = as_tensors(where, data, device, dtype, losses[0])
    measured = (
        None if test is None else as_tensors(f"{where}(test)", test, device, dtype, losses[0])
    )
    for model, recipe, minimized in zip(models, recipes, losses, strict=True):
        for split in (X, y), measured:
            if split is not None:
                check_fit(where, model, minimized, *split)
        refuse_lonely_samples(where, model, len(y), recipe.batch_size)
    places: list[RunFolder | None] = [None] * len(models)
    if folders is not None:
        described = describe(data, (X, y))
        for i, (model, recipe) in enumerate(zip(models, recipes, strict=True)):
            config = configuration(model, recipe, described, penalty, shared_loss)
            places[i] = RunFolder(folders[i], config, resume=resume)

    results: dict[int, Trained] = {}
    runs: dict[int, Run] = {}
    with ExitStack() as claims:
        for place in places:
            if place is not None and not place.finished:
                claims.enter_context(place.claimed())
        for i, (model, recipe, place) in enumerate(zip(models, recipes, places, strict=True)):
            if place is not None and place.finished:
                results[i] = finished(model, recipe, place)
            else:
                runs[i] = Run(
                    model, recipe, samples=len(y), folder=place, loss=losses[i], penalty=penalty,
                    monitor=monitor,
                )  # fmt: skip
        with _in_training(runs.values(), (X, y)):
            _to_the_end(list(runs.values()), (X, y), measured, tell)
            for i, run in runs.items():
                results[i] = run.conclude(X, y, measured)
    for model in models:
        _state.evaluated(model)
    return tuple(results[i] for i in range(len(models)))


def _check(
    where: str,
    models: Sequence[nn.Module],
    recipes: Sequence[Recipe],
    folders: Sequence[io.PathLike] | None,
) -> tuple[torch.device, torch.dtype]:
    counts = {len(models), len(recipes), len(models if folders is None else folders)}
    if not models or len(counts) > 1:
        raise CurvescopeError(
            where,
            "needs a recipe, and a folder if any, for each of at least one model",
            given=f"{len(models)} models, {len(recipes)} recipes, {len(folders or ())} folders",
        )
    if len({(recipe.epochs, recipe.batch_size) for recipe in recipes}) > 1:
        rule = "runs side by side must have the same `epochs` and `batch_size`"
        raise CurvescopeError(where, rule)
    if len({id(model) for model in models}) < len(models):
        rule = "every run needs a model of its own"
        raise CurvescopeError(where, rule, remedy="copy it with copy.deepcopy(model)")
    if folders and len({str(folder) for folder in folders}) < len(models):
        raise CurvescopeError(where, "every run needs a folder of its own")
    homes = {home(where, model) for model in models}
    if len(homes) > 1:
        rule = "all models must share one device and one dtype"
        raise CurvescopeError(where, rule, given=f"{len(homes)} kinds")
    for model in models:
        for name, parameter in model.named_parameters():
            if not bool(parameter.isfinite().all()):
                rule = f"{name} contains NaN or infinity"
                raise CurvescopeError(where, rule, remedy="initialize the model anew")
    return homes.pop()


def _check_randomness(models: Sequence[nn.Module], penalty: Penalty | None) -> None:
    """Refuse layers and penalties that draw random numbers: one run would depend on another."""
    dropout = nn.modules.dropout._DropoutNd
    draws = any(hasattr(penalty, name) for name in ("reseed", "tensors")) or any(
        isinstance(module, dropout) and module.p > 0
        for model in models
        for module in model.modules()
    )
    if draws and len(models) > 1:
        rule = "dropout, or a penalty that draws random numbers, cannot be shared side by side"
        raise CurvescopeError("train_many", rule, remedy="train one model after the other")


def _losses(where: str, recipes: Sequence[Recipe], shared: Loss | None) -> list[Loss]:
    """What each run minimizes: the shared loss, or that of its recipe."""
    losses = [recipe.minimized(where) if shared is None else shared for recipe in recipes]
    if len({labeled(loss) for loss in losses}) > 1:
        raise CurvescopeError(where, "runs side by side must all have labels as targets, or none")
    remedy = "train with a loss that averages over samples or elements, without class weights"
    for loss in losses:
        check_even(where, loss, "the mean of an epoch", remedy)
    return losses


@contextmanager
def _in_training(runs: Iterable[Run], data: Split) -> Iterator[None]:
    """Models in training mode, torch's random state put back; on ctrl-C whole epochs are saved."""
    started: list[Run] = []
    device = data[0].device
    on_cuda = device.type == "cuda"
    with (
        torch.cuda.device(device) if on_cuda else nullcontext(),
        torch.random.fork_rng(devices=[device] if on_cuda else []),
        _state.tuned_kernels(device),
        ExitStack() as training,
    ):
        try:
            for run in runs:
                training.enter_context(_state.in_training(run.model))
                run.start(data)
                started.append(run)
            yield
        except KeyboardInterrupt:
            for run in started:
                run.save()
            raise


def _to_the_end(runs: Sequence[Run], data: Split, test: Split | None, tell: Tell | None) -> None:
    """Train runs side by side; those that are behind catch up first."""
    ends = {run.recipe.epochs for run in runs}  # the same for all
    for level, until in pairwise(sorted({run.epoch for run in runs} | ends)):
        group = [run for run in runs if run.epoch == level and run.diverged is None]
        if group:
            _advance(group, until, data, test, tell)


def _advance(
    runs: Sequence[Run], until: int, data: Split, test: Split | None, tell: Tell | None
) -> None:
    """Train runs that have the same epochs behind them, side by side, to the epoch ``until``."""
    penalty = runs[0].penalty
    capture = penalty is None or bool(getattr(penalty, "capturable", False))
    capture = capture and all(run.learner.monitor is None for run in runs)
    capture = capture and all(run.loss.closed_form for run in runs)  # a callable may do anything
    engine = make_engine([run.learner for run in runs], *data, capture=capture)
    first = runs[0].epoch
    total = runs[0].recipe.epochs * engine.steps
    plans = [run.plan() for run in runs]
    for epoch in range(first + 1, until + 1):
        started = time.perf_counter()
        _seed(plans[0].seed, data[0].device, penalty)
        orders = torch.stack([plan.order for plan in plans])
        scheduled = [run.recipe.rates(epoch, engine.steps) for run in runs]
        rates = torch.tensor(scheduled, dtype=torch.float64)
        for step in engine.epoch(orders, rates):
            if tell is not None:
                latest = tuple(run.history[-1] if run.history else None for run in runs)
                tell(Progress((epoch - 1) * engine.steps + step, total, latest))
        # The host prepares the next epoch while the device works on this one.
        ahead = [run.plan() for run in runs] if epoch < until else plans
        fits = _measure(runs, len(data[1]), test)
        for run, plan, (fit, test_fit) in zip(runs, plans, fits, strict=True):
            run.finish_epoch(plan, fit, test_fit, time.perf_counter() - started)
        if all(run.diverged is not None for run in runs):
            return
        plans = ahead


def _measure(runs: Sequence[Run], samples: int, test: Split | None) -> list[tuple[Fit, Fit | None]]:
    """Read the epoch's totals and measure on the test data, waiting once for all runs."""
    readings = [run.learner.totals for run in runs]
    if test is not None:
        for run in runs:
            with _state.held(run.model, "eval"):
                readings.append(totals(run.model, *test, run.loss))
    numbers = torch.stack(readings).tolist()
    fits = [Fit.of(pair, samples) for pair in numbers[: len(runs)]]
    if test is None:
        return [(fit, None) for fit in fits]
    tests = [Fit.of(pair, len(test[1])) for pair in numbers[len(runs) :]]
    return list(zip(fits, tests, strict=True))


def _seed(seed: int, device: torch.device, penalty: Penalty | None) -> None:
    """Seed what steps may draw from; the caller puts torch's generators back afterwards."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    reseed = getattr(penalty, "reseed", None)
    if reseed is not None:
        reseed(seed)
