"""The documentation that Python carries, ``pydoc_data.topics``, as characters to predict.

It is what ``help("assert")`` prints: half a million characters of English, on every machine that
runs Python, so that nothing is shipped or fetched. Versions of Python differ in it; a training
records the digest of its data and recognizes another text.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module

import torch
from torch import Tensor

from curvescope._checks import one_of
from curvescope.data.labeled import Dataset
from curvescope.data.labels import SPLITS
from curvescope.errors import CurvescopeError

NAME = "python-topics"
FORM = f"{NAME}-T64"
_FORM = re.compile(rf"{NAME}(?:-t(\d+))?")
_CONTEXT = 128
_TENTH = 10  # every tenth window is test data


def context(name: str) -> int | None:
    """The number of characters in a sample of this name; None for the name of another set.

    >>> context("python-topics"), context("python-topics-T64"), context("mnist")
    (128, 64, None)
    """
    match = _FORM.fullmatch(name.lower())
    return None if match is None else int(match[1] or _CONTEXT)


def full_name(characters: int) -> str:
    """The name of the set with samples of so many characters, in its normal form."""
    return NAME if characters == _CONTEXT else f"{NAME}-T{characters}"


@cache
def text() -> str:
    """All topics in alphabetical order, each paragraph once.

    A fifth of the topics' text stands in several of them: language models are measured on text that
    they have not seen.

    Raises:
        CurvescopeError: If this Python has been stripped of its documentation.
    """
    try:
        topics = import_module("pydoc_data.topics").topics
    except (ImportError, AttributeError):
        rule = "this Python comes without pydoc_data.topics, the text of its help()"
        remedy = "install the whole standard library"
        raise CurvescopeError(f"dataset({NAME!r})", rule, remedy=remedy) from None
    paragraphs = (part for _, topic in sorted(topics.items()) for part in topic.split("\n\n"))
    return "\n\n".join(dict.fromkeys(part.strip("\n") for part in paragraphs if part.strip()))


def vocabulary() -> str:
    """The characters of the text in the order of their code points; a class is a place in it."""
    return "".join(sorted(set(text())))


@cache
def _codes() -> Tensor:
    places = {character: i for i, character in enumerate(vocabulary())}
    return torch.tensor([places[character] for character in text()])


def python_topics(split: str = "train", *, characters: int = _CONTEXT) -> Dataset:
    """Windows of text, each character with the next one as its label.

    The text is cut into windows ``x_1 … x_T`` one after the other, with the labels
    ``x_2 … x_{T+1}``. Every tenth window is test data.

    Args:
        split: ``"train"`` or ``"test"``.
        characters: ``T``.

    Returns:
        A :class:`Dataset` of ``X: [N, T]`` and ``y: [N, T]``, ``int64``, with its vocabulary.

    Raises:
        CurvescopeError: If the text has no such window, or this Python has no text.

    >>> data = python_topics(characters=64)
    >>> bool((data.X[:, 1:] == data.y[:, :-1]).all()), data.decode(data.X[0, :8])
    (True, 'The "ass')
    """
    where = f"dataset({full_name(characters)!r})"
    one_of(where, "split", split, SPLITS)
    codes = _codes()
    windows = (len(codes) - 1) // max(characters, 1)
    if characters < 1 or windows < _TENTH:
        rule = f"a sample must have 1 … {len(codes) // _TENTH} characters"
        raise CurvescopeError(where, rule, given=characters)
    tested = torch.arange(windows) % _TENTH == _TENTH - 1
    chosen = tested if split == "test" else ~tested
    size = windows * characters
    X, y = (codes[start : start + size].view(windows, -1)[chosen] for start in (0, 1))
    letters = vocabulary()
    return Dataset(X, y, len(letters), full_name(characters), split, vocabulary=letters)
