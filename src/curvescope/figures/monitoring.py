"""The course of the curvature during one or more trainings, from their monitors' logs."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

from curvescope.figures import style
from curvescope.figures.model import Curve, Dash, Panel
from curvescope.figures.results import register
from curvescope.monitor import MonitorLog

QUANTITIES: Mapping[str, tuple[str, str, str]] = {
    "top/preconditioned": ("Largest eigenvalue, preconditioned", "λ_max(P⁻¹ᐟ² H P⁻¹ᐟ²)", "±"),
    "top/hessian": ("Largest eigenvalue", "λ_max(H)", "±"),
    "directional/sharpness": ("Sharpness along the steps", "ΔᵀHΔ / ‖Δ‖²", "±"),
    "noise/scale": ("Gradient noise scale", "samples", "interval"),
    "loss": ("Loss on the probe", "loss", ""),
    "trace/ggn": ("Trace", "tr G", "±"),
    "rank/effective": ("Effective rank", "(tr G)² / tr G²", "±"),
}
"""What is drawn, in this order: title, axis, and what kind of error there is."""
_LIMIT = "limit of stability"


def monitored(logs: Mapping[str, MonitorLog]) -> dict[str, Panel]:
    """A panel for each quantity that was measured, by the metric's name.

    The limit of stability is dashed beside the eigenvalue that it belongs to: that of the
    preconditioned matrix where there is one, of H for optimizers that scale all coordinates alike.

    Args:
        logs: Name in the legend -> log; one log alone may have the name ``""``.
    """
    panels = {}
    for metric, (title, axis, error) in QUANTITIES.items():
        drawn: list[Curve] = []
        for index, (name, log) in enumerate(logs.items()):
            drawn += _curves(log, metric, name, index, error)
        if drawn:
            positive = all(min(curve.y) > 0 for curve in drawn)
            wide = positive and max(max(c.y) for c in drawn) > 20 * min(min(c.y) for c in drawn)
            panels[metric] = Panel(
                title, "step", axis, tuple(drawn), yscale="log" if wide else "linear",
                lines=_edges(logs) if metric == _limited(logs) else None,
            )  # fmt: skip
    return panels


def _limited(logs: Mapping[str, MonitorLog]) -> str:
    """The metric that the limit belongs to."""
    scaled = any("top/preconditioned" in log.names for log in logs.values())
    return "top/preconditioned" if scaled else "top/hessian"


def _edges(logs: Mapping[str, MonitorLog]) -> dict[str, float] | None:
    """Where one training alone reached the edge of stability first."""
    if len(logs) > 1:
        return None
    [log] = logs.values()
    events = [event for event in log.events if event.kind == "edge of stability"]
    return {"edge of stability": float(events[0].step)} if events else None


def _curves(log: MonitorLog, metric: str, name: str, index: int, error: str) -> list[Curve]:
    rows = [
        (record.step, record.values)
        for record in log.records
        if isfinite(record.values.get(metric, float("nan")))
    ]
    if not rows:
        return []
    steps, y = [step for step, _ in rows], [values[metric] for _, values in rows]
    low = high = None
    if error == "±":
        source = f"{metric}_residual" if metric.startswith("top/") else f"{_group(metric)}/error"
        spread = [values.get(source, 0.0) for _, values in rows]
        if all(map(isfinite, spread)):
            low = [value - width for value, width in zip(y, spread, strict=True)]
            high = [value + width for value, width in zip(y, spread, strict=True)]
    elif error == "interval":
        ends = [(values.get("noise/low"), values.get("noise/high")) for _, values in rows]
        if all(a is not None and b is not None and isfinite(a) and isfinite(b) for a, b in ends):
            low, high = [a or 0.0 for a, _ in ends], [b or 0.0 for _, b in ends]
    label = name or QUANTITIES[metric][1]
    color = index % len(style.CYCLE)
    curves = [Curve.of(label, steps, y, low=low, high=high, color=color, dash=_dash(index))]
    if metric == _limited({name: log}):
        limits = [(step, values["top/threshold"]) for step, values in rows
                  if isfinite(values.get("top/threshold", float("nan")))]  # fmt: skip
        if limits:
            x, limit = zip(*limits, strict=True)
            words = f"{name}, {_LIMIT}" if name else _LIMIT
            curves.append(Curve.of(words, x, limit, color=color if name else 1, dash="dashed"))
    return curves


def _group(metric: str) -> str:
    return metric.partition("/")[0]


def _dash(index: int) -> Dash:
    """When the colors are used up, dots tell the next runs apart."""
    return "dotted" if index // len(style.CYCLE) % 2 else ""


register(MonitorLog, lambda log: list(monitored({"": log}).values()))
