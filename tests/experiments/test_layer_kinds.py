"""Every kind of layer that has a closed form is looked into by ``analyze``."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from curvescope.experiments.analyze import analyze, choose_layers
from curvescope.experiments.stages import layers as stage
from curvescope.experiments.stages.class_layers import ClassLayerFindings
from curvescope.experiments.stages.class_structure import ClassFindings
from curvescope.experiments.stages.context import Settings
from curvescope.experiments.store import Finding
from curvescope.operators.gauss_newton import GaussNewton
from curvescope.problem import Problem
from curvescope.reports.blocks import Text
from curvescope.reports.sections import classes as classes_section
from curvescope.reports.sections import layers as layers_section
from curvescope.structure.layer_comparison import LayerComparison
from tests.transformers_of_ours import LAYERS, made

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


@pytest.mark.parametrize("pooled", [True, False])
def test_analyze_looks_into_every_layer_of_a_transformer(
    pooled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the names that the model has; of labels at every position some are drawn.

    For text the classes are groups of tokens.
    """
    model, data = made(pooled=pooled)
    problem = Problem(model, data)
    assert choose_layers(problem, None) == LAYERS
    monkeypatch.setattr(stage, "_PASSES", 2)
    sharing = "expand" if pooled else "reduce"
    settings = Settings(steps=4, trace_probes=8, layer_pairs=4, sharing=sharing)
    chosen = ("tokens", "ln", "attend", "groups", "head")
    run = analyze(
        problem, tmp_path / "run", seed=0, settings=settings, layers=chosen,
        classes=True if pooled else 2,
    )  # fmt: skip
    assert run.complete
    for layer in chosen:
        finding = run.result(f"layer-{layer}", Finding[LayerComparison])
        assert finding.value is not None, finding.left_out
        assert finding.value.name == layer
        assert finding.value.draws == (None if pooled else 16)
        assert finding.value.sharing == ("expand" if layer == "tokens" else sharing)
    left_out = run.result("classes-tokens", Finding[ClassLayerFindings]).left_out
    assert "embeddings and norms" in left_out
    whole = run.result("classes", Finding[ClassFindings]).value
    head = run.result("classes-head", Finding[ClassLayerFindings]).value
    assert whole is not None
    assert head is not None
    assert whole.attribution.classes == head.classes == 3
    values = torch.linalg.eigvalsh(GaussNewton(problem).dense()).flip(0)[:3].double()
    torch.testing.assert_close(whole.attribution.values[:3], values, rtol=1e-5, atol=1e-8)
    assert (head.factors is None) == (not pooled)
    section = classes_section.build(run)
    assert section is not None
    words = [block.text for block in section.blocks if isinstance(block, Text)]
    assert any("the 2 most frequent labels (" in each for each in words) == (not pooled)
    section = layers_section.build(run)
    assert section is not None
    words = [block.text for block in section.blocks if isinstance(block, Text)]
    assert any("(reduce), in four layers" in each for each in words) == (not pooled)
