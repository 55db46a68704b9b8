"""PP §5, tables 1 and 5: does the metric order solutions as the loss gap does?"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from curvescope.figures.model import Curve, Panel, Picture
from curvescope.flatness import MinibatchMetric, PacMetric, minibatch_metric, pac_metric
from curvescope.flatness.ranks import kendall
from curvescope.studies.entry import Entry, Outcome, Row, Settings
from curvescope.studies.flatness import batch_norm, solutions
from curvescope.studies.flatness.solutions import DECAYS, Solution, Splits
from curvescope.training import evaluate


@dataclass(frozen=True)
class Subject:
    """Solutions for each weight decay, beside PP's columns "a" and ΔL for the like."""

    network: str
    data: Splits
    solutions: list[Solution]
    metric: tuple[float, float, float]
    gap: tuple[float, float, float]
    setting: str


@dataclass(frozen=True)
class Measured:
    """The metric of a solution on many samples and on one mini-batch, and its loss gap."""

    metric: PacMetric
    minibatch: MinibatchMetric
    loss_gap: float


def run(settings: Settings) -> Outcome:
    """Measure the solutions for each weight decay, compare the orders."""
    subjects = [_perceptron(settings)]
    if settings.scale != "smoke":
        subjects.append(_convolutional(settings))
    rows, panels, notes, numbers = [], [], [], {}
    for subject in subjects:
        measured = [_measured(settings, s, subject.data) for s in subject.solutions]
        rows += _rows(subject, measured)
        panels += _panels(subject.network, measured)
        numbers[subject.network] = [asdict(m) for m in measured]
        notes += [_order(subject, measured), subject.setting]
    notes += [
        "The scale of PP's column a is not recoverable: compare orders, not numbers.",
        f"The metric on {_samples(settings):,} training samples, and on one mini-batch of 128.",
    ]
    picture = Picture("metric", "PP's metric against the loss gap.", tuple(panels), 3)
    return Outcome(solutions.beside(settings, rows), (picture,), numbers, tuple(notes))


def _perceptron(settings: Settings) -> Subject:
    data = solutions.validation(settings)
    epochs = settings.pick(smoke=10, small=10, paper=50)
    rate = settings.pick(smoke=0.05, small=0.03, paper=0.01)
    recipes = solutions.by_decay(epochs=epochs, lr=rate)
    # The same trainings as flatness/mlp, found again where that was run.
    found = solutions.solve(settings, "flatness-mlp", "F-100", data[0], recipes)
    setting = "F-100: the trainings of flatness/mlp, beside PP's table 1."
    return Subject("F-100", data, found, (7.6, 7.2, 6.1), (0.024, 0.022, 0.007), setting)


def _convolutional(settings: Settings) -> Subject:
    network, data, found = batch_norm.subject(settings)
    setting = (
        f"{network}: the trainings of flatness/batch-norm on {len(data[0]):,} samples of CIFAR-10, "
        "beside PP's table 5 for WideResNet-28x10 on CIFAR-100; batch norms in eval mode."
    )
    return Subject(network, data, found, (101, 21.9, 15.8), (2.08, 0.85, 0.79), setting)


def _samples(settings: Settings) -> int:
    return settings.pick(smoke=256, small=1024, paper=1024)


def _measured(settings: Settings, solution: Solution, data: Splits) -> Measured:
    settings.tell(f"{solution.name}: metric")
    train, test = data
    few = solutions.problem(solution.model, train, samples=_samples(settings), size=256)
    steps = settings.pick(smoke=8, small=16, paper=16)
    metric = pac_metric(few, probes=24, steps=steps, generator=settings.generator(1))
    batch = minibatch_metric(
        solution.model, train.X[:128], train.y[:128], generator=settings.generator(2)
    )
    fits = [evaluate(solution.model, split) for split in (train, test)]
    return Measured(metric, batch, fits[1].loss - fits[0].loss)


def _rows(subject: Subject, measured: list[Measured]) -> list[Row]:
    network, rows = subject.network, []
    for i, (decay, m) in enumerate(zip(DECAYS, measured, strict=True)):
        where = f"{network}, weight decay {decay:g}"
        rows += [
            Row(
                f"tr H + ½‖w‖², {where}",
                m.metric.equation_7.value,
                paper=subject.metric[i],
                note="PP's a, on another scale",
            ),
            Row(f"the same from one mini-batch, {where}", m.minibatch.value.value),
            Row(f"loss gap, {where}", m.loss_gap, paper=subject.gap[i]),
        ]
    gaps = [m.loss_gap for m in measured]
    for what, values in (
        ("tr H + ½‖w‖²", [m.metric.equation_7.value for m in measured]),
        ("the mini-batch estimate", [m.minibatch.value.value for m in measured]),
    ):
        tau = kendall(values, gaps)
        rows.append(Row(f"{network}: Kendall's τ of {what} and loss gap", tau, paper=1.0, low=1.0))
    alone = kendall([m.metric.trace.value for m in measured], gaps)
    rows.append(Row(f"{network}: Kendall's τ of tr H and loss gap", alone, high=0.0))
    return rows


def _order(subject: Subject, measured: list[Measured]) -> str:
    metric = [m.metric.equation_7.value for m in measured]
    gaps = [m.loss_gap for m in measured]
    printed = ", ".join(f"{a:g}" for a in subject.metric)
    return (
        f"{subject.network}: with weight decay {', '.join(f'{d:g}' for d in DECAYS)} the metric is "
        f"{', '.join(f'{v:.4g}' for v in metric)} (PP's a: {printed}) and the loss gap "
        f"{', '.join(f'{v:.4g}' for v in gaps)}."
    )


def _panels(network: str, measured: list[Measured]) -> list[Panel]:
    gaps = [m.loss_gap for m in measured]
    columns = {
        "tr H + ½‖w‖²": [m.metric.equation_7.value for m in measured],
        "tr H + ½‖w‖² from one mini-batch": [m.minibatch.value.value for m in measured],
        "tr H": [m.metric.trace.value for m in measured],
    }
    return [
        Panel(
            title=network,
            xlabel=name,
            ylabel="loss gap",
            curves=tuple(
                Curve.of(f"weight decay {decay:g}", [x], [y], kind="points")
                for decay, x, y in zip(DECAYS, values, gaps, strict=True)
            ),
        )
        for name, values in columns.items()
    ]


ENTRY = Entry(
    name="practical-bound/ordering",
    source="PP §5: tables 1, 5 (VGG)",
    shows="PP's metric tr H + ½‖w‖² falls with the loss gap as weight decay grows; sharpness alone "
    "does not.",
    cost={
        "smoke": "3 s, 1,500 embedded digits",
        "small": "10 minutes, MNIST and 2,048 samples of CIFAR-10",
        "paper": "F-100 on MNIST, VGG16-BN on CIFAR-10: 50 s on an H200 after flatness/batch-norm",
    },
    run=run,
    subject={
        "smoke": "F-100 on embedded digits",
        "small": "F-100 on mnist, VGG11-W16-BN on cifar-10",
        "paper": "F-100 on mnist, VGG16-BN on cifar-10",
    },
    reduced={
        "smoke": "data and epochs, the perceptron alone",
        "small": "table 1: 10 epochs instead of 50; table 5: as flatness/batch-norm at this scale; "
        "the metric on 1,024 training samples",
        "paper": "table 1: the metric on 1,024 digits instead of 45,000; table 5: VGG16-BN instead "
        f"of WideResNet-28x10, {batch_norm.SAMPLES['paper'][0]:,} images of CIFAR-10 instead of "
        f"50,000 of CIFAR-100, {batch_norm.EPOCHS['paper']} epochs instead of 300",
    },
)
