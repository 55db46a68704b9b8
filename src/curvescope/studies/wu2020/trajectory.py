"""The factors of fc1 of LeNet5 along training (Wu et al. 2020, E.4)."""

from __future__ import annotations

import torch
from torch import Tensor

from curvescope._state import evaluated
from curvescope.figures.model import Picture
from curvescope.networks import network
from curvescope.problem import Problem
from curvescope.structure.autocorrelation import autocorrelation_structure
from curvescope.structure.factors import kronecker_factors
from curvescope.studies.networks import Description
from curvescope.studies.pictures import curves
from curvescope.studies.run import Result, Run, Value
from curvescope.training import load_weights, train

LAYER, TOP = "fc1", 20


def run(run: Run) -> Result:
    """Train with checkpoints and look at the factors of fc1 at each."""
    of: Description = run.describe("lenet5-checkpoints")
    data = of.images.load(root=run.root, seed=run.seed, device=run.device)
    few = data.batches(2500) if of.curvature is None else (
        data.X[: of.curvature], data.y[: of.curvature]
    )  # fmt: skip
    model = network(of.network, data.input_shape, data.classes, generator=run.generator())
    folder = run.work / "training" / "wu2020" / f"trajectory-{run.scale}-seed{run.seed}"
    run.tell(f"training {of.network} for {of.recipe.epochs} epochs")
    trained = train(model.to(run.device), data, of.recipe, folder=folder, resume=True)
    inputs, outputs = {}, {}
    values: dict[str, float | Value] = {}
    for epoch in (0, *of.recipe.checkpoints):
        run.tell(f"factors after epoch {epoch}")
        file = "initial" if epoch == 0 else f"epoch-{epoch:05d}"
        load_weights(folder / "weights" / f"{file}.safetensors", model)
        factors = kronecker_factors(Problem(evaluated(model), few), layers=[LAYER])[LAYER]
        structure = autocorrelation_structure(factors)
        tau = torch.linalg.eigvalsh(factors.output_hessian.double()).flip(0).cpu()
        inputs[f"epoch {epoch}"] = structure.eigenvalues.double().cpu()[:TOP]
        outputs[f"epoch {epoch}"] = tau[:TOP]
        values[f"λ₁/λ₂ of E[xxᵀ], epoch {epoch}"] = Value(
            structure.spectral_ratio, f"(v₁·Ê[x])² {structure.alignment:.4f}"
        )
        values[f"share of tr E[M] in its top c, epoch {epoch}"] = float(
            tau[: data.classes].sum() / tau.sum()
        )
    if trained.train is not None:
        values["right on the training data"] = trained.train.accuracy
    return Result(values, (_picture(inputs, outputs),))


def derive(values: dict[str, float], numbers: object) -> dict[str, float]:
    """The smallest number along the training: what "always" means."""
    found = {}
    for start in ("λ₁/λ₂ of E[xxᵀ]", "share of tr E[M] in its top c"):
        own = [value for name, value in values.items() if name.startswith(f"{start}, epoch")]
        if own:
            found[f"{start}, smallest"] = min(own)
    return found


def _picture(inputs: dict[str, Tensor], outputs: dict[str, Tensor]) -> Picture:
    panels = tuple(
        curves(title, "index", "eigenvalue", spectra, yscale="log")
        for title, spectra in (("E[xxᵀ]", inputs), ("E[M]", outputs))
    )
    caption = (
        f"Top eigenvalues of the factors of {LAYER} along training (Wu et al. 2020, fig. 18, 19)."
    )
    return Picture("trajectory", caption, panels)
