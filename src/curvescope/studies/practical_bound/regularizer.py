"""PP §6, table 7: a trace penalty beside weight decay.

tr G at the start differs between networks by orders of magnitude: with batch norm in train mode it
is 9e2 for PP's WideResNet-28x10 and 2.4e5 for VGG16-BN as PyTorch initializes it. PP's weights of
the penalty mean something for PP's network only, so here they are chosen by what they mean there:
the part of the loss that the penalty is at the start.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch
from torch import nn

from curvescope import io
from curvescope.data import Dataset
from curvescope.figures.model import Curve, Panel, Picture
from curvescope.flatness import SharpnessReport, TraceRegularizer
from curvescope.networks import network
from curvescope.studies.entry import Entry, Outcome, Row, Settings
from curvescope.studies.flatness import solutions
from curvescope.studies.flatness.solutions import Solution, Splits
from curvescope.training import Recipe, train

KEY = "practical-bound-regularizer"
EPOCHS = {"smoke": 10, "small": 15, "paper": 15}
SHARES = (0.0, 0.02, 0.1)
"""The penalty over the loss at the start: none, and what η = 1e-4 and 5e-4, PP's choice and the
largest that PP tried, come to for WideResNet-28x10 with 100 outputs (tr G = 918, loss 4.54)."""
BATCH = 128


@dataclass(frozen=True)
class Start:
    """The first batch's loss and trace at the initial weights, batch norms in train mode."""

    loss: float
    trace: float

    def weight(self, share: float) -> float:
        """``η`` with ``η tr G = share · loss``, to two digits.

        >>> Start(loss=2.4, trace=2.4e5).weight(0.02)
        2e-07
        """
        return float(f"{share * self.loss / self.trace:.1e}")


@dataclass(frozen=True)
class Penalized:
    """A solution with the penalty's weight, the time of an epoch, and its report."""

    share: float
    weight: float
    seconds: float
    report: SharpnessReport


def run(settings: Settings) -> Outcome:
    """Train with each weight of the penalty, measure, compare."""
    name = settings.pick(smoke="F-30", small="F-100", paper="VGG16-BN")
    data = _data(settings)
    shares = settings.pick(smoke=(0.0, 0.1), small=SHARES, paper=SHARES)
    epochs = settings.pick(**EPOCHS)
    start = _start(settings, name, data[0])
    found = [_trained(settings, name, data, share, start, epochs) for share in shares]
    notes = (
        f"{name}, {len(data[0]):,} training samples, {epochs} epochs, learning rate 0.05, weight "
        "decay 5e-4, tr G with one random cotangent a sample. PP: WideResNet-28x10 on CIFAR-100, "
        "300 epochs, four seeds: 80.75 ± 0.19 with η = 1e-4 against 80.48 ± 0.26 per cent, a "
        "difference of one standard deviation.",
        "η is such that the penalty is 2 and 10 per cent of the loss at the start, as η = 1e-4 and "
        "5e-4 of PP's grid are for PP's network; no accuracy enters. The 2 per cent, PP's choice, "
        "were fixed before any training by this rule; the upper end, at first 20 per cent, was "
        "settled as that of PP's grid after a sweep of η on a VGG16-BN 16 wide had been seen. Here "
        f"tr G begins at {start.trace:.3g} with a loss of {start.loss:.3g}.",
        "PP's numbers themselves do not carry over: η = 1e-4 on VGG16-BN, where tr G begins at "
        "2.4e5, is a penalty of ten times the loss. The first steps then flatten the network at "
        "the loss's expense, and it does not learn.",
        "PP expect three times the cost of a plain step.",
    )
    numbers = {"start": asdict(start)} | {
        f"penalty of {p.share:.0%}": {"η": p.weight, **io.encode(p.report)[0]} for p in found
    }
    return Outcome(solutions.beside(settings, _rows(found)), (_picture(found),), numbers, notes)


def _data(settings: Settings) -> Splits:
    if settings.scale == "paper":
        return solutions.photographs(settings, 10_240, 10_000)
    return solutions.digits(
        settings, *((500, 500) if settings.scale == "smoke" else (10_000, 5_000))
    )


def _fresh(settings: Settings, name: str, data: Dataset) -> nn.Module:
    g = torch.Generator().manual_seed(settings.seed)
    return network(name, data.input_shape, data.classes, generator=g).to(settings.device)


def _start(settings: Settings, name: str, data: Dataset) -> Start:
    model = _fresh(settings, name, data)
    regularizer = TraceRegularizer("ggn", weight=1.0, probes=8, generator=settings.generator(2))
    found = regularizer.objective(model, data.X[:BATCH], data.y[:BATCH])
    return Start(found.loss.item(), found.penalty.item())


def _trained(
    settings: Settings, name: str, data: Splits, share: float, start: Start, epochs: int
) -> Penalized:
    weight = start.weight(share)
    settings.tell(f"{name}, η = {weight:g}: training for {epochs} epochs")
    model = _fresh(settings, name, data[0])
    recipe = Recipe(
        seed=settings.seed,
        epochs=epochs,
        lr=0.05,
        batch_size=BATCH,
        momentum=0.9,
        weight_decay=5e-4,
        schedule="linear",
    )
    probes = torch.Generator().manual_seed(settings.seed)
    penalty = TraceRegularizer("ggn", weight=weight, generator=probes) if weight else None
    folder = settings.work / "training" / f"{KEY}-{share:g}-{settings.scale}"
    ended = train(model, data[0], recipe, folder=folder, resume=True, penalty=penalty)
    # The first epoch chooses kernels and records graphs.
    seconds = sorted(epoch.seconds for epoch in ended.history)[len(ended.history) // 2]
    report = solutions.report(
        settings,
        KEY,
        Solution(f"share={share:g}", model),
        data,
        samples=settings.pick(smoke=256, small=2048, paper=512),
        size=256,
        tol=1e-2,
        probes=8,
        steps=8,
    )
    return Penalized(share, weight, seconds, report)


def _rows(found: list[Penalized]) -> list[Row]:
    plain, rows = found[0], []
    for p in found:
        where = f"η = {p.weight:g}"
        rows += [
            Row(f"test accuracy, {where}, per cent", solutions.accuracy(p.report)),
            Row(f"tr G, {where}", p.report.gauss_newton.trace.value),
            Row(f"λ_max(H), {where}", p.report.hessian.largest.value),
            Row(f"loss gap, {where}", solutions.loss_gap(p.report)),
        ]
        if p.weight:
            rows.append(
                Row(f"an epoch in plain epochs, {where}", p.seconds / plain.seconds, paper=3.0)
            )
    last = found[-1]
    traces = [p.report.gauss_newton.trace.value for p in (plain, last)]
    better = solutions.accuracy(found[1].report) - solutions.accuracy(plain.report)
    rows += [
        Row(f"tr G with η = {last.weight:g} over that without", traces[1] / traces[0], high=1.0),
        Row(f"test accuracy: η = {found[1].weight:g} less 0, points", better, paper=0.27),
    ]
    return rows


def _picture(found: list[Penalized]) -> Picture:
    shares = [100 * p.share for p in found]

    def panel(title: str, values: list[float]) -> Panel:
        label = "penalty, per cent of the first loss"
        return Panel(xlabel=label, ylabel=title, curves=(Curve.of("", shares, values),))

    return Picture(
        "penalty",
        "Trace, largest eigenvalue and test accuracy against the weight of the penalty.",
        (
            panel("tr G", [p.report.gauss_newton.trace.value for p in found]),
            panel("λ_max(H)", [p.report.hessian.largest.value for p in found]),
            panel("test accuracy, per cent", [solutions.accuracy(p.report) for p in found]),
        ),
        columns=3,
    )


def _checks(outcome: Outcome) -> Iterator[Row]:
    """PP: a slightly better accuracy, at three times the cost of a step; the trace falls."""
    better = outcome.values("test accuracy: η = ")
    if better:
        yield Row("test accuracy is not lower with PP's penalty, points", better[0], paper=0.27,
                  low=0.0, note="“a small but significant improvement”")  # fmt: skip
    costs = outcome.values("an epoch in plain epochs")
    if costs:
        yield Row("cost of an epoch with the penalty, largest", max(costs), paper=3.0, high=3.0,
                  note="“a factor of 3”")  # fmt: skip
    ratios = solutions.ratios(outcome.values("tr G, η = "))
    yield Row("tr G: largest ratio from one penalty to the next", max(ratios), high=1.0)


ENTRY = Entry(
    name="practical-bound/regularizer",
    source="PP §6: table 7",
    shows="A penalty on the trace of the Gauss–Newton matrix lowers it, at about three times the "
    "cost of a step; PP see a slightly better accuracy.",
    cost={
        "smoke": "3 s, 500 embedded digits",
        "small": "15 s, 10,000 digits",
        "paper": "VGG16-BN, 10,240 samples of CIFAR-10, 15 epochs: 70 s on an H200",
    },
    run=run,
    subject={
        "smoke": "F-30 on embedded digits",
        "small": "F-100 on mnist",
        "paper": "VGG16-BN on cifar-10",
    },
    reduced={
        "smoke": "network, data and epochs",
        "small": "a perceptron of 100 units on 10,000 digits instead of WideResNet-28x10 on "
        f"CIFAR-100, {EPOCHS['small']} epochs instead of 300, one seed instead of four",
        "paper": "VGG16-BN on 10,240 images of CIFAR-10 instead of WideResNet-28x10 on 50,000 of "
        f"CIFAR-100, {EPOCHS['paper']} epochs instead of 300, one seed instead of four",
    },
    checks=_checks,
)
