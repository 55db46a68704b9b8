"""The command line: ``curvescope <command>``. Only this package knows typer and rich."""

from curvescope.cli.app import main

__all__ = ["main"]
