"""What does not apply is left out for good; what failed on a day is tried again."""

from __future__ import annotations

import shutil
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from curvescope.data import dataset
from curvescope.errors import Inapplicable, MemoryLimitError
from curvescope.experiments.analyze import analyze
from curvescope.experiments.configuration import Settings
from curvescope.experiments.stages import class_layers, class_structure
from curvescope.experiments.stages import layers as layer_stage
from curvescope.experiments.stages.class_structure import ClassFindings
from curvescope.experiments.stages.overview import Overview
from curvescope.experiments.stages.plan import stage_name
from curvescope.experiments.store import Finding, RunDirectory
from curvescope.networks import network
from curvescope.operators.gram import GramForm
from curvescope.problem import Problem
from curvescope.record import memory
from curvescope.record.extended import class_directions
from curvescope.structure.layer_comparison import LayerComparison

SMALL = Settings(steps=6, probes=4, trace_probes=8, outliers=3, layer_pairs=4, class_rows=200)


def problem(model: nn.Module, classes: int = 3) -> Problem:
    g = torch.Generator().manual_seed(0)
    X = torch.randn(24, 4, generator=g, dtype=torch.float64)
    return Problem(model.double(), (X, torch.arange(24) % classes))


@pytest.mark.parametrize(
    ("module", "name", "stage"),
    [
        (layer_stage, "kronecker_factors", "layer-0"),
        (class_structure, "class_dual", "classes"),
        (class_layers, "layer_statistics", "classes-0"),
        (class_layers, "layer_approximations", "classes-0"),
    ],
)
def test_a_lack_of_memory_is_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, stage: str
) -> None:
    def does_not_fit(*arguments: object, **options: object) -> None:
        raise MemoryLimitError("GramForm", "the Gram matrix does not fit")

    whole = problem(nn.Sequential(nn.Linear(4, 3)))
    with monkeypatch.context() as patch:
        patch.setattr(module, name, does_not_fit)
        with pytest.raises(MemoryLimitError, match="does not fit"):
            analyze(whole, tmp_path, seed=0, settings=SMALL)
    assert stage not in RunDirectory(tmp_path).stages
    run = analyze(whole, tmp_path, seed=0, settings=SMALL)
    assert run.complete
    assert run.stage(stage, Any).result["left_out"] == ""


def test_the_gram_matrix_says_that_it_lacks_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free", lambda device: 10)
    with pytest.raises(MemoryLimitError, match="the Gram matrix does not fit"):
        GramForm(problem(nn.Sequential(nn.Linear(4, 3))), class_directions).matrix()


class Twice(nn.Module):
    """One layer that is used twice, which has no Kronecker factors."""

    def __init__(self) -> None:
        super().__init__()
        self.again, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.again(torch.tanh(self.again(x)))))


def test_what_does_not_apply_is_left_out_with_its_reason(tmp_path: Path) -> None:
    run = analyze(problem(Twice()), tmp_path, seed=0, settings=SMALL)
    assert run.complete
    finding = run.result("layer-again", Finding[LayerComparison])
    assert (finding.subject, finding.value) == ("again", None)
    assert "used more than once" in finding.left_out
    assert run.result("layer-last", Finding[LayerComparison]).value is not None


def test_text_has_no_class_structure(tmp_path: Path) -> None:
    data = dataset("python-topics-T16")
    text = Problem(network("GPT-1x32", 16, data.classes), (data.X[:6], data.y[:6]))
    run = analyze(text, tmp_path, seed=0, layers=["q1"], settings=SMALL)
    assert run.complete
    for stage in ("classes", "classes-q1"):
        left_out = run.stage(stage, Any).result["left_out"]
        assert left_out == (
            "class structure: labels at several positions of a sample need classes to put them "
            "into, got 16 positions; give classes, a number of most frequent labels or a map from "
            "labels to classes"
        )
    assert run.result("overview", Overview).fits["train"].samples == 96


def test_a_loss_without_class_structure_is_left_out(tmp_path: Path) -> None:
    def none(*arguments: object, **options: object) -> None:
        raise Inapplicable("class_dual", "needs at least two classes")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(class_structure, "class_dual", none)
        run = analyze(problem(nn.Sequential(nn.Linear(4, 3))), tmp_path, seed=0, settings=SMALL)
    assert (
        run.result("classes", Finding[ClassFindings]).left_out
        == "class_dual: needs at least two classes"
    )


# Names of stages ------------------------------------------------------------------------------

NAMES = (
    "", "~", "model", "a b", "a_b", "a~20~b", "a~b", "A b", "ä", "a/b", "../a", "a\\b",
    "a\n", "a\0",
    "fc.1", "fc_1", "x" * 121, "x" * 122, "x" * 300, "ä" * 60, "ä" * 61,
)  # fmt: skip


def test_no_two_layers_share_a_stage() -> None:
    stages = [stage_name("layer", name) for name in NAMES]
    assert len(set(stages)) == len(NAMES)
    for stage in stages:
        assert len(stage) < 200
        assert Path(stage).name == stage


def test_layers_with_alike_names_are_all_looked_into(tmp_path: Path) -> None:
    layers = OrderedDict(
        zip(("a b", "a_b", "x" * 230), [nn.Linear(4, 4) for _ in range(3)], strict=True)
    )
    model = nn.Sequential(OrderedDict([*layers.items(), ("last", nn.Linear(4, 3))]))
    run = analyze(problem(model), tmp_path / "run", seed=0, settings=SMALL, classes=False)
    found = {
        run.result(name, Finding[LayerComparison]).subject
        for name in run.stages
        if name.startswith("layer-")
    }
    assert found == {*layers, "last"}
    shutil.rmtree(tmp_path / "run")
