"""TR fig. 3, 14 and 17: the Hessian on further data sets, and of a residual network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from curvescope.figures.model import Picture
from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem
from curvescope.spectra.eigensolver import eigenpairs
from curvescope.spectra.measure import SpectralMeasure, spectral_measure
from curvescope.structure.outliers import widest_gap
from curvescope.studies.entry import Entry, Outcome, Row, Settings
from curvescope.studies.traces import subjects
from curvescope.studies.traces.spectra import bulk, density_panel
from curvescope.studies.traces.vgg import SPLITS

C = 10
DATA = ("mnist", "fashion-mnist", "cifar-10")
"""TR shows more; these have ten classes and are at hand."""
EPOCHS = {"smoke": 20, "small": 60, "paper": 100}
PER_CLASS = {"smoke": 12, "small": 30, "paper": 100}
_RATE = {"smoke": 0.05, "small": 0.02, "paper": 0.05}


@dataclass(frozen=True)
class Found:
    """The Hessian of a network on some data: its largest eigenvalues, and two densities."""

    largest: Tensor  # [2C]
    deflated: SpectralMeasure  # without them
    plain: SpectralMeasure

    @property
    def outliers(self) -> int:
        """Above the widest gap among the 2C largest."""
        return widest_gap(self.largest, most=len(self.largest) - 1).count

    @property
    def aligned(self) -> float:
        """The C largest against the nearest node of Lanczos alone: the worst, relative."""
        top, nodes = self.largest[:C], self.plain.nodes.flatten()
        return float(((top[:, None] - nodes).abs().amin(1) / top).max())

    @property
    def finer(self) -> float:
        """How much narrower the range of the deflated density is: its cells are so much finer."""
        (a, b), (c, d) = self.deflated.support, self.plain.support
        return (b - a) / (d - c)


def hessian(settings: Settings, key: str, problem: Problem, stream: int) -> Found:
    """Measure the Hessian once, and keep it under ``key``."""
    steps = settings.pick(smoke=48, small=128, paper=128)
    basis = settings.pick(smoke=None, small=None, paper=150)

    def compute() -> dict[str, Tensor]:
        settings.tell(f"{key}: the Hessian")
        H, generator = Hessian(problem, keep=True), settings.generator(stream)
        pairs = eigenpairs(H, 2 * C, tol=1e-3, basis=basis, max_products=basis, generator=generator)
        found = {"largest": pairs.values.double().cpu()}
        for name, out in (("deflated", pairs), ("plain", 0)):
            measure = spectral_measure(H, steps=steps, deflate=out, generator=generator)
            kept = subjects.saved_measure(measure)
            found |= {f"{name} {part}": tensor for part, tensor in kept.items()}
        H.release()
        return found

    kept = settings.once(key, compute)

    def measure(name: str) -> SpectralMeasure:
        start = f"{name} "
        own = {k.removeprefix(start): v for k, v in kept.items() if k.startswith(start)}
        return subjects.restored_measure(own)

    return Found(kept["largest"].cpu(), measure("deflated"), measure("plain"))


# Fig. 3 and 14 ----------------------------------------------------------------------------------


def run(settings: Settings) -> Outcome:
    """One network for each data set, its Hessian on training and on test data."""
    network = settings.pick(smoke="F-24", small="LeNet5", paper="VGG11-4096^2-BN")
    names = settings.pick(smoke=DATA[:2], small=DATA, paper=DATA)
    per_class, plan = settings.pick(**PER_CLASS), subjects.recipe(
        settings.pick(**EPOCHS), settings.pick(**_RATE)
    )  # fmt: skip
    rows: list[Row] = []
    found: dict[tuple[str, str], Found] = {}
    fits = []
    for name in names:
        data = subjects.images(settings, name, per_class)
        subject = subjects.train_one(settings, f"traces-datasets-{name}", network, data, plan)
        loss, error = subjects.fit(subject, data)
        fits.append(f"{name} {loss:.2g} and {error:.1%}")
        for i, split in enumerate(SPLITS):
            own = subjects.images(settings, name, per_class, split=split)
            key = f"traces-datasets-{name}-{split}"
            problem = subjects.problem(subject, own, size=1000)
            found[name, split] = hessian(settings, key, problem, 40 + i)
        rows += _rows(name, {split: found[name, split] for split in SPLITS})
    notes = (
        f"{network} on {per_class} images per class; training loss and error: {', '.join(fits)}. "
        "Trained as in App. D at one learning rate; spectra over the same images, and over as "
        "many of the test split.",
        "The paper shows further data sets that are not named in its text; those with ten classes "
        "that are at hand are here.",
        subjects.RANGES,
    )
    numbers = {
        f"{name}, {split}": {"largest": own.largest.tolist(), "outliers": own.outliers}
        for (name, split), own in found.items()
    }
    return Outcome(tuple(rows), _pictures(found), numbers, notes)


def _rows(name: str, found: dict[str, Found]) -> list[Row]:
    train, test = (found[split] for split in SPLITS)
    negative = float(train.plain.cdf(torch.tensor([-1e-6 * float(train.largest[0])])))
    return [
        *(
            Row(f"{name}: outliers of H, {split} data", own.outliers, paper=C, low=8, high=12,
                note="“arguably, C outliers”; range ours")
            for split, own in found.items()
        ),
        Row(f"{name}: λ₁ of H, test over train", float(test.largest[0] / train.largest[0]),
            note="“a clear difference in magnitude”"),
        Row(f"{name}: share of negative eigenvalues of the train Hessian", negative, low=1e-9,
            note="“negative eigenvalues exist”"),
    ]  # fmt: skip


def _pictures(found: dict[tuple[str, str], Found]) -> tuple[Picture, ...]:
    deflated = [
        density_panel(f"{name}, {split} data", own.deflated, own.largest, linear=bulk(own.deflated))
        for (name, split), own in found.items()
    ]
    plain = [
        density_panel(f"{name}, {split} data", own.plain, None, linear=bulk(own.deflated))
        for (name, split), own in found.items()
    ]
    return (
        Picture("deflated", "The Hessian, its 2C largest eigenvalues taken out and drawn as points "
                "(TR fig. 3).", tuple(deflated)),
        Picture("plain", "The same by Lanczos alone (TR fig. 14).", tuple(plain)),
    )  # fmt: skip


# Fig. 17 ----------------------------------------------------------------------------------------


def run_residual(settings: Settings) -> Outcome:
    """The train Hessian of ResNet18 on digits, with and without deflation."""
    network = settings.pick(smoke="F-24", small="ResNet18-W8", paper="ResNet18-W64-BN")
    per_class = settings.pick(smoke=12, small=30, paper=136)
    plan = subjects.recipe(
        settings.pick(smoke=10, small=30, paper=100),
        settings.pick(smoke=0.05, small=0.02, paper=0.1),
    )
    data = subjects.images(settings, "mnist", per_class)
    subject = subjects.train_one(settings, "traces-deflation", network, data, plan)
    loss, error = subjects.fit(subject, data)
    found = hessian(settings, "traces-deflation-train", subjects.problem(subject, data), 44)
    rows = (
        Row("C largest of H against the nearest node of Lanczos alone, worst", found.aligned, 0.0,
            high=0.05, note="“the top eigenvalues … align with the outliers”; range ours"),
        Row("cells of the grid, deflated over plain", found.finer, high=1.0,
            note="“improved ‘resolution’ of the bulk distribution”"),
        Row("outliers of H", found.outliers, paper=C),
    )  # fmt: skip
    width = bulk(found.deflated)
    picture = Picture(
        "deflation",
        "The train Hessian after subspace iteration and by Lanczos alone (TR fig. 17).",
        (
            density_panel("largest pairs taken out", found.deflated, found.largest, linear=width),
            density_panel("Lanczos alone", found.plain, None, linear=width),
        ),
    )
    notes = (
        f"{network} on {per_class} digits per class, trained as in App. D at one learning rate: "
        f"training loss {loss:.2g}, error {error:.1%}. The paper has ResNet18 with batch norm on "
        "136 per class.",
        subjects.RANGES,
    )
    return Outcome(rows, (picture,), {"largest": found.largest.tolist()}, notes)


def _checks(outcome: Outcome) -> Iterator[Row]:
    """TR sec. 4.1: train and test Hessian differ clearly in magnitude."""
    for row in outcome.rows:
        if "test over train" in row.what:
            yield Row(f"{row.what.split(':')[0]}: λ₁ is larger on test data", row.ours, low=2.0,
                      note="“a clear difference in magnitude”; range ours")  # fmt: skip


ENTRIES = (
    Entry(
        name="traces/datasets",
        source="TR sec. 4.1, app. C: fig. 3, 14",
        shows="The Hessian of each data set has a bulk and about C outliers, on training and on "
        "test data.",
        cost={
            "smoke": "4 s, embedded digits and garments",
            "small": "5 minutes on two cores: MNIST, Fashion-MNIST, CIFAR-10, LeNet5",
            "paper": "a GPU for ten minutes: VGG11 with 28 million parameters, three data sets",
        },
        run=run,
        subject={
            "smoke": "Hessian of F-24, embedded images",
            "small": "Hessian of LeNet5",
            "paper": "Hessian of VGG11 with batch norm",
        },
        reduced={
            "smoke": "network, data and epochs",
            "small": f"LeNet5 instead of VGG11, three data sets, {PER_CLASS['small']} images per "
            f"class instead of 5,000, {EPOCHS['small']} epochs instead of 200",
            "paper": f"three data sets, {PER_CLASS['paper']} images per class instead of 5,000, "
            f"{EPOCHS['paper']} epochs instead of 200, one learning rate of the 100 tried",
        },
        checks=_checks,
    ),
    Entry(
        name="traces/deflation",
        source="TR app. C: fig. 17",
        shows="Eigenpairs found beforehand are the outliers that Lanczos alone shows, and without "
        "them the bulk is seen in finer detail.",
        cost={
            "smoke": "2 s, embedded digits, a perceptron",
            "small": "4 minutes on two cores, MNIST, a ResNet18 of eight channels",
            "paper": "a GPU for minutes: ResNet18 with 64 channels, 1,360 digits",
        },
        run=run_residual,
        subject={
            "smoke": "F-24 on embedded digits",
            "small": "ResNet18-W8 on mnist",
            "paper": "ResNet18-W64-BN on mnist",
        },
        reduced={
            "smoke": "network, data and epochs",
            "small": "8 channels without batch norm, 30 digits per class instead of 136, 30 epochs "
            "instead of 200",
            "paper": "all convolutions 64 wide, 100 epochs instead of 200, one learning rate "
            "instead of the best of 100",
        },
    ),
)
