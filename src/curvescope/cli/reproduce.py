"""``curvescope reproduce``: the figures and tables of the papers."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.console import Console

from curvescope._checks import one_of
from curvescope.cli.interrupts import stoppable
from curvescope.cli.options import AsJson, Debug, Device, Quiet, Root, Seed, check_folder
from curvescope.cli.progress import Display
from curvescope.errors import CurvescopeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from curvescope.figures.model import Picture
    from curvescope.studies.outcome import Outcome
    from curvescope.studies.study import Scale, Study

SCALES = ("smoke", "small", "paper")
WORDS = ("list", "show", "table", "papers", "index")


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="list, show, table, papers, index, a study, a paper, a pattern such as "
            "'*/table-*', or FILE.py:STUDY.",
        ),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(metavar="NAME", help="smoke: seconds; small: minutes; paper: a GPU."),
    ] = "smoke",
    root: Root = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Results go to DIR/PAPER/STUDY.")] = Path(
        "runs/reproductions"
    ),
    work: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Trained networks, finished parts; OUT/work if none."),
    ] = None,
    seed: Seed = 0,
    device: Device = "auto",
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=1, metavar="N", help="Workers for trainings.")
    ] = 1,
    again: Annotated[bool, typer.Option("--again", help="Compute finished studies anew.")] = False,
    redraw: Annotated[
        bool, typer.Option("--redraw", help="Only write pages and pictures again.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be computed.")
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Compute a figure or table of the papers and set its numbers beside ours.

    A finished study is not computed again; an unfinished one goes on from its
    finished parts. `list` shows all studies, `show NAME` all about one, `table`
    every number that the papers print beside ours, `papers` every figure and
    table; `index` writes the index of a folder of outcomes.

    \b
    curvescope reproduce list
    curvescope reproduce show wu2020/random-two-layer
    curvescope reproduce wu2020/random-two-layer
    curvescope reproduce granziol2020 --scale small --root ../data --dry-run
    curvescope reproduce table --out reproductions
    curvescope reproduce mine.py:STUDY
    """  # noqa: D301 (\b keeps the lines of the examples apart)
    one_of("reproduce", "scale", scale, SCALES)
    first, *others = names or ["list"]
    console = Console(highlight=False, soft_wrap=True)
    if first in WORDS:
        _about(first, others, out, console, as_json=as_json)
        return
    chosen = find([first, *others])
    settings = _Settings(
        cast("Scale", scale), work or out / "work", root, device, seed, quiet or as_json, jobs
    )
    if dry_run:
        _plan(chosen, settings, out, console, again=again)
        return
    _compute(chosen, settings, out, console, again=again, redraw=redraw, as_json=as_json)


@dataclass(frozen=True)
class _Settings:
    """How studies are run."""

    scale: Scale
    work: Path
    root: Path | None
    device: str
    seed: int
    quiet: bool
    jobs: int


def _about(word: str, names: Sequence[str], out: Path, console: Console, *, as_json: bool) -> None:
    """``list``, ``show``, ``table``, ``papers`` and ``index``: nothing is computed."""
    from curvescope.cli import studies
    from curvescope.reports import reproduction
    from curvescope.studies import catalog

    if (word in ("list", "papers", "index") and names) or (word == "show" and not names):
        rule = "show needs the name of a study" if word == "show" else f"{word} takes no name"
        remedy = "curvescope reproduce list shows all names"
        raise CurvescopeError("reproduce", rule, remedy=remedy)
    chosen = find(names) if names else catalog.studies()
    if word in ("list", "show"):
        studies.show(chosen, out, console, detailed=word == "show", as_json=as_json)
    elif word == "table":
        studies.show_printed(chosen, out, as_json=as_json)
    elif word == "papers":
        typer.echo(reproduction.papers_page(out), nl=False)
    else:
        check_folder("--out", out)
        _check_index(out / reproduction.INDEX)
        with _held(out):
            _write_pages(chosen, out)
            reproduction.write_index(out)
        typer.echo(f"{out / reproduction.INDEX}")


def _write_pages(chosen: Sequence[Study], out: Path) -> None:
    """Write the page of every outcome again, by today's criteria, explanations and notes."""
    from curvescope.reports import reproduction
    from curvescope.studies.outcome import load

    for study in chosen:
        outcome = load(out, study.name)
        if outcome is not None:
            reproduction.write_page(out, study, outcome)


def _plan(
    chosen: Sequence[Study], settings: _Settings, out: Path, console: Console, *, again: bool
) -> None:
    """Say what would be computed and what it takes."""
    from curvescope.cli.studies import show_scales
    from curvescope.studies.outcome import load

    for study in chosen:
        outcome = None if again else load(out, study.name)
        if outcome is not None:
            console.print(f"{study.name}: finished in {out / study.name}", markup=False)
        elif settings.scale not in study.levels:
            console.print(f"{study.name}: has no scale {settings.scale!r}", markup=False)
        else:
            console.print(f"{study.name}: to be computed", markup=False)
            show_scales(study, console, settings.scale)


def _compute(
    chosen: Sequence[Study], settings: _Settings, out: Path, console: Console, *,
    again: bool, redraw: bool, as_json: bool,
) -> None:  # fmt: skip
    from curvescope.cli import studies
    from curvescope.reports.reproduction import INDEX
    from curvescope.studies.catalog import study_named

    for option, folder in (("--out", out), ("--work", settings.work)):
        check_folder(option, folder)
    _check_index(out / INDEX)
    outcomes = []
    with stoppable(_advice(out, settings.work, again=again), out, settings.work):
        for study in chosen:
            # Code of users changes: what it made before is not taken for what it makes now.
            anew = (again or study_named(study.name) is None) and not redraw
            outcome = _one(study, settings, out, again=anew, redraw=redraw)
            outcomes.append((study, outcome))
            if not as_json:
                studies.show_outcome(study, outcome, out, console)
    if as_json:
        described = [studies.described(study, outcome, out) for study, outcome in outcomes]
        typer.echo(json.dumps(described, indent=2))


def _check_index(file: Path) -> None:
    """Refuse a folder with a foreign INDEX.md, which would be overwritten after every study."""
    from curvescope.reports.reproduction import TITLE

    if file.exists() and not file.read_bytes().startswith(TITLE.encode()):
        rule = f"has an {file.name} that is not curvescope's"
        raise CurvescopeError(f"--out {str(file.parent)!r}", rule, remedy="name another folder")


def find(names: Sequence[str]) -> tuple[Study, ...]:
    """The studies of these names, each once, in the order of the package, then those of users."""
    from curvescope.cli.studies import load_study
    from curvescope.studies.catalog import find, studies

    chosen: set[str] = set()
    of_users: dict[str, Study] = {}
    for name in names:
        if ":" in name:
            study = load_study(name)
            of_users[study.name] = study
            continue
        try:
            chosen |= {study.name for study in find(name)}
        except CurvescopeError:
            near = _near(name, [study.name for study in studies()])
            hint = f"; near it are {', '.join(near)}" if near else ""
            rule = f"there is no study {name!r}{hint}"
            remedy = "curvescope reproduce list shows all"
            raise CurvescopeError("reproduce", rule, remedy=remedy) from None
    return (*(study for study in studies() if study.name in chosen), *of_users.values())


def _near(name: str, names: Sequence[str]) -> list[str]:
    """Up to three studies that are spelled nearly so, with or without their paper.

    >>> _near("batchnorm", ["wu2020/batch-norm", "papyan2020/tails"])
    ['wu2020/batch-norm']
    """
    papers = sorted({study.partition("/")[0] for study in names})
    spellings = {study.partition("/")[2]: study for study in names} | {n: n for n in names}
    spellings |= {paper: paper for paper in papers}
    matches = get_close_matches(name.lower(), list(spellings), n=6)
    return list(dict.fromkeys(spellings[spelling] for spelling in matches))[:3]


def _advice(out: Path, work: Path, *, again: bool) -> str:
    places = f"finished studies are in {out}, finished parts in {work}"
    if again:
        return f"{places}: --again computes all of them anew, so name only those that are left"
    return f"{places}: the same command goes on from there"


def _one(study: Study, settings: _Settings, out: Path, *, again: bool, redraw: bool) -> Outcome:
    """The outcome of one study: read, drawn again, or computed."""
    from curvescope.cli.inputs import choose_device
    from curvescope.studies.outcome import compute, load, load_pictures
    from curvescope.studies.run import Run

    place = str(out / study.name)
    outcome = None if again else load(out, study.name)
    if redraw:
        pictures = load_pictures(out, study.name)
        if outcome is None or pictures is None:
            rule = f"{place!r} has no outcome with pictures to draw"
            remedy = "compute it: --again instead of --redraw"
            raise CurvescopeError("reproduce", rule, remedy=remedy)
        with _held(out):
            _write(out, study, outcome, pictures)
        return outcome
    if outcome is not None:
        if (outcome.scale, outcome.seed) != (settings.scale, settings.seed):
            rule = f"{place!r} holds scale {outcome.scale!r}, seed {outcome.seed}"
            remedy = "name another --out, or replace it by --again"
            raise CurvescopeError("reproduce", rule, remedy=remedy)
        _tidy(out, study)
        return outcome
    device = str(choose_device(settings.device))
    with _held(out, settings.work), Display(quiet=settings.quiet) as display:
        _remove_parts(out / study.name, settings.work)
        display.stage(study.name)

        def tell(text: str) -> None:
            display.stage(f"{study.name}: {text}")

        run = Run(
            study,
            settings.scale,
            settings.work,
            settings.root,
            device,
            settings.seed,
            tell,
            settings.jobs,
        )
        outcome, pictures = compute(run)
        display.stage(f"{study.name}: pictures")
        _write(out, study, outcome, pictures)
    return outcome


@contextmanager
def _held(*folders: Path) -> Iterator[None]:
    """Keep other processes out of the folders while the block runs; they may be the same."""
    from curvescope import io

    with ExitStack() as stack:
        for folder in dict.fromkeys(folder.resolve() for folder in folders):
            stack.enter_context(io.held(folder))
        yield


def _remove_parts(place: Path, work: Path) -> None:
    """Remove the temporary files of killed processes from an entry, parts and trained networks."""
    from curvescope import io

    for folder in place.glob(".part-*"):
        shutil.rmtree(folder, ignore_errors=True)
    io.remove_parts(place, *(folder for folder in (work, *work.rglob("*")) if folder.is_dir()))


def _write(out: Path, study: Study, outcome: Outcome, pictures: Sequence[Picture]) -> None:
    """Write pictures, page and outcome of a study in one step, then the index.

    Explanations and notes that somebody wrote beside an earlier outcome stay where they are.
    """
    from curvescope.cli.staging import staged
    from curvescope.reports import reproduction
    from curvescope.studies.outcome import FILE

    place = out / study.name
    try:
        with staged(place, last=FILE) as fresh, TemporaryDirectory(dir=fresh) as elsewhere:
            reproduction.write(Path(elsewhere), study, outcome, pictures, beside=out)
            for file in Path(elsewhere, study.name).iterdir():
                file.replace(fresh / file.name)
    finally:
        if (place / FILE).is_file():
            reproduction.write_index(out)


def _tidy(out: Path, study: Study) -> None:
    """Write the index if a process was killed between an outcome and the index."""
    from curvescope.reports import reproduction

    with _held(out):
        _remove_parts(out / study.name, out)
        reproduction.write_index(out)
