"""TR fig. 6: how the parts of G move with training and with the number of examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from curvescope._state import evaluated, fast_precision
from curvescope.data import Dataset
from curvescope.figures.model import Curve, Panel, Picture
from curvescope.networks import network
from curvescope.problem import Problem
from curvescope.spectra.exact import ExactSpectrum
from curvescope.structure.classes import class_structure
from curvescope.structure.knockouts import class_dual
from curvescope.structure.outliers import outliers_of
from curvescope.structure.traces import class_traces
from curvescope.studies.entry import Entry, Outcome, Row, Settings
from curvescope.studies.traces import subjects
from curvescope.training import load_weights, train

_FLOOR = 1e-9


def run(settings: Settings) -> Outcome:
    """A network for each sample size, looked at after several epochs."""
    sizes = settings.pick(smoke=(4, 8), small=(5, 10, 20), paper=(10, 36, 98))
    epochs = settings.pick(smoke=(3, 30), small=(5, 25, 100), paper=(5, 50, 350))
    cells = {}
    for size in sizes:
        for epoch in epochs:
            name = f"traces-dynamics-{size}-{epoch}"
            cells[size, epoch] = settings.once(name, lambda s=size, e=epoch: _cell(  # type: ignore[misc]
                settings, s, e, epochs))  # fmt: skip
    panels = [_panel(size, epoch, cells[size, epoch]) for epoch in epochs for size in sizes]
    caption = (
        "G for several sample sizes (columns) and epochs (rows), as in TR fig. 6: all eigenvalues, "
        "those of the class part, of class and cross part together, and the mean eigenvalue of the "
        "within part of each class, from below."
    )
    rows = _rows(cells, sizes, epochs)
    numbers = {
        f"{size} per class, epoch {epoch}": {
            "outliers": int(cell["outliers"]), "loss": float(cell["fit"][0]),
            "error": float(cell["fit"][1]), **_positions(cell),
        }
        for (size, epoch), cell in cells.items()
    }  # fmt: skip
    notes = (
        f"{_name(settings)} on {_data(settings)}, trained as in App. D without its learning-rate "
        "sweep; the paper has VGG11 with batch norm, and says neither data nor sizes. All spectra "
        "are exact, from Gram matrices; on a GPU training is in TF32, nothing else.",
        subjects.RANGES,
        "“Distance” is the difference of the mean ln λ of two groups: the eigenvalues of the class "
        "part, of class and cross part below them, and Tr(G_within,c)/n of the classes.",
    )
    picture = Picture("dynamics", caption, tuple(panels), columns=len(sizes))
    return Outcome(rows, (picture,), numbers, notes)


def _name(settings: Settings) -> str:
    return settings.pick(smoke="F-24", small="LeNet5", paper="VGG11-4096^2-BN")


def _data(settings: Settings) -> str:
    return settings.pick(smoke="mnist", small="mnist", paper="cifar-10")


def _cell(settings: Settings, size: int, epoch: int, epochs: tuple[int, ...]) -> dict[str, Tensor]:
    """Train to the last epoch once, load the weights after ``epoch``, measure."""
    data = subjects.images(settings, _data(settings), size)
    model = _trained(settings, data, size, epoch, epochs)
    settings.tell(f"{size} per class, epoch {epoch}: G")
    problem = Problem(model, data.batches(1000))
    dual = class_dual(problem)
    few = len(dual.gram) <= 1024
    found = outliers_of(dual, generator=None if few else settings.generator(30))
    X = dual.bases["class"]
    traces = class_traces(class_structure(problem))
    between = dual.knocked_out("within").values.flip(0)
    loss = problem.value().double().reshape(1)
    wrong = (model(data.X).argmax(1) != data.y).double().mean().reshape(1)
    return {
        "G": dual.spectrum().values,
        "dimension": torch.tensor([dual.dimension]),
        "class part": torch.linalg.eigvalsh(X.T @ dual.gram @ X).flip(0).cpu(),
        "between": between,
        "within": (traces.within / traces.counts.clamp(min=1)).double().cpu(),
        "outliers": torch.tensor([found.outliers]),
        "fit": torch.cat([loss, wrong]).cpu(),
    }


def _trained(
    settings: Settings, data: Dataset, size: int, epoch: int, epochs: tuple[int, ...]
) -> torch.nn.Module:
    plan = subjects.recipe(epochs[-1], settings.pick(smoke=0.05, small=0.02, paper=0.1),
                           checkpoints=epochs)  # fmt: skip
    generator = torch.Generator().manual_seed(settings.seed)
    model = network(_name(settings), data.input_shape, data.classes, init="xavier",
                    generator=generator).to(settings.device)  # fmt: skip
    folder = settings.work / "training" / f"traces-dynamics-{size}-{settings.scale}"
    with fast_precision():  # on a GPU: training alone may round
        train(model, data, replace(plan, seed=settings.seed), folder=folder, resume=True)
    load_weights(folder / "weights" / f"epoch-{epoch:05d}.safetensors", model)
    return evaluated(model)


# Rows -------------------------------------------------------------------------------------------


def _positions(cell: Mapping[str, Tensor]) -> dict[str, float]:
    """Where the three groups lie: means of ``ln λ``."""
    C = len(cell["class part"])
    groups = {"class": cell["class part"], "cross": cell["between"][C : C * (C - 1)],
              "within": cell["within"]}  # fmt: skip
    return {name: float(values.clamp(min=_FLOOR).log().mean()) for name, values in groups.items()}


def _rows(
    cells: Mapping[tuple[int, int], Mapping[str, Tensor]],
    sizes: tuple[int, ...],
    epochs: tuple[int, ...],
) -> tuple[Row, ...]:
    at = {place: _positions(cell) for place, cell in cells.items()}
    last, most = epochs[-1], sizes[-1]
    rows = [
        Row(f"outliers of G, {most} per class, epoch {epoch}",
            int(cells[most, epoch]["outliers"]), paper=10)
        for epoch in epochs
    ]  # fmt: skip

    def apart(a: str, b: str, place: tuple[int, int]) -> float:
        return abs(at[place][a] - at[place][b])

    rows += [
        Row("cross–within distance, last epoch less first",
            apart("cross", "within", (most, last)) - apart("cross", "within", (most, epochs[0])),
            low=0.0, note="“increasing the number of epochs causes … to separate”"),
        Row("cross–within distance, most examples less fewest",
            apart("cross", "within", (most, last)) - apart("cross", "within", (sizes[0], last)),
            high=0.0, note="“increasing sample size causes the spectral bulks to merge”"),
        Row("class–within distance, largest less smallest of all cells",
            max(apart("class", "within", p) for p in at)
            - min(apart("class", "within", p) for p in at),
            note="“does not change significantly”; natural logarithms"),
        Row("C largest of G over those of the class part, mean, last cell",
            _aligned(cells[most, last]), paper=1.0, low=0.5, high=2.0,
            note="orange on yellow in fig. 6"),
    ]  # fmt: skip
    return tuple(rows)


def _aligned(cell: Mapping[str, Tensor]) -> float:
    C = len(cell["class part"])
    return float(cell["G"].flip(0)[:C].mean() / cell["class part"].mean())


def _panel(size: int, epoch: int, cell: Mapping[str, Tensor]) -> Panel:
    n = int(cell["dimension"])
    spectrum = ExactSpectrum(cell["G"].cpu(), n - len(cell["G"]), "dual", 0)
    edges = subjects.decades({"G": spectrum})
    C = len(cell["class part"])
    heights = {"class part": 0.7, "cross part": 1.2, "within part": 2.0}
    groups = {"class part": cell["class part"], "cross part": cell["between"][C : C * (C - 1)],
              "within part": cell["within"]}  # fmt: skip
    curves = [subjects.histogram("G", spectrum, edges)]
    for name, values in groups.items():
        shown = values[values > 0].cpu() + subjects.EPS
        curves.append(Curve.of(name, shown, [heights[name]] * len(shown), kind="points"))
    return subjects.log_panel(f"{size} per class, epoch {epoch}", tuple(curves))


def _checks(outcome: Outcome) -> Iterator[Row]:
    """Sec. 6.2: class and within part keep their distance, cross and within part do not."""

    def spread(a: str, b: str) -> float:
        apart = [abs(cell[a] - cell[b]) for cell in outcome.numbers.values()]
        return max(apart) - min(apart)

    yield Row(
        "change over all cells of the class–within distance over that of the cross–within one",
        spread("class", "within") / spread("cross", "within"), high=1.0,
        note="the former “does not change significantly”, the latter does",
    )  # fmt: skip


ENTRY = Entry(
    name="traces/dynamics",
    source="TR sec. 6.2: fig. 6",
    shows=(
        "With training the cross-class eigenvalues separate from the bulk, with more examples "
        "they merge; the class part stays where it is."
    ),
    cost={
        "smoke": "4 s, embedded digits",
        "small": "2 minutes on two cores, MNIST, LeNet5",
        "paper": "VGG11 with 28 million parameters, CIFAR-10, 1 minute on an H200",
    },
    run=run,
    subject={
        "smoke": "G of F-24 on embedded digits",
        "small": "G of LeNet5 on mnist",
        "paper": "G of VGG11 with batch norm on cifar-10",
    },
    reduced={
        "smoke": "network, data and epochs",
        "small": "LeNet5 instead of VGG11, digits, 5 to 20 per class, 100 epochs",
        "paper": (
            "10, 36 and 98 images per class and one learning rate; the paper does not name its "
            "data and sample sizes"
        ),
    },
    checks=_checks,
)
