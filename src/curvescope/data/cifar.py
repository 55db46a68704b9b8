"""The python version of CIFAR-10 and CIFAR-100: pickles, read without trusting them.

A pickle names functions and calls them. These files name exactly three, ``numpy``'s array
reconstructor, ``ndarray`` and ``dtype``, to build an array of unsigned bytes. Here the three names
stand for objects that can do this and nothing else; numpy is never called by the file, and any
other name ends the reading.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from curvescope.errors import CurvescopeError


class _Refused(Exception):
    """The pickle says something that the files of CIFAR do not say."""


class _Marker:
    """Stands for ``ndarray`` itself, which is passed to the reconstructor and never called."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        # Without this method, unpickling would set attributes at the file's will.
        raise _Refused("gives a state to numpy.ndarray")


class _Dtype:
    """Stands for ``numpy.dtype``: ``dtype("u1", …)`` and its state, for unsigned bytes alone."""

    __slots__ = ()

    def __call__(self, *arguments: object) -> _Dtype:
        if not arguments or arguments[0] != b"u1":  # bytes: the files were written by Python 2
            raise _Refused(f"asks for the type {arguments[:1]}, not for unsigned bytes")
        return self

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) < 5 or state[1] != b"|":
            raise _Refused(f"gives unsigned bytes the state {state!r}")
        if any(field is not None for field in state[2:5]):  # sub-array, field names, fields
            raise _Refused("asks for a structured type")


class _Array:
    """Stands for the array: empty when it is made, filled by its state."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: npt.NDArray[np.uint8] | None = None

    def __setstate__(self, state: object) -> None:
        match state:
            case (1, tuple(shape), _Dtype(), bool(fortran), bytes(raw)):
                pass
            case _:
                raise _Refused("gives an array a state of another form")
        if not all(type(n) is int and n >= 0 for n in shape) or math.prod(shape) != len(raw):
            raise _Refused(f"has an array of the shape {shape} with {len(raw):,} bytes")
        array = np.frombuffer(raw, np.uint8)
        self.value = array.reshape(shape[::-1]).T if fortran else array.reshape(shape)


class _Reconstruct:
    """Stands for numpy's array reconstructor."""

    __slots__ = ()

    def __call__(self, *arguments: object) -> _Array:
        match arguments:
            case (_Marker(), (0,), b"b"):
                return _Array()
            case _:
                raise _Refused("calls numpy's reconstructor in another way")

    def __setstate__(self, state: object) -> None:
        raise _Refused("gives a state to numpy's reconstructor")


class _Reader(pickle.Unpickler):
    """An unpickler for which the three names are all there is."""

    def find_class(self, module: str, name: str) -> Any:
        match module, name:
            case "numpy.core.multiarray", "_reconstruct":
                return _Reconstruct()
            case "numpy", "ndarray":
                return _Marker()
            case "numpy", "dtype":
                return _Dtype()
        raise _Refused(f"asks for {module}.{name}, which has no business there")


def read_batch(where: str, raw: bytes) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The rows ``[N, D]`` of a batch, and its labels ``[N]`` (the fine ones of CIFAR-100).

    Args:
        where: The beginning of error messages, naming the file.
        raw: The pickle.

    Raises:
        CurvescopeError: If the pickle is damaged, or names or holds anything but a dictionary with
            an array of bytes and a list of labels.
    """
    try:
        batch = _Reader(io.BytesIO(raw), encoding="bytes").load()
    except _Refused as error:
        remedy = "nothing of it was run, do not use this file"
        raise CurvescopeError(where, str(error), remedy=remedy) from None
    except Exception as error:  # a damaged pickle may raise anything
        rule = f"is not a complete batch of CIFAR ({type(error).__name__}: {error})"
        raise CurvescopeError(where, rule) from None
    batch = batch if isinstance(batch, dict) else {}
    data = getattr(batch.get(b"data"), "value", None)
    labels = batch.get(b"fine_labels", batch.get(b"labels"))
    if data is None or data.ndim != 2 or not isinstance(labels, list):
        rule = "is not a batch of CIFAR, which has an array of rows and a list of labels"
        raise CurvescopeError(where, rule)
    if len(labels) != len(data) or not all(type(label) is int for label in labels):
        rule = f"must have an integer label for each of its {len(data):,} rows"
        raise CurvescopeError(where, rule)
    return data, np.array(labels, dtype=np.int64)


def decode(
    files: Iterable[tuple[str, bytes]], shape: tuple[int, int, int]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Images ``[N, C, H, W]`` and labels ``[N]``, the batches one after the other."""
    rows, labels = [], []
    for place, raw in files:
        data, classes = read_batch(repr(place), raw)
        if data.shape[1] != math.prod(shape):
            rule = f"has rows of {data.shape[1]} bytes, not {math.prod(shape)}"
            raise CurvescopeError(repr(place), rule)
        rows.append(data)
        labels.append(classes)
    return np.concatenate(rows).reshape(-1, *shape), np.concatenate(labels)
