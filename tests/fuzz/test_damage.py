"""Damaged files through the commands: refused in one sentence, or read as if nothing had happened.

``CURVESCOPE_FUZZ=2500`` tries so many cases instead of 300, from that of ``CURVESCOPE_FUZZ_FIRST``.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from tests.fuzz.mutations import mutations_of
from tests.fuzz.workspace import CASES, Reader, make, use_toys

TRIED = int(os.environ.get("CURVESCOPE_FUZZ", "300"))
FIRST = int(os.environ.get("CURVESCOPE_FUZZ_FIRST", "0"))
PATIENCE = 30

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="pipes are files on POSIX")


class Hangs(BaseException):
    """A command that does not come to its end."""


@contextmanager
def patience(seconds: int) -> Iterator[None]:
    def give_up(number: int, frame: object) -> None:
        raise Hangs

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def spaces(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    first, second = tmp_path_factory.mktemp("first"), tmp_path_factory.mktemp("second")
    with pytest.MonkeyPatch.context() as patch:
        use_toys(patch)
        make(first, 0)
        make(second, 1)
    return first, second


def contents(root: Path) -> dict[str, object]:
    """Everything below a folder, by what a command could have changed; locks do not count."""
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        if path.name != ".lock" and not path.is_dir():
            found[str(path.relative_to(root))] = (status.st_size, status.st_mtime_ns, status.st_ino)
    return found


Known = dict[Reader, tuple[int, str]]
"""What a reader says of sound files, which lie in the same place every time."""


def tried(
    spaces: tuple[Path, Path], root: Path, name: str, source: Random, known: Known
) -> str | None:
    """What is wrong with one case; nothing if it is refused or read as before."""
    first, second = spaces
    case = CASES[name]
    reader = source.choice(case.readers)
    file = source.choice(sorted(first.glob(case.pattern)))
    place = file.relative_to(first)
    top = place.parts[0]
    copied = {top, "run", "other"} if top in ("run", "other") else {top}

    def fresh() -> None:
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        for each in copied:
            source_path = first / each
            copy = shutil.copytree if source_path.is_dir() else shutil.copy2
            copy(source_path, root / each)

    fresh()
    if reader not in known:
        known[reader] = reader(root)[:2]
        fresh()
    wanted = known[reader]
    mutation = source.choice(mutations_of(file))
    mutation(root / place, second / place, source)
    absent = not (root / place).exists()  # or a link that leads nowhere
    before = contents(root)
    told = f"{name}, {place}, {mutation.__name__}"
    try:
        with patience(PATIENCE):
            code, out, err = reader(root)
    except Hangs:
        return f"hangs: {told}"
    told += f": exit {code}, {err.strip()[:300]!r}"
    if "a bug" in err or "Traceback" in err:
        return f"a bug: {told}"
    if (code, out) == wanted:
        return None
    if code in case.codes and (
        code != 2 or (err.count("\n") == 1 and err.startswith("curvescope: "))
    ):
        return f"written before refusing: {told}" if contents(root) != before else None
    if (case.may_differ or absent) and code == wanted[0]:
        return None  # what is not there is computed anew
    return f"another result: {told}"


def test_damage_is_refused_in_one_sentence_or_harmless(
    spaces: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_toys(monkeypatch)
    names, known = sorted(CASES), Known()
    wrong = []
    for number in range(FIRST, FIRST + TRIED):
        source = Random(number)
        found = tried(spaces, tmp_path / "case", names[number % len(names)], source, known)
        if found is not None:
            wrong.append(f"{number}: {found}")
    assert wrong == [], "\n".join(wrong)
