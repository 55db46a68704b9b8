"""How close the second moment of each layer's inputs is to rank one (Wu et al. 2020, sec. 4.3)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from curvescope.figures.model import Curve, Panel, Picture
from curvescope.layers import kind_of
from curvescope.networks import network
from curvescope.problem import Problem
from curvescope.structure.autocorrelation import autocorrelation_structure
from curvescope.structure.factors import kronecker_factors
from curvescope.studies.networks import Group, Images
from curvescope.studies.run import Result, Run, Value
from curvescope.studies.wu2020.layers import spread

KINDS = {"fc": "fully connected", "conv": "convolutional"}
DOMINANCE, PRODUCT = "‖E[x]E[x]ᵀ‖/‖Σ‖", "|v₁·Ê[x]|"
EIGENVALUES = 20


def run(run: Run) -> Result:
    """Look at the inputs of all layers of each network, and at first layers of untrained ones."""
    values: dict[str, float | Value] = {}
    numbers, shown, dominances, bounded = {}, [], [], []
    for key, title in run["networks"].items():
        layers = inputs(run, run.networks(key))
        values |= by_kind(layers, title)
        if key in run.get("by_layer", ()):
            values |= by_layer(layers, title)
        numbers[title] = {layer: found["structure"].tolist() for layer, found in layers.items()}
        if key in run["drawn"]:
            shown.append(_curve(layers, title))
            later = torch.cat([found["structure"] for found in layers.values()][1:])
            dominances.append(later[:, 2].min())
            bounded.append(later[:, 1] >= later[:, 2])
    for title, (name, data, pixels) in run.get("first", {}).items():
        layer, structure = first_layer(run, name, data, pixels)
        values[f"{DOMINANCE}, {title}, {layer}"] = float(structure[2])
        values[f"{PRODUCT}, {title}, {layer}"] = float(structure[0].sqrt())
    values[f"smallest {DOMINANCE} behind a ReLU"] = float(torch.stack(dominances).min())
    values[f"share of layers with λ₁/λ₂ ≥ {DOMINANCE}"] = float(torch.cat(bounded).double().mean())
    return Result(values, (_picture(shown),), numbers)


def inputs(run: Run, group: Group) -> dict[str, Mapping[str, Tensor]]:
    """By layer, ``structure: [models, 3]`` (alignment, λ₁/λ₂, dominance) and ``eigenvalues``."""

    def compute() -> dict[str, Tensor]:
        run.tell(f"{group.name}, {group.description.images.data}: inputs of all layers")
        loss = group.description.recipe.loss or "cross_entropy"
        found: dict[str, list[Tensor]] = {}
        for model in group.models:
            problem = Problem(model, group.few.batches(2500), loss=loss)
            # only the inputs are looked at: one drawn label is enough for the other factor
            drawn = kronecker_factors(problem, draws=1, generator=run.generator())
            for layer, factors in drawn.items():
                s = autocorrelation_structure(factors)
                numbers = [s.alignment, s.spectral_ratio, s.dominance]
                found.setdefault(f"{layer} structure", []).append(
                    torch.tensor(numbers, dtype=torch.float64)
                )
                top = s.eigenvalues[:EIGENVALUES].double().cpu()
                found.setdefault(f"{layer} eigenvalues", []).append(top)
        return {name: torch.stack(each) for name, each in found.items()}

    parts = run.once(f"inputs-{group.key.partition('/')[2]}", compute)
    layers = [name for name, module in group.models[0].named_modules() if kind_of(module)]
    return {
        layer: {name: parts[f"{layer} {name}"].cpu() for name in ("structure", "eigenvalues")}
        for layer in layers
    }


def by_kind(layers: Mapping[str, Mapping[str, Tensor]], title: str) -> dict[str, float | Value]:
    """A row of tables 6 to 8: means over models and layers, without the network's first layer."""
    values: dict[str, float | Value] = {}
    for kind in KINDS:
        chosen = [layer for layer in list(layers)[1:] if layer.startswith(kind)]
        if chosen:
            rows = torch.cat([layers[layer]["structure"] for layer in chosen])
            values[f"(v₁·Ê[x])², {title}, {kind}"] = spread(rows[:, 0])
            values[f"λ₁/λ₂, {title}, {kind}"] = spread(rows[:, 1])
    return values


def by_layer(layers: Mapping[str, Mapping[str, Tensor]], title: str) -> dict[str, float | Value]:
    """Rows of the first version's tables 6 to 8: means over models, layer by layer."""
    values: dict[str, float | Value] = {}
    for layer, found in layers.items():
        values[f"{DOMINANCE}, {title}, {layer}"] = spread(found["structure"][:, 2], "networks")
        products = found["structure"][:, 0].sqrt()
        values[f"{PRODUCT}, {title}, {layer}"] = spread(products, "networks")
    return values


def first_layer(run: Run, name: str, data: str, pixels: str) -> tuple[str, Tensor]:
    """Alignment, λ₁/λ₂, dominance of a network's first inputs, which its weights do not change."""
    images = Images(data, pixels=pixels, samples=run.get("pixels"))  # type: ignore[arg-type]

    def compute() -> dict[str, Tensor]:
        run.tell(f"first layer of {name}, {data}")
        found = images.load(root=run.root, seed=run.seed, device=run.device)
        whole = network(name, found.input_shape, found.classes)
        layer = whole.get_submodule(_first(whole))
        if isinstance(layer, nn.Conv2d):
            rest = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(layer.out_channels, 2)]
            model = nn.Sequential(layer, *rest)
        else:
            model = nn.Sequential(nn.Flatten(), layer)
        named = OrderedDict((f"{i}", module) for i, module in enumerate(model))
        place = next(key for key, module in named.items() if module is layer)
        labels = torch.zeros_like(found.y)
        problem = Problem(nn.Sequential(named).to(run.device), (found.X, labels), batch_size=2500)
        drawn = kronecker_factors(problem, layers=[place], draws=1, generator=run.generator())
        s = autocorrelation_structure(drawn[place])
        numbers = [s.alignment, s.spectral_ratio, s.dominance]
        return {"structure": torch.tensor(numbers, dtype=torch.float64)}

    shape = (1, 28, 28) if data.startswith("mnist") else (3, 32, 32)
    layer = _first(network(name, shape, 10))
    return layer, run.once(f"first-{name.replace('^', 'x')}-{data}", compute)["structure"].cpu()


def _first(model: nn.Module) -> str:
    return next(name for name, module in model.named_modules() if kind_of(module))


def _curve(layers: Mapping[str, Mapping[str, Tensor]], title: str) -> Curve:
    values = list(layers.values())[1]["eigenvalues"].mean(0)
    return Curve.of(title, None, values / values[0])


def _picture(shown: list[Curve]) -> Picture:
    panel = Panel(
        title="inputs of the second layer", xlabel="index",
        ylabel="eigenvalue of E[xxᵀ] over the largest", curves=tuple(shown), yscale="log",
    )  # fmt: skip
    caption = (
        "Behind a ReLU the second moment of a layer's inputs is close to rank one (Wu et al. 2020, "
        "tables 6 and 7; first version, fig. 7): its eigenvalues over the largest."
    )
    return Picture("spectra", caption, (panel,), columns=1)
