"""Pictures of layers: what is drawn is what was found."""

from __future__ import annotations

import pytest
import torch

from curvescope.plots import overlap as plots
from curvescope.structure.autocorrelation import AutocorrelationStructure
from curvescope.structure.clustering import Embedding
from curvescope.structure.correspondence import singular_structure
from curvescope.structure.factors import KroneckerFactors
from curvescope.structure.overlap import EigenComparison, pairwise_overlap
from curvescope.structure.prediction import overlap_prediction


def test_overlap_with_its_spread_and_what_was_expected() -> None:
    bases = [torch.linalg.qr(torch.randn(6, 4, generator=_generator(i)))[0] for i in range(3)]
    found = pairwise_overlap(bases)
    A = torch.diag(torch.tensor([10.0, 1.0]))
    M = torch.diag(torch.tensor([3.0, 2.0, 1.5]))
    factors = KroneckerFactors("fc", M, A, A[0], bias=False)
    prediction = overlap_prediction(factors, factors)
    axes = plots.between_models(found, prediction, title="fc").axes[0]
    mean, expected, line = axes.lines
    assert mean.get_ydata().tolist() == pytest.approx(found.mean.tolist())
    assert expected.get_ydata().tolist() == pytest.approx(prediction.curve[:4].tolist())
    assert line.get_xdata() == [3, 3]
    (band,) = axes.collections
    (path,) = band.get_paths()
    top = max(y for x, y in path.vertices.tolist() if x == 2)
    assert top == pytest.approx(float(found.mean[1] + found.std[1]))
    labels = axes.get_legend_handles_labels()[1]
    assert labels == ["3 pairs of models", f"expected: {prediction.verdict}", "m = 3"]


def test_one_pair_without_expectation() -> None:
    axes = plots.between_models(pairwise_overlap([torch.eye(3), torch.eye(3)])).axes[0]
    assert len(axes.lines) == 1
    assert not axes.texts


@pytest.mark.parametrize(("least", "scale"), [(0.5, "log"), (0.0, "linear")])
def test_comparison_chooses_its_axis(least: float, scale: str) -> None:
    values = torch.tensor([2.0, 1.0])
    found = EigenComparison(values, torch.tensor([1.0, least]), torch.tensor([1.0, 0.9]))
    left, right = plots.comparison(found).axes
    assert left.get_yscale() == scale
    assert right.lines[0].get_ydata().tolist() == pytest.approx([1.0, 0.9])


def test_ratios_of_several_layers() -> None:
    flat = torch.eye(2).flatten()[:, None] / 2**0.5  # two equal singular values
    axes = plots.rank_one(
        {"a": singular_structure(flat, 2), "b": singular_structure(torch.eye(4), 2)}
    ).axes[0]
    first, second = (line.get_ydata().tolist() for line in axes.lines)
    assert first == pytest.approx([0.5**0.5])
    assert second == pytest.approx([1.0] * 4)


def test_the_table_of_autocorrelations() -> None:
    layers = {
        name: AutocorrelationStructure(name, 0.999, ratio, 3.0, torch.tensor([ratio, 1.0]))
        for name, ratio in (("fc1", 4.0), ("fc2", float("inf")))
    }
    layers["fc2"] = AutocorrelationStructure("fc2", 1.0, float("inf"), 9.0, torch.tensor([4.0, 0]))
    left, right = plots.autocorrelation(layers).axes
    assert left.lines[0].get_ydata().tolist() == [1.0, 0.25]
    cells = right.tables[0].get_celld()
    assert [cells[row, 2].get_text().get_text() for row in (0, 1, 2)] == ["λ₁/λ₂", "4", "inf"]


def test_the_plane_is_coloured_by_either_index() -> None:
    points = torch.arange(18.0).reshape(3, 3, 2)
    centres = torch.tensor([[0.0, 1], [2, 3], [4, 5]])
    left, right = plots.embedding(Embedding(points, centres, centres + 1), title="Γ").axes
    assert left.lines[0].get_xdata().tolist() == points[:, 0, 0].tolist()  # one logit, all classes
    assert right.lines[0].get_xdata().tolist() == points[0, :, 0].tolist()
    assert right.lines[-1].get_ydata().tolist() == [2.0, 4.0, 6.0]
    assert left.get_title(loc="left") == "Γ, by logit"


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
