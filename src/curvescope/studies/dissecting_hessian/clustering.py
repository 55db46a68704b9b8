"""DH F.1, fig. 20, 21: do logit gradients cluster by logit or by class?"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from curvescope.figures.model import Curve, Panel, Picture
from curvescope.structure.clustering import Clusters, logit_clusters, tsne
from curvescope.studies.dissecting_hessian.families import MNIST_T, Group, group
from curvescope.studies.entry import Entry, Outcome, Row, Settings

PARTS = ("weight", "output")
NAMES = {"weight": "Δ", "output": "Γ"}
GRAY = 6  # in the style's cycle: for the centers alone


def run(settings: Settings) -> Outcome:
    """Cluster Δ and Γ of fc1 at the start and at the minimum."""
    networks = group(settings, MNIST_T)
    (subject,) = networks.subjects
    found = {
        "initialization": _clusters(settings, "start", networks, subject.at_start()),
        "minimum": _clusters(settings, "minimum", networks, subject.model),
    }
    rows = []
    for when, parts in found.items():
        for part, clusters in parts.items():
            low = 0.5 if when == "initialization" else None
            by_logit, by_class = clusters.logit_share, clusters.class_share
            rows += [
                Row(f"{NAMES[part]} at {when}: variance between logits", by_logit, low=low),
                Row(f"{NAMES[part]} at {when}: variance between classes", by_class),
            ]
    pictures = tuple(_picture(settings, when, parts) for when, parts in found.items())
    notes = (
        "A share of variance stands for what DH reads off its pictures: 1 where the points lie on "
        "the centers.",
        f"T-200² as for the PAC-Bayes bounds; means over {len(networks.data)} samples.",
    )
    return Outcome(tuple(rows), pictures, {}, notes)


def _clusters(
    settings: Settings, when: str, networks: Group, model: nn.Module
) -> dict[str, Clusters]:
    def compute() -> dict[str, Tensor]:
        settings.tell(f"logit gradients, {when}")
        found = logit_clusters(networks.problem(model), "fc1")
        return {
            "weight": found.weight.points,
            "output": found.output.points,
            "present": found.weight.present,
        }

    tensors = settings.once(f"dissecting-hessian/clusters-{when}", compute)
    present = tensors["present"].cpu()
    return {part: Clusters(tensors[part].cpu(), present) for part in PARTS}


def _picture(settings: Settings, when: str, parts: dict[str, Clusters]) -> Picture:
    panels = []
    for stream, (part, clusters) in enumerate(parts.items()):
        plane = tsne(clusters, generator=settings.generator(20 + stream))
        for kind, points, centers in (
            ("logit", plane.points.transpose(0, 1), plane.logit_centers),
            ("class", plane.points, plane.class_centers),
        ):
            panels.append(_panel(f"{NAMES[part]} by {kind}", points, centers))
    name = when.split()[-1]
    caption = (
        f"t-SNE of the mean logit gradients of fc1 at {when}: one color for each logit (left) or "
        "class (right), numbered below, with the centers in gray (DH fig. 20, 21)."
    )
    return Picture(name, caption, tuple(panels))


def _panel(title: str, points: Tensor, centers: Tensor) -> Panel:
    """``points: [c, c, 2]``, one color for each of the first index."""
    curves = [
        Curve.of(str(place), own[:, 0], own[:, 1], kind="points", color=place + (place >= GRAY))
        for place, own in enumerate(points)
    ]
    middle = torch.as_tensor(centers)
    curves.append(Curve.of("centers", middle[:, 0], middle[:, 1], kind="points", color=GRAY))
    return Panel(
        title=title,
        xlabel="first t-SNE coordinate",
        ylabel="second t-SNE coordinate",
        curves=tuple(curves),
    )


def _checks(outcome: Outcome) -> Iterator[Row]:
    """By logit at the start, by class only weakly at the minimum (DH F.1)."""
    for name in NAMES.values():
        start = outcome.values(f"{name} at initialization")
        end = outcome.values(f"{name} at minimum")
        yield Row(
            f"{name} at initialization: between classes over between logits",
            start[1] / start[0],
            high=1.0,
            note="DH: “logit clustering behavior … at initialization”",
        )
        yield Row(
            f"{name} at minimum: variance between classes, at most",
            end[1],
            high=0.5,
            note="DH: “the class clustering is very weak”; range ours",
        )


ENTRY = Entry(
    name="dissecting-hessian/clustering",
    source="DH F.1: fig. 20, 21; first version, fig. 20",
    shows="Logit gradients cluster by logit at initialization, by class only weakly at a minimum.",
    cost={
        "smoke": "4 s, embedded digits, a network of width 24",
        "small": "1 minute, MNIST, 2000 samples",
        "paper": "3 minutes on a CPU",
    },
    run=run,
    subject={
        "smoke": "fc1 of T-24^2 on embedded digits",
        "small": "fc1 of T-200^2 on mnist",
        "paper": "fc1 of T-200^2 on mnist",
    },
    reduced={
        "smoke": "width, data and epochs",
        "small": (
            "means over 2000 digits; 3 epochs instead of 1000 where the work folder has no "
            "finished weights"
        ),
        "paper": "20 epochs with momentum 0.9 instead of 1000 without",
    },
    checks=_checks,
)
