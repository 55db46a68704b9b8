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
    """The bound, what it is made of, and whether its arithmetic holds."""
    if not (folder / FILE).is_file():
        return None
    try:
        found = Certificate.load(folder / FILE)
    except CurvescopeError as error:
        return Section("certificate", "Certificate", f"THE FILE IS REFUSED: {error}", EXPECTED)
    blocks: list[Block] = [_numbers(found), Text(found.statement), _verification(found)]
    if len(found.history) > 1:
        blocks.append(_history(found))
    return Section(
        "certificate", "Certificate", _seen(found), EXPECTED, blocks, verdict=verdict(found)
    )


EXPECTED = (
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


def verdict(found: Certificate) -> str:
    """Which of the two bases this certificate has; the other one was not tried."""
    basis = found.method.basis
    words = _BASES.get(basis, f"in the basis called {basis}")
    return f"The posterior’s variances are diagonal {words}; no other basis was tried."


def _seen(found: Certificate) -> str:
    worth = ", which says nothing" if found.vacuous else ""
    holds = "" if found.verify().passed else "; BUT ITS ARITHMETIC DOES NOT HOLD"
    return (
        f"The stochastic network errs on at most {percent_upwards(found.bound)} of new examples "
        f"with probability {found.confidence.level}{worth}; on the {found.samples:,} examples it "
        f"errs on {percent(found.empirical_error)}{holds}."
    )


def _numbers(found: Certificate) -> Table:
    orientation = found.orientation
    rows = [
        ["bound on the error", percent_upwards(found.bound)],
        ["confidence", f"{found.confidence.level}"],
        ["error on the examples, by draws", percent(found.empirical_error)],
        ["its upper bound", percent_upwards(found.error_bound)],
        ["KL(Q‖P)", short(found.kl, 6)],
        ["examples", f"{found.samples:,}"],
        ["draws", f"{found.draws.count:,}"],
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


def _verification(found: Certificate) -> Table:
    """What can be checked without model and data."""
    rows = [
        [check.what, "holds" if check.passed else "DOES NOT HOLD", check.detail]
        for check in found.verify().checks
    ]
    head = ["check", "verdict", "numbers"]
    return Table("Verification of the arithmetic", head, rows, prose=True, folded=True)


def _history(found: Certificate) -> Chart:
    epochs = [point.epoch for point in found.history]
    title = "The bound while the posterior was optimized"
    curve = Curve.of("bound", epochs, [point.bound for point in found.history])
    return Chart("certificate", title, Panel(title, "epoch", "bound", (curve,)))
