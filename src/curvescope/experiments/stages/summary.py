"""The last stage: what the stages say of each other."""

from __future__ import annotations

from math import hypot

from curvescope.experiments.checks import Check, Number, agree
from curvescope.experiments.stages import sharpness, spectra
from curvescope.experiments.stages.context import Context
from curvescope.experiments.store import Outcome, RunDirectory


def compute(context: Context) -> Outcome:
    """Identities between matrices that were measured apart; no product."""
    run = context.run
    measured = {name: spectra.restore(run.stage(f"spectrum-{name}")) for name in spectra.MATRICES}
    H, G, E = (measured[name] for name in spectra.MATRICES)
    together = Number(
        G.trace.value + E.trace.value,
        hypot(G.trace.stderr, E.trace.stderr),
        min(G.trace.probes, E.trace.probes),
    )
    norm = float(H.measure.outliers.abs().max())
    checks = [
        agree("tr H", {"by itself": H.trace, "as tr G + tr E": together}, scale=norm),
        _sharpness(run, H),
        _weyl(H, G, E),
    ]
    values = {
        "traces": {name: spectrum.trace.value for name, spectrum in measured.items()},
        "products": sum(spectrum.products for spectrum in measured.values()),
    }
    return Outcome(values, checks=tuple(checks))


def _sharpness(run: RunDirectory, H: spectra.Spectrum) -> Check:
    """The trace of the sharpness table against that of the spectrum: other probes, other method."""
    trace = next(iter(sharpness.restore(run.stage("sharpness")).values())).hessian.trace
    table = Number(trace.value, trace.stderr, trace.probes)
    return agree("tr H", {"of the sharpness table": table, "of the spectrum": H.trace})


def _weyl(H: spectra.Spectrum, G: spectra.Spectrum, E: spectra.Spectrum) -> Check:
    """Weyl's inequality for spectral norms, ``|‖H‖ − ‖G‖| ≤ ‖E‖``, up to the residuals."""
    tops = [spectrum.measure.outliers.abs().max() for spectrum in (H, G, E)]
    slack = sum(float(spectrum.residuals.max()) for spectrum in (H, G, E))
    gap, norm = float((tops[0] - tops[1]).abs()), float(tops[2])
    return Check(
        f"‖H‖ and ‖G‖ differ by {gap:.4g}, which may be at most ‖E‖ = {norm:.4g}",
        gap <= norm * (1 + 1e-3) + slack,
    )
