"""Pictures of certificates show the certificates' own numbers."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from curvescope._checks import CurvescopeError
from curvescope.certificates import Certificate, certify, posterior_method
from curvescope.certificates.profile import variance_profile
from curvescope.plots import certificates as plots


@pytest.fixture(scope="module")
def found() -> dict[str, Certificate]:
    g = torch.Generator().manual_seed(0)
    X = torch.randn(200, 6, generator=g)
    y = (X[:, 0] + 0.3 * X[:, 1] > 0).long()
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 1))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=g))
    initial = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    return {
        name: certify(
            model, initial, (X, y), generator=torch.Generator().manual_seed(1), slack=0.02,
            method=posterior_method(name, epochs=6, batch_size=50),
        )
        for name in ("local", "base")
    }  # fmt: skip


def test_variances_are_drawn_in_the_order_of_eigenvalues(found) -> None:
    local = found["local"]
    figure = plots.variances(found, title="T")
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["T 0", "T 2"]
    line = figure.axes[0].lines[0]
    order = local.posterior.curvature[:28].argsort(descending=True)
    expected = local.posterior.variance[:28][order]
    assert line.get_ydata()[:5] == pytest.approx(expected[:5].tolist())  # each place alone
    assert line.get_xdata()[:5] == pytest.approx([1, 2, 3, 4, 5])
    assert figure.axes[0].get_xscale() == "log"


def test_a_profile_averages_ever_longer_runs(found) -> None:
    posterior = found["local"].posterior
    profile = variance_profile(posterior, "0", runs=8)
    assert len(profile.place) <= 8
    assert (profile.place.diff() > 0).all()
    assert (profile.curvature.diff() <= 0).all()
    whole = variance_profile(posterior, "0", runs=1)
    assert whole.variance.item() == pytest.approx(posterior.variance[:28].double().mean().item())
    with pytest.raises(CurvescopeError, match="layer must be one of '0', '2'"):
        variance_profile(posterior, "7")


def test_the_standard_basis_keeps_its_order(found) -> None:
    posterior = found["base"].posterior
    profile = variance_profile(posterior, "2", runs=50)
    assert profile.variance.tolist() == pytest.approx(posterior.variance[28:].tolist())


def test_the_history_ends_at_the_certified_bound(found) -> None:
    figure = plots.history(found, title="t")
    bounds = figure.axes[0].lines
    assert list(bounds[0].get_ydata()) == [point.bound for point in found["local"].history]
    assert list(bounds[1].get_ydata()) == [found["local"].bound]
    assert list(figure.axes[2].lines[1].get_ydata()) == [p.kl for p in found["base"].history]
    assert figure.axes[0].get_title(loc="left") == "t"


def test_the_pieces_of_a_bar_add_up_to_the_bound(found) -> None:
    axes = plots.terms(found).axes[0]
    ends: dict[float, float] = {}
    for bar in axes.patches:
        ends[bar.get_y()] = max(ends.get(bar.get_y(), 0.0), bar.get_x() + bar.get_width())
        assert bar.get_width() >= 0
    assert sorted(ends.values()) == pytest.approx(sorted(c.bound for c in found.values()))
    assert [label.get_text() for label in axes.get_yticklabels()] == ["local", "base"]


def test_misuse_is_one_sentence(found) -> None:
    for function in (plots.variances, plots.history, plots.terms):
        with pytest.raises(CurvescopeError, match="needs at least one certificate"):
            function({})
    bare = dataclasses.replace(found["local"], posterior=None)
    with pytest.raises(CurvescopeError, match="with their posteriors"):
        plots.variances({"bare": bare})
