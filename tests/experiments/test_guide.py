"""The guide's own code, as it stands there."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from curvescope.cli.app import run
from curvescope.experiments.store import RunDirectory

GUIDE = Path(__file__).parent.parent.parent / "docs" / "guides" / "own-model.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE.read_text("utf-8"), flags=re.DOTALL)


def test_the_guide_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    own, weights, python, *_ = blocks("python")  # the others are run by tests/test_readme.py
    assert own.startswith("# mine.py\n")
    (tmp_path / "mine.py").write_text(own)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    exec(compile(weights, "guide", "exec"), {})
    command = shlex.split(blocks("sh")[0])
    assert command[0] == "curvescope"
    quick = ["--steps", "8", "--probes", "4", "--no-figures", "--quiet"]
    assert run([*command[1:], *quick]) == 0
    assert RunDirectory("runs/mine").complete
    monkeypatch.setattr("curvescope.reports.page.find_spec", lambda name: None)  # quicker
    exec(compile(python, "guide", "exec"), {})
    assert capsys.readouterr().out.strip().endswith("runs/from-python/report.html")
    assert len([line for line in python.splitlines() if line]) == 5
