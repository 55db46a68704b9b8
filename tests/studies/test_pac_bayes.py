"""PAC-Bayes bounds at smoke scale: rows that verify and are kept; what follows from several."""

from __future__ import annotations

import pytest

from curvescope.studies.catalog import study_named
from curvescope.studies.run import Run
from curvescope.studies.study import Study
from curvescope.studies.wu2020 import pac_bayes


def study() -> Study:
    named = study_named("wu2020/pac-bayes")
    assert named is not None
    return named


@pytest.fixture(scope="module")
def told() -> list[str]:
    return []


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, told: list[str]) -> Run:
    return Run(study(), "smoke", tmp_path_factory.mktemp("work"), tell=told.append)


def test_ours_says_something_and_random_labels_do_not(run: Run) -> None:
    result = study().run(run)
    values = result.values
    assert values["bound, T-10 LOCAL"] < 0.5
    assert values["bound, T-10 LOCAL"] < values["bound, T-10 BASE"]
    assert values["bound, R-10 ITER.M"] >= 0.5
    assert set(result.numbers["T-10 LOCAL"]) == set(pac_bayes.KEPT)


def test_rows_are_certificates_that_are_kept(run: Run, told: list[str]) -> None:
    before = len(told)
    rows = [pac_bayes.row(run, key) for key in pac_bayes.keys(run)]
    assert len(told) == before
    assert [f"{row.name} {row.method}" for row in rows] == [
        "T-10 LOCAL", "T-10 BASE", "R-10 ITER.M", "T-10 BASE, algorithm 1",
    ]  # fmt: skip
    for row in rows:
        assert row.certificate.verify().passed
        assert row.certificate.confidence.level == 0.965
    exact = rows[-1].certificate.request.method
    assert (exact.local, exact.batch_size, exact.rate) == (False, 128, 1e-3)


def test_the_variance_is_least_where_the_eigenvalue_is_largest(run: Run) -> None:
    ours = pac_bayes.row(run, "T-10:LOCAL")
    assert ours.variances[0] < ours.variances[-1]


def test_what_follows_from_several_rows() -> None:
    values = {
        "bound, T-6 BASE": 0.2, "bound, T-6 ITER": 0.15, "bound, T-6 ITER.M": 0.18,
        "bound, T-7 BASE": 0.3, "bound, T-7 ITER": 0.31, "bound, R-6 BASE": 0.6,
        "bound, R-6 ITER": 0.9, "bound, T-600 APPR": 0.145, "bound, T-6 LOCAL": 0.12,
    }  # fmt: skip
    derived = pac_bayes.derive(values, {})
    assert derived["bound of ITER less that of BASE, largest"] == pytest.approx(0.01)
    assert derived["bound of ITER.M over that of ITER, least"] == pytest.approx(1.2)
    assert derived["bound of LOCAL less that of ITER, largest"] == pytest.approx(-0.03)
    assert derived["bound as in table 1, T-600 APPR"] == 0.145
    assert pac_bayes.derive({}, {}) == {}


def test_table_1_is_table_9_but_for_appr() -> None:
    """The two tables of the paper contradict each other in four places, and nowhere else."""
    table_1 = {
        "T-600": {"BASE": 0.154, "ITER": 0.120, "ITER.M": 0.126, "APPR": 0.146},
        "T-1200": {"BASE": 0.175, "ITER": 0.142, "ITER.M": 0.149, "APPR": 0.173},
        "T-300^2": {"BASE": 0.169, "ITER": 0.125, "ITER.M": 0.131, "APPR": 0.142},
        "T-600^2": {"BASE": 0.192, "ITER": 0.146, "ITER.M": 0.150, "APPR": 0.171},
        "R-600": {"BASE": 0.605, "APPR": 0.565, "ITER(D)": 0.568, "ITER.M": 0.562},
        "T-600_10": {"BASE": 0.287, "ITER": 0.213, "ITER.M": 0.223, "APPR": 0.242},
        "T-200^2_10": {"BASE": 0.417, "ITER": 0.215, "ITER.M": 0.273, "APPR": 0.273},
    }
    table_9 = {c.value: c.paper for c in study().criteria if c.cite == "table 9"}
    differ = {
        f"{name} {method}"
        for name, row in table_1.items()
        for method, bound in row.items()
        if abs((table_9[f"bound, {name} {method}"] or 0.0) - bound) > 1.1e-3
    }
    judged = {c.value for c in study().criteria if c.cite == "table 1"}
    assert judged == {f"bound as in table 1, {row}" for row in differ}
