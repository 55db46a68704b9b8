"""The Hessian of several networks with and without deflation (Papyan 2020, fig. 3, 14, 17)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from curvescope.data import Dataset
from curvescope.figures.model import Panel, Picture, rounded
from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem
from curvescope.spectra.eigensolver import eigenpairs
from curvescope.spectra.measure import SpectralMeasure, spectral_measure
from curvescope.structure.outliers import widest_gap
from curvescope.studies.measures import restored, saved
from curvescope.studies.papyan2020.subjects import on
from curvescope.studies.pictures import density
from curvescope.studies.run import Result, Run, Value
from curvescope.training import evaluate

C = 10


def run(run: Run) -> Result:
    """The Hessian of each network on training images, of VGG11 on as many test images too."""
    values: dict[str, float | Value] = {}
    deflated: list[Panel] = []
    plain: list[Panel] = []
    vgg = run.describe("hessian-vgg")
    groups = {
        key: run.networks(f"hessian-{key}", on(vgg, data=images))
        for key, images in run["data"].items()
    }
    for key, group in {**groups, "resnet": run.networks("hessian-resnet")}.items():
        (model,) = group.models
        splits = {"train": (group.data, group.few)}
        if group.description.held_out is not None:
            test = group.held_out
            splits["test"] = (test, test.per_class(len(group.few) // C))
        largest = {}
        for place, (split, (whole, images)) in enumerate(splits.items()):
            fit = evaluate(model, whole)
            values[f"{key}, {split}: loss"] = fit.loss
            values[f"{key}, {split}: error"] = 1 - fit.accuracy
            run.tell(f"{key}, {split}: the Hessian")
            compute = partial(
                _measure, model, images, run["steps"], run.get("basis"), run.generator(40 + place)
            )
            parts = run.once(f"hessian-{key}-{split}", compute)
            largest[split] = parts["largest"].cpu()
            measures = [restored(parts, f"{name} ") for name in ("deflated", "plain")]
            values |= _values(f"{key}, {split}", largest[split], *measures)
            width = rounded(max(abs(side) for side in measures[0].support))
            title = f"{key}, {split} data"
            deflated.append(density(title, measures[0], outliers=largest[split], linear=width))
            plain.append(density(title, measures[1], linear=width))
        if "test" in largest:
            ratio = float(largest["test"][0] / largest["train"][0])
            values[f"{key}: λ₁ of H, test over train"] = ratio
    caption = "The Hessian, its 2C largest eigenvalues taken out and drawn as points (fig. 3, 17)."
    pictures = (
        Picture("deflated", caption, tuple(deflated)),
        Picture("plain", "The same by Lanczos alone (fig. 14, 17).", tuple(plain)),
    )
    return Result(values, pictures)


def _measure(
    model: nn.Module, images: Dataset, steps: int, basis: int | None, generator: torch.Generator
) -> dict[str, Tensor]:
    H = Hessian(Problem(model, images.batches(1000)), keep=True)
    pairs = eigenpairs(H, 2 * C, tol=1e-3, basis=basis, max_products=basis, generator=generator)
    parts = {"largest": pairs.values.double().cpu()}
    for kind, out in (("deflated", pairs), ("plain", 0)):
        measure = spectral_measure(H, steps=steps, deflate=out, generator=generator)
        parts |= {f"{kind} {part}": tensor for part, tensor in saved(measure).items()}
    H.release()
    return parts


def _values(
    of: str, largest: Tensor, deflated: SpectralMeasure, plain: SpectralMeasure
) -> dict[str, float | Value]:
    gap = widest_gap(largest, most=len(largest) - 1)
    nearest = (largest[:C, None] - plain.nodes.flatten()).abs().amin(1) / largest[:C]
    (a, b), (c, d) = deflated.support, plain.support
    negative = plain.cdf(torch.tensor([-1e-6 * float(largest[0])], dtype=torch.float64))
    return {
        f"{of}: outliers of H": Value(gap.count, f"a gap of a factor {gap.ratio:.2f}"),
        f"{of}: C largest against the nearest node of Lanczos alone, worst": float(nearest.max()),
        f"{of}: cells of the grid, deflated over plain": (b - a) / (d - c),
        f"{of}: share of negative eigenvalues": float(negative),
    }
