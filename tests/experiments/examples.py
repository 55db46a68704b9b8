"""A tiny trained classifier, and its analysis in seconds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from curvescope import io
from curvescope.data import dataset
from curvescope.experiments.analyze import analyze
from curvescope.experiments.configuration import Settings
from curvescope.experiments.demo import Plan, Subject
from curvescope.experiments.stages.plan import kinds_of
from curvescope.experiments.store import RunDirectory, Stage
from curvescope.problem import Problem

QUICK = Settings(steps=24, probes=6, trace_probes=32, outliers=6, layer_pairs=8, class_rows=400)


TINY = Plan(
    analyzed=(
        Subject("one", "F-4", "digits", epochs=2, lr=0.1),
        Subject("two", "F-3^2", "digits", epochs=2, lr=0.1),
    ),
    certified=Subject("binary", "T-4", "digits-2", epochs=2, lr=0.1, loss="binary_logistic"),
    per_class=3,
    settings=Settings(
        steps=12, probes=8, trace_probes=32, outliers=4, layer_pairs=4, exact_rows=400,
        class_rows=400,
    ),
    epochs=2,
    slack=0.05,
)  # fmt: skip
"""A demonstration in two seconds."""


@cache
def trained(seed: int = 0) -> nn.Sequential:
    """64-8-10 on 60 digits, after a few steps of gradient descent, in float64."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(
            OrderedDict(
                flatten=nn.Flatten(), fc1=nn.Linear(64, 8), relu=nn.ReLU(), fc2=nn.Linear(8, 10)
            )
        ).double()
    X, y = data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    for _ in range(40):
        optimizer.zero_grad()
        F.cross_entropy(model(X), y).backward()
        optimizer.step()
    return model.requires_grad_(True).eval()


@cache
def data(split: str = "train") -> tuple[Tensor, Tensor]:
    found = dataset("digits", split=split, per_class=4 if split == "train" else 2)
    return found.X.double(), found.y


def problems(seed: int = 0) -> tuple[Problem, Problem]:
    model = trained(seed)
    return Problem(model, data()), Problem(model, data("test"))


def quick_run(out: Path, *, seed: int = 0, **changes: Any) -> RunDirectory:
    train, test = problems(seed)
    arguments = {"test": test, "settings": QUICK, "names": {"data": "forty digits"}, **changes}
    return analyze(train, out, seed=seed, **arguments)


def rewritten(path: Path, stage: str, change: Callable[[Stage[Any]], Stage[Any]]) -> None:
    """Store another result of a stage, as if it had been computed."""
    run = RunDirectory(path)
    kind = kinds_of(run.config)[stage]
    io.save(run.folder(stage) / "result.json", change(run.stage(stage, kind)), Stage[kind])


def reconfigured(path: Path, **changes: Any) -> None:
    """Give a run another configuration, with all of its results."""
    run = RunDirectory(path)
    kinds = kinds_of(run.config)
    results = {name: run.stage(name, kinds[name]) for name in run.stages}
    config = replace(run.config, **changes)
    io.save(path / "config.json", config)
    for name, stage in results.items():
        belongs = replace(stage, run=io.pack(config)["checksum"])
        io.save(run.folder(name) / "result.json", belongs, Stage[kinds[name]])


def failed(stage: Stage[Any]) -> Stage[Any]:
    """The same result with a first check that disagrees."""
    first, *others = stage.checks
    return replace(stage, checks=(replace(first, passed=False), *others))
