"""The eight-layer perceptron of TR sec. 7, trained once for the entries about its layers."""

from __future__ import annotations

from dataclasses import dataclass

from curvescope.data import Dataset
from curvescope.studies.entry import Scale, Settings
from curvescope.studies.traces import subjects
from curvescope.studies.trained import Subject

DATA = ("mnist", "fashion-mnist")
SUBJECT: dict[Scale, str] = {
    "smoke": "Eight-layer perceptron, 32 units, embedded images",
    "small": "Eight-layer perceptron, 256 units",
    "paper": "Eight-layer perceptron, 2048 units",
}
"""What an entry about its layers looks at, by scale."""


@dataclass(frozen=True)
class Perceptron:
    """The trained network with its data."""

    name: str
    subject: Subject
    data: Dataset
    loss: float
    error: float

    @property
    def note(self) -> str:
        """What was trained, in one sentence."""
        return (
            f"{self.name} on {len(self.data):,} images of {self.data.name}: training loss "
            f"{self.loss:.3g}, error {self.error:.1%}."
        )


def perceptron(settings: Settings, data: str) -> Perceptron:
    """Seven hidden layers of 2048 units (fewer below ``paper``) and the output layer."""
    name = settings.pick(smoke="F-32^7", small="F-256^7", paper="F-2048^7")
    images = subjects.images(settings, data, settings.pick(smoke=30, small=300, paper=1351))
    plan = subjects.recipe(
        settings.pick(smoke=30, small=40, paper=350),
        settings.pick(smoke=0.05, small=0.02, paper=0.02),
    )
    subject = subjects.train_one(settings, f"traces-mlp-{data}", name, images, plan)
    return Perceptron(name, subject, images, *subjects.fit(subject, images))


def difference(settings: Settings) -> str:
    """What every entry about the perceptron has to say of its training."""
    full = settings.pick(
        smoke="fewer units than 2048",
        small="fewer units than 2048",
        paper="as in the paper (which of its 20 sample sizes it shows is not said), in TF32",
    )
    return (
        f"Eight layers, {full}; trained as in App. D (momentum 0.9, weight decay 5e-4, batches of "
        "128, two steps down) at one learning rate, not the best of a sweep, and without the batch "
        "norms that the paper mentions in a footnote."
    )
