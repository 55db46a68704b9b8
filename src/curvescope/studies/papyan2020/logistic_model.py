"""Logistic regression on the canonical classification model (Papyan 2020, sec. 8)."""

from __future__ import annotations

import torch
from torch import Tensor

from curvescope.figures.model import Curve, Panel, Picture
from curvescope.flatness.ranks import spearman
from curvescope.structure.logistic import (
    RATIOS,
    CanonicalModel,
    ExpectedSpectrum,
    MisclassificationStudy,
    expected_fim,
    expected_spectrum,
    misclassification_study,
    sampled_fim,
    symmetric_probabilities,
)
from curvescope.structure.ratios import spectrum_ratios
from curvescope.studies.run import Result, Run, Value


def run(run: Run) -> Result:
    """Theorem 8.1 against the matrix of lemma 8.1, samples against both, and errors."""
    classes, per_class = run["classes"], run["per_class"]
    model = CanonicalModel(run["features"], classes, run["signal"])
    expected, EG = expected_spectrum(model, run["alpha"]), expected_fim(model, run["alpha"])
    run.tell(f"{classes * per_class:,} samples")
    X, y = model.sample(per_class, generator=run.generator())
    G = sampled_fim(X, symmetric_probabilities(classes, run["alpha"])[y])
    sampled = torch.linalg.eigvalsh(G).flip(0)
    values: dict[str, float | Value] = {
        "theorem 8.1 against the eigenvalues of E G, relative": _error(expected, EG),
        "‖G − E G‖ / ‖E G‖": Value(float((G - EG).norm() / EG.norm()), f"{per_class:,} a class"),
        **_groups(expected, sampled),
    }
    ratios = spectrum_ratios(sampled, classes)
    theory = (float(value) for value in expected.values)
    means = tuple(theory)
    for name, (above, below) in RATIOS.items():
        values[f"{name}, sampled over theorem 8.1"] = (
            ratios.ratio(name) * means[below] / means[above]
        )
    studies = {name: _study(run, name) for name in RATIOS}
    for name, study in studies.items():
        values[f"rank correlation of {name} and misclassification"] = spearman(
            study.measured.tolist(), study.errors.tolist()
        )
    numbers = {
        "names": expected.names,
        "values": expected.values.tolist(),
        "multiplicities": expected.multiplicities,
        "signals": run["signals"],
        "errors": studies["outliers to bulk"].errors.tolist(),
        **{f"{name}, measured": study.measured.tolist() for name, study in studies.items()},
    }
    return Result(values, (_misclassification(studies), _theorem(expected, sampled)), numbers)


def _study(run: Run, ratio: str) -> MisclassificationStudy:
    run.tell(f"misclassification over signals, {ratio}")
    return misclassification_study(
        run["features"], run["classes"], signals=torch.tensor(run["signals"]), ratio=ratio,
        per_class=run["per_class_of_study"], generator=run.generator(1),
    )  # fmt: skip


def _error(expected: ExpectedSpectrum, EG: Tensor) -> float:
    numeric = torch.linalg.eigvalsh(EG).flip(0)
    return float((expected.all() - numeric).abs().max() / numeric[0])


def _groups(expected: ExpectedSpectrum, sampled: Tensor) -> dict[str, float | Value]:
    """Means of the sampled eigenvalues at the places of each group: sampling spreads equal ones."""
    values: dict[str, float | Value] = {}
    start = 0
    for name, value, times in zip(
        expected.names, expected.values.tolist(), expected.multiplicities, strict=True
    ):
        if value:
            mean = float(sampled[start : start + times].mean())
            note = f"{times} of them; theorem 8.1 has {value:.6g}"
            values[f"{name}: mean of the sampled over the expected"] = Value(mean / value, note)
        start += times
    return values


def _theorem(expected: ExpectedSpectrum, sampled: Tensor) -> Picture:
    alive = int((sampled > 1e-9 * sampled[0]).sum())
    curves = (
        Curve.of("sampled", None, sampled[:alive], kind="points"),
        Curve.of("theorem 8.1", None, expected.all()[:alive], kind="steps"),
    )
    panel = Panel(xlabel="index", ylabel="eigenvalue", curves=curves, yscale="log")
    caption = "C outliers, a mini-bulk of C(C − 2) and a bulk: theorem 8.1 and a sampled matrix."
    return Picture("theorem", caption, (panel,), columns=1)


def _misclassification(studies: dict[str, MisclassificationStudy]) -> Picture:
    panels = tuple(
        Panel(
            xlabel=name, ylabel="error of the best classifier", xscale="log", yscale="log",
            curves=(
                Curve.of("measured", study.measured, study.errors, kind="points"),
                Curve.of("theorem 8.1 at the same mean α", study.predicted, study.errors),
            ),
        )
        for name, study in studies.items()
    )  # fmt: skip
    caption = "Ratios of the parts of the spectrum predict misclassification (sec. 8.2)."
    return Picture("misclassification", caption, panels, 3)
