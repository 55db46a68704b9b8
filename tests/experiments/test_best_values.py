"""The best known values: exact before converged before estimated, and the same everywhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from curvescope.experiments.analyze import analyze
from curvescope.experiments.best_values import best_values, best_values_of, with_best_values
from curvescope.experiments.demo import column, demonstrate
from curvescope.experiments.quantities import (
    ABSOLUTE,
    FROBENIUS,
    LARGEST,
    LOG_DETERMINANT,
    MEAN,
    QUANTITIES,
    RANK,
    SMALL,
    SMALLEST,
    TRACE,
    Value,
    best,
    end_of_pairs,
)
from curvescope.experiments.stages import sharpness, spectra, summary
from curvescope.experiments.stages.overview import _slope
from curvescope.experiments.stages.spectra import Spectrum
from curvescope.experiments.stages.spectrum_checks import checks, power_sum
from curvescope.experiments.store import RunDirectory
from curvescope.operators.simple import Diagonal
from curvescope.problem import Problem
from curvescope.spectra import eigenpairs, spectral_measure
from curvescope.spectra.estimate import Estimate
from curvescope.spectra.exact import exact_spectrum
from tests.experiments.examples import QUICK, TINY, data, problems, trained
from tests.reference.curvature import Reference
from tests.reference.losses import CrossEntropy


@pytest.fixture(scope="module")
def dense() -> dict[str, Tensor]:
    reference = Reference(trained(), [data()], CrossEntropy())
    H, G = reference.hessian(), reference.gauss_newton()
    return {"H": H, "G": G, "E": H - G}


@pytest.fixture(scope="module")
def measured(finished: RunDirectory) -> dict[str, Spectrum]:
    return spectra.spectra_of(finished)


def of_diagonal(values: Tensor, pairs: int, *, exact: bool = False) -> Spectrum:
    """A spectrum with known eigenvalues, of which so many pairs of largest magnitude were found."""
    A, g = Diagonal(values.double()), torch.Generator().manual_seed(0)
    found = eigenpairs(A, pairs, which="magnitude", tol=1e-8, generator=g)
    measure = spectral_measure(A, steps=20, probes=8, deflate=found, generator=g)
    total = Estimate(float(values.sum()), 0.5, 16, 16)
    norm = Estimate(float(values.double().norm()), 0.5, 16, 16)
    return Spectrum(
        "A", measure, found.residuals, total, norm, exact_spectrum(A) if exact else None,
        Estimate(0.0, 0.0, 0, 0), 0, bool(found.converged), False, None, 2.2e-16, None,
    )  # fmt: skip


# Which value is the best ----------------------------------------------------------------------


def test_exact_beats_converged_beats_estimated_and_the_smaller_error_wins() -> None:
    estimate, finer = Value(1.0, 0.2, "estimate"), Value(1.1, 0.1, "estimate")
    converged, exact = Value(1.2, 0.5, "converged"), Value(1.3)
    assert best([estimate, finer]) is finer
    assert best([finer, converged]) is converged
    assert best([converged, None, exact, finer]) is exact
    assert best([None]) is None
    assert best([Value(2.0, how="at most"), estimate]) is estimate


def test_every_quantity_is_that_of_the_dense_matrices(
    finished: RunDirectory, dense: dict[str, Tensor]
) -> None:
    table = best_values(finished)
    for name, matrix in dense.items():
        values = torch.linalg.eigvalsh(matrix)
        expected = {
            LARGEST: values[-1],
            SMALLEST: values[0],
            TRACE: values.sum(),
            MEAN: values.mean(),
            FROBENIUS: values.norm(),
            ABSOLUTE: values.abs().sum(),
            RANK: values.abs().sum() ** 2 / values.square().sum(),
            SMALL: (values.abs() <= 0.01 * values.abs().max()).double().mean(),
        }
        assert set(QUANTITIES) <= set(table[name])
        for quantity, value in expected.items():
            entry = table[name][quantity]
            assert (entry.how, entry.error) == ("exact", 0.0), (name, quantity)
            assert entry.value == pytest.approx(float(value), rel=1e-6, abs=1e-9), (name, quantity)
    shifted = dense["G"] + torch.eye(len(dense["G"])) / len(data()[1])
    assert table["G"][LOG_DETERMINANT].value == pytest.approx(float(torch.logdet(shifted)))


def test_the_largest_eigenvalue_is_the_algebraic_one() -> None:
    """The pair of largest magnitude is negative: the largest eigenvalue is another one."""
    values = torch.cat([torch.tensor([-9.0, 3.0]), torch.linspace(-1, 1, 60)])
    spectrum = of_diagonal(values, 2)
    assert float(spectrum.measure.outliers[0]) == pytest.approx(-9.0)
    largest, smallest = (end_of_pairs(spectrum, upper=upper) for upper in (True, False))
    assert (largest.how, smallest.how) == ("converged", "converged")
    assert largest.value == pytest.approx(3.0, abs=1e-6)
    assert smallest.value == pytest.approx(-9.0, abs=1e-6)


def test_where_only_magnitudes_are_known_a_bound_is_said_to_be_one() -> None:
    values = torch.cat([torch.tensor([-9.0, -8.0, 3.0]), torch.linspace(-1, 1, 60)])
    largest = end_of_pairs(of_diagonal(values, 2), upper=True)
    assert largest.how == "at most"
    assert largest.value == pytest.approx(8.0)  # 3 is hidden, but nothing above 8 could be
    assert str(largest) == "≤ 8"
    smallest = end_of_pairs(of_diagonal(-values, 2), upper=False)
    assert (smallest.how, str(smallest)) == ("at least", "≥ −8")


def test_a_pair_that_did_not_converge_is_an_estimate() -> None:
    spectrum = replace(of_diagonal(torch.linspace(-1, 5, 60), 2), converged=False)
    assert end_of_pairs(spectrum, upper=True).how == "estimate"


def test_without_a_diagonal_of_E_the_traces_of_H_and_G_are_one_number(
    measured: dict[str, Spectrum],
) -> None:
    """The estimates of H and G differ; what is shown does not, and E has none."""
    report = None
    rough = {name: replace(spectrum, exact=None) for name, spectrum in measured.items()}
    assert rough["H"].trace.value != rough["G"].trace.value
    table = best_values_of(rough, report)
    assert table["H"][TRACE].value == table["G"][TRACE].value
    assert table["H"][TRACE].how == "estimate"
    assert (table["E"][TRACE].value, table["E"][TRACE].how) == (0.0, "exact")
    only_g = {**rough, "G": measured["G"]}
    assert best_values_of(only_g, report)["H"][TRACE].how == "exact"
    # Where E may have a diagonal, its trace is what was measured.
    apart = {name: replace(spectrum, no_diagonal=False) for name, spectrum in rough.items()}
    apart["E"] = replace(apart["E"], trace=Estimate(0.25, 0.125, 16, 16))
    assert str(best_values_of(apart, report)["E"][TRACE]) == "0.25 ± 0.12"


def test_of_two_ways_to_the_trace_of_H_the_finer_one_is_taken() -> None:
    H, G, E = (of_diagonal(torch.linspace(-1, x, 60), 2) for x in (5, 4, 3))
    H, E = (
        replace(H, trace=Estimate(120.0, 9.0, 16, 16)),
        replace(E, trace=Estimate(60.0, 0.3, 16, 16)),
    )
    G = replace(G, trace=Estimate(90.0, 0.4, 16, 16))
    entry = best_values_of({"H": H, "G": G, "E": E}, None)["H"][TRACE]
    assert (entry.value, entry.error, entry.source) == (150.0, pytest.approx(0.5), "tr G + tr E")


def test_a_matrix_of_low_rank_has_the_smallest_eigenvalue_zero() -> None:
    values = torch.cat([torch.zeros(50), torch.linspace(0.1, 2, 10)])
    G = replace(of_diagonal(values, 3), rank=10)
    entry = best_values_of({"G": G}, None)["G"][SMALLEST]
    assert (entry.value, entry.how) == (0.0, "exact")
    assert best_values_of({"G": replace(G, rank=60)}, None)["G"][SMALLEST].how == "at least"


# The same number everywhere -----------------------------------------------------------------


def test_the_results_hold_what_the_tables_show(finished: RunDirectory) -> None:
    report = finished.result("sharpness", sharpness.Sharpness).primary
    assert best_values(finished) == best_values_of(spectra.spectra_of(finished), report)
    noted = finished.stage("summary", Any).result["values"]["H"][TRACE]
    assert str(Value(**noted)) == str(best_values(finished)["H"][TRACE])


def test_a_run_without_its_summary_has_the_same_values(
    finished: RunDirectory, tmp_path: Path
) -> None:
    half = analyze(
        problems()[0], tmp_path, seed=0, settings=QUICK, classes=False, layers=[],
        names={"data": "forty digits"},
    )  # fmt: skip
    whole = best_values(half)
    (half.folder("summary") / "result.json").unlink()
    assert best_values(RunDirectory(tmp_path)) == whole


def test_the_demonstrations_columns_are_the_known_values(tmp_path: Path) -> None:
    run = demonstrate(tmp_path / "demo", seed=0, plan=TINY).runs[0]
    rows = column(run)
    for matrix, row in best_values(run).items():
        for quantity in (LARGEST, SMALLEST, TRACE):
            assert rows[f"{quantity} of {matrix}"] == str(row[quantity])
    assert rows["trace of H"] == rows["trace of G"]
    assert rows["trace of H"].endswith(" exact")
    assert rows["trace of E"] == "0 exact"


def test_a_sharpness_report_takes_the_known_values_over(finished: RunDirectory) -> None:
    report = finished.result("sharpness", sharpness.Sharpness).primary
    rough = replace(
        report.hessian, trace=replace(report.hessian.trace, value=99.0, stderr=3.0, probes=8)
    )
    better = with_best_values(replace(report, hessian=rough), best_values(finished))
    assert better.hessian.trace.stderr == 0.0
    assert better.hessian.trace.value == best_values(finished)["H"][TRACE].value
    assert better.hessian.effective_rank.value == pytest.approx(
        best_values(finished)["H"][RANK].value
    )


# Self-checks that can fail --------------------------------------------------------------------


def failing(found: object) -> list[str]:
    return [check.statement for check in found if not check.passed]  # type: ignore[attr-defined]


def test_every_wrong_number_fails_its_check() -> None:
    values = torch.cat([torch.tensor([30.0, -20.0]), torch.linspace(-2, 1, 98)])
    A, g = Diagonal(values.double()), torch.Generator().manual_seed(0)
    pairs = eigenpairs(A, 2, which="magnitude", tol=1e-8, generator=g)
    for exact in (True, False):
        sound = of_diagonal(values, 2, exact=exact)
        assert failing(checks(sound, pairs)) == []
        wrong_trace = replace(
            sound, trace=replace(sound.trace, value=float(values.sum()) + 30.0, stderr=0.5)
        )
        assert [text[:4] for text in failing(checks(wrong_trace, pairs))] == ["tr A"]
        wrong_norm = replace(
            sound, frobenius=replace(sound.frobenius, value=1.5 * sound.frobenius.value, stderr=0.1)
        )
        assert [text[:5] for text in failing(checks(wrong_norm, pairs))] == ["‖A‖_F"]
    sound = of_diagonal(values, 2, exact=True)
    assert sound.exact is not None
    other = replace(sound, exact=replace(sound.exact, values=sound.exact.values + 1.0))
    assert any("outliers" in text for text in failing(checks(other, pairs)))
    assert any("from the density" in text for text in failing(checks(other, pairs)))


def test_few_probes_leave_the_density_a_check_that_means_something() -> None:
    """Four probes of a matrix with many eigenvalues: the allowance stays at four errors or so."""
    A = Diagonal(torch.linspace(-1, 1, 400).double())
    g = torch.Generator().manual_seed(0)
    number = power_sum(spectral_measure(A, steps=16, probes=4, generator=g), 1)
    assert number.probes > 200


def test_sums_of_traces_are_held_against_the_products_of_H(measured: dict[str, Spectrum]) -> None:
    assert summary._sum_of_traces(measured).passed
    G = measured["G"]
    assert G.exact is not None
    twice = replace(G, exact=replace(G.exact, values=2 * G.exact.values))
    assert not summary._sum_of_traces({**measured, "G": twice}).passed


def test_searched_ends_are_held_against_all_eigenvalues(
    finished: RunDirectory, measured: dict[str, Spectrum]
) -> None:
    report = finished.result("sharpness", sharpness.Sharpness).primary
    searched = replace(report.hessian.largest, bias=1e-5)
    measures = replace(report.hessian, largest=searched)
    assert failing(summary._ends("H", measures, measured["H"])) == []
    wrong = replace(measures, largest=replace(searched, value=1.1 * searched.value))
    (statement,) = failing(summary._ends("H", wrong, measured["H"]))
    assert statement.startswith("λ_max(H) searched for")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_gradient_is_held_against_differences_of_the_loss(dtype: torch.dtype) -> None:
    model, g = torch.nn.Linear(4, 3).to(dtype), torch.Generator().manual_seed(0)
    X, y = torch.randn(30, 4, generator=g).to(dtype), torch.arange(30) % 3
    problem = Problem(model, (X, y))
    gradient = problem.gradient().double()
    assert _slope(problem, gradient).passed
    assert not _slope(problem, 1.1 * gradient).passed
    assert not _slope(problem, gradient.flip(0)).passed
