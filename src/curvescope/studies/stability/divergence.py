"""A rate that grows until the training diverges: how long before that the monitor rings."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from curvescope.figures.model import Curve, Panel, Picture
from curvescope.monitor import Monitor
from curvescope.studies.run import Result, Run, Value
from curvescope.studies.stability.subjects import digits, tanh_network, targets

MOMENTUM = 0.9
_NEVER = float("inf")


def run(run: Run) -> Result:
    """Ten networks, each with a rate that grows by the same part in every step."""
    courses = [_course(run, seed) for seed in range(run.seed, run.seed + run["seeds"])]
    marks = torch.stack([course["marks"] for course in courses])  # [seeds, edge · jump · exploded]
    edge, jump, exploded = marks.T
    lead, later = exploded - edge, exploded - jump
    values: dict[str, float | Value] = {
        "seeds whose loss exploded": float(exploded.isfinite().sum()),
        "seeds where the edge rang before": float((lead > 0).sum()),
        "steps from the edge's event to the explosion, median": Value(
            float(lead.median()), f"{float(lead.min()):g} to {float(lead.max()):g}"
        ),
        "steps from the edge's event to the explosion, fewest": float(lead.min()),
        "steps from a jump of the loss to the explosion, median": Value(
            float(later.median()), f"{float(later.min()):g} to {float(later.max()):g}"
        ),
    }
    numbers = {"edge": edge.tolist(), "jump": jump.tolist(), "exploded": exploded.tolist()}
    return Result(values, (_picture(courses),), numbers)


def _course(run: Run, seed: int) -> Mapping[str, Tensor]:
    names = ("steps", "every", "width", "samples", "rate", "growth")
    steps, every, width, samples, rate, growth = (run[name] for name in names)

    def compute() -> dict[str, Tensor]:
        X, y = digits(samples)
        data = X, targets(y)
        model = tanh_network(width, torch.Generator().manual_seed(seed))
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=MOMENTUM)
        generator = torch.Generator().manual_seed(seed)
        monitor = Monitor(
            model, data, loss="mse", optimizer=optimizer, track=("top",), every=every,
            generator=generator,
        )  # fmt: skip
        losses: list[float] = []
        exploded = _NEVER
        for step in range(1, steps + 1):
            optimizer.zero_grad()
            loss = mse_loss(model(X), data[1])
            losses.append(float(loss.detach()))
            if step > 1 and not losses[-1] <= losses[0]:
                exploded = step
                break
            loss.backward()
            optimizer.step()
            monitor.step(loss=losses[-1])
            optimizer.param_groups[0]["lr"] *= growth
        edge = [e.step for e in monitor.events if e.kind == "edge of stability"]
        jump = [e.step for e in monitor.events if (e.kind, e.name) == ("jump", "train_loss")]
        marks = [edge[0] if edge else _NEVER, jump[0] if jump else exploded, exploded]
        return {
            "losses": torch.tensor(losses, dtype=torch.float64),
            "marks": torch.tensor(marks, dtype=torch.float64),
        }

    return run.once(f"divergence-{seed}", compute)


def _picture(courses: list[Mapping[str, Tensor]]) -> Picture:
    shown = [
        Curve.of(
            "loss of each network" if i == 0 else "", None, course["losses"], color=0, width=0.6
        )
        for i, course in enumerate(courses)
    ]
    rang = [
        (float(course["marks"][0]), float(course["losses"][int(course["marks"][0]) - 1]))
        for course in courses
        if bool(course["marks"][0].isfinite())
    ]
    x, y = zip(*rang, strict=True) if rang else ((), ())
    shown.append(Curve.of("edge of stability", x, y, kind="points", color=1))
    panel = Panel(
        title="loss while the rate grows", xlabel="step", curves=tuple(shown), yscale="log"
    )
    return Picture("divergence", _CAPTION, (panel,))


_CAPTION = (
    "Full-batch training with momentum at a rate that grows in every step, until the loss is above "
    "that of the beginning; the points are the monitor's events."
)
