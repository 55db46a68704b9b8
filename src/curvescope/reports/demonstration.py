"""The page of a demonstration: both networks side by side, the certificate, and the way on."""

from __future__ import annotations

from pathlib import Path

from curvescope import io
from curvescope.certificates.certificate import Certificate
from curvescope.experiments.checks import Number
from curvescope.experiments.demo import Demonstration
from curvescope.experiments.stages import spectra
from curvescope.experiments.store import RunDirectory
from curvescope.reports import charts
from curvescope.reports.blocks import (
    Block,
    Chart,
    Checks,
    Fold,
    Links,
    Pair,
    Section,
    Table,
    Text,
    percent,
    short,
)
from curvescope.reports.page import fill, write_report

_COLOURS = ("blue", "vermilion")


def write_demonstration(found: Demonstration, *, figures: bool | None = None) -> Path:
    """Write the report of each network, and ``report.html``, which leads to them.

    Args:
        found: A finished demonstration.
        figures: As for :func:`curvescope.reports.write_report`.

    Returns:
        The path of the page.

    Raises:
        CurvescopeError: If jinja2 is missing, or the folder cannot be written.
    """
    for run in found.runs:
        write_report(run.path, figures=figures)
    page = fill(
        "report.html.j2",
        title="Demonstration",
        sections=_sections(found),
        heading="A demonstration of curvescope",
        under=f"seed {found.runs[0].config['seed']}, embedded digits of MNIST",
    )
    target = found.path / "report.html"
    with io.atomic(target) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return target


def _sections(found: Demonstration) -> list[Section]:
    return [
        _networks(found),
        _spectra(found),
        _training(found),
        _certificate(found.certificate),
        _checks(found),
    ]


def _name(run: RunDirectory) -> str:
    return str(run.config["model"]["name"])


def _networks(found: Demonstration) -> Section:
    names = [_name(run) for run in found.runs]
    columns = [_column(run) for run in found.runs]
    table = Table(
        "The networks side by side",
        ["", *names],
        [[row, *(column[row] for column in columns)] for row in columns[0]],
    )
    links = Links(
        [
            (
                f"Full report of {_name(run)}",
                f"{run.path.relative_to(found.path).as_posix()}/report.html",
                "spectra, layers, classes, sharpness, self-checks",
            )
            for run in found.runs
        ]
    )
    samples = found.runs[0].config["data"]["samples"]
    seen = (
        f"{' and '.join(names)} were trained on the same digits; then H, the Hessian of the loss "
        f"of {samples:,} of them, its Gauss–Newton part G and the rest E = H − G were measured."
    )
    expected = (
        "The largest eigenvalues of H are those of G, E adds little to the trace, and most of the "
        "spectrum lies at zero (Papyan, “Traces of Class/Cross-Class Structure”, sec. 5.1)."
    )
    return Section("networks", "Networks", seen, expected, [table, links])


def _column(run: RunDirectory) -> dict[str, str]:
    overview = run.stage("overview").values
    fits = overview["fits"]
    rows = {
        "parameters": f"{overview['parameters']:,}",
        "loss of these samples": short(fits["train"]["loss"]),
        "test loss": short(fits["test"]["loss"]),
        "test error": percent(fits["test"]["error"]),
    }
    for name in spectra.MATRICES:
        values = run.stage(f"spectrum-{name}").values
        rows[f"largest eigenvalue of {name}"] = short(max(values["outliers"]))
        rows[f"trace of {name}"] = str(Number(**values["trace"]))
        rows[f"eigenvalues of {name} at zero"] = percent(values["degenerate"]["value"])
    return rows


def _spectra(found: Demonstration) -> Section:
    blocks: list[Block] = []
    ends = []
    for matrix in ("H", "E"):
        restored = {
            _name(run): spectra.restore(run.stage(f"spectrum-{matrix}")) for run in found.runs
        }
        if matrix == "H":
            ends = [float(s.measure.outliers.max()) for s in restored.values()]
        title = f"Spectral density of {matrix}"
        colours = dict(zip(restored, _COLOURS, strict=False))
        spec = charts.density_chart(restored, title=title, colours=colours)
        for series in spec["series"]:
            series["hidden"] = series["kind"] == "histogram"
        blocks.append(Chart(f"spectrum-{matrix}", title, spec))
    outputs = found.runs[0].stage("overview").values["outputs"]
    seen = (
        f"A bulk at zero and outliers up to {' and '.join(short(end, 3) for end in ends)}, marked "
        "at the foot; “bulk” looks at what lies between them, “log |λ|” at the smallest."
    )
    expected = (
        f"About as many outliers as classes (here {outputs}), and a bulk whose width comes from E "
        "(Papyan, sec. 4.1 and 5.1)."
    )
    return Section("spectra", "Spectra", seen, expected, blocks)


def _training(found: Demonstration) -> Section:
    pictures = []
    ends = []
    for key, caption in (
        ("loss", "Training loss of each epoch"),
        ("test_accuracy", "Test accuracy"),
    ):
        lines = {}
        for run in found.runs:
            epochs = io.read_json_lines(run.path.parent / "metrics.jsonl")
            y = [epoch[key] for epoch in epochs]
            lines[_name(run)] = {"x": [epoch["epoch"] for epoch in epochs], "y": y, "marks": True}
            if key == "test_accuracy":
                ends.append(f"{_name(run)} {100 * y[-1]:.1f} %")
        spec = charts.line_chart(
            lines, title=caption, x="epoch", y=key.replace("_", " "), zero=key == "loss",
            log=key == "loss",
        )  # fmt: skip
        pictures.append(Chart(f"training-{key}", caption, spec))
    seen = f"After the last epoch, so many test digits are right: {', '.join(ends)}."
    expected = "Curvature is measured at the end of training, where the gradient is small."
    return Section(
        "training", "Training", seen, expected, [Pair(pictures)], authority="Why it matters."
    )


def _certificate(found: Certificate) -> Section:
    rows = [
        ["bound on the error", percent(found.bound)],
        ["confidence", f"{found.confidence.level:g}"],
        ["error on the examples, by draws", percent(found.empirical_error)],
        ["KL(Q‖P)", short(found.kl, 5)],
        ["examples", f"{found.samples:,}"],
        ["stochastic error, test data (not certified)", percent(found.orientation.stochastic_test)],
    ]
    seen = (
        "A network that tells the digits 0–4 from 5–9, with weights drawn from a Gaussian around "
        f"the trained ones, errs on at most {percent(found.bound)} of new digits, with probability "
        f"{found.confidence.level:g}; its arithmetic "
        f"{'holds' if found.verify().passed else 'does NOT hold'}."
    )
    expected = (
        "A variance that follows the curvature, large where the loss is flat, makes the bound "
        "small enough to mean something (Wu et al., “Dissecting Hessian”, sec. 6)."
    )
    blocks: list[Block] = [Table("The certificate", ["", "value"], rows), Text(found.statement)]
    return Section("certificate", "Certificate", seen, expected, blocks)


def _checks(found: Demonstration) -> Section:
    checks = [
        (f"{_name(run)}, {stage}", check) for run in found.runs for stage, check in run.checks()
    ]
    agreeing = sum(check.passed for _, check in checks)
    seen = f"Of {len(checks)} self-checks, {agreeing} agree."
    expected = (
        "Numbers that can be had in two independent ways must agree within four standard errors."
    )
    failed = [entry for entry in checks if not entry[1].passed]
    blocks: list[Block] = [Checks(failed)] if failed else []
    blocks.append(Fold(f"All {len(checks)} self-checks", [Checks(checks)]))
    return Section("checks", "Self-checks", seen, expected, blocks, authority="What it should be.")
