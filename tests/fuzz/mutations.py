"""Ways to damage a file, each from a seeded source; some are gentle, most are not."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

Mutation = Callable[[Path, Path, Random], None]
"""Damages the file; the second path is the same file of another, sound workspace."""


def flip(file: Path, other: Path, source: Random) -> None:
    raw = bytearray(file.read_bytes())
    for _ in range(source.choice((1, 1, 3, 20))):
        if raw:
            raw[source.randrange(len(raw))] ^= 1 << source.randrange(8)
    file.write_bytes(raw)


def truncate(file: Path, other: Path, source: Random) -> None:
    raw = file.read_bytes()
    file.write_bytes(raw[: source.randrange(len(raw) + 1)])


def cut_out(file: Path, other: Path, source: Random) -> None:
    raw = file.read_bytes()
    begin = source.randrange(len(raw) + 1)
    end = min(len(raw), begin + source.choice((1, 2, 8, 100)))
    file.write_bytes(raw[:begin] + raw[end:])


def insert(file: Path, other: Path, source: Random) -> None:
    raw = file.read_bytes()
    place = source.randrange(len(raw) + 1)
    junk = source.choice(
        (b"\x00", b"1", b"{", b"[" * 5000, b"\xff\xfe", b"9" * 400, b"1e999", b'"')
    )
    file.write_bytes(raw[:place] + junk + raw[place:])


def swap(file: Path, other: Path, source: Random) -> None:
    shutil.copyfile(other, file)


def empty(file: Path, other: Path, source: Random) -> None:
    file.write_bytes(b"")


def remove(file: Path, other: Path, source: Random) -> None:
    file.unlink()


def pipe(file: Path, other: Path, source: Random) -> None:
    file.unlink()
    os.mkfifo(file)


def folder(file: Path, other: Path, source: Random) -> None:
    file.unlink()
    file.mkdir()


def link(file: Path, other: Path, source: Random) -> None:
    file.unlink()
    file.symlink_to(source.choice(("/dev/zero", file, "/nowhere", other)))


def sparse(file: Path, other: Path, source: Random) -> None:
    with file.open("r+b") as stream:
        stream.truncate(1 << 36)


ANY: tuple[Mutation, ...] = (
    flip, flip, truncate, cut_out, insert, swap, empty, remove, pipe, folder, link, sparse,
)  # fmt: skip


# JSON -------------------------------------------------------------------------------------------

_ODD = (
    None, True, False, 0, -1, 1, 2, 1e308, -0.0, 10**400, float("nan"), float("inf"), "", "x",
    "0", "1.0", "../../x", "\ud800", [], {}, [[]], {"": 0}, [1, "a"], "x" * 1000,
)  # fmt: skip


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, each in inside:
        found.append((*path, key))
        if isinstance(each, dict | list) and each:
            found += _places(each, (*path, key))
    return found


def _edited(value: Any, source: Random) -> Any:
    """With one change at a random place."""
    places = _places(value) if isinstance(value, dict | list) and value else []
    if not places:
        return source.choice(_ODD)
    *above, key = source.choice(places)
    parent = value
    for step in above:
        parent = parent[step]
    action = source.choice(("odd", "odd", "delete", "nest", "add", "near", "rename", "reorder"))
    if action == "delete":
        del parent[key]
    elif action == "nest":
        deep = parent[key]
        for _ in range(source.choice((1, 100, 900))):
            deep = [deep]
        parent[key] = deep
    elif action == "add" and isinstance(parent, dict):
        parent["more"] = source.choice(_ODD)
    elif action == "near" and isinstance(parent[key], int | float):
        parent[key] = source.choice((parent[key] + 1, parent[key] * 1.0000001, -parent[key]))
    elif action == "rename" and isinstance(parent, dict):
        parent[f"{key}2"] = parent.pop(key)
    elif action == "reorder" and isinstance(parent, dict):
        parent[key] = parent.pop(key)
    else:
        parent[key] = source.choice(_ODD)
    return value


def _dumped(value: Any, source: Random) -> bytes:
    text = json.dumps(value)
    if source.random() < 0.1 and text.startswith("{") and len(text) > 2:
        name = json.dumps(source.choice(list(value)))
        text = f"{{{name}: {json.dumps(source.choice(_ODD))}, {text[1:]}"  # a name twice
    return text.encode("utf-8", "surrogatepass")


def edit(file: Path, other: Path, source: Random) -> None:
    """One change of a JSON file, or of one of its lines."""
    lines = file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
    which = source.randrange(len(lines))
    raw = [line.encode() for line in lines]
    raw[which] = _dumped(_edited(json.loads(lines[which]), source), source)
    if file.suffix == ".jsonl":
        action = source.choice(("edit", "edit", "drop", "repeat"))
        if action != "edit":
            raw = [line.encode() for line in lines]
            raw[which : which + 1] = [] if action == "drop" else [raw[which]] * 2
    file.write_bytes(b"\n".join(raw) + b"\n")


def edit_header(file: Path, other: Path, source: Random) -> None:
    """One change of the header of a safetensors file."""
    raw = file.read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    head = _dumped(_edited(json.loads(raw[8:end]), source), source)
    file.write_bytes(len(head).to_bytes(8, "little") + head + raw[end:])


def exchange(file: Path, other: Path, source: Random) -> None:
    """Two tensors with each other's places in a safetensors file."""
    raw = file.read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    head = json.loads(raw[8:end])
    names = [name for name in head if name != "__metadata__"]
    first, second = source.choice(names), source.choice(names)
    head[first], head[second] = head[second], head[first]
    text = json.dumps(head).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + raw[end:])


def mutations_of(file: Path) -> tuple[Mutation, ...]:
    """Those that a file of this kind can suffer."""
    if file.suffix in (".json", ".jsonl"):
        return (*ANY, *[edit] * 14)
    if file.suffix == ".safetensors":
        return (*ANY, *[edit_header] * 5, *[exchange] * 3)
    return ANY
