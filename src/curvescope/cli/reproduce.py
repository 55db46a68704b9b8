"""``curvescope reproduce``: the catalog of the papers' figures and tables."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
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

    from curvescope.studies.entry import Entry, Settings
    from curvescope.studies.record import Record

SCALES = ("smoke", "small", "paper")


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="list, show, an entry, a paper, a pattern such as '*/table-*', or FILE.py:ENTRY.",
        ),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(metavar="NAME", help="smoke: seconds; small: minutes; paper: a GPU."),
    ] = "smoke",
    root: Root = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Results go to DIR/PAPER/ENTRY.")] = Path(
        "runs/reproductions"
    ),
    work: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Trained networks, finished parts; OUT/work if none."),
    ] = None,
    seed: Seed = 0,
    device: Device = "auto",
    again: Annotated[bool, typer.Option("--again", help="Compute finished entries anew.")] = False,
    redraw: Annotated[
        bool, typer.Option("--redraw", help="Only write page and pictures again.")
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Compute a figure or table of the papers and set its numbers beside ours.

    A finished entry is not computed again; an unfinished one goes on from its
    finished parts. `list` shows all entries, `show NAME` all about one.

    \b
    curvescope reproduce list
    curvescope reproduce show dissecting-hessian/random-two-layer
    curvescope reproduce dissecting-hessian/random-two-layer
    curvescope reproduce flatness --scale small --root ../data
    curvescope reproduce mine.py:ENTRY
    """  # noqa: D301 (\b keeps the lines of the examples apart)
    one_of("reproduce", "scale", scale, SCALES)
    first, *others = names or ["list"]

    from curvescope.cli import studies
    from curvescope.cli.inputs import choose_device
    from curvescope.studies.entry import Scale, Settings
    from curvescope.studies.listing import entries

    console = Console(highlight=False, soft_wrap=True)
    if first in ("list", "show"):
        if (first == "list") == bool(others):
            rule = "list takes no name" if others else "show needs the name of an entry"
            remedy = "curvescope reproduce list shows all names"
            raise CurvescopeError("reproduce", rule, remedy=remedy)
        chosen = entries() if first == "list" else _find(others)
        studies.show(chosen, out, console, detailed=first == "show", as_json=as_json)
        return
    chosen = _find([first, *others])
    settings = Settings(
        scale=cast(Scale, scale),
        work=work or out / "work",
        root=root,
        device=str(choose_device(device)),
        seed=seed,
    )
    for option, folder in (("--out", out), ("--work", settings.work)):
        check_folder(option, folder)
    _check_index(out / "INDEX.md")
    records = []
    of_catalog = {entry.name for entry in entries()}
    with stoppable(_advice(out, settings.work, again=again), out, settings.work):
        for entry in chosen:
            # Code of users changes: what it made before is not taken for what it makes now.
            anew = (again or entry.name not in of_catalog) and not redraw
            record = _one(entry, settings, out, again=anew, redraw=redraw, quiet=quiet or as_json)
            records.append(record)
            if not as_json:
                studies.show_record(record, out, console)
    if as_json:
        typer.echo(json.dumps([asdict(record) for record in records], indent=2))


def _check_index(file: Path) -> None:
    """Refuse a folder with a foreign INDEX.md, which would be overwritten after every entry."""
    from curvescope.reports.reproduction import TITLE

    if file.exists() and not file.read_bytes().startswith(TITLE.encode()):
        rule = "has an INDEX.md that is not curvescope's"
        raise CurvescopeError(f"--out {str(file.parent)!r}", rule, remedy="name another folder")


def _find(names: Sequence[str]) -> tuple[Entry, ...]:
    """The entries of these names, each once, in the order of the catalog, then those of users."""
    from curvescope.cli.studies import load_entry
    from curvescope.studies.listing import entries, find

    names_in_catalog = [entry.name for entry in entries()]
    chosen: set[str] = set()
    of_users: dict[str, Entry] = {}
    for name in names:
        if ":" in name:
            entry = load_entry(name)
            of_users[entry.name] = entry
            continue
        try:
            chosen |= {entry.name for entry in find(name)}
        except CurvescopeError:
            near = _near(name, names_in_catalog)
            hint = f"; near it are {', '.join(near)}" if near else ""
            rule = f"there is no entry {name!r}{hint}"
            remedy = "curvescope reproduce list shows all"
            raise CurvescopeError("reproduce", rule, remedy=remedy) from None
    return (*(entry for entry in entries() if entry.name in chosen), *of_users.values())


def _near(name: str, names: Sequence[str]) -> list[str]:
    """Up to three entries that are spelled nearly so, with or without their paper.

    >>> _near("batchnorm", ["dissecting-hessian/batch-norm", "traces/tails"])
    ['dissecting-hessian/batch-norm']
    """
    papers = sorted({entry.partition("/")[0] for entry in names})
    spellings = {entry.partition("/")[2]: entry for entry in names} | {n: n for n in names}
    spellings |= {paper: paper for paper in papers}
    matches = get_close_matches(name.lower(), list(spellings), n=6)
    return list(dict.fromkeys(spellings[spelling] for spelling in matches))[:3]


def _advice(out: Path, work: Path, *, again: bool) -> str:
    places = f"finished entries are in {out}, finished parts in {work}"
    if again:
        return f"{places}: --again computes all of them anew, so name only those that are left"
    return f"{places}: the same command goes on from there"


def _one(
    entry: Entry, settings: Settings, out: Path, *, again: bool, redraw: bool, quiet: bool
) -> Record:
    """The record of one entry: read, drawn again, or computed."""
    from curvescope.studies.record import load, run

    place = str(out / entry.name)
    record = None if again else load(out, entry.name)
    if redraw:
        if record is None:
            rule = f"{place!r} has no outcome to draw"
            raise CurvescopeError("reproduce", rule, remedy="leave out --redraw and --again")
        with _held(out):
            _write(out, record)
        return record
    if record is not None:
        if (record.scale, record.seed) != (settings.scale, settings.seed):
            rule = f"{place!r} holds scale {record.scale!r}, seed {record.seed}"
            remedy = "name another --out, or replace it by --again"
            raise CurvescopeError("reproduce", rule, remedy=remedy)
        _tidy(out, entry)
        return record
    with _held(out, settings.work), Display(quiet=quiet) as display:
        _remove_parts(out / entry.name, settings.work)
        display.stage(entry.name)

        def tell(text: str) -> None:
            display.stage(f"{entry.name}: {text}")

        record = run(entry, replace(settings, tell=tell))
        display.stage(f"{entry.name}: pictures")
        _write(out, record)
    return record


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


def _write(out: Path, record: Record) -> None:
    """Write pictures, page and outcome of an entry in one step, then the index."""
    from curvescope.cli.staging import staged
    from curvescope.reports import reproduction
    from curvescope.studies.record import FILE

    place = out / record.entry
    try:
        with staged(place, last=FILE) as fresh, TemporaryDirectory(dir=fresh) as elsewhere:
            reproduction.write(Path(elsewhere), record)
            for file in Path(elsewhere, record.entry).iterdir():
                file.replace(fresh / file.name)
    finally:
        if (place / FILE).is_file():
            _write_index(out)


def _write_index(out: Path) -> None:
    from curvescope import io
    from curvescope.reports import reproduction

    with io.atomic(out / "INDEX.md") as temporary:
        temporary.write_text(reproduction.index(out), encoding="utf-8")


def _tidy(out: Path, entry: Entry) -> None:
    """Write the index if a process was killed between an outcome and the index."""
    from curvescope import io

    if io.part_files(out) or any((out / entry.name).glob(".part-*")):
        with _held(out):
            _remove_parts(out / entry.name, out)
            _write_index(out)
