"""The top of the full Hessian from its full output Hessian and mean inputs (Wu et al. 2020, B)."""

from __future__ import annotations

import torch
from torch import Tensor

from curvescope.figures.model import Panel, Picture
from curvescope.operators.hessian import Hessian
from curvescope.spectra.eigensolver import eigenpairs
from curvescope.structure.full_hessian import full_hessian_approximation
from curvescope.structure.overlaps import compare_eigenpairs
from curvescope.studies.networks import Group
from curvescope.studies.run import Result, Run, Value
from curvescope.studies.wu2020.layers import spread
from curvescope.studies.wu2020.panels import true_and_approximate
from curvescope.training import evaluate

TOP = 9
"""c − 1."""


def run(run: Run) -> Result:
    """Compare at the minimum, by depth."""
    values: dict[str, float | Value] = {}
    numbers, shown = {}, list[Panel]()
    for key, title in run["networks"].items():
        group = run.networks(key)
        true, approximate, share = compare(run, group, run["pairs"])
        relative = approximate / true
        error = (relative[:, :TOP] - 1).abs().mean(1)
        values[f"{title}: overlap of the top {TOP}"] = spread(share[:, TOP - 1], "networks")
        values[f"{title}: overlap of all over that of the top {TOP}"] = spread(
            share[:, -1] / share[:, TOP - 1], "networks"
        )
        values[f"{title}: λ₁ by eq. 51 over the true one"] = spread(relative[:, 0], "networks")
        values[f"{title}: mean relative error of the top {TOP} eigenvalues"] = spread(
            error, "networks"
        )
        right = [evaluate(model, group.few).accuracy for model in group.models]
        values[f"{title}: right on the training data"] = spread(right, "networks")
        shown += true_and_approximate(true, approximate, share, title=title, label="approximated")
        numbers[title] = {"true": true.tolist(), "approximate": approximate.tolist()}
    caption = (
        "Top eigenvalues σ_i‖w_i‖² and eigenspace from the full output Hessian and mean inputs, "
        "beside those of the full Hessian (Wu et al. 2020, fig. 2c, 2d, 8)."
    )
    return Result(values, (Picture("full", caption, tuple(shown)),), numbers)


def compare(run: Run, group: Group, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenvalues, approximate ones and overlaps: ``[models, k]`` each."""

    def compute() -> dict[str, Tensor]:
        found = []
        for place, model in enumerate(group.models):
            run.tell(f"{group.name}: {k} eigenpairs of the full Hessian, network {place + 1}")
            problem = group.problem(model)
            pairs = eigenpairs(Hessian(problem), k, tol=1e-4, generator=run.generator(place))
            found.append(compare_eigenpairs(pairs, full_hessian_approximation(problem, k)))
        return {
            name: torch.stack([getattr(each, name).double().cpu() for each in found])
            for name in ("true", "approximate", "overlap")
        }

    parts = run.once(f"full-{group.key.partition('/')[2]}", compute)
    true, approximate, share = (parts[n].cpu() for n in ("true", "approximate", "overlap"))
    return true, approximate, share
