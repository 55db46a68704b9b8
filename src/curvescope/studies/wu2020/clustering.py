"""Do logit gradients cluster by logit or by class, and where (Wu et al. 2020, F.1)?"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from curvescope.figures.model import Curve, Panel, Picture
from curvescope.operators.hessian import Hessian
from curvescope.structure.centers import CenterMatch, logit_centers
from curvescope.structure.clustering import Clusters, logit_clusters, tsne
from curvescope.structure.layer_pairs import layer_eigenpairs
from curvescope.structure.overlaps import overlap
from curvescope.studies.networks import Group
from curvescope.studies.run import Result, Run, Value

PARTS = {"weight": "Δ", "output": "Γ"}
LAYER = "fc1"
GRAY = 6  # in the style's cycle: for the centers alone


def run(run: Run) -> Result:
    """Cluster Δ and Γ of fc1 at the start and at the minimum; compare with eq. 57."""
    group = run.networks("mnist-T")
    (network,) = group.networks
    clusters = {
        "initialization": _clusters(run, "initialization", group, network.at_start()),
        "minimum": _clusters(run, "minimum", group, network.model),
    }
    values: dict[str, float | Value] = {}
    for when, parts in clusters.items():
        for part, each in parts.items():
            start = f"{PARTS[part]} at {when}: "
            values |= {
                f"{start}variance between logits": each.logit_share,
                f"{start}variance between classes": each.class_share,
                f"{start}between classes over between logits": each.class_share / each.logit_share,
            }
    values |= _centers(run, group, network.at_start())
    pictures = tuple(_picture(run, when, parts) for when, parts in clusters.items())
    return Result(values, pictures)


def _clusters(run: Run, when: str, group: Group, model: nn.Module) -> dict[str, Clusters]:
    def compute() -> dict[str, Tensor]:
        run.tell(f"logit gradients at {when}")
        clusters = logit_clusters(group.problem(model), LAYER)
        return {
            "weight": clusters.weight.points,
            "output": clusters.output.points,
            "present": clusters.weight.present,
        }

    tensors = run.once(f"clusters-{when}", compute)
    present = tensors["present"].cpu()
    return {part: Clusters(tensors[part].cpu(), present) for part in PARTS}


def _centers(run: Run, group: Group, model: nn.Module) -> dict[str, float | Value]:
    """The logit centers of eq. 57 against those measured and against the top eigenvectors."""
    problem = group.problem(model)

    def compute() -> dict[str, Tensor]:
        run.tell("predicted centers and top eigenvectors")
        centers = logit_centers(problem, LAYER)
        k = len(centers.weight.predicted) - 1
        pairs = layer_eigenpairs(
            Hessian(problem).block(f"{LAYER}.weight"), k, tol=1e-3, generator=run.generator(30)
        )
        basis = centers.weight.basis()
        shared = overlap(pairs.vectors.double().cpu()[:, :k], basis[:, :k])
        return {
            "weight measured": centers.weight.measured,
            "weight predicted": centers.weight.predicted,
            "output measured": centers.output.measured,
            "output predicted": centers.output.predicted,
            "overlap": shared[-1:],
        }

    parts = {name: tensor.cpu() for name, tensor in run.once("centers", compute).items()}
    values: dict[str, float | Value] = {}
    for part, symbol in PARTS.items():
        match = CenterMatch(parts[f"{part} measured"], parts[f"{part} predicted"])
        name = f"{symbol} at initialization: cosine of predicted and measured centers, mean"
        lengths = match.lengths
        note = f"measured over predicted length {lengths.min():.2f} … {lengths.max():.2f}"
        values[name] = Value(float(match.cosines.mean()), note)
    name = "overlap of the top c − 1 eigenvectors of fc1 with the predicted centers, initialization"
    values[name] = float(parts["overlap"])
    return values


def _picture(run: Run, when: str, parts: dict[str, Clusters]) -> Picture:
    panels = []
    for stream, (part, clusters) in enumerate(parts.items()):
        plane = tsne(clusters, generator=run.generator(20 + stream))
        for kind, points, centers in (
            ("logit", plane.points.transpose(0, 1), plane.logit_centers),
            ("class", plane.points, plane.class_centers),
        ):
            panels.append(_panel(f"{PARTS[part]} by {kind}", points, centers))
    caption = (
        f"t-SNE of the mean logit gradients of fc1 at {when}: one color for each logit (left) or "
        "class (right), numbered below, with the centers in gray (fig. 20, 21)."
    )
    return Picture(when, caption, tuple(panels))


def _panel(title: str, points: Tensor, centers: Tensor) -> Panel:
    """``points: [c, c, 2]``, one color for each of the first index."""
    curves = [
        Curve.of(str(place), each[:, 0], each[:, 1], kind="points", color=place + (place >= GRAY))
        for place, each in enumerate(points)
    ]
    middle = torch.as_tensor(centers)
    curves.append(Curve.of("centers", middle[:, 0], middle[:, 1], kind="points", color=GRAY))
    return Panel(
        title=title,
        xlabel="first t-SNE coordinate",
        ylabel="second t-SNE coordinate",
        curves=tuple(curves),
    )
