"""Write docs/reference.md: every public name, by the folder that it comes from.

``python tools/reference.py`` after a public name was added or removed; a test holds the page
against the package.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path
from types import ModuleType

import curvescope as cs

PAGE = Path(__file__).parent.parent / "docs" / "reference.md"
ROAD = (
    "problem",
    "operators",
    "spectra",
    "structure",
    "flatness",
    "certificates",
    "monitor",
    "figures",
    "networks",
    "data",
    "training",
    "experiments",
    "reports",
    "cli",
    "errors",
)
"""The folders in the order in which the page shows them."""
BESIDE = ("problem.ParamSpace", "layers.LayerKind", "layers.layer_kind", "io.load", "io.save")
"""What is public without being at the top or in a namespace of it."""


def page() -> str:
    """The whole page."""
    sections = [section(folder) for folder in ROAD]
    beside = "\n\n".join(f"::: curvescope.{name}" for name in BESIDE)
    head = (
        "# Reference\n\n"
        "Written by `python tools/reference.py`. What is shown as `curvescope.name` is at the top; "
        "the rest is in the namespace that its name begins with.\n"
    )
    return "\n".join([head, *sections, f"## Parameters, kinds of layers and files\n\n{beside}\n"])


def section(folder: str) -> str:
    """What a folder offers: first what is at the top, then the rest of its namespace."""
    module = import_module(f"curvescope.{folder}")
    title = (module.__doc__ or "").partition("\n")[0].rstrip(".")
    top = [name for name in cs.__all__ if home(name) == folder]
    names = [f"curvescope.{name}" for name in top if name != "losses"]
    if folder in cs.__all__:
        names += [f"curvescope.{folder}.{name}" for name in module.__all__ if name not in top]
    if "losses" in top:
        names += [f"curvescope.losses.{name}" for name in cs.losses.__all__]
    body = "\n\n".join(f"::: {name}" for name in names)
    return f"## {title}\n\n{body}\n"


def home(name: str) -> str:
    """The folder that a public name comes from; namespaces come from none."""
    value = getattr(cs, name)
    if isinstance(value, ModuleType):
        return "problem" if name == "losses" else ""
    module = inspect.getmodule(value)
    assert module is not None
    return module.__name__.split(".")[1]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
