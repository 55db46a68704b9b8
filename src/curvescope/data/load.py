"""``dataset``: a data set by its name, as tensors.

References:
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
    TR: Papyan (2020), *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra*.
"""

from __future__ import annotations

import os
from dataclasses import replace

import torch
from torch import Tensor

from curvescope._checks import one_of
from curvescope.data import mixture, topics
from curvescope.data.embedded import EMBEDDED
from curvescope.data.labeled import Dataset, check_one_class
from curvescope.data.labels import SPLITS, balanced_positions, random_labels, stream, two_classes
from curvescope.data.names import Name, parse
from curvescope.data.normalize import KINDS, Kind, fit
from curvescope.data.read import read_split
from curvescope.data.sources import SOURCES
from curvescope.errors import CurvescopeError


def dataset(
    name: str,
    *,
    root: str | os.PathLike[str] | None = None,
    split: str = "train",
    per_class: int | None = None,
    seed: int | None = None,
    normalize: Kind = "none",
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Dataset:
    """A data set by its name: images ``[N, C, H, W]`` and labels ``[N]`` in memory.

    ``mnist``, ``fashion-mnist``, ``cifar-10``, ``cifar-100`` and ``cifar-100-subset`` come from
    their original files, which are looked for below ``root``, then below ``$CURVESCOPE_DATA``, then
    in the user's cache, in the layouts that torchvision, the archives and
    :func:`curvescope.data.fetch` make. Their MD5 is compared on first use. ``mnist-6k``,
    ``fashion-mnist-3k`` and ``digits`` travel inside the package. ``gaussian-mixture-C10-D100-t3``
    draws samples of TR §8 (see :func:`curvescope.data.gaussian_mixture`). ``python-topics`` is the
    text of Python's own ``help()``: windows of 128 characters, or 64 as ``python-topics-T64``, each
    character with the next one as its label (see :mod:`curvescope.data.topics`).

    After any name, ``-2`` joins the classes 0–4 and 5–9 (DH's MNIST-2), and ``-R`` replaces the
    labels of the split by uniform random ones (DH's MNIST-R), in this order: ``mnist-2-R``.

    Pixels are scaled to [0, 1]. ``normalize`` then subtracts a mean and divides by a standard
    deviation, of each pixel or of each channel; both are statistics of the whole training split,
    whichever split or sub-sample is loaded, and are kept in ``Dataset.normalization``. A pixel
    that never changes in the training split is centered only.

    The time is that of reading the files, at most a few seconds; the memory that of the images in
    ``dtype``, and once more as bytes while loading.

    Args:
        name: The data set, in any case.
        root: A folder to look in first.
        split: ``"train"`` or ``"test"``.
        per_class: Number of samples of each class (after ``-2`` and ``-R``), in the order of the
            set: the first ones or, with a seed, random ones. A mixture needs it.
        seed: Decides everything that is random: labels, sub-samples, mixtures.
        normalize: ``"none"``, ``"pixel"`` or ``"channel"``.
        dtype: The images' floating-point type; labels and characters are ``int64``.
        device: Where both tensors go.

    Raises:
        CurvescopeError: If the name or an option is wrong, or a file is missing, damaged or not the
            published one.

    >>> data = dataset("mnist-6k", split="test", per_class=3)
    >>> data
    Dataset('mnist-6k', test: 30 samples of shape 1×28×28, 10 classes, float32 on cpu)
    >>> data.y.bincount().tolist()
    [3, 3, 3, 3, 3, 3, 3, 3, 3, 3]
    >>> dataset("digits-2", normalize="channel").classes
    2
    """
    where = f"dataset({name!r})"
    parsed = parse(where, name)
    one_of(where, "split", split, SPLITS)
    one_of(where, "normalize", normalize, KINDS)
    if not dtype.is_floating_point:
        raise CurvescopeError(where, "`dtype` must be a floating-point type", given=dtype)
    if parsed.random and seed is None:
        rule = "needs `seed` for its random labels"
        raise CurvescopeError(where, rule, remedy="pass `seed=0` or another")
    if mixture.parameters(parsed.base) is not None:
        if per_class is None or seed is None or normalize != "none":
            rule = "needs `per_class`, `seed` and `normalize='none'`, since it is drawn"
            raise CurvescopeError(where, rule)
        drawn = _mixture(where, parsed, split, per_class=per_class, seed=seed, dtype=dtype)
        return drawn.to(device)
    if (characters := topics.context(parsed.base)) is not None:
        text = topics.python_topics(split, characters=characters)
        if per_class is not None:
            check_one_class(where, text.y)
        if normalize != "none":
            raise CurvescopeError(where, "text needs `normalize='none'`", given=repr(normalize))
        labels, classes = _relabeled(where, parsed, text.y, text.classes, split, seed)
        return replace(text, y=labels, classes=classes, name=str(parsed)).to(device)
    source = EMBEDDED.get(parsed.base) or SOURCES[parsed.base]
    pixels, labels = read_split(where, source, split, root)
    training = pixels
    if split == "test" and normalize != "none":
        training, _ = read_split(where, source, "train", root)
    normalization = fit(normalize, training, source.scale)
    labels, classes = _relabeled(where, parsed, labels, source.classes, split, seed)
    if per_class is not None:
        generator = None if seed is None else stream(where, seed, "sub-sample", split)
        chosen = balanced_positions(where, labels, classes, per_class, generator)
        pixels, labels = pixels[chosen], labels[chosen]
    X = normalization.apply_(pixels.to(device).to(dtype).div_(source.scale))
    return Dataset(X, labels.to(device), classes, str(parsed), split, normalization)


def _mixture(
    where: str, name: Name, split: str, *, per_class: int, seed: int, dtype: torch.dtype
) -> Dataset:
    parameters = mixture.parameters(name.base)
    assert parameters is not None
    t, classes, dimension = parameters
    drawn = mixture.gaussian_mixture(
        t,
        classes=classes,
        dimension=dimension,
        per_class=per_class,
        seed=seed,
        split=split,
        dtype=dtype,
    )
    labels, classes = _relabeled(where, name, drawn.y, classes, split, seed)
    return replace(drawn, y=labels, classes=classes, name=str(name))


def _relabeled(
    where: str, name: Name, labels: Tensor, classes: int, split: str, seed: int | None
) -> tuple[Tensor, int]:
    """The labels that the name asks for, and how many classes they have."""
    if name.binary:
        labels, classes = two_classes(where, labels, classes), 2
    if name.random and seed is not None:
        labels = random_labels(labels, classes, stream(where, seed, "labels", split))
    return labels, classes
