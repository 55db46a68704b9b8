"""How the parts of G move with training and with the number of examples (Papyan 2020, fig. 6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import product

import torch
from torch import Tensor, nn

from curvescope._state import copied, evaluated, fast_precision, in_training
from curvescope.data import Dataset
from curvescope.figures.model import Curve, Panel, Picture
from curvescope.identity import digest
from curvescope.networks import network
from curvescope.problem import Problem
from curvescope.spectra.exact import ExactSpectrum
from curvescope.structure.classes import class_structure
from curvescope.structure.knockouts import class_dual
from curvescope.structure.outliers import outliers_of
from curvescope.structure.traces import class_traces
from curvescope.studies.papyan2020.subjects import Chosen, carriers, chosen
from curvescope.studies.pictures import EPSILON, log_spectra
from curvescope.studies.run import Result, Run, Value
from curvescope.training import evaluate, load_weights, train
from curvescope.training.objective import refresh_batch_norm

_FLOOR = 1e-9
Cell = Mapping[str, Tensor]
Cells = dict[tuple[int, int], Cell]  # by examples per class and epoch


def run(run: Run) -> Result:
    """For each sample size the best rate, and that network after several epochs."""
    sizes, epochs = run["sizes"], run["epochs"]
    cells: Cells = {}
    values: dict[str, float | Value] = {}
    for size in sizes:
        best = chosen(run, "vgg", per_class=size, epochs=epochs[-1])
        values |= best.values(f"{size} per class: ")
        for epoch, model in _history(run, best, size, epochs).items():
            cell = partial(_cell, model, best.data, run.generator(30))
            run.tell(f"{size} per class, epoch {epoch}")
            parts = run.once(f"dynamics-{size}-{epoch}", cell)
            cells[size, epoch] = {name: tensor.cpu() for name, tensor in parts.items()}
    values |= _statements(cells, sizes, epochs)
    numbers = {
        f"{size} per class, epoch {epoch}": {
            "outliers": int(cell["outliers"]),
            "samples that carry half of tr G": int(cell["carriers"]),
            "loss": float(cell["fit"][0]),
            "error": float(cell["fit"][1]),
            **_positions(cell),
        }
        for (size, epoch), cell in cells.items()
    }
    caption = (
        "G for several sample sizes (columns) and epochs (rows), as in fig. 6: all eigenvalues, "
        "and as points, from below, those of the class part, of the cross part, and the mean "
        "eigenvalue of each class's within part. Statistics of batch norms are taken anew."
    )
    panels = [_panel(size, epoch, cells[size, epoch]) for epoch, size in product(epochs, sizes)]
    picture = Picture("dynamics", caption, tuple(panels), columns=len(sizes))
    return Result(values, (picture,), numbers)


def derive(
    values: Mapping[str, float], numbers: Mapping[str, Mapping[str, float]]
) -> dict[str, float]:
    """How much each distance changes over all cells."""

    def spread(a: str, b: str) -> float:
        apart = [abs(cell[a] - cell[b]) for cell in numbers.values()]
        return max(apart) - min(apart)

    share = spread("class", "within") / spread("cross", "within")
    return {"change of the class–within distance over that of the cross–within one": share}


def _history(run: Run, best: Chosen, size: int, epochs: list[int]) -> dict[int, nn.Module]:
    """The chosen run again, its weights after some epochs with statistics of batch norms anew.

    Running averages lag behind the weights: after five epochs of eight steps at a large rate they
    belong to a network that is no more.
    """
    of, data = best.description, best.data
    rate = best.sweep.rate
    assert rate is not None, "some rate gives finite weights"
    generator = torch.Generator().manual_seed(run.seed)
    model = network(
        of.network, data.input_shape, data.classes, init=of.init, generator=generator
    ).to(run.device)
    plan = replace(of.recipe, seed=run.seed, lr=rate, checkpoints=tuple(epochs))
    name = f"dynamics-{size}-{run.scale}-{digest(repr(of), repr(plan))[:16]}"
    folder = run.work / "papyan2020" / "sweeps" / name
    with fast_precision():  # on a GPU: training alone may round
        train(model, data, plan, folder=folder, resume=True)
    found = {}
    for epoch in epochs:
        load_weights(folder / "weights" / f"epoch-{epoch:05d}.safetensors", model)
        with in_training(model):
            refresh_batch_norm(model, data.X, of.recipe.batch_size)
        found[epoch] = evaluated(copied(model))
    return found


def _cell(model: nn.Module, data: Dataset, generator: torch.Generator) -> dict[str, Tensor]:
    problem, fit = Problem(model, data.batches(1000)), evaluate(model, data)
    dual = class_dual(problem)
    traces = class_traces(class_structure(problem))
    return {
        "G": dual.spectrum().values,
        "dimension": torch.tensor([dual.dimension]),
        "between": dual.knocked_out("within").values.flip(0),
        "within": (traces.within / traces.counts.clamp(min=1)).double(),
        "outliers": torch.tensor([outliers_of(dual, generator=generator).outliers]),
        "carriers": torch.tensor([carriers(problem)]),
        "fit": torch.tensor([fit.loss, 1 - fit.accuracy], dtype=torch.float64),
    }


# Numbers -----------------------------------------------------------------------------------------


def _groups(cell: Cell) -> dict[str, Tensor]:
    """The C largest of class, cross and diagonal part together, the next C² − 2C, and the rest."""
    between, C = cell["between"], len(cell["within"])
    return {"class": between[:C], "cross": between[C : C * (C - 1)], "within": cell["within"]}


def _positions(cell: Cell) -> dict[str, float]:
    """Where the three groups lie: means of ``ln λ``."""
    groups = _groups(cell)
    return {name: float(v.clamp(min=_FLOOR).log().mean()) for name, v in groups.items()}


def _statements(cells: Cells, sizes: list[int], epochs: list[int]) -> dict[str, float | Value]:
    at = {place: _positions(cell) for place, cell in cells.items()}

    def apart(size: int, epoch: int) -> float:
        return abs(at[size, epoch]["cross"] - at[size, epoch]["within"])

    most, first, last = sizes[-1], epochs[0], epochs[-1]
    values: dict[str, float | Value] = {
        f"outliers of G, {most} per class, epoch {epoch}": int(cells[most, epoch]["outliers"])
        for epoch in epochs
    }
    growth = {size: apart(size, last) - apart(size, first) for size in sizes}
    merging = {epoch: apart(most, epoch) - apart(sizes[0], epoch) for epoch in epochs}
    values["cross–within distance, last epoch less first, most examples"] = Value(
        growth[most], "by size: " + ", ".join(f"{k}: {v:.2f}" for k, v in growth.items())
    )
    values["cross–within distance, most examples less fewest, last epoch"] = Value(
        merging[last], "by epoch: " + ", ".join(f"{k}: {v:.2f}" for k, v in merging.items())
    )
    cell = cells[most, last]
    C = len(cell["within"])
    values["C largest of G over those of the parts, mean, last cell"] = float(
        cell["G"].flip(0)[:C].mean() / cell["between"][:C].mean()
    )
    return values


def _panel(size: int, epoch: int, cell: Cell) -> Panel:
    spectrum = ExactSpectrum(cell["G"], int(cell["dimension"]) - len(cell["G"]), "dual", 0)
    panel = log_spectra(f"{size} per class, epoch {epoch}", {"G": spectrum})
    dots = [
        Curve.of(f"{name} part", values[values > 0] + EPSILON, [height] * int((values > 0).sum()),
                 kind="points")
        for height, (name, values) in zip((0.7, 1.2, 2.0), _groups(cell).items(), strict=True)
    ]  # fmt: skip
    return replace(panel, curves=(*panel.curves, *(curve for curve in dots if curve.x)))
