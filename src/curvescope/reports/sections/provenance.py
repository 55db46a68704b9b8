"""The provenance of the numbers, and whether they agree with each other."""

from __future__ import annotations

import json
from typing import Any

from curvescope import io
from curvescope.experiments.store import RunDirectory, Stage
from curvescope.reports.blocks import Block, Checks, Section, Table, Text
from curvescope.reports.configuration import settings_table


def build(run: RunDirectory) -> Section:
    """Self-checks, configuration, times and versions."""
    stages = [run.stage(name, Any) for name in run.stages]
    checks = run.checks()
    failed = sum(not check.passed for _, check in checks)
    blocks: list[Block] = [Checks(checks)] if checks else []
    blocks.append(_times(stages, run))
    blocks.append(settings_table(io.encode(run.config)[0]))
    blocks += _environments(stages)
    observation = _observation(len(checks), failed, run)
    source = "What it should be."
    return Section("provenance", "Provenance", observation, _CLAIM, blocks, source)


def _observation(count: int, failed: int, run: RunDirectory) -> str:
    text = f"Of {count} self-checks, {count - failed} agree"
    text += f" and {failed} {'does' if failed == 1 else 'do'} not." if failed else "."
    if failed and run.config.dtype == "float32":
        text += (
            " Where the loss is close to zero, single precision may not suffice: a model in "
            "float64 tells."
        )
    if not run.complete:
        missing = ", ".join(name for name in run.expected if not run.has(name))
        text += f" The run is not finished; still to come: {missing}."
    return text


_CLAIM = (
    "Numbers that can be had in two independent ways must agree: sampled ones within four standard "
    "errors, widened where few probes were drawn, so that a sound run fails about one check in "
    "sixteen thousand; the others within their residuals."
)


def _times(stages: list[Stage[Any]], run: RunDirectory) -> Table:
    rows = [
        [
            stage.name,
            f"{stage.seconds:.1f} s",
            str(stage.seed),
            stage.finished.replace("+00:00", " UTC"),
        ]
        for stage in stages
    ]
    rows += [[name, "not finished", "", ""] for name in run.expected if not run.has(name)]
    return Table("Stages", ["stage", "time", "seed", "finished"], rows, heading="Stages")


def _environments(stages: list[Stage[Any]]) -> list[Block]:
    """Versions and devices; once, unless stages were computed in different places."""
    groups: dict[str, list[str]] = {}
    for stage in stages:
        groups.setdefault(json.dumps(stage.environment), []).append(stage.name)
    tables: list[Block] = []
    for text, names in groups.items():
        where = "Versions and device" if len(groups) == 1 else f"Versions: {', '.join(names)}"
        rows = [[key, str(value)] for key, value in json.loads(text).items()]
        tables.append(Table(where, ["", "version or value"], rows, prose=True, folded=True))
    if len(groups) > 1:
        tables.insert(0, Text("The stages were computed in different environments."))
    return tables
