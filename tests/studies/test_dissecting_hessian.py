"""The entries of DH at smoke scale: sound outcomes, and numbers against references."""

from __future__ import annotations

import pytest

from tests.studies.dissecting import NAMES, outcome, row, settings
from tests.studies.soundness import assert_sound

OTHERS = {"table-9"}  # has tests of its own


@pytest.mark.parametrize("name", sorted(NAMES.keys() - OTHERS))
def test_an_outcome_is_finite_and_can_be_saved(name: str) -> None:
    if name == "clustering":
        pytest.importorskip("sklearn")
    found = outcome(name)
    assert NAMES[name].scales == ("smoke", "small", "paper")
    assert_sound(found)
    assert all(note.endswith(".") for note in found.notes)


def test_logit_gradients_cluster_by_logit_at_the_start() -> None:
    pytest.importorskip("sklearn")
    by_logit, by_class = (
        row("clustering", f"Γ at initialization: variance between {kind}").ours
        for kind in ("logits", "classes")
    )
    assert by_logit > 0.5 > by_class


def test_training_learns_and_is_not_repeated() -> None:
    found = outcome("training")
    (picture,) = found.pictures
    losses = [curve for curve in picture.panels[0].curves if curve.color == 0]
    assert len(losses) == 2
    assert all(curve.y[-1] < curve.y[0] for curve in losses)
    assert all(0.1 <= row.ours <= 1 for row in found.rows if row.what.startswith("F-200^2"))
    folders = sorted((settings().work / "training").glob("F-24*"))
    before = [(folder / "weights" / "final.safetensors").stat().st_mtime_ns for folder in folders]
    assert NAMES["training"].run(settings()) == found
    after = [(folder / "weights" / "final.safetensors").stat().st_mtime_ns for folder in folders]
    assert before == after
    assert len(before) == 2
