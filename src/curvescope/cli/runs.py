"""The commands as runs of a sweep: what can be set in a plan, and how a run is done.

A run is a command line: what a plan sets are its options, and it is checked by the same parser.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from curvescope import io
from curvescope._checks import one_of
from curvescope.cli.app import UsageError, app, performed, usage_sentence
from curvescope.cli.words import Words
from curvescope.errors import CurvescopeError
from curvescope.sweeps import Command, Ended, Task

if TYPE_CHECKING:
    from curvescope.studies.study import Study

COMMANDS = {"train": "train", "analyze": "analyze", "certify": "certify", "study": "reproduce"}
"""The kinds of runs, and the commands that do them."""
_OURS = (
    "out",
    "jobs",
    "resume",
    "again",
    "redraw",
    "verify",
    "dry_run",
    "as_json",
    "quiet",
    "debug",
)
"""Options that a sweep sets itself, or that are not for runs."""
_RENAMED = {"study": {"names": "study"}}
_RUNS = {"analyze": ("run",), "certify": ("run",)}
_KEPT = {"train": ["--resume"]}
_TOGETHER = 10.0
"""Seconds after ctrl-C in which another one is the same."""


@cache
def commands() -> dict[str, Command]:
    """The kinds of runs that a plan may have."""
    return {
        kind: Command(tuple(_parameters(kind)), _RUNS.get(kind, ()), _checked(kind))
        for kind in COMMANDS
    }


@cache
def _command(kind: str) -> Any:
    group: Any = typer.main.get_command(app)
    return group.commands[COMMANDS[kind]]


@cache
def _parameters(kind: str) -> dict[str, Any]:
    """What can be set: the parameters of the command by their names in a plan."""
    renamed = _RENAMED.get(kind, {})
    return {
        renamed.get(each.name, each.name): each
        for each in _command(kind).params
        if each.name not in _OURS
    }


def arguments(kind: str, settings: Mapping[str, Any], out: Path | None) -> list[str]:
    """The command line of a run; ``out`` is its folder, None where it does not matter."""
    known = _parameters(kind)
    options, positional = [], []
    for name, value in settings.items():
        parameter = known[name]
        if not parameter.opts[0].startswith("-"):
            positional += [str(each) for each in _listed(value)]
        elif getattr(parameter, "is_flag", False):
            if value is True:
                options.append(parameter.opts[0])
            elif parameter.secondary_opts:
                options.append(parameter.secondary_opts[0])
        else:
            for each in _listed(value):
                options += [parameter.opts[0], str(each)]
    if out is not None:
        options += ["--out", str(out / "certificate.json" if kind == "certify" else out)]
    return [*options, *_KEPT.get(kind, []), "--quiet", "--", *positional]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


# Before anything starts ----------------------------------------------------------------------


def _checked(kind: str) -> Callable[[str, Mapping[str, Any]], None]:
    def check(where: str, settings: Mapping[str, Any]) -> None:
        for name, value in settings.items():
            _check_type(where, name, value, _parameters(kind)[name])
        try:
            command = _command(kind)
            command.make_context(COMMANDS[kind], arguments(kind, settings, Path("run")))
            _CHECKS[kind](settings)
        except CurvescopeError as error:
            raise CurvescopeError(where, Words(_command(kind)).about(error)) from None
        except UsageError as error:
            said = usage_sentence(error).rstrip(".")
            raise CurvescopeError(where, f"{said[0].lower()}{said[1:]}") from None

    return check


def _check_type(where: str, name: str, value: Any, parameter: Any) -> None:
    """A flag takes true and false; everything else texts and numbers."""
    flag = bool(getattr(parameter, "is_flag", False))
    values = _listed(value)
    several = isinstance(value, list) and not (parameter.multiple or parameter.nargs == -1)
    wrong = any(
        isinstance(each, bool) != flag or not isinstance(each, str | int | float) for each in values
    )
    if several or wrong:
        rule = f"'{name}' must be {'true or false' if flag else 'a text or a number'}"
        raise CurvescopeError(where, rule, given=repr(value))


def _check_train(settings: Mapping[str, Any]) -> None:
    from curvescope.cli.train import epochs_in, trace_penalty
    from curvescope.data.names import parse as parse_data
    from curvescope.experiments.training import usual_recipe
    from curvescope.networks.names import parse as parse_network
    from curvescope.training.recipe import OPTIMIZERS

    chosen = {
        name: settings.get(name)
        for name in ("epochs", "lr", "batch_size", "optimizer", "momentum", "weight_decay",
                     "schedule", "warmup", "average_from", "loss")
    }  # fmt: skip
    if chosen["optimizer"] is not None:
        one_of("train", "optimizer", chosen["optimizer"], OPTIMIZERS)
    if "checkpoints" in settings:
        chosen["checkpoints"] = epochs_in(str(settings["checkpoints"]))
    parse_network(settings["network"])
    parse_data(f"dataset({settings['data']!r})", settings["data"])
    usual_recipe(settings["network"], seed=settings.get("seed", 0), **chosen)
    trace_penalty(settings.get("trace_of"), settings.get("trace_weight"))


def _check_analyze(settings: Mapping[str, Any]) -> None:
    from curvescope.cli.analyze import check_inputs
    from curvescope.experiments.configuration import Settings

    paths = {name: None if (value := settings.get(name)) is None else Path(value)
             for name in ("run", "weights")}  # fmt: skip
    check_inputs(
        paths["run"], settings.get("model"), paths["weights"], settings.get("data"), Path("run")
    )
    Settings(**{name: settings[name] for name in ("steps", "probes") if name in settings})


def _check_certify(settings: Mapping[str, Any]) -> None:
    from curvescope.cli.certify import settings_of

    names = ("epochs", "slack", "prior_split")
    settings_of(
        settings.get("method", "local"), settings.get("epochs"), settings.get("delta", 0.025),
        settings.get("draw_delta", 0.01), *(settings.get(name) for name in names[1:]),
    )  # fmt: skip
    if not {"run", "model"} & settings.keys():
        rule = "needs the folder of a run, or --model, --weights, --initial and --data"
        raise CurvescopeError("certify", rule)


def _check_study(settings: Mapping[str, Any]) -> None:
    _study(settings)


def _study(settings: Mapping[str, Any]) -> Study:
    """The one study of a run."""
    from curvescope.cli.reproduce import SCALES, find

    scale = one_of("reproduce", "scale", settings.get("scale", "smoke"), SCALES)
    names = _listed(settings.get("study", []))
    studies = find(names) if names else ()
    if len(studies) != 1:
        rule = "`study` must name one study in each run"
        remedy = "a list of names stands for one run each; curvescope reproduce list shows them"
        raise CurvescopeError("reproduce", rule, given=repr(settings.get("study")), remedy=remedy)
    if scale not in studies[0].levels:
        rule = f"{studies[0].name} has no scale {scale!r}"
        raise CurvescopeError("reproduce", rule, remedy=f"it has {', '.join(studies[0].levels)}")
    return studies[0]


_CHECKS: dict[str, Callable[[Mapping[str, Any]], None]] = {
    "train": _check_train,
    "analyze": _check_analyze,
    "certify": _check_certify,
    "study": _check_study,
}


# The work ------------------------------------------------------------------------------------


def perform(task: Task, folder: Path) -> Ended:
    """Do a run of a sweep in this process: its command, with its folder below that of the sweep."""
    from curvescope.studies import trainings

    if task.kind == trainings.KIND:
        return trainings.perform(task, folder)
    out = folder / task.name
    settings = dict(task.settings)
    for name in _RUNS.get(task.kind, ()):
        if settings.get(name) in task.needs:
            settings[name] = str(folder / settings[name])
    if task.kind in ("certify", "study"):
        io.make_folder(out.parent)
    if task.kind == "certify":
        io.make_folder(out)
    done = performed([COMMANDS[task.kind], *arguments(task.kind, settings, out)])
    if isinstance(done.error, io.Busy):
        return Ended(False, busy=True)
    if done.code == 130:
        raise KeyboardInterrupt
    if done.code == 0:
        return Ended(True)
    if done.sentence:
        return Ended(False, done.sentence)
    return _remark(task, out)


def _remark(task: Task, out: Path) -> Ended:
    """The command came to its end and says that something is wrong."""
    if task.kind == "train":
        from curvescope.training.folder import TrainingFolder

        result = TrainingFolder(out).result()
        if result is not None and result.diverged is not None:
            return Ended(False, f"the training diverged in epoch {result.diverged}")
    return Ended(True, "a self-check disagrees: see its report")


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C and SIGTERM raise KeyboardInterrupt in the block, once for several that come together.

    A worker is told to end by a signal and by a file; the second must not disturb it while it keeps
    its state.
    """
    last = -_TOGETHER

    def stop(number: int, frame: Any) -> None:
        nonlocal last
        if time.monotonic() - last > _TOGETHER:
            last = time.monotonic()
            raise KeyboardInterrupt

    numbers = [signal.SIGINT, signal.SIGTERM]
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            with suppress(TypeError):
                signal.signal(number, handler)
