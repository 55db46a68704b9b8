"""The entries of PP at smoke scale: sound outcomes, and facts that hold at any size."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest

from curvescope.catalogue.entry import Entry, Outcome, Settings
from curvescope.catalogue.practical_bound import ENTRIES
from tests.catalogue.soundness import assert_sound

NAMES = {entry.name.split("/")[1]: entry for entry in ENTRIES}


@cache
def outcome(name: str) -> Outcome:
    return NAMES[name].run(Settings("smoke", Path(mkdtemp(prefix="curvescope-"))))


@pytest.mark.parametrize("entry", ENTRIES, ids=list(NAMES))
def test_an_outcome_is_finite_and_can_be_saved(entry: Entry) -> None:
    found = outcome(entry.name.split("/")[1])
    assert entry.scales == ("smoke", "small", "paper")
    assert_sound(found)


def test_the_trace_survives_and_the_squares_do_not() -> None:
    found = outcome("subsampling")
    traces = [row for row in found.rows if row.what.startswith("tr of")]
    assert len(traces) == 4
    assert all(row.agrees for row in traces)
    for entry in found.numbers["studies"]:
        study = entry["study"]
        smallest = min(study["subsamples"], key=lambda s: s["size"])
        assert smallest["square_sum"]["value"] > study["square_sum"]["value"]


def test_the_metric_is_the_sum_of_its_terms() -> None:
    found = outcome("ordering")
    rows = [row.ours for row in found.rows if row.what.startswith("tr H + ½‖w‖², F")]
    for measured, shown in zip(found.numbers["F-100"], rows, strict=True):
        metric, batch = measured["metric"], measured["minibatch"]
        assert shown == pytest.approx(metric["trace"]["value"] + metric["squared_norm"] / 2)
        # Two estimates of one trace: 256 samples and 24 products, 128 samples and a half.
        error = math.hypot(batch["trace"]["stderr"], batch["trace"]["stderr"] / 2**0.5)
        assert abs(batch["trace"]["value"] - metric["trace"]["value"]) <= 4 * error


def test_the_penalty_lowers_the_trace() -> None:
    found = outcome("regulariser")
    (ratio,) = [row.ours for row in found.rows if row.what.startswith("tr G with")]
    assert 0 < ratio < 0.9
    (cost,) = [row.ours for row in found.rows if row.what.startswith("an epoch in plain epochs")]
    assert cost > 0.5
