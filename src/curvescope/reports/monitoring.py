"""Curvature during a training, from its monitor's log: where it stands, what rang, the curves."""

from __future__ import annotations

import time
from collections.abc import Mapping
from math import isfinite
from pathlib import Path

from curvescope._numbers import percent, plus_minus, short
from curvescope.figures.monitoring import monitored
from curvescope.monitor import MonitorLog, read_log
from curvescope.monitor.log import log_path
from curvescope.reports.blocks import Block, Chart, Pair, Section, Table
from curvescope.reports.configuration import settings_table
from curvescope.reports.page import fill

LIVE = 120.0
"""Seconds after its last line for which a log may still grow, so that its page looks again."""
_ANCHOR = "curvature"
_SHOWN = (
    ("top/hessian", "λ_max(H)", "top/hessian_residual"),
    ("top/preconditioned", "λ_max(P⁻¹ᐟ² H P⁻¹ᐟ²)", "top/preconditioned_residual"),
    ("top/threshold", "limit of stability", None),
    ("top/ratio", "part of the limit", None),
    ("directional/sharpness", "sharpness along the step", "directional/error"),
    ("noise/scale", "gradient noise scale", "noise/error"),
    ("trace/ggn", "tr G", "trace/error"),
    ("rank/effective", "effective rank", "rank/error"),
    ("loss", "loss on the probe", None),
)


def has_log(folder: Path) -> bool:
    """Whether a monitor has written in a folder."""
    return log_path(folder).is_file()


def growing(folder: Path) -> bool:
    """Whether the last line is so new that more may come."""
    return has_log(folder) and time.time() - log_path(folder).stat().st_mtime < LIVE


def render_monitor(folder: Path, *, home: str = "") -> str:
    """The page of a training that has a monitor's log and nothing else of ours.

    Args:
        folder: With ``monitor.jsonl``.
        home: The address of the list of runs, if there is one.

    Raises:
        CurvescopeError: If there is no log, or it is damaged.
    """
    log = read_log(folder)
    settings = dict(log.header.settings)
    table = settings_table(settings)
    configuration = Table(table.caption, table.head, table.rows, prose=True)
    sections = [
        *sections_of({"": log}),
        Section("settings", "Settings", blocks=[configuration]),
    ]
    return fill(
        "report.html.j2",
        title="Curvature while training",
        sections=sections,
        heading=f"{settings.get('model', 'A training')} while it trains",
        under=f"{settings.get('optimizer') or 'no optimizer'}, {settings.get('loss')}",
        home=home,
        refresh=growing(folder),
    )


def newest(folder: Path) -> dict[str, str]:
    """For a list of runs: the curvature as a part of the limit, and the last event."""
    if not has_log(folder):
        return {}
    log = read_log(folder)
    _, ratios = log.series("top/ratio")
    numbers = {"of the limit": short(ratios[-1], 3)} if ratios else {}
    if log.events:
        event = log.events[-1]
        numbers["last event"] = f"{event.kind}, step {event.step:,}"
    return numbers


def of_folder(folder: Path) -> list[Section]:
    """The sections of a folder's log; none where there is no log."""
    return sections_of({"": read_log(folder)}) if has_log(folder) else []


def sections_of(logs: Mapping[str, MonitorLog]) -> list[Section]:
    """Where each training stands, its events, and the curves of all over each other."""
    blocks: list[Block] = [Pair(charts)] if (charts := _charts(logs)) else []
    for name, log in logs.items():
        blocks += [_latest(name, log)]
        if log.events:
            rows = [[f"{e.step:,}", e.kind, e.message] for e in reversed(log.events)]
            caption = f"Events of {name}" if name else "Events"
            blocks.append(Table(caption, ["step", "event", "message"], rows, prose=True))
    observation = _observation(next(iter(logs.values()))) if len(logs) == 1 else ""
    return [Section(_ANCHOR, "Curvature during training", observation, blocks=blocks)]


def _charts(logs: Mapping[str, MonitorLog]) -> list[Chart]:
    notes = {
        "noise/scale": "Batches far below it waste steps, batches far above it waste samples.",
        "directional/sharpness": "Along the steps that were really made.",
    }
    return [
        Chart(f"monitor-{metric.replace('/', '-')}", panel.title, panel, notes.get(metric, ""))
        for metric, panel in monitored(logs).items()
    ]


def _latest(name: str, log: MonitorLog) -> Table:
    """The last value of each quantity with its error, and the step at which it was measured."""
    rows = []
    for metric, words, error in _SHOWN:
        for record in reversed(log.records):
            if metric in record.values:
                value = record.values[metric]
                spread = record.values.get(error) if error else None
                text = short(value) if spread is None else plus_minus(value, spread)
                text = text if isfinite(value) else "not determined"
                rows.append([words, text, f"{record.step:,}"])
                break
    last = log.records[-1] if log.records else None
    if last is not None and "share" in last.values:
        rows.append(["share of the training's time", percent(last.values["share"]), ""])
    caption = f"The last values of {name}" if name else "The last values"
    return Table(caption, ["", "value", "at step"], rows, prose=True, heading=name)


def _observation(log: MonitorLog) -> str:
    """One or two sentences on where the training stands."""
    if not log.records:
        return "Nothing has been measured yet."
    text = f"The last measurement is that of step {log.records[-1].step:,}."
    steps, ratios = log.series("top/ratio")
    if steps:
        ratio = ratios[-1]
        where = "above" if ratio > 1.05 else "at" if ratio >= 0.9 else "below"
        text += (
            f" The curvature is {where} what the optimizer can stand: {short(ratio, 3)} of the "
            f"limit at step {steps[-1]:,}."
        )
    if log.events:
        event = log.events[-1]
        text += f" The last event, at step {event.step:,}: {event.message}."
    return text
