"""DH App. B, fig. 8c–8h: the approximation of the full Hessian for deeper networks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from curvescope.figures.model import Panel, Picture
from curvescope.studies.dissecting_hessian.families import FINISHED
from curvescope.studies.dissecting_hessian.full_hessian import TOP, compare, comparison_panels
from curvescope.studies.dissecting_hessian.plain_networks import QUICK, accuracy, plain_networks
from curvescope.studies.entry import Entry, Outcome, Row, Settings

NETWORKS = {"F-200^4": "8c, 8d", "F-600^4": "8e, 8f", "F-600^8": "8g, 8h"}


def run(settings: Settings) -> Outcome:
    """Compare for each depth."""
    rows: list[Row] = []
    panels: list[Panel] = []
    numbers: dict[str, dict[str, Any]] = {}
    chosen = settings.pick(smoke=("F-200^4",), small=tuple(NETWORKS), paper=tuple(NETWORKS))
    k = settings.pick(smoke=12, small=20, paper=50)
    for network in chosen:
        networks = plain_networks(settings, network, "mnist")
        key = f"full-{networks.family.network.replace('^', 'x')}"
        true, approximate, share = compare(settings, key, networks, networks.models, k)
        relative = approximate / true
        rows += [
            Row(f"{network}: overlap of the top {TOP}", float(share[:, TOP - 1].mean())),
            Row(f"{network}: overlap of the top {k}", float(share[:, -1].mean())),
            Row(f"{network}: λ₁, approximated over true", float(relative[:, 0].mean())),
        ]
        panels += comparison_panels(true, approximate, share, title=network)
        numbers[network] = {
            "true": true.tolist(),
            "approximate": approximate.tolist(),
            "overlap": share.tolist(),
            "accuracy": accuracy(networks),
        }
    caption = (
        "Top eigenvalues and eigenspaces of the full Hessian of deeper networks, true and from the "
        f"full output Hessian and mean inputs (DH fig. {', '.join(NETWORKS.values())})."
    )
    least = min(float(own["accuracy"]) for own in numbers.values())
    notes: tuple[str, ...] = (
        "DH prints no numbers here; its pictures show the top 50.",
        f"Curvature over {len(networks.data):,} samples; the networks are right on at least "
        f"{least:.0%} of them.",
    )
    if settings.scale == "small":
        notes += (QUICK,)
    picture = Picture("full", caption, tuple(panels))
    return Outcome(tuple(rows), (picture,), numbers, (*notes, FINISHED))


def _checks(outcome: Outcome) -> Iterator[Row]:
    """DH: accurate for the top eigenvectors, not as accurate for later ones, in all networks."""
    for network in outcome.numbers:
        top, more = outcome.values(f"{network}: overlap of the top ")
        (first,) = outcome.values(f"{network}: λ₁, ")
        yield Row(
            f"{network}: overlap of the top {TOP} with the approximation",
            top,
            low=0.5,
            note="DH: “accurate for top eigenvectors and also top eigenspace”; range ours",
        )
        yield Row(
            f"{network}: overlap of all eigenvectors over that of the top",
            more / top,
            high=1.0,
            note="DH: “for latter eigenvectors, the approximation would not be as accurate”",
        )
        yield Row(
            f"{network}: λ₁ by eq. 51 over the true one",
            first,
            paper=1.0,
            low=0.75,
            high=1.25,
            note="range ours",
        )


ENTRY = Entry(
    name="dissecting-hessian/full-hessian-depth",
    source="DH App. B: fig. 8c, 8d, 8e, 8f, 8g, 8h",
    shows="The approximation of the full Hessian by mean inputs also holds for deeper networks.",
    cost={
        "smoke": "2 s, embedded digits, one network of width 16",
        "small": "6 minutes, 5000 digits of MNIST, three networks, top 20",
        "paper": "a GPU; 15 networks to train for 1000 epochs",
    },
    run=run,
    subject={
        "smoke": "Full Hessian of a narrow network on embedded digits",
        "small": "Full Hessian of deeper networks on mnist",
        "paper": "Full Hessian of deeper networks on mnist",
    },
    reduced={
        "smoke": "width, data and epochs, one network, the top 12",
        "small": (
            "one network of each kind instead of five, 5000 digits, 10 epochs with momentum "
            "instead of 1000 without, the top 20 instead of 50, curvature over 2000 digits"
        ),
        "paper": "nothing",
    },
    checks=_checks,
)
