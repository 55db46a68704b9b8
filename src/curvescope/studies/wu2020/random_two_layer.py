"""The output Hessian of a random two-layer network, by width (Wu et al. 2020, theorem 4.1)."""

from __future__ import annotations

import torch
from torch import Tensor

from curvescope.figures.model import Curve, Panel, Picture
from curvescope.structure.output_hessian import random_two_layer
from curvescope.studies.run import Result, Run, Value

CLASSES = 10


def run(run: Run) -> Result:
    """Draw networks of growing width; inputs have as many dimensions as the width."""
    widths, repeats, samples = run["widths"], run["repeats"], run["samples"]

    def compute() -> dict[str, Tensor]:
        ratios, overlaps = [], []
        for place, width in enumerate(widths):
            run.tell(f"{repeats} networks of width {width}")
            generator = run.generator(place)
            drawn = [
                random_two_layer(
                    width, inputs=width, classes=CLASSES, samples=samples, generator=generator
                )
                for _ in range(repeats)
            ]
            ratios.append(torch.tensor([network.ratio for network in drawn]))
            overlaps.append(torch.tensor([network.overlap for network in drawn]))
        return {"ratio": torch.stack(ratios, 1), "overlap": torch.stack(overlaps, 1)}

    parts = run.once("random-two-layer", compute)
    ratio, share = parts["ratio"].cpu(), parts["overlap"].cpu()
    means = ratio.mean(0)
    values: dict[str, float | Value] = {
        f"λ_c/λ_{{c−1}}, n = {n}": float(mean) for n, mean in zip(widths, means, strict=True)
    }
    values["largest step up of λ_c/λ_{c−1} as n grows"] = float(means.diff().max())
    values["overlap with R(W)∖{W·1}, largest n"] = Value(
        float(share[:, -1].mean()), f"n = {widths[-1]}, {repeats} networks"
    )
    numbers = {"widths": list(widths), "ratio": ratio.tolist(), "overlap": share.tolist()}
    return Result(values, (_picture(widths, ratio, share),), numbers)


def _picture(widths: list[int], ratio: Tensor, share: Tensor) -> Picture:
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
    caption = "A wide random network's output Hessian has rank c − 1 (Wu et al. 2020, theorem 4.1)."
    return Picture("width", caption, panels)
