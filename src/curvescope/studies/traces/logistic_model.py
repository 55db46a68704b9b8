"""TR sec. 8: the spectrum of logistic regression on the canonical classification model."""

from __future__ import annotations

import torch
from torch import Tensor

from curvescope.figures.model import Curve, Panel, Picture
from curvescope.structure.logistic import (
    CanonicalModel,
    ExpectedSpectrum,
    MisclassificationStudy,
    expected_fim,
    expected_spectrum,
    misclassification_study,
    sampled_fim,
    symmetric_probabilities,
)
from curvescope.studies.entry import Entry, Outcome, Row, Settings

CLASSES, SIGNAL, ALPHA = 10, 6.0, 0.3


def run(settings: Settings) -> Outcome:
    """Theorem 8.1 against the matrix of lemma 8.1, samples against both, and errors."""
    features = settings.pick(smoke=12, small=20, paper=20)
    per_class = settings.pick(smoke=200, small=10_000, paper=100_000)
    model = CanonicalModel(features, CLASSES, SIGNAL)
    expected = expected_spectrum(model, ALPHA)
    EG = expected_fim(model, ALPHA)
    numeric = torch.linalg.eigvalsh(EG).flip(0)
    settings.tell(f"{CLASSES * per_class} samples")
    X, y = model.sample(per_class, generator=settings.generator())
    G = sampled_fim(X, symmetric_probabilities(CLASSES, ALPHA)[y])
    sampled = torch.linalg.eigvalsh(G).flip(0)
    settings.tell("misclassification over signals")
    study = misclassification_study(
        features,
        CLASSES,
        signals=torch.linspace(1.0, 6.0, settings.pick(smoke=4, small=11, paper=21)),
        per_class=settings.pick(smoke=100, small=2000, paper=20_000),
        generator=settings.generator(1),
    )
    rows = (*_theorem(expected, numeric, sampled, EG, G, per_class), *_ratios(expected, study))
    numbers = {
        "features": features,
        "classes": CLASSES,
        "signal": SIGNAL,
        "alpha": ALPHA,
        "names": expected.names,
        "values": expected.values.tolist(),
        "multiplicities": expected.multiplicities,
        "signals": study.signals.tolist(),
        "errors": study.errors.tolist(),
        "outliers to bulk, measured": study.measured.tolist(),
        "outliers to bulk, predicted": study.predicted.tolist(),
    }
    return Outcome(rows, (_spectrum(expected, sampled), _study(study)), numbers, _notes(per_class))


def _theorem(
    expected: ExpectedSpectrum,
    numeric: Tensor,
    sampled: Tensor,
    EG: Tensor,
    G: Tensor,
    per_class: int,
) -> tuple[Row, ...]:
    error = float((expected.all() - numeric).abs().max() / numeric[0])
    rows = [Row("theorem 8.1 against the eigenvalues of E G, relative", error, 0.0, high=1e-12)]
    groups = zip(expected.names, expected.values.tolist(), expected.multiplicities, strict=True)
    start = 0
    for name, value, times in groups:
        if value:
            mean = float(sampled[start : start + times].mean())
            note = f"{times} of them; theorem 8.1 has {value:.6g}"
            rows.append(Row(f"{name}: mean of the sampled over the expected", mean / value, 1.0,
                            low=0.98, high=1.02, note=note))  # fmt: skip
        start += times
    distance = float((G - EG).norm() / EG.norm())
    rows.append(Row(f"‖G − E G‖ / ‖E G‖ with {per_class:,} samples a class", distance, 0.0,
                    high=0.02 if per_class >= 10_000 else None))  # fmt: skip
    return tuple(rows)


def _ratios(expected: ExpectedSpectrum, study: MisclassificationStudy) -> tuple[Row, ...]:
    """“all predictive of misclassification” (sec. 8.2)."""
    return (
        Row("outliers over bulk (theorem)", expected.outliers_to_bulk),
        Row("mini-bulk over bulk (theorem)", expected.minibulk_to_bulk),
        Row("error falls wherever the measured ratio rises", float(study.monotone), 1.0, low=1.0),
        Row("rank correlation of measured ratio and error", _ranks(study.measured, study.errors),
            -1.0, high=-0.99),
        Row("rank correlation of predicted ratio and error", _ranks(study.predicted, study.errors),
            -1.0, high=-0.99),
    )  # fmt: skip


def _ranks(a: Tensor, b: Tensor) -> float:
    ranks = torch.stack([x.argsort().argsort().double() for x in (a, b)])
    return float(torch.corrcoef(ranks)[0, 1])


def _spectrum(expected: ExpectedSpectrum, sampled: Tensor) -> Picture:
    alive = int((sampled > 1e-9 * sampled[0]).sum())
    curves = (
        Curve.of("sampled", None, sampled[:alive], kind="points"),
        Curve.of("theorem 8.1", None, expected.all()[:alive], kind="steps"),
    )
    panel = Panel(xlabel="index", ylabel="eigenvalue", curves=curves, yscale="log")
    caption = "C outliers, a mini-bulk of C(C − 2) and a bulk: theorem 8.1 and a sampled matrix."
    return Picture("theorem", caption, (panel,), columns=1)


def _study(study: MisclassificationStudy) -> Picture:
    panels = (
        Panel(
            xlabel="outliers over bulk", ylabel="error of the best classifier",
            curves=(
                Curve.of("measured", study.measured, study.errors, kind="points"),
                Curve.of("theorem 8.1 at the same α", study.predicted, study.errors),
            ),
            xscale="log", yscale="log",
        ),
        Panel(
            xlabel="signal t", ylabel="outliers over bulk",
            curves=(
                Curve.of("measured", study.signals, study.measured, kind="points"),
                Curve.of("theorem 8.1 at the same α", study.signals, study.predicted),
            ),
            yscale="log",
        ),
    )  # fmt: skip
    caption = "The ratio of outliers to bulk predicts misclassification (TR sec. 8.2)."
    return Picture("misclassification", caption, panels)


def _notes(per_class: int) -> tuple[str, ...]:
    return (
        f"CCM(D, {CLASSES}) at t = {SIGNAL:g} with symmetric probabilities, α = {ALPHA:g}; "
        f"{per_class:,} samples of each class. Sampling spreads a group of equal eigenvalues: its "
        "mean is compared.",
        "The study takes the best linear classifier, whose probabilities are not symmetric as the "
        "theorem assumes: the predicted ratio uses its mean α, and has the right order all the "
        "same.",
    )


ENTRY = Entry(
    name="traces/logistic-model",
    source="TR lemma 8.1, theorem 8.1, sec. 8.2 (no figure)",
    shows=(
        "The closed form of the expected spectrum, its convergence, and the ratio of outliers to "
        "bulk as a predictor of misclassification."
    ),
    cost={
        "smoke": "1 s",
        "small": "20 s, 10,000 samples a class",
        "paper": "100,000 samples a class; not run",
    },
    run=run,
    subject={
        "smoke": "Canonical classification model, 10 classes",
        "small": "Canonical classification model, 10 classes",
        "paper": "Canonical classification model, 10 classes",
    },
    reduced={
        "smoke": "200 samples of each class",
        "small": "10,000 samples of each class of a limit",
        "paper": "100,000 samples of each class of a limit",
    },
)
