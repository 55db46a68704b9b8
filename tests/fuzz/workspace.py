"""A folder with every kind of file that is stored, and the commands that read them."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from curvescope import io as files
from curvescope.cli import app
from curvescope.data import dataset
from curvescope.errors import CurvescopeError
from curvescope.experiments.load import load_data
from curvescope.experiments.store import RunDirectory
from curvescope.experiments.training import named_data, train_network
from curvescope.identity import digest
from curvescope.networks import network
from curvescope.operators.simple import Dense
from curvescope.reports.page import render
from curvescope.reports.runs import find_runs
from curvescope.reports.training import render_training
from curvescope.spectra.traces import trace
from curvescope.studies import catalog
from curvescope.studies.run import Result, Run
from curvescope.studies.study import Study
from curvescope.training import load_weights
from curvescope.training.records import Training

Reader = Callable[[Path], tuple[int, str, str]]
"""Reads the files below a folder; returns the exit code, what it printed and its complaint."""

TRAIN = ["train", "F-3", "--data", "digits", "--per-class", "3", "--epochs", "2", "--quiet"]
ANALYZE = [
    "--steps", "4", "--probes", "4", "--samples", "20", "--no-figures", "--no-classes", "--layers",
    "fc2",
]  # fmt: skip
BINARY = [
    "train", "T-3", "--data", "digits-2", "--per-class", "4", "--loss", "binary_logistic",
    "--epochs", "2", "--quiet",
]  # fmt: skip


def toy(run: Run) -> Result:
    return Result({"sum": 3.0})


TOY = Study.parse(
    """
name = "toys/toy"
shows = "Counts."
[scale.smoke]
cost = "4 s, beans"
subject = "beans"
[[criteria]]
value = "sum"
kind = "number"
paper = 3.1
tolerance = 0.1
at = ["smoke"]
""",
    toy,
)


def use_toys(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(catalog, "studies", lambda: (TOY,))


_SECONDS = re.compile(r'"seconds": [^,\n]+')
"""How long it took: the only number that is another one each time."""


def call(arguments: list[str]) -> tuple[int, str, str]:
    """The exit code of a command, what it printed, and what it complained of."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = app.run(arguments)
    return code, _SECONDS.sub("", out.getvalue()), err.getvalue()


def command(*arguments: str) -> Reader:
    return lambda root: call([part.replace("ROOT", str(root)) for part in arguments])


def function(read: Callable[[Path], str]) -> Reader:
    """A function of the Python API as if it were a command: its error is a refusal."""

    def run(root: Path) -> tuple[int, str, str]:
        try:
            return 0, read(root), ""
        except CurvescopeError as error:
            return 2, "", f"curvescope: {error}\n"

    return run


def pages(root: Path) -> str:
    """What the viewer shows of the sound runs, and which are damaged."""
    shown = []
    for run in find_runs(root):
        if not run.whole:
            raise CurvescopeError(run.id, run.state)
        page = (
            render(RunDirectory(run.path)) if run.kind == "analysis" else render_training(run.path)
        )
        shown.append(f"{run} {digest(page)}")
    return "\n".join(shown)


def weights(root: Path) -> str:
    model = network("F-3", (1, 8, 8), 10)
    load_weights(root / "user.safetensors", model)
    return ""  # whose numbers these are is the user's affair


def arrays(root: Path) -> str:
    load_data(str(root / "x.npz"))
    return ""


MATRIX = torch.diag(torch.arange(1.0, 31.0, dtype=torch.float64))


def estimated(root: Path) -> str:
    g = torch.Generator().manual_seed(0)
    found = trace(Dense(MATRIX), probes=12, generator=g, checkpoint=root / "trace.state", every=1)
    return json.dumps([found.value, found.stderr])


@dataclass(frozen=True)
class Case:
    """Files, and what reads them."""

    pattern: str
    readers: tuple[Reader, ...]
    codes: tuple[int, ...] = (2,)  # what a refusal may exit with
    may_differ: bool = False  # whether other numbers are none of our business


FINISHED = command(*TRAIN, "--out", "ROOT/run", "--json")
ANALYZED = command("analyze", "--run", "ROOT/run", *ANALYZE, "--json")
COMPARED = command("compare", "ROOT/run", "ROOT/other", "--json")
PAGES = function(pages)

CASES = {
    "configuration of a training": Case("run/config.json", (FINISHED, COMPARED, PAGES)),
    "log": Case("run/metrics.jsonl", (FINISHED, PAGES)),
    "result": Case("run/result.json", (FINISHED, COMPARED, PAGES)),
    "final weights": Case("run/weights/final.safetensors", (FINISHED, ANALYZED, COMPARED)),
    "state": Case(
        "half/state.safetensors", (command(*TRAIN, "--out", "ROOT/half", "--resume", "--json"),)
    ),
    "configuration of an analysis": Case("run/analysis/config.json", (ANALYZED, PAGES)),
    "stage": Case("run/analysis/stages/*/result.json", (ANALYZED, PAGES)),
    "arrays": Case("run/analysis/stages/*/result.safetensors", (ANALYZED, PAGES)),
    "sharpness": Case("other/sharpness.json", (COMPARED,)),
    "outcome": Case(
        "out/toys/toy/outcome.json",
        (command("reproduce", "toys/toy", "--out", "ROOT/out", "--json"),),
    ),
    "certificate": Case(
        "binary/certificate.json",
        (command("certify", "--verify", "ROOT/binary/certificate.json", "--json"),),
        codes=(1, 2),
    ),
    "posterior": Case(
        "binary/*certificate*.safetensors",
        (command("certify", "--verify", "ROOT/binary/certificate.json", "--json"),),
        codes=(1, 2),
    ),
    "estimator": Case("trace.state", (function(estimated),)),
    "weights from elsewhere": Case("user.safetensors", (function(weights),), may_differ=True),
    "arrays from elsewhere": Case("x.npz", (function(arrays),), may_differ=True),
}


def make(root: Path, seed: int) -> None:
    """Everything, small; another seed gives the same files with other numbers."""
    data = dataset("digits", per_class=3)
    for name, own in (("run", seed), ("other", seed + 10)):
        assert call([*TRAIN, "--out", str(root / name), "--seed", str(own)])[0] == 0
    assert call(["analyze", "--run", str(root / "run"), *ANALYZE, "--quiet"])[0] == 0
    assert call(["compare", str(root / "run"), str(root / "other"), "--json"])[0] in (0, 2)
    _half(root / "half", seed)
    binary = str(root / "binary")
    assert call([*BINARY, "--out", binary, "--seed", str(seed)])[0] == 0
    certify = ["certify", binary, "--epochs", "1", "--slack", "0.1", "--quiet"]
    assert call(certify)[0] == 0
    toys = ["reproduce", "toys/toy", "--seed", str(seed), "--out", str(root / "out"), "--quiet"]
    assert call(toys)[0] == 0
    model = network("F-3", (1, 8, 8), 10, generator=torch.Generator().manual_seed(seed))
    safetensors.torch.save_file(model.state_dict(), root / "user.safetensors")
    np.savez(root / "x.npz", X=data.X.numpy() + seed, y=data.y.numpy())
    _stopped_estimate(root, seed)


def _half(folder: Path, seed: int) -> None:
    """A training of ``TRAIN`` that was stopped after its first epoch."""

    def stop(progress: Any) -> None:
        if progress.epochs[0] is not None:
            raise KeyboardInterrupt

    recipe = files.load(folder.parent / "run" / "config.json", Training).recipe
    data = named_data("digits", per_class=3)
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        train_network("F-3", data, recipe, folder=folder, tell=stop)


def _stopped_estimate(root: Path, seed: int) -> None:
    def stop(progress: object) -> None:
        raise KeyboardInterrupt

    g = torch.Generator().manual_seed(0)
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        trace(
            Dense((1 + seed) * MATRIX), probes=12, generator=g, checkpoint=root / "trace.state",
            every=1, progress=stop, method="hutchinson",
        )  # fmt: skip
