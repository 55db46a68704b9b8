"""The top eigenspace of each output Hessian beside ``R(S)∖{S·1}`` (Wu et al. 2020, H.4)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from curvescope.figures.model import Curve, Panel, Picture
from curvescope.problem import Problem
from curvescope.structure.factors import KroneckerFactors, kronecker_factors
from curvescope.structure.output_hessian import (
    independent_output_hessian,
    later_weights,
    output_hessian_theory,
)
from curvescope.structure.overlaps import overlap
from curvescope.studies.networks import Group
from curvescope.studies.run import Result, Run, Value
from curvescope.studies.wu2020 import autocorrelation
from curvescope.studies.wu2020.layers import spread
from curvescope.training import evaluate

LAYERS = ("fc1", "fc2", "fc3")


def run(run: Run) -> Result:
    """Look at the fully connected layers of each network, trained and before; at some's inputs."""
    values: dict[str, float | Value] = {}
    shown: dict[str, list[Curve]] = {}
    starts = []
    for key, title in run["networks"].items():
        group = run.networks(key)
        found = spaces(run, group)
        for layer, own in zip(LAYERS, found["minimum"].T, strict=True):
            values[f"{title}, {layer}"] = spread(own, "networks")
        if key in run.get("inputs", ()):
            values |= autocorrelation.by_kind(autocorrelation.inputs(run, group), title)
        right = [evaluate(model, group.few).accuracy for model in group.models]
        values[f"right on the training data, {title}"] = spread(right, "networks")
        starts.append(found["start"][:, :2])
        for layer, own in zip(LAYERS[:2], found["independent"].T, strict=False):
            values[f"{title}, {layer}: overlap with M* at initialization"] = spread(own, "networks")
        network, _, rest = title.partition(", ")
        shown.setdefault(network, []).append(Curve.of(rest, (1, 2, 3), found["minimum"].mean(0)))
    values["smallest overlap at initialization"] = spread(torch.cat(starts).amin(1), "networks")
    panels = tuple(
        Panel(
            title=network, xlabel="fully connected layer", ylabel="overlap", curves=tuple(own),
            ylim=(0.0, 1.05),
        )
        for network, own in shown.items()
    )  # fmt: skip
    caption = (
        "Overlap of the top c − 1 eigenspace of E[M] with R(S)∖{S·1} at the minimum, by layer "
        "(Wu et al. 2020, table 10)."
    )
    return Result(values, (Picture("overlap", caption, panels),))


def spaces(run: Run, group: Group) -> dict[str, Tensor]:
    """The overlaps, ``[networks, 3]``, of the trained networks (``minimum``) and before.

    ``independent`` is the overlap with the top of ``M*`` instead (eq. 72), before training.
    """

    def compute() -> dict[str, Tensor]:
        run.tell(f"output Hessians of {group.name}, {group.description.images.data}")
        starts = [network.at_start() for network in group.networks]
        found: dict[str, Tensor] = {}
        for name, models in (("minimum", group.models), ("start", starts)):
            rows, independent = [], []
            for model in models:
                problem = group.problem(model)
                layers = [n for n, _ in model.named_children() if n.startswith("fc")]
                factors = kronecker_factors(problem, layers=layers)
                theory = output_hessian_theory(problem, factors)
                rows.append([theory[layer].overlap for layer in LAYERS])
                independent.append([_with_independent(problem, factors, x) for x in LAYERS])
            found[name] = torch.tensor(rows, dtype=torch.float64)
            found["independent"] = torch.tensor(independent, dtype=torch.float64)
        return found

    parts = run.once(f"spaces-{group.key.partition('/')[2]}", compute)
    return {name: each.cpu() for name, each in parts.items()}


def _with_independent(
    problem: Problem, factors: Mapping[str, KroneckerFactors], layer: str
) -> float:
    """The overlap of the top ``c − 1`` eigenspaces of ``E[M]`` and ``M*``."""
    weights = later_weights(problem)
    A = factors[next(iter(weights))].output_hessian.double().cpu()
    matrices = (
        factors[layer].output_hessian.double().cpu(),
        independent_output_hessian(weights[layer], A),
    )
    tops = [torch.linalg.eigh(M)[1].flip(1)[:, : len(A) - 1].contiguous() for M in matrices]
    return float(overlap(*tops)[-1])


def derive(values: Mapping[str, float], numbers: Mapping[str, Any]) -> dict[str, float]:
    """How the overlap grows from layer to layer, and in how many it is one half or more."""
    titles = {name.rpartition(", ")[0] for name in values if name.endswith(", fc1")}
    rows = [[values[f"{title}, {layer}"] for layer in LAYERS] for title in sorted(titles)]
    if not rows:
        return {}
    every = [value for row in rows for value in row]
    steps = [after - before for row in rows for before, after in pairwise(row)]
    return {
        "least step from a layer to the next": min(steps),
        "share of layers with an overlap of one half or more": sum(v >= 0.5 for v in every)
        / len(every),
    }
