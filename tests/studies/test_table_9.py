"""DH table 9 at smoke scale: rows that verify and are kept, and the printed numbers."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest

from curvescope import io
from curvescope.certificates import Certificate
from curvescope.certificates.divergence import decimal_upwards
from curvescope.figures.model import Picture
from curvescope.studies.dissecting_hessian.table_9 import ENTRY, ROWS, table
from curvescope.studies.dissecting_hessian.table_9_printed import PRINTED
from curvescope.studies.dissecting_hessian.table_9_rows import row
from curvescope.studies.entry import Outcome, Settings

TOLD: list[str] = []


@cache
def settings() -> Settings:
    return Settings("smoke", Path(mkdtemp(prefix="curvescope-")), tell=TOLD.append)


@cache
def outcome() -> Outcome:
    return ENTRY.run(settings())


def test_every_row_is_a_certificate_that_verifies() -> None:
    found = outcome()
    assert [each.what for each in found.rows] == [key.replace(":", " ") for key in ROWS["smoke"]]
    for each, numbers in zip(found.rows, found.numbers.values(), strict=True):
        certificate = Certificate.from_json(json.loads(json.dumps(numbers["certificate"])))
        assert certificate.verify().passed
        assert certificate.bound == each.ours
        assert certificate.confidence.level == 0.965


def test_ours_says_something_and_random_labels_do_not() -> None:
    bounds = {each.what: each.ours for each in outcome().rows}
    assert bounds["T-10 LOCAL"] < 0.5
    assert bounds["T-10 LOCAL"] < bounds["T-10 BASE"]
    assert bounds["R-10 ITER.M"] >= 0.5


def test_rows_are_kept_and_not_repeated() -> None:
    found = outcome()
    before = len(TOLD)
    again = [row(settings(), key) for key in ROWS["smoke"]]
    assert len(TOLD) == before
    assert [each.certificate.bound for each in again] == [each.ours for each in found.rows]
    lines = table(again).splitlines()
    assert len(lines) == 2 + len(again)
    assert all(line.count("|") == 14 for line in lines)
    assert f"**{decimal_upwards(again[0].certificate.bound, 4)}**" in lines[2]


def test_pictures_show_the_history_and_the_variances() -> None:
    history, variance = outcome().pictures
    certificate = outcome().numbers["T-10:LOCAL"]["certificate"]
    shown = history.panels[0].curves[0]
    assert shown.label == "LOCAL"
    assert shown.y[-1] == pytest.approx(certificate["history"][-1]["bound"], rel=1e-5)
    assert shown.x[-1] == 1.0
    local = next(curve for curve in variance.panels[0].curves if curve.label == "LOCAL")
    assert local.y[0] < local.y[-1]  # least where the eigenvalue is largest (DH fig. 7)
    for picture in (history, variance):
        assert io.decode(Picture, *io.encode(picture)) == picture


def test_the_printed_numbers_are_those_of_table_1() -> None:
    """DH table 1 repeats table 9 to three digits, but for APPR and one BASE (the lower is ours)."""
    table_1 = {
        "T-600": {"BASE": 0.154, "ITER": 0.120, "ITER.M": 0.126},
        "T-1200": {"BASE": 0.175, "ITER": 0.142, "ITER.M": 0.149, "APPR": 0.173},
        "T-300^2": {"BASE": 0.169, "ITER": 0.125, "ITER.M": 0.131},
        "T-600^2": {"BASE": 0.192, "ITER": 0.146, "ITER.M": 0.150},
        "R-600": {"BASE": 0.605, "APPR": 0.565, "ITER(D)": 0.568, "ITER.M": 0.562},
        "T-600_10": {"ITER": 0.213, "ITER.M": 0.223, "APPR": 0.242},
        "T-200^2_10": {"BASE": 0.417, "ITER": 0.215, "ITER.M": 0.273},
    }
    for name, methods in table_1.items():
        for method, bound in methods.items():
            assert PRINTED[name][method][0] == pytest.approx(bound, abs=6e-4)
    rows = [key.split(":") for key in ROWS["paper"] if not key.endswith("LOCAL")]
    assert all(method in PRINTED[name] for name, method in rows)
