"""DH H.4, table 10: the top eigenspace of the output Hessian beside R(S)∖{S·1}."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from curvescope.figures.model import Curve, Panel, Picture
from curvescope.structure.factors import kronecker_factors
from curvescope.structure.output_hessian import output_hessian_theory
from curvescope.studies.dissecting_hessian.families import FINISHED, Group
from curvescope.studies.dissecting_hessian.plain_networks import QUICK, accuracy, plain_networks
from curvescope.studies.entry import Entry, Outcome, Row, Settings

LAYERS = ("fc1", "fc2", "fc3")
TABLE_10 = {
    ("F-1500^3", "mnist"): (0.602, 0.967, 0.982),
    ("LeNet5", "mnist"): (0.890, 0.931, 0.999),
    ("F-1500^3", "mnist-R"): (0.235, 0.801, 0.998),
    ("LeNet5", "mnist-R"): (0.518, 0.912, 0.999),
    ("F-1500^3", "cifar-10"): (0.880, 0.943, 0.993),
    ("LeNet5", "cifar-10"): (0.951, 0.972, 0.999),
    ("F-1500^3", "cifar-10-R"): (0.903, 0.931, 0.996),
    ("LeNet5", "cifar-10-R"): (0.213, 0.701, 0.999),
}
"""By network and data; of F-1500³ the three hidden layers."""


def run(settings: Settings) -> Outcome:
    """Train each network and look at its fully connected layers."""
    smoke = (("F-1500^3", "mnist"), ("LeNet5", "mnist-R"))
    chosen = settings.pick(smoke=smoke, small=tuple(TABLE_10), paper=tuple(TABLE_10))
    rows: list[Row] = []
    right: dict[str, float] = {}
    curves: dict[str, list[Curve]] = {}
    steps: list[float] = []
    for network, data in chosen:
        networks = plain_networks(settings, network, data)
        share = _overlaps(settings, networks)
        name = f"{network} on {data}"
        right[name] = accuracy(networks)
        for layer, printed, ours in zip(LAYERS, TABLE_10[network, data], share.T, strict=True):
            rows.append(Row(f"{name}, {layer}", float(ours.mean()), printed))
        steps.append(float(share.mean(0).diff().min()))
        own = curves.setdefault(network, [])
        color, points = len(own) // 2, TABLE_10[network, data]
        own.append(Curve.of(data, (1, 2, 3), share.mean(0), color=color))
        own.append(Curve.of(f"{data}, DH", (1, 2, 3), points, kind="points", color=color))
    rows.append(
        Row(
            "least step from a layer to the next",
            min(steps),
            0.015,
            low=0.0,
            note="in DH the overlap grows toward the output in every column",
        )
    )
    shown = tuple(
        Panel(
            title=name,
            xlabel="fully connected layer",
            ylabel="overlap",
            curves=tuple(own),
            ylim=(0.0, 1.05),
        )
        for name, own in curves.items()
    )
    caption = (
        "Overlap of the top c − 1 eigenspace of E[M] with R(S)∖{S·1}: lines ours, points DH's "
        "table 10."
    )
    numbers = {"accuracy": right}
    return Outcome(
        tuple(rows), (Picture("overlap", caption, shown),), numbers, _notes(settings, right)
    )


def _overlaps(settings: Settings, networks: Group) -> Tensor:
    """``[networks, 3]``."""

    def compute() -> dict[str, Tensor]:
        settings.tell(f"output Hessians of {networks.family.network}, {networks.family.data}")
        found = []
        for model in networks.models:
            problem = networks.problem(model)
            names = [n.split(".")[0] for n, _ in model.named_parameters() if n.startswith("fc")]
            factors = kronecker_factors(problem, layers=list(dict.fromkeys(names)))
            theory = output_hessian_theory(problem, factors)
            found.append([theory[layer].overlap for layer in LAYERS])
        return {"overlap": torch.tensor(found, dtype=torch.float64)}

    key = f"spaces-{networks.family.network.replace('^', 'x')}-{networks.family.data}"
    return settings.once(f"dissecting-hessian/{key}", compute)["overlap"].cpu()


def _notes(settings: Settings, right: dict[str, float]) -> tuple[str, ...]:
    shares = ", ".join(f"{name} {share:.0%}" for name, share in right.items())
    notes: tuple[str, ...] = (
        "DH prints no ranges. It says that the overlap can be low with random labels, where the "
        "output Hessian has no clear gap.",
        f"Right answers on the samples that were looked at: {shares}.",
    )
    if settings.scale == "small":
        notes += (f"{QUICK} Most networks with random labels do not fit them.",)
    return (*notes, FINISHED)


def _checks(outcome: Outcome) -> Iterator[Row]:
    """DH: the subspace has a high overlap with the top eigenspace also at the minima."""
    beside = [row for row in outcome.rows if ", fc" in row.what]
    printed = [row.paper for row in beside if row.paper is not None]
    if not printed:
        return
    share = sum(row.ours >= 0.5 for row in beside) / len(beside)
    theirs = sum(value >= 0.5 for value in printed) / len(printed)
    yield Row(
        "share of the layers with an overlap of one half or more",
        share,
        paper=round(theirs, 3),
        low=round(theirs, 3) - 0.1,
        note="DH: “high overlap … at the minima”; range ours",
    )
    off = sorted(abs(row.ours - row.paper) for row in beside if row.paper is not None)
    yield Row("median distance from DH's numbers", off[len(off) // 2], high=0.1, note="range ours")


ENTRY = Entry(
    name="dissecting-hessian/output-spaces",
    source="DH H.4: table 10",
    shows="The top eigenspace of E[M] is close to R(S)∖{S·1}, the closer the nearer the output.",
    cost={
        "smoke": "2 s, embedded digits, narrow networks",
        "small": "6 minutes, 5000 images each of MNIST and CIFAR-10, 8 networks",
        "paper": "a GPU; 40 networks to train for 1000 epochs",
    },
    run=run,
    subject={
        "smoke": "Narrow networks on embedded digits",
        "small": "Overlap of the top eigenspace of E[M] with R(S)∖{S·1}",
        "paper": "Overlap of the top eigenspace of E[M] with R(S)∖{S·1}",
    },
    reduced={
        "smoke": "width, data and epochs, one network each",
        "small": (
            "one network of each kind instead of five, 5000 images, 10 epochs with momentum "
            "instead of 1000 without"
        ),
        "paper": "nothing",
    },
    checks=_checks,
)
