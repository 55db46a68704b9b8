"""Blocks of vectors in files: a piece from every rank, to be read by any number of ranks.

A piece holds the numbers that one rank had. All ranks write at once, each its own file beside the
one that names them; whoever reads takes what he needs out of the pieces that have it, one piece in
memory at a time. The disk must be one that all ranks see.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from curvescope import io
from curvescope.errors import CurvescopeError
from curvescope.vectors.space import Parts, Space


def write_pieces(path: Path, space: Space, blocks: Mapping[str, Tensor]) -> dict[str, Any]:
    """Write this rank's rows of some blocks ``[…, count]`` into a file beside ``path``.

    Returns what :func:`read_pieces` needs, in plain JSON, once the pieces of all ranks are there.
    Those of an earlier call are left: remove them by :func:`remove_pieces` when nothing names them.
    """
    group = space.group
    mark = group.plain(secrets.token_hex(4))
    names = [f"{path.name}.{mark}.{rank}of{group.size}.piece" for rank in range(group.size)]
    with io.written_by_each():
        io.write_tensors(path.with_name(names[group.rank]), blocks)
    group.agree(True)  # all have written
    return {"files": names, "parts": [list(map(list, parts)) for parts in space.of_ranks]}


def read_pieces(path: Path, pieces: Any, space: Space) -> dict[str, Tensor]:
    """This rank's rows of the blocks that any number of ranks wrote.

    Raises:
        CurvescopeError: If a piece is missing, damaged, or of vectors of another length.
    """
    files, parts = pieces["files"], [[(a, b) for a, b in each] for each in pieces["parts"]]
    if max((b for each in parts for _, b in each), default=0) != space.size:
        rule = f"{str(path)!r} has vectors of another length than {space.size}"
        raise CurvescopeError("pieces", rule)
    blocks: dict[str, Tensor] = {}
    for name, there in zip(files, parts, strict=True):
        overlaps = list(_overlaps(tuple(there), space.parts))
        if not overlaps and blocks:
            continue
        piece, _ = io.read_tensors(path.with_name(Path(name).name), ours=True, links=False)
        for key, rows in piece.items():
            if key not in blocks:
                blocks[key] = torch.empty(*rows.shape[:-1], space.count, dtype=rows.dtype)
            for source, target, length in overlaps:
                blocks[key][..., target : target + length] = rows[..., source : source + length]
    return blocks


def remove_pieces(path: Path, keep: Iterable[str] = ()) -> None:
    """Remove all pieces beside ``path`` but those to ``keep``."""
    ours = re.compile(re.escape(path.name) + r"\.[0-9a-f]{8}\.\d+of\d+\.piece")
    keep = set(keep)
    for file in path.parent.glob("*.piece"):
        if ours.fullmatch(file.name) and file.name not in keep:
            file.unlink(missing_ok=True)


def _overlaps(there: Parts, here: Parts) -> Iterator[tuple[int, int, int]]:
    """Places there, places here, and lengths of what two sets of ranges share.

    >>> list(_overlaps(((0, 4), (8, 9)), ((2, 9),)))
    [(2, 0, 2), (4, 6, 1)]
    """
    source = 0
    for a, b in there:
        target = 0
        for c, d in here:
            low, high = max(a, c), min(b, d)
            if low < high:
                yield source + low - a, target + low - c, high - low
            target += d - c
        source += b - a
