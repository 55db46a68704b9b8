"""Stamps: figures know the code that drew them, committed weights what they were trained by."""

from __future__ import annotations

from pathlib import Path

import pytest

from curvescope import figures as drawing
from curvescope import io
from curvescope.identity import file_digest, files
from curvescope.reports import figures

DRAWING = sorted(Path(drawing.__path__[0]).rglob("*.py"))
TRAINED = Path(__file__).parents[2] / "reproductions" / "training"


@pytest.mark.parametrize("file", DRAWING, ids=[file.name for file in DRAWING])
def test_every_file_that_draws_is_in_the_stamp(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = figures._code()
    changed = lambda path: "changed" if Path(path) == file else file_digest(path)  # noqa: E731
    monkeypatch.setattr(files, "file_digest", changed)
    assert figures._code() != before


def test_committed_weights_are_those_that_their_stamps_are_of() -> None:
    weights = sorted(TRAINED.rglob("*.safetensors"))
    assert len(weights) == 8
    for file in weights:
        stamps = io.read_json(file.with_suffix(".json"))
        assert stamps.pop("file") == file_digest(file)
        assert set(stamps) == {name.partition(".")[0] for name in io.read_tensors(file)[0]}
