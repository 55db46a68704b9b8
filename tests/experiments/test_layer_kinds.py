"""Every kind of layer that has a closed form is looked into by ``analyze``."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from curvescope.experiments.analyze import analyze, choose_layers
from curvescope.experiments.stages.context import Settings
from curvescope.problem import Problem

NETWORKS = {
    "Conv1d": ((2, 7), lambda: nn.Conv1d(2, 3, 3, padding=1), 3 * 7),
    "Conv1d-groups": ((2, 7), lambda: nn.Conv1d(2, 4, 3, groups=2), 4 * 5),
    "Conv2d": ((2, 4, 4), lambda: nn.Conv2d(2, 3, 3), 3 * 4),
    "Conv3d": ((1, 3, 3, 3), lambda: nn.Conv3d(1, 2, 2), 2 * 8),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_analyze_looks_into_convolutions_of_every_dimension(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    shape, layer, features = NETWORKS[name]
    model = nn.Sequential(layer(), nn.ReLU(), nn.Flatten(), nn.Linear(features, 3))
    X = torch.randn(9, *shape)
    problem = Problem(model, (X, torch.arange(9) % 3))
    assert choose_layers(problem, None) == ("0", "3")
    settings = Settings(steps=4, trace_probes=8, layer_pairs=4)
    run = analyze(problem, tmp_path / "run", seed=0, settings=settings)
    assert run.complete
    stages = {path.name for path in (tmp_path / "run" / "stages").iterdir()}
    for kind in ("layer", "classes"):
        assert any(stage.startswith(f"{kind}-0") for stage in stages), stages
