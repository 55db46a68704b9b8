"""Damaged files of data sets: refused in one sentence, or what was published."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest
import torch

from curvescope.data import dataset
from curvescope.data.cifar import read_batch
from curvescope.data.sources import CIFAR_10
from curvescope.errors import CurvescopeError
from tests.data.builders import packed, packed_tar, tiny_cifar
from tests.fuzz.mutations import ANY

TRIED = int(os.environ.get("CURVESCOPE_FUZZ", "300")) // 5
LINKS = {"link", "swap"}  # need another sound file


@pytest.mark.parametrize("form", ["mnist", "mnist.gz", "cifar-10", "cifar-10.tar.gz", "subset"])
def test_a_damaged_file_is_refused_or_harmless(
    tmp_path: Path, mnist, cifar, subset, form: str
) -> None:
    name = {"subset": "cifar-100-subset"}.get(form, form.partition(".")[0])
    contents = {"mnist": mnist, "cifar-10": cifar, "cifar-100-subset": subset}[name][0]
    raw = dict(contents)
    if form == "mnist.gz":
        raw = {f"{key}.gz": packed(value) for key, value in contents.items()}
    if form == "cifar-10.tar.gz":
        inside = {f"{CIFAR_10.inside}/{key}": value for key, value in contents.items()}
        raw = {"cifar-10-python.tar.gz": packed_tar(inside)}
    whole: torch.Tensor | None = None
    refused: list[str] = []
    mutations = [each for each in ANY if each.__name__ not in LINKS]
    for number in range(-1, TRIED):
        source, root = Random(number), tmp_path / str(number)
        root.mkdir()
        for key, value in raw.items():
            (root / key).write_bytes(value)
        if number >= 0:
            file = root / source.choice(sorted(raw))
            source.choice(mutations)(file, file, source)
        try:
            found = dataset(name, root=root).X
        except CurvescopeError as error:
            refused.append(str(error))
            continue
        whole = found if whole is None else whole
        assert torch.equal(found, whole), number
    assert whole is not None
    assert not [sentence for sentence in refused if "\n" in sentence]


def test_a_damaged_pickle_is_refused_or_a_batch() -> None:
    """Behind the checksum: the reader of pickles alone."""
    raw = next(iter(tiny_cifar()[1].values()))
    for number in range(5 * TRIED):
        source, damaged = Random(number), bytearray(raw)
        for _ in range(source.choice((1, 1, 3))):
            damaged[source.randrange(min(len(damaged), 400))] ^= 1 << source.randrange(8)
        try:
            pixels, labels = read_batch("here", bytes(damaged))
        except CurvescopeError:
            continue
        assert len(pixels) == len(labels)
