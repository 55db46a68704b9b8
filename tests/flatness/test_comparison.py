"""Several reports side by side, and the rank correlations behind that."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import curvescope as cs
from curvescope.flatness.comparison import compare_reports
from curvescope.flatness.ranks import chance, kendall, spearman
from curvescope.flatness.report import SharpnessReport, sharpness


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def data(samples: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    X = torch.randn(samples, 5, generator=generator(seed), dtype=torch.float64)
    return X, X[:, :3].argmax(1)


def reports(scales: list[float]) -> dict[str, SharpnessReport]:
    """The same directions at growing scales: the loss falls, and so do all measures of H."""
    found = {}
    (X, y), (Xt, yt) = data(40), data(40, seed=2)
    for scale in scales:
        model = nn.Linear(5, 3, bias=False).double()
        with torch.no_grad():
            model.weight.copy_(scale * torch.eye(3, 5))
        problem = cs.Problem(model, (X, y))
        found[f"x{scale:g}"] = sharpness(problem, test=(Xt, yt), generator=generator())
    return found


def test_comparison_of_runs() -> None:
    compared = compare_reports(reports([3.0, 6.0, 12.0]))
    assert compared.runs == ("x3", "x6", "x12")
    assert len(compared.table["tr G"]) == 3
    correlation = compared.correlation("‖w‖", "test loss")
    assert (correlation.kendall, correlation.spearman) == (-1.0, pytest.approx(-1.0))
    assert correlation.chance == pytest.approx(1 / 3)  # two of the six orders
    assert compared.correlation("tr G", "test loss").kendall == 1.0
    assert "flatter goes with a lower test loss by" in compared.finding("test loss")
    assert "tr G" in compared.finding("test loss").split(";")[0]
    assert compared.finding("test loss").endswith("(chance of such an order: 0.33)")
    assert "nothing can be said" in compared.finding(mode="train")
    assert (
        compared.correlation("tr G", "test error").kendall
        != compared.correlation("tr G", "test error").kendall
    )  # NaN: every run has the same errors


def moved(report: SharpnessReport, loss: float) -> SharpnessReport:
    """The same curvature beside another test loss."""
    assert report.test is not None
    return replace(report, test=replace(report.test, loss=replace(report.test.loss, value=loss)))


def test_the_verdict_is_the_sign_of_the_correlations() -> None:
    runs = reports([3.0, 6.0, 12.0])  # ever flatter
    said = compare_reports(runs).verdict("test loss")
    assert said.startswith(
        "flatter runs have the lower test loss, other than Granziol (2020) finds"
    )
    assert "(Kendall's τ: λ_max(H) +1, tr H +1, ‖H‖_F +1; 3 runs, chance 0.33)" in said
    false_friend = {
        name: moved(r, loss) for (name, r), loss in zip(runs.items(), (1.0, 2.0, 3.0), strict=True)
    }
    said = compare_reports(false_friend).verdict("test loss")
    assert said.startswith("sharper runs have the lower test loss, as Granziol (2020) finds")
    undecided = {
        name: moved(r, loss) for (name, r), loss in zip(runs.items(), (1.0, 3.0, 2.0), strict=True)
    }
    said = compare_reports(undecided).verdict("test loss")
    assert said.startswith("sharpness does not tell which runs have the lower test loss")
    assert compare_reports(runs).verdict() == (
        "all runs have the same test error: nothing can be said"
    )
    assert "nothing can be said" in compare_reports(runs).verdict(mode="train")


def test_comparison_keeps_modes_apart() -> None:
    runs = reports([3.0, 6.0])
    train = {f"{name}, train": replace(r, mode="train") for name, r in runs.items()}
    compared = compare_reports({**runs, **train})
    assert compared.modes == ("eval", "eval", "train", "train")
    assert compared.correlation("tr G", "test loss", mode="train").kendall == 1.0


def test_comparison_refuses_what_does_not_compare() -> None:
    runs = reports([1.0, 2.0])
    larger = nn.Linear(5, 4).double()
    other = sharpness(cs.Problem(larger, data(10)), generator=generator())
    with pytest.raises(cs.CurvescopeError, match="at least two reports, got 1"):
        compare_reports({"a": other})
    with pytest.raises(cs.CurvescopeError, match="same number of parameters, got 15, 24"):
        compare_reports({**runs, "other": other})
    with pytest.raises(cs.CurvescopeError, match="no 'tr X' against 'test loss'"):
        compare_reports(runs).correlation("tr X", "test loss")


def test_rank_correlations_against_scipy() -> None:
    g = generator(5)
    for ties in (False, True):
        a = torch.randn(9, generator=g)
        b = torch.randn(9, generator=g)
        a, b = ((a * 2).round(), (b * 2).round()) if ties else (a, b)
        x, y = a.tolist(), b.tolist()
        assert kendall(x, y) == pytest.approx(stats.kendalltau(x, y).statistic)
        assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic)


def test_the_chance_of_an_order_against_scipy() -> None:
    x, y = [1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 1.0, 3.0, 5.0, 4.0]
    exact = stats.kendalltau(x, y, method="exact").pvalue
    assert chance(x, y) == pytest.approx(exact)
