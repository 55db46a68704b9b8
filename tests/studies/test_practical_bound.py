"""The entries of PP at smoke scale: sound outcomes, and facts that hold at any size."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
from scipy.stats import kendalltau

from curvescope import io
from curvescope.flatness.ranks import kendall
from curvescope.networks import network
from curvescope.studies.entry import Entry, Outcome, Settings
from curvescope.studies.flatness import by_network, weight_decay
from curvescope.studies.practical_bound import ENTRIES
from tests.studies.soundness import assert_sound

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
    found = outcome("regularizer")
    (ratio,) = [row.ours for row in found.rows if row.what.startswith("tr G with")]
    assert 0 < ratio < 0.9
    (cost,) = [row.ours for row in found.rows if row.what.startswith("an epoch in plain epochs")]
    assert cost > 0.5
    start, (_, penalized) = found.numbers["start"], list(found.numbers.values())[1:]
    assert penalized["η"] * start["trace"] / start["loss"] == pytest.approx(0.1, rel=0.05)


def test_the_tables_columns_belong_to_the_solutions(tmp_path: Path) -> None:
    settings = Settings("smoke", tmp_path)
    found = NAMES["tables"].run(settings)
    (ours,) = found.numbers.values()
    train, test = weight_decay.data(settings, by_network.CNN)
    for i, decay in enumerate(("0", "0.0001", "0.0005")):
        file = tmp_path / f"flatness-cnn-weight-decay-{decay}-smoke.safetensors"
        weights = {k.removeprefix("seed0."): v for k, v in io.read_tensors(file)[0].items()}
        model = network("LeNet5", (1, 28, 28), 10).eval()
        model.load_state_dict(weights)
        right = [(model(d.X).argmax(1) == d.y).float().mean() for d in (train, test)]
        assert ours["ΔE, points"][i] == pytest.approx(100 * float(right[0] - right[1]), abs=1e-4)
        norm = sum(float(w.square().sum()) for w in weights.values())
        size = sum(w.numel() for w in weights.values())
        assert ours["a"][i] == pytest.approx(size * ours["tr H / P"][i] + norm / 2, rel=1e-5)
    orders = {row.what.split()[-3]: row.ours for row in found.rows if "Kendall" in row.what}
    for column, tau in orders.items():
        assert tau == pytest.approx(kendalltau(ours[column], ours["ΔL"]).statistic)
    assert set(orders) == {"a", "‖H‖"}


def test_pps_own_tables_have_the_orders_that_it_claims() -> None:
    for study in by_network.STUDIES:
        printed = study.printed
        assert kendall(printed.metric, printed.loss_gap) == 1
        assert kendall(printed.largest, printed.loss_gap) == -1


def test_a_light_penalty_lowers_the_trace_and_is_compared_seed_by_seed() -> None:
    found = outcome("regularizer-wide")
    trainings = found.numbers["trainings"]
    assert [(t["weight"], t["seed"]) for t in trainings] == [(0, 0), (1e-4, 0), (0, 1), (1e-4, 1)]
    (better,) = [row.ours for row in found.rows if row.what.startswith("test accuracy with")]
    pairs = zip(trainings[::2], trainings[1::2], strict=True)
    own = [100 * (b["test"]["accuracy"] - a["test"]["accuracy"]) for a, b in pairs]
    assert better == pytest.approx(sum(own) / 2)
    (lower,) = [row.ours for row in found.rows if row.what.startswith("tr G with")]
    assert 0 < lower < 1.2
