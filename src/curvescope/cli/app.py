"""The application: its commands, and how a mistake becomes one sentence and an exit code.

Exit codes: 0 success; 1 a self-check failed, or a bug; 2 the user's mistake; 130 interrupted.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console

from curvescope.cli import ranks
from curvescope.cli.analyze import analyze
from curvescope.cli.certify import certify
from curvescope.cli.compare import compare
from curvescope.cli.data import data
from curvescope.cli.demo import demo
from curvescope.cli.doctor import doctor
from curvescope.cli.entry import INTERRUPTED
from curvescope.cli.interrupts import Stopped
from curvescope.cli.reproduce import reproduce
from curvescope.cli.sweep import sweep, worker
from curvescope.cli.table import table
from curvescope.cli.train import train
from curvescope.cli.view import view
from curvescope.cli.words import words_of
from curvescope.errors import CurvescopeError

# The parser's own errors: click's class, or typer's copy of it in newer versions.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]

HELP = """The curvature of neural networks: exact where possible, with error bars
where not.

\b
curvescope demo                       see all of it in two minutes
curvescope train LeNet5 --data mnist-6k
curvescope analyze --run runs/LeNet5-mnist-6k-seed0 --samples 1000
curvescope view runs

Exit codes: 0 success; 1 a self-check failed, or a bug; 2 a mistake in the
arguments, said in one sentence; 130 stopped with ctrl-C.
"""

app = typer.Typer(
    name="curvescope",
    help=HELP,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # panels leave too little room for words on 80 columns
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(short_help="Train, analyze and certify small networks, with a report.")(demo)
app.command(short_help="Train a network of the papers.")(train)
app.command(short_help="Try a model out: what can be done, and what it takes.")(doctor)
app.command(short_help="Measure a network's curvature, with a report.")(analyze)
app.command("analyse", hidden=True)(analyze)
app.command(short_help="Bound a network's error on new examples.")(certify)
app.command(short_help="Compute a figure or table of the papers.")(reproduce)
app.command(short_help="Hold sharpness against generalization.")(compare)
app.command(short_help="Many runs by many workers: a plan, emptied.")(sweep)
app.command("worker", hidden=True)(worker)
app.command(short_help="The results of a folder's runs as one table.")(table)
app.command(short_help="Show the runs of a folder in a browser.")(view)
app.add_typer(data, name="data", short_help="List, verify and fetch data sets.")


def _print_version(requested: bool) -> None:
    if requested:
        from importlib import metadata

        typer.echo(metadata.version("curvescope"))
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    if context.invoked_subcommand not in (None, "analyze", "analyse"):
        ranks.refuse(str(context.invoked_subcommand))
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@dataclass(frozen=True)
class Done:
    """How a command ended: its exit code, the sentence about an error, and the error itself."""

    code: int
    sentence: str = ""
    error: BaseException | None = None


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; errors go to standard error as one sentence."""
    # Read here, not from the parser: an error may well be about the other arguments.
    done = performed(arguments)
    if done.error is not None and "--debug" in arguments and _shows_more(done.error):
        raise done.error
    if done.sentence:
        _complain(done.sentence)
    return done.code


def _shows_more(error: BaseException) -> bool:
    """Whether a traceback says something that the sentence does not."""
    return not isinstance(error, Stopped | KeyboardInterrupt | typer.Abort | BrokenPipeError)


def performed(arguments: list[str]) -> Done:
    """Run one command and say how it ended."""
    command = typer.main.get_command(app)
    try:
        code = command.main(arguments, prog_name="curvescope", standalone_mode=False)
        if sys.stdout is not None:  # it is None if the shell has closed it
            sys.stdout.flush()  # while a full disk or a closed pipe can still be said
    except CurvescopeError as error:
        return Done(2, words_of(command, arguments).about(error), error)
    except UsageError as error:
        return Done(2, usage_sentence(error), error)
    except Stopped as stopped:
        return Done(INTERRUPTED, f"interrupted; {stopped}", stopped)
    except (KeyboardInterrupt, typer.Abort) as error:
        return Done(INTERRUPTED, "interrupted", error)
    except BrokenPipeError as error:  # the reader of our output has gone
        _discard_output()
        return Done(1, "", error)
    except OSError as error:
        return Done(2, _about_files(error), error)
    except Exception as error:
        if _about_memory(error):
            allocation = re.search(r"allocate (\d+) bytes", str(error))
            much = f" for {int(allocation[1]) / 1e9:,.1f} GB more" if allocation else ""
            remedy = "use a smaller network or fewer samples"
            return Done(2, f"there is not enough memory{much}; {remedy}", error)
        what = f"{type(error).__name__}: {error}"
        said = f"unexpected {what} (a bug: --debug shows where; please report it)"
        return Done(1, said, error)
    if code == INTERRUPTED:  # newer parsers return it for ctrl-C
        return Done(code, "interrupted")
    return Done(code if isinstance(code, int) else 0)


def _about_memory(error: Exception) -> bool:
    """Whether an allocation failed: Python's, or torch's, which has no class for the CPU's."""
    said = str(error).lower()
    named = type(error).__name__ == "OutOfMemoryError" or isinstance(error, MemoryError)
    return named or "can't allocate memory" in said or "not enough memory" in said


def usage_sentence(error: Exception) -> str:
    """What the parser says about an option."""
    formatted = getattr(error, "format_message", None)
    return str(formatted() if formatted is not None else error)


def _about_files(error: OSError) -> str:
    """A file that cannot be read or written is the machine's state, not a bug."""
    if error.filename is None and _raised_by(error) in ("click", "typer", "rich", "curvescope"):
        _discard_output()
        return f"standard output: cannot be written ({error.strerror or error})"
    place = "" if error.filename is None else f"{str(error.filename)!r}: "
    return f"{place}{error.strerror or error}; check the path, its permissions and the space left"


def _raised_by(error: OSError) -> str:
    """The library whose line failed: where it prints, or this file where it flushes."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    name = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] if name == __name__ or not name.startswith("curvescope") else ""


def _discard_output() -> None:
    """Let the interpreter's last flush go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(sentence: str) -> None:
    if not ranks.speaks():
        return
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print("[red]curvescope:[/red]", end=" ")
    console.print(sentence, markup=False)
