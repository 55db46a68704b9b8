"""Two studies of nothing: one that counts, and one that never ends."""

from __future__ import annotations

import torch

from curvescope.figures.model import Curve, Image, Panel, Picture
from curvescope.studies.run import Result, Run, Value
from curvescope.studies.study import Study

CALLS: list[Run] = []

TEXT = """
name = "toys/toy"
shows = "Counts."
section = "sec. 1"
reproduces = [{ paper = "toys", figure = "1" }]

[scale.smoke]
cost = "4 s, beans"
subject = "F-2^2 on beans"
reduced = "beans instead of peas"
[scale.small]
cost = "10 min, beans"
subject = "F-2^2 on peas"

[[criteria]]
value = "two"
kind = "number"
paper = 2.1
range = [1.9, 2.2]
at = ["smoke", "small"]
[[criteria]]
value = "E[x]"
kind = "ours"
high = 2.0
at = ["smoke", "small"]
[[criteria]]
value = "three over two"
kind = "direction"
low = 1.0
says = "three is more than two"
at = ["smoke", "small"]
[[criteria]]
value = "three"
kind = "identity"
low = 3.0
high = 3.0
[[criteria]]
value = "a million"
kind = "number"
paper = 1e6
tolerance = 0.1
missing = "GPU, 4 h"
"""


def toy(run: Run) -> Result:
    CALLS.append(run)
    run.tell("counting")
    x = run.once("part", lambda: {"x": torch.arange(3.0)})["x"]
    panels = (
        Panel(
            title="curves",
            xlabel="i",
            curves=(
                Curve.of("line", None, x + 1),
                Curve.mean("mean", None, torch.tensor([[1.0, 2.0], [3.0, 2.0]])),
                Curve.of("bars", None, [1.0, 2.0], kind="bars"),
                Curve.of("points", None, [1.0, 2.0], low=[0.5, 1], high=[2, 3], kind="points"),
            ),
            yscale="log",
            lines={"here": 2.0},
        ),
        Panel(title="heat", xlabel="i", image=Image.of(torch.eye(3))),
        Panel(title="steps", xlabel="i", curves=(Curve.of("s", [0, 1], [0, 1], kind="steps"),)),
    )
    values = {"two": 2.0, "E[x]": Value(3.0, "of [x]"), "three": float(x.sum())}
    return Result(values, (Picture("toy", "A picture.", panels),), {"n": 3})


def ratio(values, numbers):
    return {"three over two": values["three"] / values["two"]}


def failing(run: Run) -> Result:
    raise KeyboardInterrupt


TOY = Study.parse(TEXT, toy, derive=ratio)
STOPS = Study.parse(
    'name = "toys/stops"\nshows = "Never ends."\n'
    '[scale.smoke]\ncost = "1 s, nothing"\nsubject = "nothing"\n',
    failing,
)
