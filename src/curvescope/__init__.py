"""The curvature of neural networks: exact where possible, with error bars where not.

What most programs need is here: a problem, its curvature matrices, estimates of their spectra. What
belongs to one question has a namespace of its own, with the results that its functions return:

===================== ===============================================================
``cs.losses``         losses, and what they average over
``cs.spectra``        estimators of spectra, and their results
``cs.structure``      Kronecker and class structure of curvature matrices
``cs.flatness``       sharpness, generalization metrics, the trace penalty
``cs.certificates``   PAC-Bayes bounds, and their verification
``cs.monitor``        curvature while a network trains
``cs.data``           data sets by name
``cs.networks``       the networks of the papers by name
``cs.training``       reproducible training
===================== ===============================================================

``__init__.pyi`` lists the names. One is imported when it is first used, so that the command line
need not wait for torch.
"""

import os
from importlib import import_module


def _names() -> dict[str, str]:
    """Each name of ``__init__.pyi``, and the module that it comes from."""
    with open(os.path.join(os.path.dirname(__file__), "__init__.pyi"), encoding="utf-8") as lines:
        words = [line.split() for line in lines if line.startswith("from ")]
    return {name: home for _, home, _, _, _, name in words}


_HOME_OF = _names()

__all__ = sorted(_HOME_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    """A public name from its module, or a folder of the package."""
    if _HOME_OF.get(name, __name__) != __name__:
        value = getattr(import_module(_HOME_OF[name]), name)
        globals()[name] = value
        return value
    if not name.startswith("_"):
        try:
            return import_module(f"{__name__}.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"{__name__}.{name}":
                raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
