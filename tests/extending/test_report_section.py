"""A stage and its section from one file outside the package."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import curvescope as cs
from curvescope.cli.app import run
from curvescope.errors import CurvescopeError
from curvescope.experiments.analyze import analyze
from curvescope.experiments.configuration import Settings
from curvescope.experiments.extra import Check, Context, Extra, Outcome
from curvescope.experiments.store import RunDirectory
from curvescope.reports import render, write_report
from curvescope.reports.blocks import Section
from tests.extending.conftest import blocks as code

NET = """
import torch
from torch import nn


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def load():
    g = torch.Generator().manual_seed(0)
    return torch.randn(40, 4, generator=g, dtype=torch.float64), torch.arange(40) % 3
"""
QUICK = Settings(steps=8, probes=4, trace_probes=16)


@pytest.fixture
def extra(written: Callable[[str], Path]) -> Extra:
    place = written("report-section")
    (place.parent / "net.py").write_text(NET)
    return import_module("blocks").blocks


@pytest.fixture
def problem(extra: Extra, monkeypatch: pytest.MonkeyPatch) -> cs.Problem:
    monkeypatch.delitem(sys.modules, "net", raising=False)
    net = import_module("net")
    return cs.Problem(net.build(), net.load())


def test_its_numbers_checks_section_and_figures(
    extra: Extra, problem: cs.Problem, tmp_path: Path
) -> None:
    made = analyze(problem, tmp_path / "run", seed=0, extra=[extra], settings=QUICK)
    assert made.stages[-1] == "blocks"
    found = made.result("blocks", extra.kind)
    H = cs.Hessian(problem)
    for layer in ("0", "2"):
        top = float(torch.linalg.eigvalsh(H.block(layer).dense())[-1])
        assert found.largest[layer] == pytest.approx(top, rel=1e-3)
    assert found.whole == pytest.approx(float(torch.linalg.eigvalsh(H.dense())[-1]), rel=1e-3)
    assert ("blocks", True) in [(stage, check.passed) for stage, check in made.checks()]
    page = write_report(made.path, extra=[extra]).read_text(encoding="utf-8")
    assert "Layers by themselves" in page
    assert f"λ₁ = {max(found.largest.values()):.4g}" in page
    drawn = json.loads(re.search(r'"blocks":(\{.*?\]\}\]\})', page)[1])
    assert drawn["views"][0]["series"][0]["y"] == pytest.approx(
        list(found.largest.values()), rel=1e-4
    )
    assert (made.path / "figures" / "blocks.pdf").stat().st_size > 1000
    assert page.index("Layers by themselves") < page.index("Provenance</h2>")


def test_a_page_without_its_code_names_it(
    extra: Extra, problem: cs.Problem, tmp_path: Path
) -> None:
    made = analyze(problem, tmp_path / "run", seed=0, layers=[], extra=[_constant(1.0)],
                   settings=QUICK)  # fmt: skip
    page = render(RunDirectory(made.path))
    assert "measured by code that is no part of curvescope" in page
    with pytest.raises(CurvescopeError, match="has no stage 'blocks'; analyze with it first"):
        render(made, extra=[extra])


@dataclass(frozen=True)
class Number:
    value: float


def _value(context: Context, value: float) -> Outcome[Number]:
    return Outcome(Number(value), (Check("it is a number", value == value),))


def _section(found: Number, title: str = "A number") -> Section:
    return Section("number", title, f"It is {found.value}.")


def _constant(value: float, **words: str) -> Extra:
    return Extra("number", Number, partial(_value, value=value), partial(_section, **words))


def test_what_it_computes_is_part_of_the_configuration(problem: cs.Problem, tmp_path: Path) -> None:
    def again(*extra: Extra) -> Any:
        return analyze(problem, tmp_path / "run", seed=0, layers=[], extra=extra, settings=QUICK)

    made = again(_constant(1.0))
    assert made.config.extra == {"number": _constant(1.0).measures}
    with pytest.raises(CurvescopeError, match=r"another configuration \(extra.number is"):
        again(_constant(2.0))
    with pytest.raises(CurvescopeError, match="another configuration"):
        again()
    assert again(_constant(1.0)).result("number", Number) == Number(1.0)
    with pytest.raises(CurvescopeError, match="'number' has changed since it was measured"):
        render(made, extra=[_constant(2.0)])
    assert "It is 1.0." in render(made, extra=[_constant(1.0)])
    assert "Another title" in render(made, extra=[_constant(1.0, title="Another title")])


def test_names_and_sections_that_cannot_be(problem: cs.Problem, tmp_path: Path) -> None:
    with pytest.raises(CurvescopeError, match="must not begin with that of one of curvescope's"):
        Extra("layer-fc1", Number, partial(_value, value=1.0), _section)
    twice = [_constant(1.0), _constant(2.0)]
    with pytest.raises(CurvescopeError, match="two stages with the name 'number'"):
        analyze(problem, tmp_path / "run", seed=0, extra=twice, settings=QUICK)
    odd = Extra("number", Number, partial(_value, value=1.0), lambda found: "no section")
    made = analyze(problem, tmp_path / "run", seed=0, layers=[], extra=[odd], settings=QUICK)
    with pytest.raises(CurvescopeError, match="section must return a Section, got str"):
        render(made, extra=[odd])


@pytest.mark.usefixtures("extra")
def test_the_command_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    (command,) = code("report-section", "sh")
    words = [*shlex.split(command)[1:], "--steps", "8", "--probes", "4", "--no-figures", "--json"]
    assert run(words) == 0
    said = json.loads(capsys.readouterr().out)
    assert set(said["stages"]["blocks"]["largest"]) == {"0", "2"}
    assert "Layers by themselves" in Path("runs/net/report.html").read_text(encoding="utf-8")
    place = words.index("--extra") + 1
    assert run([*words[:place], "blocks.py:measure", *words[place + 1 :]]) == 2
    assert "--extra 'blocks.py:measure' must name an object of the class Extra, got" in (
        capsys.readouterr().err
    )
