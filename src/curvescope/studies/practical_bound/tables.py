"""PP §5, tables 2 to 6: gaps, sharpness and PP's metric for three networks, column by column."""

from __future__ import annotations

from typing import Any

from curvescope.figures.model import Curve, Panel, Picture
from curvescope.flatness.ranks import kendall
from curvescope.studies.entry import SCALES, Entry, Outcome, Row, Scale, Settings
from curvescope.studies.flatness import by_network, solutions
from curvescope.studies.flatness.weight_decay import (
    FASTER,
    Measured,
    Study,
    measured,
    named,
)

TABLES = {"cnn": 2, "preresnet": 4, "wide-resnet": 5}
_COUNT: dict[Scale, int] = {"smoke": 1, "small": 3, "paper": 3}
COLUMNS = ("ΔE, points", "ΔL", "tr H / P", "tr H² / P", "‖H‖", "a")


def run(settings: Settings) -> Outcome:
    """Fill PP's tables and compare the orders of their columns."""
    rows: list[Row] = []
    notes: list[str] = []
    numbers: dict[str, Any] = {}
    panels: list[Panel] = []
    for study in _studies(settings):
        ours = _columns(study, measured(settings, study))
        printed = _printed(study)
        network = study.networks[settings.scale]
        for what in COLUMNS:
            rows += [
                Row(f"{network}: {what}, {named(decay)}", value, paper=paper)
                for decay, value, paper in zip(
                    solutions.DECAYS, ours[what], printed[what], strict=True
                )
            ]
        rows += _orders(network, ours, printed)
        numbers[network] = ours
        panels += _panels(f"{network} (PP table {TABLES[study.name]})", ours)
        notes.append(
            f"{network} stands beside PP's table {TABLES[study.name]} ({study.title}): the "
            f"trainings of flatness/{study.name}, whose notes say how they differ."
        )
    notes += [
        "H with batch norms in train mode, as FF show it first; a = tr H + ½‖w‖² (eq. 7) in "
        "eval mode. The scale of PP's column a is not recoverable: compare orders, not numbers.",
        f"Weight decays are {FASTER} times PP's, for trainings a hundred times shorter.",
        "PP's table 3 is the caption of tables 1 and 2, table 6 that of 4 and 5; table 1 is in "
        "practical-bound/ordering. Kendall's τ over three runs takes four values: 1 and −1 come "
        "by chance in one case of six each.",
    ]
    picture = Picture(
        "columns",
        "PP's metric and the spectral norm against the loss gap, one point for each weight decay.",
        tuple(panels),
    )
    return Outcome(solutions.beside(settings, rows), (picture,), numbers, tuple(notes))


def _studies(settings: Settings) -> tuple[Study, ...]:
    return by_network.STUDIES[: _COUNT[settings.scale]]


def _columns(study: Study, found: list[Measured]) -> dict[str, list[float]]:
    H = [m.spectra[study.modes[0]] for m in found]
    return {
        "ΔE, points": [100 * (m.train.accuracy - m.test.accuracy) for m in found],
        "ΔL": [m.test.loss - m.train.loss for m in found],
        "tr H / P": [h.moment(1) for h in H],
        "tr H² / P": [h.moment(2) for h in H],
        "‖H‖": [h.largest for h in H],
        "a": [m.metric for m in found],
    }


def _printed(study: Study) -> dict[str, tuple[float, ...]]:
    p = study.printed
    values = (p.error_gap, p.loss_gap, p.mean, p.mean_square, p.largest, p.metric)
    return dict(zip(COLUMNS, values, strict=True))


def _orders(
    network: str, ours: dict[str, list[float]], printed: dict[str, tuple[float, ...]]
) -> list[Row]:
    """Does a column order the runs as the loss gap does? PP: a does, the spectral norm does not."""
    rows = []
    for what, bounds in (("a", {"low": 1.0}), ("‖H‖", {"high": 0.0})):
        tau, paper = (kendall(table[what], table["ΔL"]) for table in (ours, printed))
        name = f"{network}: Kendall's τ of {what} and ΔL"
        rows.append(Row(name, tau, paper=paper, note="range: PP's order", **bounds))
    return rows


def _panels(title: str, ours: dict[str, list[float]]) -> list[Panel]:
    return [
        Panel(
            title=title,
            xlabel=label,
            ylabel="loss gap ΔL",
            curves=tuple(
                Curve.of(named(decay), [x], [y], kind="points")
                for decay, x, y in zip(solutions.DECAYS, ours[what], ours["ΔL"], strict=True)
            ),
        )
        for what, label in (("a", "a = tr H + ½‖w‖²"), ("‖H‖", "spectral norm ‖H‖"))
    ]


ENTRY = Entry(
    name="practical-bound/tables",
    source="PP §5: tables 2, 3, 4, 5, 6",
    shows="As weight decay grows the spectral norm of H grows while the gaps fall; PP's metric "
    "falls with them.",
    cost={
        "smoke": "2 s, 192 embedded digits, LeNet5",
        "small": "seconds after flatness/cnn, preresnet and wide-resnet, else as long as they",
        "paper": "seconds after flatness/cnn, preresnet and wide-resnet, else as long as they",
    },
    run=run,
    subject={
        "smoke": "LeNet5 on embedded digits",
        "small": "Three networks on cifar-10",
        "paper": "Three networks on cifar-100",
    },
    reduced={
        scale: "; ".join(
            f"{study.title}: {by_network.reduced(study)[scale]}"
            for study in by_network.STUDIES[: _COUNT[scale]]
        )
        for scale in SCALES
    },
)
