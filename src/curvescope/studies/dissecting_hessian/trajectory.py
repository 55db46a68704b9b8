"""DH E.4, fig. 18 and 19: the factors of fc1 of LeNet5 along training."""

from __future__ import annotations

import torch
from torch import Tensor

from curvescope._state import evaluated
from curvescope.figures.model import Curve, Panel, Picture
from curvescope.networks import network
from curvescope.problem import Problem
from curvescope.structure.factors import kronecker_factors
from curvescope.studies.dissecting_hessian.families import MINIATURE, first, scaled
from curvescope.studies.entry import Entry, Outcome, Row, Settings
from curvescope.training import Recipe, load_weights, train

LAYER = "fc1"
TOP = 20


def run(settings: Settings) -> Outcome:
    """Train with checkpoints and look at the factors of fc1 at each."""
    epochs: tuple[int, ...] = settings.pick(
        smoke=(0, 2, 8), small=(0, 1, 2, 4, 8, 15), paper=(0, 1, 3, 10, 30, 100, 300)
    )
    name = settings.pick(smoke=MINIATURE["LeNet5"], small="LeNet5", paper="LeNet5")
    source = settings.pick(smoke="mnist-6k", small="cifar-10", paper="cifar-10")
    data = scaled(settings, source, "unit")
    data = first(data, settings.pick(smoke=1000, small=10_000, paper=len(data)))
    model = network(name, data.input_shape, data.classes, generator=settings.generator())
    model = model.to(settings.device)
    rate = settings.pick(smoke=0.02, small=0.02, paper=0.01)
    momentum = settings.pick(smoke=0.9, small=0.9, paper=0.0)
    recipe = Recipe(
        seed=settings.seed,
        epochs=epochs[-1],
        lr=rate,
        momentum=momentum,
        batch_size=settings.pick(smoke=32, small=128, paper=128),
        checkpoints=epochs[1:],
    )
    folder = settings.work / "training" / f"trajectory-{settings.scale}-seed{settings.seed}"
    settings.tell(f"training {name} for {epochs[-1]} epochs")
    result = train(model, data, recipe, folder=folder, resume=True)
    few = first(data, settings.pick(smoke=300, small=2000, paper=len(data)))
    inputs, outputs = [], []
    for epoch in epochs:
        settings.tell(f"factors after epoch {epoch}")
        file = "initial" if epoch == 0 else f"epoch-{epoch:05d}"
        load_weights(folder / "weights" / f"{file}.safetensors", model)
        problem = Problem(evaluated(model), few.batches(5000))
        found = kronecker_factors(problem, layers=[LAYER])[LAYER]
        inputs.append(_descending(found.autocorrelation))
        outputs.append(_descending(found.output_hessian))
    classes = data.classes
    ratios = [float(values[0] / values[1]) for values in inputs]
    shares = [float(values[:classes].sum() / values.sum()) for values in outputs]
    rows = [
        Row(f"E[xxᵀ]: λ₁/λ₂, epoch {epoch}", ratio, low=2.0, note="range ours")
        for epoch, ratio in zip(epochs, ratios, strict=True)
    ] + [
        Row(f"E[M]: share of the trace in the top c, epoch {epoch}", share, low=0.8,
            note="range ours")
        for epoch, share in zip(epochs, shares, strict=True)
    ]  # fmt: skip
    accuracy = 0.0 if result.train is None else result.train.accuracy
    notes = (
        "DH says that E[xxᵀ] is always approximately of rank one and that E[M] always has around c "
        "large eigenvalues, and prints no numbers; the ranges are ours.",
        f"{name} on {len(data):,} images with pixels in [0, 1], rate {rate:g}, momentum "
        f"{momentum:g}; at the end it is right on {accuracy:.1%} of its training data. Factors "
        f"over {len(few):,} of them.",
    )
    return Outcome(tuple(rows), (_picture(epochs, inputs, outputs),), notes=notes)


def _descending(matrix: Tensor) -> Tensor:
    return torch.linalg.eigvalsh(matrix.double()).flip(0).cpu()


def _picture(epochs: tuple[int, ...], inputs: list[Tensor], outputs: list[Tensor]) -> Picture:
    panels = tuple(
        Panel(
            title=title,
            xlabel="index",
            ylabel="eigenvalue",
            curves=tuple(
                Curve.of(f"epoch {epoch}", None, values[:TOP])
                for epoch, values in zip(epochs, spectra, strict=True)
            ),
            yscale="log",
        )
        for title, spectra in (("E[xxᵀ]", inputs), ("E[M]", outputs))
    )
    caption = f"Top eigenvalues of the factors of {LAYER} along training (DH fig. 18, 19)."
    return Picture("trajectory", caption, panels)


ENTRY = Entry(
    name="dissecting-hessian/trajectory",
    source="DH E.4: fig. 18, 19; first version, fig. 17, 18",
    shows="Along the whole training E[xxᵀ] is nearly of rank one and E[M] has about c large "
    "eigenvalues.",
    cost={
        "smoke": "2 s, embedded digits, a narrow LeNet5",
        "small": "2 minutes, 10,000 images of CIFAR-10",
        "paper": "CIFAR-10, 300 epochs: 2 minutes on an H200",
    },
    run=run,
    subject={
        "smoke": "fc1 of a narrow LeNet5 on embedded digits",
        "small": "fc1 of LeNet5 on 10,000 images of cifar-10",
        "paper": "fc1 of LeNet5 on cifar-10",
    },
    reduced={
        "smoke": "network, data and epochs",
        "small": (
            "10,000 images instead of 50,000, 15 epochs with momentum 0.9 instead of 1000 without; "
            "factors over 2000 images"
        ),
        "paper": "300 epochs instead of 1000",
    },
)
