"""Reports are written only when their sources have changed: drawing figures takes long."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from curvescope import figures, io, reports, studies
from curvescope.experiments.demo import Demonstration
from curvescope.experiments.stages.plan import Extra
from curvescope.experiments.store import RunDirectory
from curvescope.identity import code_digest, digest, file_digest
from curvescope.reports import demonstration, page

STAMP = ".report"


def report_of(run: RunDirectory, *, figures: bool, extra: Sequence[Extra] = ()) -> Path:
    """The report of an analysis: the existing page if it is up to date, else a new one.

    Args:
        run: The analysis.
        figures: Whether vector figures lie beside it; where matplotlib is missing they cannot.
        extra: The user stages that it shows.
    """
    drawn = figures and find_spec("matplotlib") is not None
    stamp = _stamp(_sources(run), drawn, extra)
    target = run.path / "report.html"
    if not _shows(target, stamp) or (drawn and not (run.path / "figures").is_dir()):
        _forget(run.path)
        target = page.write_report(run.path, figures=drawn, extra=extra)
        _remember(run.path, stamp)
    return target


def report_of_demonstration(demo: Demonstration) -> Path:
    """The page of a demonstration and those that it links to: up to date, or written anew."""
    drawn = find_spec("matplotlib") is not None
    sources = [file for run in demo.runs for file in _sources(run)]
    stamp = _stamp([*sources, *demo.path.glob("*/certificate.json")], drawn)
    target = demo.path / "report.html"
    pages = [target, *(run.path / "report.html" for run in demo.runs)]
    if not _shows(target, stamp) or not all(each.is_file() for each in pages):
        _forget(demo.path)
        target = demonstration.write_demonstration(demo, figures=drawn)
        _remember(demo.path, stamp)
    return target


def _sources(run: RunDirectory) -> list[Path]:
    """The files that a report is made from, that exist."""
    above = run.path.resolve().parent
    results = [run.folder(name) / "result.json" for name in run.stages]
    others = [run.path / "certificate.json", above / "certificate.json", above / "metrics.jsonl"]
    return [run.path / "config.json", *results, *(file for file in others if file.is_file())]


def _stamp(sources: Iterable[Path], drawn: bool, extra: Sequence[Extra] = ()) -> str:
    """A digest of the contents of a report: its sources, and the code that writes it."""
    code = code_digest(reports, figures, studies)
    parts = [file_digest(file) for file in sources]
    return digest(metadata.version("curvescope"), drawn, code, parts, list(extra))


def _shows(target: Path, stamp: str) -> bool:
    file = target.parent / STAMP
    return target.is_file() and file.is_file() and file.read_text(encoding="utf-8") == stamp


def _forget(folder: Path) -> None:
    """Remove the stamp, until the new report is complete."""
    (folder / STAMP).unlink(missing_ok=True)


def _remember(folder: Path, stamp: str) -> None:
    with io.atomic(folder / STAMP) as temporary:
        temporary.write_text(stamp, encoding="utf-8")
