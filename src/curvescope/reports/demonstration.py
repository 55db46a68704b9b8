"""The page of a demonstration: both networks side by side, the certificate, and links."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from curvescope import io
from curvescope._numbers import percent, short
from curvescope.certificates.certificate import Certificate
from curvescope.certificates.divergence import percent_upwards
from curvescope.experiments.best_values import best_values
from curvescope.experiments.demo import Demonstration, column
from curvescope.experiments.quantities import LARGEST, SMALLEST
from curvescope.experiments.stages import spectra
from curvescope.experiments.stages.overview import Overview
from curvescope.experiments.store import RunDirectory
from curvescope.figures import stages as pictures
from curvescope.reports.blocks import Block, Chart, Checks, Fold, Links, Pair, Section, Table, Text
from curvescope.reports.page import fill, write_report
from curvescope.reports.sections import certificate
from curvescope.reports.sections import spectra as spectra_section
from curvescope.reports.sections.subject import listed
from curvescope.reports.training import curves
from curvescope.training.folder import TrainingFolder


def write_demonstration(demonstration: Demonstration, *, figures: bool | None = None) -> Path:
    """Write the report of each network, and ``report.html``, which leads to them.

    Args:
        demonstration: A finished demonstration.
        figures: As for :func:`curvescope.reports.write_report`.

    Returns:
        The path of the page.

    Raises:
        CurvescopeError: If jinja2 is missing, or the folder cannot be written.
    """
    for run in demonstration.runs:
        write_report(run.path, figures=figures)
    page = fill(
        "report.html.j2",
        title="Demonstration",
        sections=_sections(demonstration),
        heading="A demonstration of curvescope",
        under=f"seed {demonstration.runs[0].config.seed}, embedded digits of MNIST",
    )
    target = demonstration.path / "report.html"
    with io.atomic(target) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return target


def _sections(demonstration: Demonstration) -> list[Section]:
    return [
        _networks(demonstration),
        _spectra(demonstration),
        _training(demonstration),
        _certificate(demonstration.certificate),
        _checks(demonstration),
    ]


def _named(demonstration: Demonstration) -> dict[str, RunDirectory]:
    """The analyses by their networks' names; by their folders too where two are of one network."""
    names = [run.config.model.name for run in demonstration.runs]
    return {
        name if names.count(name) == 1 else f"{name} ({run.path.parent.name})": run
        for name, run in zip(names, demonstration.runs, strict=True)
    }


def _networks(demonstration: Demonstration) -> Section:
    runs = _named(demonstration)
    columns = [column(run) for run in runs.values()]
    table = Table(
        "The networks side by side",
        ["", *runs],
        [[row, *(cells[row] for cells in columns)] for row in columns[0]],
    )
    links = Links(
        [
            (
                f"Full report of {name}",
                f"{run.path.relative_to(demonstration.path).as_posix()}/report.html",
                "spectra, layers, classes, sharpness, self-checks",
            )
            for name, run in runs.items()
        ]
    )
    samples = demonstration.runs[0].config.data.samples
    observation = (
        f"{listed(list(runs))} were trained on the same digits; then H, the Hessian of the loss of "
        f"{samples:,} of them, its Gauss–Newton part G and the rest E = H − G were measured."
    )
    claim = (
        "The outliers of H are attributable to G and its bulk largely to E (Papyan, “Traces of "
        "Class/Cross-Class Structure”, sec. 5.1); where a network is piecewise linear in each "
        "weight, E has no diagonal, so that H and G have the same trace."
    )
    return Section(
        "networks", "Networks", observation, claim, [table, links], assessment=_shares(runs)
    )


def _shares(runs: Mapping[str, RunDirectory]) -> str:
    """How much of H is G, and how much E, in each network."""
    parts = []
    for name, run in runs.items():
        values = best_values(run)
        H, G, E = (values[matrix] for matrix in spectra.MATRICES)
        apart = abs(H[LARGEST].value - G[LARGEST].value) / H[LARGEST].value
        norm = max(abs(E[end].value) for end in (LARGEST, SMALLEST)) / H[LARGEST].value
        parts.append(
            f"in {name} the largest eigenvalues of H and G differ by {100 * apart:.1f} %, and that "
            f"of E in magnitude is {100 * norm:.1f} % of H’s"
        )
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def _spectra(demonstration: Demonstration) -> Section:
    blocks: list[Block] = []
    runs = _named(demonstration)
    ends = [short(best_values(run)["H"][LARGEST].value, 3) for run in runs.values()]
    for matrix in ("H", "E"):
        restored = {name: spectra.spectra_of(run)[matrix] for name, run in runs.items()}
        title = f"Spectral density of {matrix}"
        panel = pictures.spectra_panel(restored, title=title, by_matrix=False)
        blocks.append(Chart(f"spectrum-{matrix}", title, panel))
    outputs = demonstration.runs[0].result("overview", Overview).outputs
    observation = (
        f"A bulk at zero and outliers up to {listed(ends)}, marked at the foot; “bulk” looks at "
        "what lies between them, “log |λ|” at the smallest."
    )
    claim = (
        f"Arguably as many outliers as classes, here {outputs}, and a bulk that is largely E’s "
        "(Papyan, sec. 4.1 and 5.1)."
    )
    parts = [
        f"{name}: {words}" for name, run in runs.items() if (words := _assessment(run, outputs))
    ]
    return Section("spectra", "Spectra", observation, claim, blocks, assessment=" ".join(parts))


def _assessment(run: RunDirectory, classes: int) -> str:
    text = spectra_section.assessment(spectra.spectra_of(run), best_values(run), classes)
    return f"{text[:1].lower()}{text[1:]}"


def _training(demonstration: Demonstration) -> Section:
    runs = _named(demonstration)
    epochs = {name: TrainingFolder(run.path.parent).epochs() for name, run in runs.items()}
    ends, slopes = [], []
    for name, run in runs.items():
        overview = run.result("overview", Overview)
        if overview.test is not None and overview.test.error is not None:
            ends.append(f"{name} {percent(1 - overview.test.error)}")
        slopes.append(short(overview.gradient_norm, 2))
    observation = f"After the last epoch, so many test digits are right: {listed(ends)}."
    claim = (
        "Curvature is measured at the end of training, which need not be a minimum: the gradient "
        f"of the loss of these samples still has the norm {listed(slopes)}."
    )
    pictures = [Pair(curves(epochs))]
    return Section("training", "Training", observation, claim, pictures, source="Why it matters.")


def _certificate(cert: Certificate) -> Section:
    rows = [
        ["bound on the error", percent_upwards(cert.bound)],
        ["confidence", f"{cert.confidence.level}"],
        ["error on the examples, by draws", percent(cert.empirical_error)],
        ["KL(Q‖P)", short(cert.kl, 5)],
        ["examples", f"{cert.samples:,}"],
        ["stochastic error, test data (not certified)", percent(cert.orientation.stochastic_test)],
    ]
    observation = (
        "A network that tells the digits 0–4 from 5–9, with weights drawn from a Gaussian for "
        f"every prediction, errs on at most {percent_upwards(cert.bound)} of new digits, with "
        f"probability {cert.confidence.level}; its arithmetic "
        f"{'holds' if cert.verify().passed else 'does NOT hold'}."
    )
    blocks: list[Block] = [Table("The certificate", ["", "value"], rows), Text(cert.statement)]
    return Section(
        "certificate",
        "Certificate",
        observation,
        certificate.CLAIM,
        blocks,
        assessment=certificate.assessment(cert),
    )


def _checks(demonstration: Demonstration) -> Section:
    checks = [
        (f"{name}, {stage}", check)
        for name, run in _named(demonstration).items()
        for stage, check in run.checks()
    ]
    agreeing = sum(check.passed for _, check in checks)
    observation = f"Of {len(checks)} self-checks, {agreeing} agree."
    claim = (
        "Numbers that can be had in two independent ways must agree, within four standard errors "
        "or their residuals."
    )
    failed = [entry for entry in checks if not entry[1].passed]
    blocks: list[Block] = [Checks(failed)] if failed else []
    blocks.append(Fold(f"All {len(checks)} self-checks", [Checks(checks)]))
    return Section("checks", "Self-checks", observation, claim, blocks, source="What it should be.")
