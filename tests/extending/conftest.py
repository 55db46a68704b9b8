"""The pages of docs/extending: their files are written out, and run as a user's own would be."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PAGES = Path(__file__).parent.parent.parent / "docs" / "extending"


def blocks(page: str, language: str = "python") -> list[str]:
    """The blocks of code on a page."""
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Write the files of a page into an empty folder, which becomes the working directory.

    Every example is one file: the second thing it needs is the library alone.
    """

    def write(page: str) -> Path:
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)
        for block in blocks(page):
            if named := re.match(r"# (\w+)\.py\n", block):
                (tmp_path / f"{named[1]}.py").write_text(block, encoding="utf-8")
                monkeypatch.delitem(sys.modules, named[1], raising=False)
        (made,) = tmp_path.glob("*.py")
        return made

    return write
