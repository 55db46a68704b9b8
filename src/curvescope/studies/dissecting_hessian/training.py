"""DH D.3: the trainings that the other entries build on, F-200² on MNIST and LeNet5 on CIFAR-10.

SGD without momentum and weight decay, batches of 128, learning rate 0.01, 1000 epochs; inputs of
mean zero in each channel, PyTorch's initial weights. The networks of one kind are trained side by
side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from curvescope.data import dataset
from curvescope.figures.model import Curve, Panel, Picture
from curvescope.networks import network
from curvescope.studies.dissecting_hessian.families import MINIATURE
from curvescope.studies.entry import Entry, Outcome, Row, Settings
from curvescope.training import Recipe, Trained, train_many


@dataclass(frozen=True)
class Experiment:
    """A network on a data set, and the accuracies that make it a trained one."""

    network: str
    data: str
    least_train: float
    least_test: float


EXPERIMENTS = (
    Experiment("F-200^2", "mnist", 1.0, 0.975),
    Experiment("LeNet5", "cifar-10", 0.99, 0.58),
)


@dataclass(frozen=True)
class Course:
    """How one training went: by epoch, and its end."""

    epochs: list[int]
    loss: list[float]
    accuracy: list[float]
    test_loss: list[float]
    test_accuracy: list[float]
    final_train: float  # accuracy
    final_test: float

    @classmethod
    def of(cls, trained: Trained) -> Course:
        """Every epoch at first, later every tenth; a run that diverged has no end."""
        last = len(trained.history)
        kept = [e for e in trained.history if e.epoch <= 20 or e.epoch % 10 == 0 or e.epoch == last]
        return cls(
            epochs=[e.epoch for e in kept],
            loss=[e.loss for e in kept],
            accuracy=[e.accuracy for e in kept],
            test_loss=[e.test_loss or 0.0 for e in kept],
            test_accuracy=[e.test_accuracy or 0.0 for e in kept],
            final_train=0.0 if trained.train is None else trained.train.accuracy,
            final_test=0.0 if trained.test is None else trained.test.accuracy,
        )


def run(settings: Settings) -> Outcome:
    """Train, or go on with what is there."""
    epochs = settings.pick(smoke=2, small=15, paper=1000)
    courses = {
        experiment: [Course.of(trained) for trained in _train(experiment, epochs, settings)]
        for experiment in EXPERIMENTS
    }
    return outcome(courses, judged=settings.scale == "paper")


def _train(experiment: Experiment, epochs: int, settings: Settings) -> tuple[Trained, ...]:
    seeds = range(settings.pick(smoke=2, small=2, paper=5))
    name = settings.pick(
        smoke=MINIATURE[experiment.network], small=experiment.network, paper=experiment.network
    )
    source = settings.pick(smoke="mnist-6k", small=experiment.data, paper=experiment.data)
    few = settings.pick(smoke=30, small=None, paper=None)
    train, test = (
        dataset(source, root=settings.root, split=split, normalize="channel", per_class=few)
        for split in ("train", "test")
    )
    train, test = train.to(settings.device), test.to(settings.device)
    models, recipes, folders = [], [], []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        model = network(name, train.input_shape, train.classes, generator=generator)
        models.append(model.to(settings.device))
        recipes.append(Recipe(seed=seed, epochs=epochs, lr=0.01, batch_size=128))
        folders.append(settings.work / "training" / f"{name}-{source}-{epochs}-seed{seed}")
    settings.tell(f"training {len(models)} × {name}, {epochs} epochs")
    return train_many(models, train, recipes, test=test, folders=folders, resume=True)


def outcome(courses: dict[Experiment, list[Course]], *, judged: bool) -> Outcome:
    """Rows and curves; what is asked of a trained network holds for the whole schedule only."""
    rows, panels = [], []
    for experiment, found in courses.items():
        title = f"{experiment.network} on {experiment.data}"
        worst = min(course.final_train for course in found)
        least = experiment.least_train if judged else None
        rows.append(Row(f"{title}: least accuracy on the training data", worst, low=least))
        worst = min(course.final_test for course in found)
        least = experiment.least_test if judged else None
        rows.append(Row(f"{title}: least accuracy on the test data", worst, low=least))
        panels += [
            Panel(
                title=title,
                xlabel="epoch",
                ylabel="mean loss",
                curves=_curves(found, "loss", "test_loss"),
                xscale="log",
                yscale="log",
            ),
            Panel(
                title=title,
                xlabel="epoch",
                ylabel="accuracy",
                curves=_curves(found, "accuracy", "test_accuracy"),
                xscale="log",
            ),
        ]
    picture = Picture("curves", "Loss and accuracy against epochs, one line a seed.", tuple(panels))
    notes = (
        "DH D.3 gives the schedule and prints no accuracies; the ranges are what counts as trained "
        "here. Curves of the training data are means over the epoch, those of the test data are "
        "taken after it.",
        "The final weights are those that the other entries look at; initial ones follow from the "
        "seed.",
    )
    return Outcome(tuple(rows), (picture,), notes=notes)


def _curves(found: Sequence[Course], train: str, test: str) -> tuple[Curve, ...]:
    curves = []
    for i, course in enumerate(found):
        for color, (label, key) in enumerate((("training", train), ("test", test))):
            name = label if i == 0 else ""
            curves.append(Curve.of(name, course.epochs, getattr(course, key), color=color))
    return tuple(curves)


ENTRY = Entry(
    name="dissecting-hessian/training",
    source="DH D.3 (no figure)",
    shows="Both networks fit their training data completely.",
    cost={
        "smoke": "2 s, embedded digits",
        "small": "10 minutes, 15 epochs of MNIST and CIFAR-10",
        "paper": "10 minutes on an H200: 136 s for five F-200², 455 s for five LeNet5",
    },
    run=run,
    subject={
        "smoke": "Small networks on embedded digits",
        "small": "F-200^2 on mnist, LeNet5 on cifar-10",
        "paper": "F-200^2 on mnist, LeNet5 on cifar-10",
    },
    reduced={
        "smoke": "networks, data and epochs",
        "small": "15 epochs instead of 1000, two networks of each kind instead of five",
        "paper": "nothing",
    },
)
