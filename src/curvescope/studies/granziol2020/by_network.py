"""Fig. 4 to 7, and fig. 1, tables 2 to 6 of anonymous2021: three networks with weight decay.

Values bear the name of the papers' network also where another stands for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from curvescope.figures.model import Panel, Picture
from curvescope.flatness.ranks import kendall
from curvescope.studies.granziol2020.solutions import (
    COLUMNS,
    DECAYS,
    FITS,
    Solutions,
    against_decay,
    by_decay,
    gain,
    largest_step,
    last_over_first,
    least_step,
    masses,
    named,
    solutions,
    table,
)
from curvescope.studies.run import Result, Run, Value

MODES = {
    "All-CNN-C": ("eval",),
    "PreResNet-164": ("train", "eval"),
    "WideResNet-28x10": ("train", "eval"),
}
"""The first is that of anonymous2021's tables; a network without batch norm has one."""
_SHARPNESS = ("‖H‖", "tr H / P", "tr H² / P")
_GROWING = "least ratio from one weight decay to the next"


def run(run: Run) -> Result:
    """Train each network with each weight decay, take the spectra, compare."""
    values: dict[str, float | Value] = {}
    found: dict[str, Solutions] = {}
    for network in run["networks"]:
        groups = by_decay(run, network)
        found[network] = {
            decay: solutions(run, f"{network}-{decay:g}", group, modes=MODES[network])
            for decay, group in groups.items()
        }
        values |= _values(network, found[network])
    shown = {network: run.describe(network).network for network in found}
    pictures = (_sides(found, shown, run["faster"]), *_spectra(found, shown))
    return Result(values, pictures)


def _values(network: str, found: Solutions) -> dict[str, float | Value]:
    first, *others = MODES[network]
    values: dict[str, float | Value] = dict(
        table(found, (*COLUMNS, "tr H + ½‖w‖²", *FITS), mode=first, of=network)
    )
    for mode in others:
        values |= table(found, _SHARPNESS, mode=mode, of=f"{network}, {mode} mode")
    for where in (network, *(f"{network}, {mode} mode" for mode in others)):
        for what in _SHARPNESS:
            values[f"{what}: last over first, {where}"] = last_over_first(values, what, of=where)
            values[f"{what}: {_GROWING}, {where}"] = least_step(values, what, of=where)
    for mode in others:
        of = [f"{network}, {mode} mode", network]
        magnified = [last_over_first(values, "tr H² / P", of=where) for where in of]
        name = f"tr H² / P: last over first, {mode} mode over {first} mode, {network}"
        values[name] = magnified[0] / magnified[1]
    name = f"‖w‖: largest ratio from one weight decay to the next, {network}"
    values[name] = largest_step(values, "‖w‖", of=network)
    name = f"gain in accuracy, last less first, less two standard errors, {network}, points"
    values[name] = gain(found[DECAYS[0]], found[DECAYS[-1]])
    return {**values, **_orders(network, values)}


def _orders(network: str, values: Mapping[str, float | Value]) -> dict[str, float | Value]:
    """Does a column order the solutions as the loss gap does? Means over the seeds."""

    def column(what: str) -> list[float]:
        found = [values[named(what, decay, of=network)] for decay in DECAYS]
        return [each.number if isinstance(each, Value) else each for each in found]

    return {
        f"Kendall's τ of {what} and ΔL, {network}": kendall(column(what), column("ΔL"))
        for what in ("a", "tr H + ½‖w‖²", "‖H‖")
    }


def _sides(found: Mapping[str, Solutions], shown: Mapping[str, str], factor: float) -> Picture:
    """A row of panels for each network, by its own name."""
    panels: list[Panel] = []
    for network, each in found.items():
        modes = MODES[network]
        both = {f"{mode} mode" if len(modes) > 1 else "": (each, mode) for mode in modes}
        one = {"": (each, modes[0])}
        row = [
            against_decay("‖H‖", "‖H‖", both, factor=factor, yscale="log"),
            against_decay("test accuracy, per cent", "test accuracy", one, factor=factor),
            against_decay("‖w‖", "‖w‖", one, factor=factor),
            against_decay("loss gap", "ΔL", one, factor=factor),
        ]
        panels += [replace(panel, title=shown[network]) for panel in row]
    return Picture(
        "weight-decay",
        "Largest eigenvalue, test accuracy, weight norm and loss gap against weight decay; bands: "
        "standard deviation over the seeds.",
        tuple(panels),
        columns=4,
    )


def _spectra(found: Mapping[str, Solutions], shown: Mapping[str, str]) -> Iterator[Picture]:
    caption = "Ritz values of the Hessian and their masses, for each weight decay."
    for network, each in found.items():
        panels = [
            masses(
                f"{shown[network]}, {mode} mode" if len(MODES[network]) > 1 else shown[network],
                {f"weight decay {d:g}": group[0].spectra[mode] for d, group in each.items()},
            )
            for mode in MODES[network]
        ]
        yield Picture(f"spectra-{network}", caption, tuple(panels))
