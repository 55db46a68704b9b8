"""DH theorem 4.1 (H.1): the output Hessian of a random two-layer network, by width."""

from __future__ import annotations

import torch
from torch import Tensor

from curvescope.figures.model import Curve, Panel, Picture
from curvescope.structure.output_hessian import random_two_layer
from curvescope.studies.entry import Entry, Outcome, Row, Settings

CLASSES = 10


def run(settings: Settings) -> Outcome:
    """Draw networks of growing width; inputs have as many dimensions as the width."""
    widths = settings.pick(
        smoke=(50, 150, 400), small=(100, 300, 1000), paper=(100, 300, 1000, 3000)
    )
    repeats = settings.pick(smoke=2, small=3, paper=5)
    samples = settings.pick(smoke=500, small=2000, paper=5000)

    def compute() -> dict[str, Tensor]:
        ratios, overlaps = [], []
        for place, width in enumerate(widths):
            settings.tell(f"{repeats} networks of width {width}")
            generator = settings.generator(place)
            nets = [
                random_two_layer(
                    width, inputs=width, classes=CLASSES, samples=samples, generator=generator
                )
                for _ in range(repeats)
            ]
            ratios.append(torch.tensor([net.ratio for net in nets]))
            overlaps.append(torch.tensor([net.overlap for net in nets]))
        return {"ratio": torch.stack(ratios, 1), "overlap": torch.stack(overlaps, 1)}

    found = settings.once("dissecting-hessian/random-two-layer", compute)
    ratio, share = found["ratio"].cpu(), found["overlap"].cpu()
    means = ratio.mean(0)
    largest = f"n = {widths[-1]}"
    rows = [
        *(Row(f"λ_c/λ_{{c−1}}, n = {n}", float(r)) for n, r in zip(widths, means, strict=True)),
        Row("largest step up of λ_c/λ_{c−1} as n grows", float(means.diff().max()), high=0.0),
        Row(f"overlap with R(W)∖{{W·1}}, {largest}", float(share[:, -1].mean()), 1.0, low=0.95),
    ]
    numbers = {"widths": list(widths), "ratio": ratio.tolist(), "overlap": share.tolist()}
    notes = (
        f"{repeats} networks of each width with c = {CLASSES}, {samples} Gaussian inputs of as "
        "many dimensions as the width; the theorem lets the dimension of the inputs grow first.",
    )
    return Outcome(tuple(rows), (_picture(widths, ratio, share),), numbers, notes)


def _picture(widths: tuple[int, ...], ratio: Tensor, share: Tensor) -> Picture:
    panels = (
        Panel(
            title="λ_c / λ_{c−1} of E[M]",
            xlabel="width n",
            curves=(Curve.mean("", widths, ratio),),
            xscale="log",
            yscale="log",
        ),
        Panel(
            title="overlap of the top c − 1 with R(W)∖{W·1}",
            xlabel="width n",
            curves=(Curve.mean("", widths, share, within=(0.0, 1.0)),),
            xscale="log",
            ylim=(0.0, 1.05),
        ),
    )
    caption = "A wide random network's output Hessian has rank c − 1 (DH theorem 4.1)."
    return Picture("width", caption, panels)


ENTRY = Entry(
    name="dissecting-hessian/random-two-layer",
    source="DH theorem 4.1, H.1 (no figure)",
    shows="λ_c/λ_{c−1} falls with the width, and the top eigenspace becomes R(W)∖{W·1}.",
    cost={
        "smoke": "2 s",
        "small": "20 s",
        "paper": "2 minutes on a CPU",
    },
    run=run,
    subject={
        "smoke": "Random two-layer networks, 10 classes",
        "small": "Random two-layer networks, 10 classes",
        "paper": "Random two-layer networks, 10 classes",
    },
    reduced={
        "smoke": "widths up to 400 of a limit",
        "small": "widths up to 1000 of a limit",
        "paper": "widths up to 3000 of a limit",
    },
)
