"""A plan: a TOML file of tables, each of which stands for many runs of one command.

A table is a group of runs; its settings are those of the command. A list stands for its values, one
after the other, and several lists for all their combinations; ``{from, to}`` for whole numbers,
``{from, to, count}`` for numbers with a constant ratio; ``rows`` is a list of tables, each of which
adds settings of its own. A setting that takes a run may name another group: it stands for all its
runs. Settings before the first table are for all groups whose command has them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import product
from math import prod
from typing import Any

from curvescope.errors import CurvescopeError
from curvescope.identity import digest
from curvescope.sweeps.queue import Task

_LONGEST = 120
_MOST = 10_000
"""Runs of a group: beyond that it is a slip, such as a rate among the seeds."""
RESERVED = ("queue",)


@dataclass(frozen=True)
class Command:
    """A kind of run: what can be set, and what is wrong with settings.

    Args:
        settings: The names that a table may use.
        runs: Those of them that take the folder of another run.
        check: Raises an error about the settings of one run; a reference is the name of a task.
    """

    settings: tuple[str, ...]
    runs: tuple[str, ...]
    check: Callable[[str, Mapping[str, Any]], None]


@dataclass(frozen=True)
class _Group:
    name: str
    kind: str
    command: Command
    table: dict[str, Any]


def tasks_of(
    where: str, plan: Mapping[str, Any], commands: Mapping[str, Command]
) -> tuple[Task, ...]:
    """The runs of a plan, each after those that it needs.

    Args:
        where: What an error calls the plan.
        plan: The tables of the file.
        commands: The kinds of runs by name.

    Raises:
        CurvescopeError: If a name is unknown, a value is refused, or two runs have one folder.

    >>> def check(where, settings): ...
    >>> commands = {"train": Command(("seed", "lr"), (), check),
    ...             "analyze": Command(("run", "steps"), ("run",), check)}
    >>> plan = {"train": {"seed": [0, 1], "lr": 0.1}, "analyze": {"run": "train", "steps": 9}}
    >>> [task.name for task in tasks_of("plan", plan, commands)]
    ['train/seed=0', 'train/seed=1', 'analyze/seed=0', 'analyze/seed=1']
    """
    shared = {_plain(key): value for key, value in plan.items() if not _is_table(value)}
    groups = {
        name: _group(where, name, table, shared, commands)
        for name, table in plan.items()
        if _is_table(table)
    }
    if not groups:
        rule = "holds no table of runs"
        raise CurvescopeError(where, rule, remedy="begin one with [train]")
    for key in shared:
        known = {name for group in groups.values() for name in group.command.settings}
        _known(f"{where}", key, known, "no group of this plan has a setting")
    done: dict[str, tuple[Task, ...]] = {}
    for name in _in_order(where, groups):
        done[name] = tuple(_expanded(where, groups[name], done))
    return tuple(task for name in done for task in done[name])


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping) and not _is_range(value)


def _is_range(value: Any) -> bool:
    return isinstance(value, Mapping) and {"from", "to"} <= value.keys() <= {"from", "to", "count"}


def _plain(key: str) -> str:
    return key.replace("-", "_")


def _group(
    where: str, name: str, table: Mapping[str, Any], shared: Mapping[str, Any],
    commands: Mapping[str, Command],
) -> _Group:  # fmt: skip
    here = f"{where}, [{name}]"
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name) or name in RESERVED:
        rule = "a group needs a name of letters, digits, '.', '_' and '-', and not 'queue'"
        raise CurvescopeError(here, rule)
    own = {_plain(key): value for key, value in table.items()}
    kind = own.pop("command", name)
    if kind not in commands:
        near = get_close_matches(str(kind), commands, 1)
        remedy = f"did you mean {near[0]!r}" if near else f"there are {', '.join(commands)}"
        rule = "there is no such command" if "command" in table else "needs 'command'"
        raise CurvescopeError(
            here, rule, given=repr(kind) if "command" in table else None, remedy=remedy
        )
    command = commands[kind]
    rows = own.get("rows", [])
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) and row for row in rows):
        raise CurvescopeError(here, "'rows' must be a list of tables with settings")
    for key in [*own, *(_plain(key) for row in rows for key in row)]:
        if key != "rows":
            _known(here, key, command.settings, f"{kind} has no setting")
    known = {key: value for key, value in shared.items() if key in command.settings}
    return _Group(name, kind, command, {**known, **own})


def _known(where: str, key: str, known: Sequence[str] | set[str], rule: str) -> None:
    if key not in known:
        near = get_close_matches(key, sorted(known), 1, cutoff=0.6)
        remedy = f"did you mean '{near[0]}'" if near else f"there are {', '.join(sorted(known))}"
        raise CurvescopeError(where, f"{rule} '{key}'", remedy=remedy)


def _in_order(where: str, groups: Mapping[str, _Group]) -> list[str]:
    """The groups, each after those that it refers to, else as in the file."""
    order: list[str] = []

    def visit(name: str, above: tuple[str, ...]) -> None:
        if name in above:
            circle = " → ".join([*above[above.index(name) :], name])
            raise CurvescopeError(where, f"groups need each other: {circle}")
        if name not in order:
            for other in _references(groups[name], groups):
                visit(other, (*above, name))
            order.append(name)

    for name in groups:
        visit(name, ())
    return order


def _references(group: _Group, groups: Mapping[str, Any]) -> list[str]:
    tables = [group.table, *group.table.get("rows", [])]
    values = [
        value
        for table in tables
        for key, value in table.items()
        if _plain(key) in group.command.runs
    ]
    names = [name for value in values for name in (value if isinstance(value, list) else [value])]
    return [name for name in names if isinstance(name, str) and name in groups]


# Runs ----------------------------------------------------------------------------------------


def _expanded(where: str, group: _Group, done: Mapping[str, tuple[Task, ...]]) -> Iterator[Task]:
    here = f"{where}, [{group.name}]"
    fixed = {key: value for key, value in group.table.items() if key != "rows"}
    rows = [
        {_plain(key): value for key, value in row.items()} for row in group.table.get("rows", [{}])
    ]
    twice: dict[str, Mapping[str, Any]] = {}
    in_rows = {key for row in rows for key in row}
    for row in rows:
        table = {**fixed, **row}
        axes = {key: _values(here, key, value, group, done) for key, value in table.items()}
        # A list is an axis even if it has one value: another one may come later.
        varied = [
            key
            for key, value in table.items()
            if isinstance(value, list | Mapping) or key in in_rows or isinstance(axes[key][0], Task)
        ]
        if (count := prod(map(len, axes.values()))) > _MOST:
            rule = f"stands for more than {_MOST:,} runs"
            raise CurvescopeError(here, rule, given=f"{count:,}")
        for values in product(*axes.values()):
            chosen = dict(zip(axes, values, strict=True))
            needs = tuple(value.name for value in values if isinstance(value, Task))
            settings = {
                key: value.name if isinstance(value, Task) else value
                for key, value in chosen.items()
            }
            name = f"{group.name}/{_name([(key, chosen[key]) for key in varied])}"
            if name in twice:
                rule = f"has two runs with the folder {name!r}"
                raise CurvescopeError(here, rule, remedy="give them different settings")
            twice[name] = settings
            group.command.check(here, settings)
            yield Task(name, group.kind, settings, needs)


def _values(
    where: str, key: str, value: Any, group: _Group, done: Mapping[str, tuple[Task, ...]]
) -> list[Any]:
    """What a setting stands for: its values, a reference for each run of a group."""
    if _is_range(value):
        return _range(where, key, value)
    values = value if isinstance(value, list) else [value]
    if not values:
        raise CurvescopeError(where, f"'{key}' is an empty list")
    if isinstance(value, Mapping):
        rule = f"'{key}' must be a value, a list, or {{from, to}} with a count if need be"
        raise CurvescopeError(where, rule)
    if key not in group.command.runs:
        return values
    found: list[Any] = []
    for name in values:
        found += done[name] if name in done else [name]
    return found


def _range(where: str, key: str, value: Mapping[str, Any]) -> list[Any]:
    first, last, count = value["from"], value["to"], value.get("count")
    if count is None:
        if not all(type(end) is int for end in (first, last)) or last < first:
            rule = f"'{key}' needs whole numbers from and to, or a count of them"
            raise CurvescopeError(where, rule, given=f"{first} to {last}")
        return list(range(first, last + 1))
    positive = all(type(end) in (int, float) and 0 < end < float("inf") for end in (first, last))
    if not positive or type(count) is not int or count < 2:
        rule = f"'{key}' needs positive numbers from and to and a count of at least 2"
        raise CurvescopeError(where, rule, given=f"{first}, {last} and {count}")
    inner = [
        float(f"{first * (last / first) ** (i / (count - 1)):.6g}") for i in range(1, count - 1)
    ]
    return [first, *inner, last]


def _name(chosen: Sequence[tuple[str, Any]]) -> str:
    """A folder's name: the settings that differ in the group; of a run, its own name.

    >>> _name([("network", "LeNet5"), ("lr", 0.1)]), _name([])
    ('network=LeNet5,lr=0.1', 'run')
    """
    parts = [
        value.name.partition("/")[2] if isinstance(value, Task) else f"{key}={_text(value)}"
        for key, value in chosen
    ]
    whole = ",".join(parts) or "run"
    safe = re.sub(r"[^\w.,=+^*()~-]+", "-", whole)
    if safe == whole and len(safe) <= _LONGEST:
        return safe
    return f"{safe[:_LONGEST]}-{digest('name', whole)[:8]}"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "+".join(map(_text, value)) if isinstance(value, list) else str(value)
