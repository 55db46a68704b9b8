"""FF §4, fig. 3, and PP table 1: one hidden layer of 100 units on MNIST."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from curvescope.figures.model import Picture
from curvescope.flatness import SharpnessReport
from curvescope.operators.hessian import Hessian
from curvescope.studies.entry import Entry, Outcome, Row, Settings
from curvescope.studies.flatness import solutions
from curvescope.studies.flatness.ritz import panel, ritz
from curvescope.studies.flatness.solutions import DECAYS

LARGEST = (14.4, 15.0, 17.8)
MEAN = (1.82e-2, 1.67e-2, 1.76e-2)
MEAN_SQUARE = (0.120, 0.104, 0.163)
ACCURACY = (94.4, 96.46, 96.7)
LOSS_GAP = (0.024, 0.022, 0.007)
EPOCHS = {"smoke": 10, "small": 10, "paper": 50}
COUNTED, ACTUAL = 9960, 79_510
"""FF's number of parameters, and that of 784-100-10."""

PAPER: Mapping[str, tuple[float, ...] | None] = {
    "λ_max": LARGEST,
    "tr H / P": MEAN,
    "tr H² / P": MEAN_SQUARE,
    "validation accuracy": ACCURACY,
    "loss gap": LOSS_GAP,
    "‖w‖": None,
}


def run(settings: Settings) -> Outcome:
    """Train with each weight decay, measure, compare."""
    train, test = solutions.validation(settings)
    epochs = settings.pick(**EPOCHS)
    recipes = solutions.by_decay(
        epochs=epochs, lr=settings.pick(smoke=0.05, small=0.03, paper=0.01)
    )
    curvature = settings.pick(smoke=500, small=5000, paper=10_000)
    options: dict[str, Any] = {
        "samples": curvature,
        "tol": 1e-2,
        "steps": settings.pick(smoke=8, small=16, paper=16),
    }
    found = solutions.solve(settings, "flatness-mlp", "F-100", train, recipes)
    reports = {
        s.name: solutions.report(settings, "flatness-mlp", s, (train, test), probes=16, **options)
        for s in found
    }
    spectra = {}
    for decay, solution in zip(DECAYS, found, strict=True):
        settings.tell(f"{solution.name}: spectrum")
        H = Hessian(solutions.problem(solution.model, train, samples=curvature, size=2500))
        steps = settings.pick(smoke=20, small=60, paper=100)
        spectra[solution.name] = ritz(settings, f"flatness-mlp-{decay:g}", H, steps=steps)
    drawn = Picture(
        "spectra",
        "Ritz values of the Hessian and their masses (FF fig. 3a, 3b).",
        (panel("", spectra),),
        columns=1,
    )
    ours = _columns(reports)
    rows = []
    for what, printed in PAPER.items():
        rows += [
            Row(f"{what}, weight decay {decay:g}", value, paper=None if printed is None else paper)
            for decay, value, paper in zip(DECAYS, ours[what], printed or DECAYS, strict=True)
        ]
    rows += [
        solutions.increase(what, ours[what][0], ours[what][-1], paper=(paper[0], paper[-1]))
        for what, paper in (("λ_max", LARGEST), ("tr H² / P", MEAN_SQUARE))
    ]
    change = ours["validation accuracy"][-1] - ours["validation accuracy"][0]
    rows.append(Row("validation accuracy: last less first, points", change, paper=2.3, low=0.0))
    notes = (*_notes(epochs, min(curvature, len(train)), ours), *solutions.findings(reports))
    pictures = (_picture(ours), drawn)
    return Outcome(solutions.beside(settings, rows), pictures, solutions.saved(reports), notes)


def _columns(reports: Mapping[str, SharpnessReport]) -> dict[str, list[float]]:
    """What FF and PP print, by column, one number for each weight decay."""
    found = list(reports.values())
    return {
        "λ_max": [r.hessian.largest.value for r in found],
        "tr H / P": [r.hessian.mean_eigenvalue.value for r in found],
        "tr H² / P": [r.hessian.mean_square.value for r in found],
        "validation accuracy": [solutions.accuracy(r) for r in found],
        "loss gap": [solutions.loss_gap(r) for r in found],
        "‖w‖": [r.weights.norm for r in found],
        "training accuracy": [100 * (1 - r.train.error.value) for r in found if r.train.error],
    }


def _picture(ours: Mapping[str, list[float]]) -> Picture:
    return solutions.sides(
        "weight-decay",
        "Sharpness, accuracy, loss gap and weight norm against weight decay.",
        DECAYS,
        {
            what.replace("accuracy", "accuracy, per cent"): (
                {"ours": ours[what]} if printed is None else {"ours": ours[what], "PP": printed}
            )
            for what, printed in PAPER.items()
        },
    )


def _notes(epochs: int, curvature: int, ours: Mapping[str, list[float]]) -> tuple[str, ...]:
    return (
        f"{epochs} epochs of SGD with momentum 0.9 and the linear schedule, batches of 128, pixels "
        f"from −1 to 1; the learning rate is PP's 0.01 at paper scale, larger in the short "
        f"versions. Curvature on {curvature:,} training samples.",
        f"FF and PP count {COUNTED:,} parameters where 784-100-10 has {ACTUAL:,}: their means over "
        f"parameters may be {ACTUAL / COUNTED:.1f} times too large. Compare the order of the runs.",
        f"FF's solutions fit their training data to 96.88 (no weight decay) and 96.65 per cent, "
        f"these to {ours['training accuracy'][0]:.2f} and {ours['training accuracy'][-1]:.2f}, and "
        "a better fit means smaller eigenvalues.",
    )


def _checks(outcome: Outcome) -> Iterator[Row]:
    """PP: the spectral norm grows with the regularization, the loss difference falls."""
    yield solutions.grows(outcome, "λ_max", paper=LARGEST)
    yield Row(
        "loss gap: largest ratio from one weight decay to the next",
        max(solutions.ratios(outcome.values("loss gap, weight decay"))),
        paper=max(solutions.ratios(LOSS_GAP)),
        high=1.0,
    )


ENTRY = Entry(
    name="flatness/mlp",
    source="FF §4: fig. 3; PP table 1",
    shows="Weight decay raises the sharpness of a small network, and its accuracy.",
    cost={
        "smoke": "3 s, 1,500 embedded digits",
        "small": "2 minutes, MNIST, 10 epochs",
        "paper": "MNIST, 50 epochs: ten minutes on two cores",
    },
    run=run,
    subject={
        "smoke": "F-100 on embedded digits",
        "small": "F-100 on mnist",
        "paper": "F-100 on mnist",
    },
    reduced={
        "smoke": "1,500 embedded digits instead of 45,000, epochs",
        "small": f"{EPOCHS['small']} epochs instead of 50; curvature of 5,000 digits",
        "paper": "curvature of 10,000 digits instead of 45,000",
    },
    checks=_checks,
)
