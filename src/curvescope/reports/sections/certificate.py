"""The certificate of a run, if there is one: ``certificate.json`` in its folder.

``curvescope certify RUN`` writes it into the folder of the training, in which the analysis lies.
"""

from __future__ import annotations

from pathlib import Path

from curvescope._numbers import percent, short
from curvescope.certificates.certificate import Certificate
from curvescope.certificates.divergence import percent_upwards
from curvescope.errors import CurvescopeError
from curvescope.experiments.store import RunDirectory
from curvescope.figures.model import Curve, Panel
from curvescope.reports.blocks import Block, Chart, Section, Table, Text

FILE = "certificate.json"


def build(run: RunDirectory) -> Section | None:
    """The certificate beside an analysis, or in the folder of the training above it."""
    for place in (run.path, run.path.resolve().parent):
        if (place / FILE).is_file():
            return of_folder(place)
    return None


def of_folder(folder: Path) -> Section | None:
    """The section of a certificate: its bound and terms, and whether its arithmetic holds."""
    if not (folder / FILE).is_file():
        return None
    try:
        certificate = Certificate.load(folder / FILE)
    except CurvescopeError as error:
        return Section("certificate", "Certificate", f"THE FILE IS REFUSED: {error}", CLAIM)
    blocks: list[Block] = [
        _numbers(certificate),
        Text(certificate.statement),
        _verification(certificate),
    ]
    if len(certificate.history) > 1:
        blocks.append(_history(certificate))
    return Section(
        "certificate",
        "Certificate",
        _observation(certificate),
        CLAIM,
        blocks,
        assessment=assessment(certificate),
    )


CLAIM = (
    "A posterior whose variances are diagonal in the eigenbasis of each layer’s Hessian gives a "
    "smaller bound than one in the standard basis, because the variance can be large along flat "
    "directions and small along sharp ones (Wu et al., “Dissecting Hessian”, sec. 6 and table 1)."
)
_BASES = {
    "kronecker": "in the eigenbasis of each layer’s Kronecker factors",
    "closed": "in the eigenbasis of each layer’s Kronecker factors, the output Hessian in "
    "closed form",
    "standard": "in the standard basis, without the curvature",
}


def assessment(certificate: Certificate) -> str:
    """Which of the two bases this certificate has; the other one was not tried."""
    basis = certificate.method.basis
    words = _BASES.get(basis, f"in the basis called {basis}")
    return f"The posterior’s variances are diagonal {words}; no other basis was tried."


def _observation(certificate: Certificate) -> str:
    worth = ", which says nothing" if certificate.vacuous else ""
    holds = "" if certificate.verify().passed else "; BUT ITS ARITHMETIC DOES NOT HOLD"
    return (
        "The stochastic network errs on at most "
        f"{percent_upwards(certificate.bound)} of new examples with probability "
        f"{certificate.confidence.level}{worth}; on the {certificate.samples:,} examples it errs "
        f"on {percent(certificate.empirical_error)}{holds}."
    )


def _numbers(certificate: Certificate) -> Table:
    orientation = certificate.orientation
    rows = [
        ["bound on the error", percent_upwards(certificate.bound)],
        ["confidence", f"{certificate.confidence.level}"],
        ["error on the examples, by draws", percent(certificate.empirical_error)],
        ["its upper bound", percent_upwards(certificate.error_bound)],
        ["KL(Q‖P)", short(certificate.kl, 6)],
        ["examples", f"{certificate.samples:,}"],
        ["draws", f"{certificate.draws.count:,}"],
        [
            "error at the posterior mean, training data (not certified)",
            percent(orientation.mean_train),
        ],
    ]
    if orientation.stochastic_test is not None:
        rows.append(
            ["stochastic error, test data (not certified)", percent(orientation.stochastic_test)]
        )
    return Table("The certificate in numbers", ["", "value"], rows)


def _verification(certificate: Certificate) -> Table:
    """The checks that need neither model nor data."""
    rows = [
        [check.what, "holds" if check.passed else "DOES NOT HOLD", check.detail]
        for check in certificate.verify().checks
    ]
    head = ["check", "verdict", "numbers"]
    return Table("Verification of the arithmetic", head, rows, prose=True, folded=True)


def _history(certificate: Certificate) -> Chart:
    epochs = [point.epoch for point in certificate.history]
    title = "The bound while the posterior was optimized"
    curve = Curve.of("bound", epochs, [point.bound for point in certificate.history])
    return Chart("certificate", title, Panel(title, "epoch", "bound", (curve,)))
