"""Python's own documentation as text to predict."""

from __future__ import annotations

import sys

import pytest
import torch

from curvescope.data import dataset, topics
from curvescope.errors import CurvescopeError


def test_every_character_comes_once_with_the_one_after_it() -> None:
    """Both splits together are the text, window after window."""
    train, test = (dataset("python-topics-T100", split=split) for split in ("train", "test"))
    text = topics.text()
    assert len(train) + len(test) == (len(text) - 1) // 100
    ours = iter(zip(train.X, train.y, strict=True)), iter(zip(test.X, test.y, strict=True))
    for window in range(len(train) + len(test)):
        tokens, labels = next(ours[window % 10 == 9])
        start = 100 * window
        assert train.decode(tokens) == text[start : start + 100]
        assert train.decode(labels) == text[start + 1 : start + 101]


def test_it_is_python_s_help_with_each_paragraph_once() -> None:
    text = topics.text()
    assert 'The "assert" statement\n**********************' in text
    paragraphs = [part for part in text.split("\n\n") if part.strip()]
    assert len(set(paragraphs)) == len(paragraphs) > 1000
    assert topics.vocabulary() == "".join(sorted(set(text)))


def test_names() -> None:
    assert str(dataset("Python-Topics-t128").name) == "python-topics"
    data = dataset("python-topics-T64")
    assert (data.name, data.input_shape, data.classes) == (
        "python-topics-T64",
        (64,),
        len(topics.vocabulary()),
    )
    random = dataset("python-topics-R", seed=0)
    assert random.name == "python-topics-R"
    assert random.y.shape == random.X.shape
    assert float((random.y == dataset("python-topics").y).double().mean()) < 0.02


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("python-topics", {"per_class": 3}, "per_class needs one class for each sample"),
        ("python-topics", {"normalize": "pixel"}, "text needs normalize='none', got 'pixel'"),
        ("python-topics", {"split": "valid"}, "split must be one of 'train', 'test'"),
        ("python-topics-2", {}, "-2 means 0–4 against 5–9 and needs ten classes"),
        ("python-topics-T0", {}, "a sample must have 1 … "),
        ("python-topics-T999999", {}, "a sample must have 1 … "),
        ("python-topics-T", {}, "a data set must be one of"),
    ],
)
def test_what_text_has_not_is_refused(name: str, options: dict, message: str) -> None:
    with pytest.raises(CurvescopeError, match=message):
        dataset(name, **options)


def test_samples_by_class_are_refused() -> None:
    with pytest.raises(CurvescopeError, match="per_class needs one class for each sample"):
        dataset("python-topics").per_class(2)


def test_a_python_without_its_documentation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    topics.text.cache_clear()
    try:
        with pytest.raises(CurvescopeError, match="this Python comes without pydoc_data"):
            topics.text()
    finally:
        topics.text.cache_clear()


def test_the_characters_go_to_the_device_as_they_are() -> None:
    data = dataset("python-topics-T64", dtype=torch.float64)
    assert (data.X.dtype, data.y.dtype) == (torch.int64, torch.int64)
