"""Sec. 4, fig. 3, and anonymous2021 table 1: a perceptron with 9,960 parameters on MNIST."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from curvescope.figures.model import Panel, Picture
from curvescope.flatness import minibatch_metric
from curvescope.flatness.ranks import kendall
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
    last_over_first,
    masses,
    named,
    over_seeds,
    solutions,
    table,
)
from curvescope.studies.networks import Description, Group
from curvescope.studies.run import Result, Run, Value

KEY = "mlp"
_PRINTED = {
    "‖H‖": (14.4, 15.0, 17.8),
    "tr H / P": (1.82e-2, 1.67e-2, 1.76e-2),
    "tr H² / P": (0.120, 0.104, 0.163),
    "ΔL": (0.024, 0.022, 0.007),
    "a": (7.6, 7.2, 6.1),
    "test accuracy": (94.4, 96.46, 96.7),
}
_CLOSE = 0.1


def run(run: Run) -> Result:
    """Train with each weight decay in each setting of pixels and rate, measure, compare."""
    values: dict[str, float | Value] = {}
    shown: dict[str, Solutions] = {}
    for setting, described in settings(run):
        key = f"{KEY}-{described.images.pixels}-{described.recipe.lr:g}"
        groups = by_decay(run, key, described)
        found = {decay: solutions(run, f"{key}-{decay:g}", g) for decay, g in groups.items()}
        if not shown:
            values["parameters"] = sum(p.numel() for p in groups[0.0].models[0].parameters())
            values |= table(found, (*COLUMNS, "tr H + ½‖w‖²", *FITS))
            values |= _changes(values, found)
            values["tr G + ½‖w‖² of 128 samples over tr H + ½‖w‖², mean"] = _minibatch(
                run, groups, found
            )
        else:
            values |= table(found, (*COLUMNS, "test accuracy"), of=setting)
        values[f"numbers of table 1 within a tenth, of 15, {setting}"] = _close(found)
        shown[setting] = found
    return Result(values, _pictures(shown, paper=run.scale == "paper"))


def settings(run: Run) -> Iterator[tuple[str, Description]]:
    """Each scaling of the pixels with each learning rate; the first is what is judged."""
    plain, ranges = run.describe(KEY), {"symmetric": "[−1, 1]", "unit": "[0, 1]"}
    assert plain.held_out is not None, "accuracies are those of held-out digits"
    pairs = [(pixels, rate) for pixels in run["pixels"] for rate in run["rates"]]
    for pixels, rate in pairs:
        fewer = {} if (pixels, rate) == pairs[0] else run.get("others", {})
        yield (
            f"pixels in {ranges[pixels]}, rate {rate:g}",
            replace(
                plain,
                images=replace(plain.images, pixels=pixels),
                held_out=replace(plain.held_out, pixels=pixels),
                recipe=replace(plain.recipe, lr=rate),
                **fewer,
            ),
        )


def _changes(values: dict[str, float | Value], found: Solutions) -> dict[str, float | Value]:
    first, last = found[DECAYS[0]], found[DECAYS[-1]]
    less = "less two standard errors"
    return {
        "‖H‖: last over first": last_over_first(values, "‖H‖"),
        f"‖H‖: last less first, {less}": change(found, "‖H‖"),
        f"tr H² / P: last less first, {less}": change(found, "tr H² / P"),
        f"gain in accuracy, last less first, {less}, points": gain(first, last),
        f"loss gap: first less last, {less}": change(found, "ΔL", sign=-1),
        f"training accuracy: first less last, {less}, points": change(
            found, "training accuracy", sign=-1
        ),
        **_orders(found),
    }


def _orders(found: Solutions) -> dict[str, float | Value]:
    """Does a column order the solutions of a seed as the loss gap does?"""
    seeds = [
        [each.columns("eval") for each in group] for group in zip(*found.values(), strict=True)
    ]

    def taus(what: str) -> list[float]:
        return [kendall([row[what] for row in rows], [row["ΔL"] for row in rows]) for rows in seeds]

    name = "Kendall's τ of {} and ΔL over the decays, mean over the seeds, {} two standard errors"
    return {
        name.format("a", "less"): beyond(taus("a")),
        name.format("‖H‖", "plus"): beyond(taus("‖H‖"), upper=True),
    }


def _close(found: Solutions) -> int:
    """How many of the numbers of anonymous2021's table 1, without ΔE, are met within a tenth."""
    ours = table(found, COLUMNS)
    return sum(
        abs(ours[named(what, decay)].number / paper - 1) <= _CLOSE
        for what, printed in _PRINTED.items()
        if what in COLUMNS
        for decay, paper in zip(DECAYS, printed, strict=True)
    )


def _minibatch(run: Run, groups: dict[float, Group], found: Solutions) -> Value:
    """Eq. 7 of anonymous2021 from one mini-batch over that of all samples, over all solutions."""
    ratios = []
    for decay, group in groups.items():
        X, y = group.data.X[:128], group.data.y[:128]
        for model, solution in zip(group.models, found[decay], strict=True):
            batch = minibatch_metric(model, X, y, generator=run.generator(3))
            ratios.append(batch.value.value / solution.columns("eval")["tr H + ½‖w‖²"])
    return over_seeds(ratios)


def _pictures(shown: dict[str, Solutions], *, paper: bool) -> tuple[Picture, ...]:
    def panel(what: str) -> Panel:
        printed = {"anonymous2021": _PRINTED[what]} if paper else None
        title = what.replace("accuracy", "accuracy, per cent")
        beside = {setting: (found, "eval") for setting, found in shown.items()}
        return against_decay(title, what, beside, printed=printed)

    first = next(iter(shown.values()))
    spectra = {f"weight decay {d:g}": group[0].spectra["eval"] for d, group in first.items()}
    return (
        Picture(
            "weight-decay",
            "Sharpness, loss gap, a = ½‖w‖ + tr H / P and accuracy against weight decay; bands: "
            "standard deviation over the seeds.",
            tuple(panel(what) for what in _PRINTED),
            columns=3,
        ),
        Picture(
            "spectra",
            "Ritz values of the Hessian and their masses (fig. 3a, 3b).",
            (masses("", spectra),),
            columns=1,
        ),
    )
