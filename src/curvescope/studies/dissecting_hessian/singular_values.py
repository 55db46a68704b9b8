"""DH fig. 1b: the singular values of the first eigenvectors of fc1, each as a matrix."""

from __future__ import annotations

from torch import Tensor

from curvescope.figures.model import Curve, Panel, Picture
from curvescope.operators.hessian import Hessian
from curvescope.structure.correspondences import singular_structure
from curvescope.structure.layer_pairs import layer_eigenpairs
from curvescope.studies.dissecting_hessian.families import CIFAR, FINISHED, Group, group
from curvescope.studies.entry import Entry, Outcome, Row, Settings

LAYER, VECTORS, KEPT = "fc1", 4, 10
"""DH shows the ten largest singular values of four eigenvectors."""


def run(settings: Settings) -> Outcome:
    """The first eigenvectors of one network's fc1."""
    networks = group(settings, CIFAR)
    values = _singular_values(settings, networks)
    rows = []
    for i, sigma in enumerate(values, 1):
        share = float(sigma[0])  # eigenvectors have norm 1: this is ‖Mat(h)‖ / ‖Mat(h)‖_F
        rows += [
            Row(f"h_{i}: first singular value", share, low=0.5, note="DH: “much larger than 0.5”"),
            Row(f"h_{i}: second over first", float(sigma[1]) / share, high=0.5, note="range ours"),
        ]
    panel = Panel(
        xlabel="index of the singular value",
        ylabel="singular value of Mat(h)",
        curves=tuple(Curve.of(f"h_{i}", None, sigma) for i, sigma in enumerate(values, 1)),
        ylim=(0.0, 1.05),
    )
    caption = (
        f"The {KEPT} largest singular values of the first {VECTORS} eigenvectors of {LAYER}, each "
        "reshaped into a matrix (DH fig. 1b)."
    )
    notes = (
        f"The first network: {networks.family.network}, {networks.family.recipe.epochs} epochs, "
        f"inputs of mean zero in each channel; curvature over {len(networks.data):,} samples. DH "
        "prints no numbers here.",
        FINISHED,
    )
    picture = Picture("singular-values", caption, (panel,), columns=1)
    return Outcome(tuple(rows), (picture,), {"values": values.tolist()}, notes)


def _singular_values(settings: Settings, networks: Group) -> Tensor:
    """``[4, 10]``, of the first network."""

    def compute() -> dict[str, Tensor]:
        settings.tell(f"{networks.family.network}: the first eigenvectors of {LAYER}")
        problem = networks.problem(networks.models[0])
        block = Hessian(problem).block(f"{LAYER}.weight")
        pairs = layer_eigenpairs(block, VECTORS, tol=1e-3, generator=settings.generator())
        outputs = len(networks.models[0].get_parameter(f"{LAYER}.weight"))
        return {"values": singular_structure(pairs.vectors, outputs, keep=KEPT).values.double()}

    return settings.once(f"dissecting-hessian/singular-values-{LAYER}", compute)["values"].cpu()


ENTRY = Entry(
    name="dissecting-hessian/singular-values",
    source="DH sec. 1.1: fig. 1b; first version, fig. 1 (singular values)",
    shows="The first eigenvectors of fc1, as matrices, have one singular value that matters.",
    cost={
        "smoke": "1 s, embedded digits, a narrow LeNet5",
        "small": "10 s, CIFAR-10, one network, 2000 samples",
        "paper": "2 minutes on a CPU with the finished weights, one network, 50,000 samples",
    },
    run=run,
    subject={
        "smoke": "fc1 of a narrow LeNet5 on embedded digits",
        "small": "fc1 of LeNet5 on cifar-10",
        "paper": "fc1 of LeNet5 on cifar-10",
    },
    reduced={
        "smoke": "width, data and epochs",
        "small": "curvature over 2000 images of 50,000; 3 epochs instead of 1000 where the work "
        "folder has no finished weights",
        "paper": "nothing",
    },
)
