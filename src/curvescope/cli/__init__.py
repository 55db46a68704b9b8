"""The command line: ``curvescope <command>``. Only this package knows typer and rich.

Importing it takes no time: :func:`main` listens for ctrl-C before anything else is imported, and a
command imports torch when it begins to work.
"""

from curvescope.cli.entry import main

__all__ = ["main"]
