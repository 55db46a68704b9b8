"""The edge of stability: where λ_max settles under full-batch training, at three rates each.

References:
    Cohen, Kaur, Li, Kolter and Talwalkar (2021), *Gradient Descent on Neural Networks Typically
    Occurs at the Edge of Stability*.
    Cohen et al. (2022), *Adaptive Gradient Methods at the Edge of Stability*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from curvescope.figures.model import Curve, Panel, Picture
from curvescope.monitor import Monitor
from curvescope.studies.run import Result, Run, Value
from curvescope.studies.stability.subjects import digits, exact_part, tanh_network, targets

MOMENTUM = 0.9
_SETTLED = 3  # the last part of the training, one in so many measurements, is where it settled
_DIVERGED = 10.0  # a mean squared error that no training comes back from; it begins below 0.2
Make = Callable[[Iterable[Tensor], float], torch.optim.Optimizer]
OPTIMIZERS: Mapping[str, Make] = {
    "gradient descent": lambda p, rate: torch.optim.SGD(p, lr=rate),
    "momentum": lambda p, rate: torch.optim.SGD(p, lr=rate, momentum=MOMENTUM),
    "Adam": lambda p, rate: torch.optim.Adam(p, lr=rate),
}


def run(run: Run) -> Result:
    """Train from the same weights with each optimizer and rate; measure, and compute exactly."""
    values: dict[str, float | Value] = {}
    numbers: dict[str, Any] = {}
    within: list[Tensor] = []
    for name, rates in run["rates"].items():
        for rate in rates:
            run.tell(f"{name}, η = {rate:g}")
            course = _course(run, name, rate)
            numbers[f"{name}, η = {rate:g}"] = {k: t.tolist() for k, t in course.items()}
            values |= _values(f"{name}, η = {rate:g}", course)
            within.append((course["measured"] / course["exact"] - 1).abs() < 0.05)
        shares = torch.cat(within[-len(rates) :]).double()
        of = f"{len(shares)} measurements"
        values[f"{name}: measurements within 5 % of the exact λ_max"] = Value(
            float(shares.mean()), of
        )
    return Result(values, (_picture(run, numbers),), numbers)


def _course(run: Run, name: str, rate: float) -> Mapping[str, Tensor]:
    """One training: at each look the loss, and λ_max over the limit, measured and exact."""
    steps, every, width, samples = (run[key] for key in ("steps", "every", "width", "samples"))
    seed = run.seed

    def compute() -> dict[str, Tensor]:
        X, y = digits(samples)
        data = X, targets(y)
        model = tanh_network(width, torch.Generator().manual_seed(seed))
        optimizer = OPTIMIZERS[name](model.parameters(), rate)
        generator = torch.Generator().manual_seed(seed)
        monitor = Monitor(
            model, data, loss="mse", optimizer=optimizer, track=("top",), every=every,
            generator=generator,
        )  # fmt: skip
        rows = []
        for _ in range(steps):
            optimizer.zero_grad()
            mse_loss(model(X), data[1]).backward()
            optimizer.step()
            record = monitor.step()
            if record is not None and not record.values["loss"] < _DIVERGED:
                break
            if record is not None:
                measured = record.values["top/ratio"]
                exact = exact_part(model, data, optimizer)
                rows.append([record.step, record.values["loss"], measured, exact])
        edge = [event.step for event in monitor.events if event.kind == "edge of stability"]
        table = torch.tensor(rows, dtype=torch.float64)
        courses = dict(zip(("step", "loss", "measured", "exact"), table.T, strict=True))
        return {**courses, "event": torch.tensor([*edge[:1]], dtype=torch.float64)}

    return run.once(f"edge-{name.replace(' ', '-')}-{rate:g}", compute)


def _values(name: str, course: Mapping[str, Tensor]) -> dict[str, float | Value]:
    exact, loss, event = course["exact"], course["loss"], course["event"]
    last = exact[-(len(exact) // _SETTLED) :]
    spread = f"{float(last.min()):.3f} to {float(last.max()):.3f}"
    values: dict[str, float | Value] = {
        f"{name}: steps without divergence": float(course["step"][-1]),
        f"{name}: λ_max over the limit, in the last third": Value(float(last.median()), spread),
        f"{name}: λ_max over the limit, at the first look": float(exact[0]),
    }
    if len(event):
        values[f"{name}: step of the event"] = float(event[0])
        at = int((course["step"] >= event[0]).nonzero()[0])
        values[f"{name}: loss at the end over that at the event"] = float(loss[-1] / loss[at])
    return values


def _picture(run: Run, numbers: Mapping[str, Any]) -> Picture:
    panels = []
    for name, rates in run["rates"].items():
        courses = {rate: numbers[f"{name}, η = {rate:g}"] for rate in rates}
        shown = [
            Curve.of(f"η = {rate:g}", c["step"], c["measured"], color=i)
            for i, (rate, c) in enumerate(courses.items())
        ]
        shown += [
            Curve.of("exact" if i == 0 else "", c["step"], c["exact"], kind="points", color=i)
            for i, c in enumerate(courses.values())
        ]
        steps = courses[rates[0]]["step"]
        shown.append(
            Curve.of("the limit", [steps[0], steps[-1]], [1.0, 1.0], dash="dashed", color=7)
        )
        panels.append(
            Panel(title=f"{name}: λ_max over the limit", xlabel="step", curves=tuple(shown))
        )
    return Picture("edge", _CAPTION, tuple(panels), columns=3)


_CAPTION = (
    "The largest eigenvalue over the limit of stability: 2/η for gradient descent, 2 (1 + β)/η "
    "with momentum, and 38/η of the preconditioned Hessian for Adam. Lines: the monitor's; points: "
    "of the whole matrix."
)
