"""What rings: the edge of stability, numbers that are not finite, and sudden jumps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from curvescope._checks import AnyFloat

LEFT = 0.9  # the edge is left where the ratio falls below this part of the limit
JUMP = 2.0  # a jump is more than twice the median of the last values …
SPREADS = 6.0  # … and further above it than six of their spreads; all three numbers are ours
WINDOW, WARM = 20, 5
WATCHED = ("loss", "top/ratio", "top/hessian", "top/preconditioned", "directional/sharpness")


@dataclass(frozen=True)
class Event:
    """Something that a user wants to know at once.

    ``kind`` is ``"edge of stability"``, ``"edge left"``, ``"not finite"`` or ``"jump"``; ``name``
    is the metric that it is about, and ``since`` the step at which it began.
    """

    step: int
    kind: str
    name: str
    value: AnyFloat
    since: int
    message: str

    def __str__(self) -> str:
        return f"step {self.step}: {self.message}"


@dataclass
class Alarms:
    """Looks at every value once and says what is new about it."""

    edge: int | None = None  # since which step
    broken: dict[str, int] = field(default_factory=dict)
    recent: dict[str, list[float]] = field(default_factory=dict)

    def look(self, step: int, values: Mapping[str, float], unit: float | None) -> list[Event]:
        """The events of a measurement.

        Args:
            step: The step.
            values: Its metrics.
            unit: ``c · η``, the limit in units of the learning rate, for the message.
        """
        events = []
        for name in ("loss", *(n for n in values if n != "loss")):
            if name not in values or name not in WATCHED:
                continue
            event = self._number(step, name, values[name])
            if event is not None:
                events.append(event)
        ratio = values.get("top/ratio")
        if ratio is not None and math.isfinite(ratio):
            event = self._edge(step, ratio, unit)
            events += [] if event is None else [event]
        return events

    def train_loss(self, step: int, loss: float) -> list[Event]:
        """The events of a loss that the training loop hands over."""
        event = self._number(step, "train_loss", loss)
        return [] if event is None else [event]

    def _edge(self, step: int, ratio: float, unit: float | None) -> Event | None:
        if self.edge is None and ratio >= 1:
            self.edge = step
            reached = f"{ratio:.3g} of the limit"
            if unit is not None and math.isfinite(unit):
                reached = f"η λ = {ratio * unit:.3g}, the limit is {unit:.3g}"
            message = f"edge of stability since step {step}: {reached}"
            return Event(step, "edge of stability", "top/ratio", ratio, step, message)
        if self.edge is not None and ratio < LEFT:
            since, self.edge = self.edge, None
            message = f"below the edge of stability again, where it was since step {since}"
            return Event(step, "edge left", "top/ratio", ratio, since, message)
        return None

    def _number(self, step: int, name: str, value: float) -> Event | None:
        if not math.isfinite(value):
            if name in self.broken:
                return None
            self.broken[name] = step
            message = f"{name} is not finite since step {step}"
            return Event(step, "not finite", name, value, step, message)
        self.broken.pop(name, None)
        last = self.recent.setdefault(name, [])
        usual = median(last) if len(last) >= WARM else None
        last.append(value)
        del last[:-WINDOW]
        if usual is None or usual <= 0:
            return None
        spread = 1.4826 * median(abs(each - usual) for each in last[:-1])
        if value <= JUMP * usual or value <= usual + SPREADS * spread:
            return None
        message = f"{name} jumped to {value:.3g}, the median before was {usual:.3g}"
        return Event(step, "jump", name, value, step, message)

    def state(self) -> dict[str, Any]:
        """What :meth:`load` needs."""
        recent = {name: list(values) for name, values in self.recent.items()}
        return {"edge": self.edge, "broken": dict(self.broken), "recent": recent}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self.edge, self.broken = state["edge"], dict(state["broken"])
        self.recent = {name: list(values) for name, values in state["recent"].items()}
