"""Tiny data sets in the formats of the real ones, written byte by byte, and their entries.

The writers share no code with the readers: IDX headers through ``struct``, pickles opcode by opcode
as Python 2 wrote them.
"""

import gzip
import hashlib
import io
import struct
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from curvescope.data.sources import CIFAR_10, CIFAR_100_SUBSET, MNIST, Download, File, Source

Contents = dict[str, bytes]
Arrays = dict[str, tuple[np.ndarray, np.ndarray]]


def md5(raw: bytes) -> str:
    return hashlib.md5(raw).hexdigest()


def idx(array: np.ndarray) -> bytes:
    header = struct.pack(">BBBB", 0, 0, 8, array.ndim)
    return header + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


# Pickles ------------------------------------------------------------------------------

RECONSTRUCT = b"cnumpy.core.multiarray\n_reconstruct\n"
NDARRAY = b"cnumpy\nndarray\n"
DTYPE = b"cnumpy\ndtype\n"


def text(value: bytes) -> bytes:
    return b"U" + bytes([len(value)]) + value  # SHORT_BINSTRING


def number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)  # BININT


def numbers(values: list[int]) -> bytes:
    return b"](" + b"".join(map(number, values)) + b"e"  # EMPTY_LIST, MARK, …, APPENDS


def dtype(name: bytes = b"u1", order: bytes = b"|", fields: bytes = b"NNN") -> bytes:
    call = DTYPE + text(name) + number(0) + number(1) + b"\x87R"  # TUPLE3, REDUCE
    state = b"(" + number(3) + text(order) + fields + number(-1) + number(-1) + number(0) + b"t"
    return call + state + b"b"  # BUILD


def array(
    shape: tuple[int, ...], raw: bytes, *, kind: bytes | None = None, fortran: bool = False
) -> bytes:
    call = RECONSTRUCT + NDARRAY + number(0) + b"\x85" + text(b"b") + b"\x87R"
    sizes = b"(" + b"".join(map(number, shape)) + b"t"
    flag = b"\x88" if fortran else b"\x89"
    data = b"T" + struct.pack("<i", len(raw)) + raw  # BINSTRING
    state = b"(" + number(1) + sizes + (dtype() if kind is None else kind) + flag + data + b"t"
    return call + state + b"b"


def pickled(entries: Mapping[bytes, bytes]) -> bytes:
    """A dictionary of values that are pickled already."""
    items = b"".join(text(key) + value for key, value in entries.items())
    return b"\x80\x02}(" + items + b"u."


def batch(rows: np.ndarray, labels: np.ndarray, key: bytes = b"labels") -> bytes:
    return pickled(
        {
            b"batch_label": text(b"training batch 1 of 5"),
            key: numbers(labels.tolist()),
            b"data": array(rows.shape, rows.tobytes()),
        }
    )


# Data sets ----------------------------------------------------------------------------


def images(count: int, shape: tuple[int, ...], classes: int, seed: int) -> tuple:
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (count, *shape), dtype=np.uint8)
    labels = np.arange(count) % classes  # every class is there
    return pixels, random.permutation(labels)


def tiny_mnist(like: Source = MNIST, seed: int = 0) -> tuple[Source, Contents, Arrays]:
    """60 training and 30 test images of 5×4 pixels under the names of MNIST's files."""
    arrays = {
        split: images(count, (1, 5, 4), 10, seed + i)
        for i, (split, count) in enumerate({"train": 60, "test": 30}.items())
    }
    contents, files = {}, {}
    for split, (pixels, labels) in arrays.items():
        names = [file.name for file in like.files[split]]
        raw = [idx(pixels[:, 0]), idx(labels.astype(np.uint8))]
        contents |= dict(zip(names, raw, strict=True))
        files[split] = tuple(File(name, md5(r)) for name, r in zip(names, raw, strict=True))
    downloads = tuple(
        Download(f"{name}.gz", md5(packed(raw)), len(packed(raw))) for name, raw in contents.items()
    )
    return _like(like, (1, 5, 4), arrays, files, downloads), contents, arrays


def tiny_cifar() -> tuple[Source, Contents, Arrays]:
    """Five batches of 12 and one of 20 images of 3×4×4 pixels."""
    arrays = {"train": images(60, (3, 4, 4), 10, 2), "test": images(20, (3, 4, 4), 10, 3)}
    contents, files = {}, {}
    for split, (pixels, labels) in arrays.items():
        names = [file.name for file in CIFAR_10.files[split]]
        rows = np.split(pixels.reshape(len(pixels), -1), len(names))
        raw = [batch(r, y) for r, y in zip(rows, np.split(labels, len(names)), strict=True)]
        contents |= dict(zip(names, raw, strict=True))
        files[split] = tuple(File(name, md5(r)) for name, r in zip(names, raw, strict=True))
    archive = packed_tar({f"{CIFAR_10.inside}/{name}": raw for name, raw in contents.items()})
    downloads = (Download("cifar-10-python.tar.gz", md5(archive), len(archive)),)
    return _like(CIFAR_10, (3, 4, 4), arrays, files, downloads), contents, arrays


def tiny_subset() -> tuple[Source, Contents, Arrays]:
    """200 training and 100 test images of 3×4×4 pixels in one ``.npz`` file."""
    arrays = {"train": images(200, (3, 4, 4), 100, 4), "test": images(100, (3, 4, 4), 100, 5)}
    stream = io.BytesIO()
    np.savez_compressed(
        stream,
        **{f"x_{split}": pixels for split, (pixels, _) in arrays.items()},
        **{f"fine_{split}": labels.astype(np.uint8) for split, (_, labels) in arrays.items()},
    )
    raw = stream.getvalue()
    name = CIFAR_100_SUBSET.files["train"][0].name
    files = dict.fromkeys(("train", "test"), (File(name, md5(raw)),))
    return _like(CIFAR_100_SUBSET, (3, 4, 4), arrays, files, ()), {name: raw}, arrays


def _like(source: Source, shape: tuple, arrays: Arrays, files: dict, downloads: tuple) -> Source:
    return Source(
        name=source.name,
        title=source.title,
        format=source.format,
        classes=source.classes,
        shape=shape,
        sizes={split: len(labels) for split, (_, labels) in arrays.items()},
        files=files,
        folders=source.folders,
        archive=source.archive,
        inside=source.inside,
        downloads=downloads,
        mirrors=source.mirrors,
        hint=source.hint,
    )


def packed(raw: bytes) -> bytes:
    return gzip.compress(raw, mtime=0)


def packed_tar(members: Mapping[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, raw in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(raw)
            archive.addfile(member, io.BytesIO(raw))
    return packed(stream.getvalue())


def write(folder: Path, contents: Contents, *, zipped: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, raw in contents.items():
        path = folder / (f"{name}.gz" if zipped else name)
        path.write_bytes(packed(raw) if zipped else raw)


def everything(folder: Path) -> dict[str, bytes]:
    """All files below a folder with their contents, to see that nothing was written."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
