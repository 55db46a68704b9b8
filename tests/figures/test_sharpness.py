"""The picture of sharpness against generalization shows the numbers of the comparison."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from curvescope.errors import CurvescopeError
from curvescope.figures.draw import draw
from curvescope.figures.sharpness import against_generalization
from curvescope.flatness import Comparison, SharpnessReport, compare_reports, sharpness
from curvescope.problem import Problem

pytest.importorskip("matplotlib")


def report(scale: float, *, test: bool = True) -> SharpnessReport:
    model = nn.Linear(2, 2, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(scale * torch.eye(2))
    data = (torch.tensor([[1.0, 0.2], [0.1, 1.0], [0.4, 0.5]]).double(), torch.tensor([0, 1, 0]))
    g = torch.Generator().manual_seed(0)
    return sharpness(Problem(model, data), test=data if test else None, generator=g)


def compared(scales: tuple[float, ...]) -> Comparison:
    return compare_reports({f"scale {scale:g}": report(scale) for scale in scales})


def test_points_lie_where_the_table_says() -> None:
    found = compared((0.5, 1.0, 2.0))
    picture = against_generalization(found, "test loss", measures=("tr H", "λ_max(H)"))
    assert len(picture.panels) == 2
    for panel, measure in zip(picture.panels, ("tr H", "λ_max(H)"), strict=True):
        assert (panel.xlabel, panel.ylabel) == ("test loss", measure)
        points = [(curve.x[0], curve.y[0]) for curve in panel.curves]
        expected = [
            (pytest.approx(x.value, rel=1e-5), pytest.approx(y.value, rel=1e-5))
            for x, y in zip(found.table["test loss"], found.table[measure], strict=True)
        ]
        assert points == expected
        tau = found.correlation(measure, "test loss").kendall
        assert panel.title == f"τ = {tau:+.2g}"
    assert [curve.label for curve in picture.panels[0].curves] == list(found.runs)
    assert len(draw(picture).axes) == 2


def test_axes_are_logarithmic_where_runs_are_far_apart() -> None:
    near, far = compared((1.0, 1.1)), compared((1.0, 120.0))
    scales = [against_generalization(c, measures=("tr H",)).panels[0].yscale for c in (near, far)]
    assert scales == ["linear", "log"]


def test_what_cannot_be_drawn_is_named() -> None:
    with pytest.raises(CurvescopeError, match="no column 'luck'; columns are λ_max"):
        against_generalization(compared((1.0, 2.0)), "luck")
    blind = compare_reports(
        {name: report(scale, test=False) for name, scale in (("a", 1), ("b", 2))}
    )
    with pytest.raises(CurvescopeError, match="no run has a test error"):
        against_generalization(blind)
