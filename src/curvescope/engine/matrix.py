"""What is multiplied with, and the options of how."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, TypedDict

from curvescope import _checks
from curvescope.errors import CurvescopeError
from curvescope.problem.params import ParamSpace
from curvescope.problem.problem import Problem
from curvescope.record.outputs import Mix

Depth = Literal["forward", "first order", "second order"]
DEPTHS: tuple[Depth, ...] = ("forward", "first order", "second order")
"""How much of a batch is recorded: see :class:`curvescope.engine.linearize.Linearizer`."""


@dataclass(frozen=True, eq=False)
class Matrix:
    """A curvature matrix: which combination, over which parameters of which problem."""

    problem: Problem
    mix: Mix
    space: ParamSpace

    @property
    def second_order(self) -> bool:
        """Whether the residual part ``E`` takes part."""
        return self.mix.residual != 0.0

    @property
    def depth(self) -> Depth:
        """What has to be recorded for products of any number of columns."""
        return "second order" if self.second_order else "first order"

    def streamed_depth(self, columns: int) -> Depth:
        """What is recorded for one product; autograd's own way back serves a single column."""
        return "forward" if columns == 1 and not self.second_order else self.depth


class ProductOptions(TypedDict, total=False):
    """The keywords of every curvature matrix; see :class:`curvescope.operators.Curvature`."""

    keep: str | bool
    columns: int | None
    cuda_graph: bool


@dataclass(frozen=True)
class Options:
    """How products are made; see :class:`curvescope.operators.curvature.Curvature`."""

    keep: str | bool = "auto"
    columns: int | None = None
    cuda_graph: bool = False

    @classmethod
    def of(cls, where: str, problem: Problem, given: ProductOptions) -> Options:
        """The options from their keywords; those that do not fit the problem are refused."""
        names = [field.name for field in fields(cls)]
        for name in given:
            if name not in names:
                raise CurvescopeError(where, f"options are {', '.join(names)}", given=repr(name))
        options = cls(**given)
        options._check(where, problem)
        return options

    def _check(self, where: str, problem: Problem) -> None:
        if self.keep not in ("auto", True, False):
            raise CurvescopeError(
                where, "`keep` must be 'auto', True or False", given=repr(self.keep)
            )
        if self.columns is not None:
            _checks.positive_int(where, "columns", self.columns)
        if not self.cuda_graph:
            return
        if problem.device.type != "cuda" or self.keep is not True:
            rule = "`cuda_graph=True` needs a model on a CUDA device and `keep=True`"
            raise CurvescopeError(where, rule)
        if not problem.loss.closed_form:
            rule = "`cuda_graph=True` needs a loss in closed form"
            raise CurvescopeError(where, rule, given="a callable")
