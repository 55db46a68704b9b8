"""The curvature of neural networks: exact where possible, with error bars where not.

What most programs need is here: a problem, its curvature matrices, estimates of their spectra. What
belongs to one question has a namespace of its own, with the results that its functions return:

===================== ===============================================================
``cs.losses``         losses, and what they average over
``cs.spectra``        estimators of spectra, and their results
``cs.structure``      Kronecker and class structure of curvature matrices
``cs.flatness``       sharpness, generalization metrics, the trace penalty
``cs.certificates``   PAC-Bayes bounds, and their verification
``cs.data``           data sets by name
``cs.networks``       the networks of the papers by name
``cs.training``       reproducible training
===================== ===============================================================

A name is imported when it is first used, so that the command line need not wait for torch.
"""

from importlib import import_module

TYPE_CHECKING = False  # as in typing, which would cost more than all the rest here
if TYPE_CHECKING:
    from curvescope import certificates as certificates
    from curvescope import data as data
    from curvescope import flatness as flatness
    from curvescope import networks as networks
    from curvescope import spectra as spectra
    from curvescope import structure as structure
    from curvescope import training as training
    from curvescope.certificates import certify as certify
    from curvescope.data import dataset as dataset
    from curvescope.errors import CurvescopeError as CurvescopeError
    from curvescope.errors import ModelError as ModelError
    from curvescope.figures.plot import plot as plot
    from curvescope.flatness import TraceRegularizer as TraceRegularizer
    from curvescope.flatness import sharpness as sharpness
    from curvescope.networks import network as network
    from curvescope.operators.algebra import deflate as deflate
    from curvescope.operators.algebra import knockout as knockout
    from curvescope.operators.base import LinearOperator as LinearOperator
    from curvescope.operators.gauss_newton import EmpiricalFisher as EmpiricalFisher
    from curvescope.operators.gauss_newton import GaussNewton as GaussNewton
    from curvescope.operators.gauss_newton import MonteCarloFisher as MonteCarloFisher
    from curvescope.operators.hessian import Hessian as Hessian
    from curvescope.operators.kronecker import KroneckerOperator as KroneckerOperator
    from curvescope.operators.simple import Dense as Dense
    from curvescope.operators.simple import Diagonal as Diagonal
    from curvescope.operators.simple import Identity as Identity
    from curvescope.operators.simple import LowRank as LowRank
    from curvescope.problem import Problem as Problem
    from curvescope.problem import losses as losses
    from curvescope.spectra import diagonal as diagonal
    from curvescope.spectra import eigenpairs as eigenpairs
    from curvescope.spectra import exact_spectrum as exact_spectrum
    from curvescope.spectra import frobenius as frobenius
    from curvescope.spectra import kpm as kpm
    from curvescope.spectra import lanczos as lanczos
    from curvescope.spectra import logdet as logdet
    from curvescope.spectra import rank_bound as rank_bound
    from curvescope.spectra import rank_degeneracy as rank_degeneracy
    from curvescope.spectra import spectral_measure as spectral_measure
    from curvescope.spectra import subspace_iteration as subspace_iteration
    from curvescope.spectra import trace as trace
    from curvescope.structure import class_structure as class_structure
    from curvescope.structure import correspondence as correspondence
    from curvescope.structure import kronecker_factors as kronecker_factors
    from curvescope.structure import layer_statistics as layer_statistics
    from curvescope.structure import overlap as overlap
    from curvescope.training import Recipe as Recipe
    from curvescope.training import evaluate as evaluate
    from curvescope.training import load_network as load_network
    from curvescope.training import train as train

_HOMES = {
    "certificates": ("certify",),
    "data": ("dataset",),
    "errors": ("CurvescopeError", "ModelError"),
    "figures.plot": ("plot",),
    "flatness": ("TraceRegularizer", "sharpness"),
    "networks": ("network",),
    "operators.algebra": ("deflate", "knockout"),
    "operators.base": ("LinearOperator",),
    "operators.gauss_newton": ("EmpiricalFisher", "GaussNewton", "MonteCarloFisher"),
    "operators.hessian": ("Hessian",),
    "operators.kronecker": ("KroneckerOperator",),
    "operators.simple": ("Dense", "Diagonal", "Identity", "LowRank"),
    "problem": ("Problem", "losses"),
    "spectra": (
        "diagonal",
        "eigenpairs",
        "exact_spectrum",
        "frobenius",
        "kpm",
        "lanczos",
        "logdet",
        "rank_bound",
        "rank_degeneracy",
        "spectral_measure",
        "subspace_iteration",
        "trace",
    ),
    "structure": (
        "class_structure",
        "correspondence",
        "kronecker_factors",
        "layer_statistics",
        "overlap",
    ),
    "training": ("Recipe", "evaluate", "load_network", "train"),
}
_NAMESPACES = (
    "certificates",
    "data",
    "flatness",
    "networks",
    "spectra",
    "structure",
    "training",
)
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted((*_HOME_OF, *_NAMESPACES))  # pyright: ignore[reportUnsupportedDunderAll]


if not TYPE_CHECKING:  # a type checker knows the names above and should refuse others

    def __getattr__(name: str) -> object:
        """A public name from its module, or a folder of the package."""
        if name in _HOME_OF:
            value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
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
