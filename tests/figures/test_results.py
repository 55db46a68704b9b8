"""Every kind of result has a picture that shows its numbers; what has none is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import curvescope as cs
from curvescope.certificates.methods import posterior_method
from curvescope.errors import CurvescopeError
from curvescope.figures.results import picture
from curvescope.structure.clustering import Embedding
from curvescope.structure.correspondences import SingularStructure

pytest.importorskip("matplotlib")


def g() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture(scope="module")
def problem() -> cs.Problem:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    return cs.Problem(model, (torch.randn(30, 4).double(), torch.randint(3, (30,))))


def test_a_measure_shows_its_density_and_what_was_taken_out(problem: cs.Problem) -> None:
    measure = cs.spectral_measure(cs.Hessian(problem), steps=10, probes=3, deflate=2, generator=g())
    panel = picture(measure).panels[0]
    curve = measure.density(640)
    density, marks = panel.curves
    assert density.x == pytest.approx(curve.grid.tolist(), rel=1e-5)
    seen = torch.tensor(density.y) > panel.ylim[0]
    assert torch.tensor(density.y)[seen].tolist() == pytest.approx(
        curve.values[seen].tolist(), rel=1e-4
    )
    assert density.high == pytest.approx(curve.band()[1].tolist(), rel=1e-4)
    assert marks.kind == "marks"
    assert list(marks.x) == pytest.approx(measure.outliers.tolist(), rel=1e-5)


def test_matrices_share_axes_and_their_colors(problem: cs.Problem) -> None:
    matrices = {"H": cs.Hessian(problem), "G": cs.GaussNewton(problem)}
    measures = {
        name: cs.spectral_measure(A, steps=8, generator=g()) for name, A in matrices.items()
    }
    figure = cs.plot(measures, title="Two spectra")
    assert len(figure.axes) == 1
    labels = [line.get_label() for line in figure.axes[0].lines]
    assert labels[:2] == ["H", "G"]
    assert figure.get_suptitle() == "Two spectra"
    exact = {name: cs.exact_spectrum(A) for name, A in matrices.items()}
    assert len(cs.plot(exact).axes) == 1


def test_the_alternate_axis_has_the_same_mass(problem: cs.Problem) -> None:
    """The density of the logarithm, per decade, integrates to one over decades."""
    measure = cs.spectral_measure(cs.GaussNewton(problem), steps=12, generator=g())
    other = picture(measure).panels[0].alternate
    assert other is not None
    x, y = (torch.tensor(values).double() for values in (other.curves[0].x, other.curves[0].y))
    assert float(torch.trapezoid(y, x.log10())) == pytest.approx(1.0, abs=0.03)


def test_eigenpairs_with_their_residuals(problem: cs.Problem) -> None:
    pairs = cs.eigenpairs(cs.Hessian(problem), 3, generator=g())
    (curve,) = picture(pairs).panels[0].curves
    assert list(curve.y) == pytest.approx(pairs.values.tolist(), rel=1e-5)
    assert list(curve.high) == pytest.approx((pairs.values + pairs.residuals).tolist(), rel=1e-5)


def test_bounds_of_ritz_values() -> None:
    bounds = cs.spectra.lanczos_bounds(torch.tensor([2.0, 1.0, 0.0]), [2, 3], cosines=(0.6, 0.8))
    (panel,) = picture(bounds).panels
    largest, smallest = panel.curves
    assert largest.x == (2.0, 3.0)
    assert largest.y == pytest.approx([(2 - 1.604938) / 2, (2 - 1.987697) / 2], rel=1e-4)
    assert smallest.y[0] == pytest.approx(0.75**2 / 9, rel=1e-4)


def test_structure(problem: cs.Problem) -> None:
    factors = cs.kronecker_factors(problem, layers="0", bias=False)["0"]
    true = cs.eigenpairs(cs.Hessian(problem).block("0.weight"), 4, generator=g())
    compared = cs.structure.compare_eigenpairs(true, factors.operator().top(4))
    values, overlap = picture(compared).panels
    assert list(values.curves[0].y) == pytest.approx(compared.true.tolist(), rel=1e-5)
    assert list(overlap.curves[0].y) == pytest.approx(compared.overlap.tolist(), rel=1e-5)
    corr = cs.correspondence(true, torch.eye(4).double(), side="input")
    image = picture(corr).panels[0].image
    assert image is not None
    assert list(image.values[0]) == pytest.approx(corr.matrix[0].tolist(), rel=1e-5, abs=1e-12)
    structure = cs.structure.autocorrelation_structure(factors)
    assert f"{structure.alignment:.4g}" in picture(structure).panels[0].title
    overlaps = cs.structure.pairwise_overlap([torch.eye(3), torch.eye(3)[:, [1, 0, 2]]])
    assert picture(overlaps).panels[0].curves[0].y == pytest.approx(overlaps.mean.tolist())
    singular = SingularStructure(torch.ones(3, 1), torch.tensor([1.0, 0.9, 0.8]))
    assert picture({"fc1": singular, "fc2": singular}).panels[1].title.startswith("fc2: ")


def test_classes(problem: cs.Problem) -> None:
    found = cs.structure.attribute_outliers(problem)
    panel = picture(found).panels[0]
    drawn = sum(len(curve.x) for curve in panel.curves if curve.kind == "points")
    shown = found.values[found.values > 1e-10 * found.values[0]]  # zeros have no logarithm
    assert drawn == len(shown) > 3
    statistics = cs.layer_statistics(problem)["0"]
    features, errors = picture(statistics).panels
    assert features.title == "0: features"
    assert errors.curves[0].y[0] == pytest.approx(float(statistics.errors.total[0]), rel=1e-5)
    split = cs.structure.hessian_split(problem, generator=g())
    assert [curve.label for curve in picture(split).panels[0].curves] == ["H", "G", "E"]
    embedding = Embedding(torch.rand(3, 3, 2), torch.rand(3, 2), torch.rand(3, 2))
    assert len(picture(embedding).panels[0].curves) == 4  # three groups and their centers


def test_a_certificate_ends_at_its_bound(problem: cs.Problem) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    start = {name: p.clone() for name, p in model.state_dict().items()}
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1)
    data = (torch.randn(40, 4), torch.randint(3, (40,)))
    made = cs.certify(
        model, start, data, generator=g(), method=posterior_method("local", epochs=3), slack=0.05
    )
    panels = picture(made).panels
    assert [panel.title for panel in panels[:3]] == ["bound", "error", "KL(Q‖P)"]
    assert panels[0].curves[-1].y[0] == pytest.approx(made.bound, rel=1e-5)
    assert [panel.title for panel in panels[3:]] == [block.name for block in made.layout]
    shown = [axes for axes in cs.plot(made).axes if axes.axison]
    assert len(shown) == len(panels)


def test_on_axes_of_somebody_else(problem: cs.Problem) -> None:
    from matplotlib.figure import Figure

    left, right = Figure().subplots(1, 2)
    pairs = cs.eigenpairs(cs.Hessian(problem), 3, generator=g())
    assert cs.plot(pairs, axes=right) is right.get_figure()
    assert right.get_ylabel() == "eigenvalue"
    assert not left.lines
    compared = cs.structure.compare_eigenpairs(pairs, pairs)
    with pytest.raises(CurvescopeError, match="has 2 panels; leave axes out"):
        cs.plot(compared, axes=left)


def test_what_has_no_picture_is_named() -> None:
    with pytest.raises(CurvescopeError, match="no picture of a dict_keys; there is one of"):
        cs.plot({}.keys())
    with pytest.raises(CurvescopeError, match="nothing to draw in an empty mapping"):
        cs.plot({})
