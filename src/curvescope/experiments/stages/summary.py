"""The last stage: the best values, and checks of the stages against each other."""

from __future__ import annotations

from math import hypot

from curvescope.experiments.best_values import Summary, best_values_of
from curvescope.experiments.checks import Check, Number, agree
from curvescope.experiments.quantities import end_of_pairs, exact_end
from curvescope.experiments.stages import class_structure, sharpness, spectra
from curvescope.experiments.stages.context import Context
from curvescope.experiments.stages.spectra import Spectrum
from curvescope.experiments.stages.spectrum_checks import power_sum
from curvescope.experiments.store import Finding, Outcome, RunDirectory
from curvescope.flatness.measures import CurvatureMeasures
from curvescope.flatness.report import SharpnessReport
from curvescope.spectra.estimate import Estimate


def compute(context: Context) -> Outcome[Summary]:
    """The best values, checked by identities between matrices; needs no products."""
    run = context.run
    measured = spectra.spectra_of(run)
    report = run.result(sharpness.NAME, sharpness.Sharpness).primary
    checks = [
        _sum_of_traces(measured),
        *_sharpness(report, measured),
        *_gram_forms(run, measured["G"]),
        _weyl(measured),
    ]
    products = sum(spectrum.products for spectrum in measured.values())
    return Outcome(Summary(best_values_of(measured, report), products), tuple(checks))


def _sum_of_traces(measured: dict[str, Spectrum]) -> Check:
    """``tr H = tr G + tr E``: from H's own products on one side, and from G and E on the other.

    The left side is the density's, since XTrace takes the trace of H from G where it may.
    """
    H, G, E = (measured[name] for name in spectra.MATRICES)
    scale = float(H.measure.outliers.abs().max())
    g, words = _trace(G)
    e = Number(0.0) if E.no_diagonal else E.trace
    words += " (E has no diagonal)" if E.no_diagonal else " plus tr E by XTrace"
    together = Number(g.value + e.value, hypot(g.stderr, e.stderr), min(_probes(g), _probes(e)))
    ways = {"by itself, from the density": power_sum(H.measure, 1), f"as tr G {words}": together}
    return agree("tr H", ways, scale=scale)


def _trace(spectrum: Spectrum) -> tuple[Number | Estimate[float], str]:
    if spectrum.exact is None:
        return spectrum.trace, "by XTrace"
    return Number(float(spectrum.exact.values.sum())), "from all eigenvalues"


def _probes(number: Number | Estimate[float]) -> int:
    """The probes behind a number; an exact one does not limit those of a sum."""
    return number.probes if number.stderr else 10**6


def _sharpness(report: SharpnessReport, measured: dict[str, Spectrum]) -> list[Check]:
    """The sharpness report against the spectra, where its probes and searches are independent."""
    checks = []
    for name, measures in (("H", report.hessian), ("G", report.gauss_newton)):
        spectrum, tr = measured[name], measures.trace
        if tr.stderr and not (name == "H" and spectrum.no_diagonal):  # it is that of G then
            trace, words = _trace(spectrum)
            ways = {
                "of the sharpness report": tr,
                words: trace,
            }
            scale = float(spectrum.measure.outliers.abs().max())
            checks.append(agree(f"tr {name}", ways, scale=scale))
        checks += _ends(name, measures, spectrum)
    return checks


def _ends(name: str, measures: CurvatureMeasures, spectrum: Spectrum) -> list[Check]:
    """``λ_max`` and ``λ_min`` by their searches against an independent value.

    That is from all eigenvalues, or from the search by magnitude where it reached that end.
    """
    checks = []
    for end, estimate, upper in (
        ("λ_max", measures.largest, True),
        ("λ_min", measures.smallest, False),
    ):
        other, words = exact_end(spectrum, upper=upper), "from all eigenvalues"
        if other is None:
            other = end_of_pairs(spectrum, upper=upper)
            words = "among those of largest magnitude"
        if other.how not in ("exact", "converged") or estimate.bias == 0:
            continue  # a bound, or nothing was searched for
        ways = {"searched for": Number(estimate.value), words: Number(other.value)}
        scale = float(spectrum.measure.outliers.abs().max())
        slack = estimate.bias + other.error
        checks.append(agree(f"{end}({name})", ways, scale=scale, slack=slack))
    return checks


def _gram_forms(run: RunDirectory, G: Spectrum) -> list[Check]:
    """``tr G`` from the Gram form of its classes against that of the loss: other square roots."""
    if G.exact is None or not run.has("classes"):
        return []
    classes = run.result("classes", Finding[class_structure.ClassFindings]).value
    if classes is None or not len(classes.whole):
        return []
    ways = {
        "from the Gram matrix of the classes": Number(float(classes.whole.sum())),
        "from that of the loss": Number(float(G.exact.values.sum())),
    }
    return [agree("tr G", ways)]


def _weyl(measured: dict[str, Spectrum]) -> Check:
    """Weyl's inequality for spectral norms, ``|‖H‖ − ‖G‖| ≤ ‖E‖``, up to the residuals."""
    tops = [measured[name].measure.outliers.abs().max() for name in spectra.MATRICES]
    slack = sum(float(spectrum.residuals.max()) for spectrum in measured.values())
    gap, norm = float((tops[0] - tops[1]).abs()), float(tops[2])
    return Check(
        f"‖H‖ and ‖G‖ differ by {gap:.4g}, which may be at most ‖E‖ = {norm:.4g}",
        gap <= norm * (1 + 1e-3) + slack,
    )
