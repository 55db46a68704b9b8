"""Sec. 4: weight decay and sharpness of a network with batch norm, in both of its modes."""

from __future__ import annotations

from math import log10

from curvescope.figures.model import Panel, Picture
from curvescope.studies.granziol2020.solutions import (
    COLUMNS,
    DECAYS,
    FITS,
    Solutions,
    against_decay,
    beyond,
    by_decay,
    change,
    gain,
    solutions,
    table,
)
from curvescope.studies.run import Result, Run, Value

KEY = "batch-norm"
MODES = ("train", "eval")
_SHARPNESS = ("‖H‖", "tr H² / P")


def run(run: Run) -> Result:
    """Train with each weight decay, measure in both modes, compare."""
    groups = by_decay(run, KEY)
    found = {
        decay: solutions(run, f"{KEY}-{decay:g}", group, modes=MODES)
        for decay, group in groups.items()
    }
    values: dict[str, float | Value] = {}
    for mode in MODES:
        values |= table(found, ("‖H‖", "tr H / P", "tr H² / P"), mode=mode, of=f"{mode} mode")
    rest = [column for column in COLUMNS if "H" not in column]
    values |= table(found, (*rest, "tr H + ½‖w‖²", *FITS))
    less = "less two standard errors"
    for what in _SHARPNESS:
        for mode in MODES:
            grown = growth(found, what, mode)
            values[f"{what}, {mode} mode: log₁₀ of last over first, {less}"] = beyond(grown)
    train, evaluated = (growth(found, "tr H² / P", mode) for mode in MODES)
    values[f"tr H² / P: log₁₀ of the growth in eval mode over that in train mode, {less}"] = beyond(
        [b - a for a, b in zip(train, evaluated, strict=True)]
    )
    first, last = found[DECAYS[0]], found[DECAYS[-1]]
    values[f"gain in accuracy, last less first, {less}, points"] = gain(first, last)
    values[f"loss gap: first less last, {less}"] = change(found, "ΔL", sign=-1)
    return Result(values, (_picture(found, run["faster"]),))


def growth(found: Solutions, what: str, mode: str) -> list[float]:
    """``log₁₀`` of a quantity with the largest weight decay over that without, for each seed."""
    pairs = zip(found[DECAYS[0]], found[DECAYS[-1]], strict=True)
    return [log10(b.columns(mode)[what] / a.columns(mode)[what]) for a, b in pairs]


def _picture(found: Solutions, factor: float) -> Picture:
    def both(what: str) -> Panel:
        shown = {f"{mode} mode": (found, mode) for mode in MODES}
        return against_decay(what, what, shown, factor=factor, yscale="log")

    def one(what: str, title: str) -> Panel:
        return against_decay(title, what, {"": (found, "eval")}, factor=factor)

    return Picture(
        "modes",
        "Sharpness against weight decay in both modes of the batch norms, with test accuracy and "
        "weight norm; bands: standard deviation over the seeds.",
        (
            *map(both, _SHARPNESS),
            one("test accuracy", "test accuracy, per cent"),
            one("‖w‖", "‖w‖"),
        ),
    )
