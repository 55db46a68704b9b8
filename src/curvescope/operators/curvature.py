"""Curvature matrices of a problem: ``residual · E + Jᵀ B J``, one class for all of them.

With ``z = f(x; w)`` and its Jacobian ``J``, the Hessian of the loss is ``H = E + Jᵀ ∂²ℓ J`` where
``E = Σ_c (∂ℓ/∂z_c) ∂²z_c/∂w²`` (TR 5.2). Sums and multiples of such matrices over one problem are
such matrices again, and cost one sweep over the data.

References:
    TR: Papyan (2020), *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra*.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from curvescope import _checks
from curvescope._state import full_precision, without_gradients
from curvescope.engine.engine import Engine
from curvescope.engine.matrix import Matrix, Options, ProductOptions
from curvescope.engine.plan import Plan
from curvescope.errors import CurvescopeError
from curvescope.operators.base import LinearOperator
from curvescope.operators.layer import LayerRoot
from curvescope.problem import ParamSpace, Problem
from curvescope.record.outputs import Mix, SampledFisher
from curvescope.record.piecewise import PiecewiseLinear
from curvescope.vectors import Space

if TYPE_CHECKING:
    from typing_extensions import Unpack

_WHOLE = 1 << 30
"""Bytes of whole vectors that a rank gathers for a product, one vector at the least."""


class MatrixOptions(ProductOptions, total=False):
    """The keywords of a matrix that is made from a model and data; see :class:`Problem`."""

    loss: Any
    params: Any
    mode: str
    batch_size: int | None


def problem_and_options(
    where: str, problem: Problem | nn.Module, data: tuple[Any, ...], given: MatrixOptions
) -> tuple[Problem, ProductOptions]:
    """``Hessian(problem)``, and ``Hessian(model, data, loss=…)`` for ``Hessian(Problem(…))``."""
    options: dict[str, Any] = dict(given)
    if isinstance(problem, nn.Module):
        if not data:
            rule = "a model needs its data"
            raise CurvescopeError(where, rule, remedy=f"write {where}(model, (X, y), loss=…)")
        names = ("loss", "params", "mode", "batch_size")
        chosen = {name: options.pop(name) for name in names if name in options}
        problem = Problem(problem, *data, **chosen)
    elif data:
        raise CurvescopeError(where, "a Problem has its data already", given="data beside it")
    elif not isinstance(problem, Problem):
        rule = "needs a Problem, or a model and data"
        raise CurvescopeError(f"{where}(problem)", rule, given=type(problem).__name__)
    return problem, options  # type: ignore[return-value]


class Curvature(LinearOperator):
    """A curvature matrix over the parameters of a problem.

    Args:
        problem: What is differentiated.
        mix: Which combination of ``E`` and ``Jᵀ B J``.
        space: The parameters of this block (default: all of the problem's).
        keep: ``"auto"`` (default) streams a product: each batch is linearized, applied and dropped.
            For many products, which estimators ask for by :meth:`for_many`, the linearized batches
            are kept if they fit into half of the free memory. ``True`` keeps them for every
            product, ``False`` streams every product.
        columns: How many columns go through the data together (default: chosen from free memory).
        cuda_graph: Replay kept products as a CUDA graph, for small models on a GPU (with
            ``keep=True``).

    The last three are options of every curvature matrix; ``print(A.plan)`` says what they come to.
    How many products were made before changes nothing.
    """

    def __init__(
        self,
        problem: Problem,
        mix: Mix,
        *,
        space: ParamSpace | None = None,
        **options: Unpack[ProductOptions],
    ) -> None:
        where = type(self).__name__
        self._how = Options.of(where, problem, options)
        self._matrix = Matrix(problem, mix, space or problem.params)
        self.problem, self.space = problem, self._matrix.space
        self._sound = False  # whether a product has been looked at for overflow
        n = self.space.size
        psd = mix.psd(convex=problem.loss.convex)
        super().__init__(
            (n, n), dtype=problem.dtype, device=problem.device, symmetric=True, psd=psd
        )

    @property
    def parameters(self) -> ParamSpace:
        """The parameters of this block."""
        return self.space

    @property
    def mix(self) -> Mix:
        """Which combination of ``E`` and ``Jᵀ B J``."""
        return self._matrix.mix

    # Products -----------------------------------------------------------------------------------

    @property
    def _engine(self) -> Engine:
        return self.problem.companion(Engine)

    def _matmat(self, X: Tensor) -> Tensor:
        with full_precision(self.device):
            Y = self._engine.product(self._matrix, X.T.contiguous(), self._how).T
        if not self._sound and _checks.finite(X):
            _checks.all_finite(f"{self} @ x", Y)
            self._sound = True
        return Y

    def _layout(self) -> Space:
        """An equal share for each rank that has a part of the data."""
        n, group = self.shape[1], self.problem.group
        return Space(n, dtype=self.dtype, device=self.device, group=group)

    def _on_rows(self, rows: Tensor) -> Tensor:
        """As many at a time as take little memory when they are whole."""
        if self.domain.alone:
            return super()._on_rows(rows)
        some = max(1, _WHOLE // (self.shape[1] * rows.element_size()))
        return torch.cat([self._over_ranks(block) for block in rows.split(some)])

    def _over_ranks(self, rows: Tensor) -> Tensor:
        """Rows are gathered and the sum over the ranks is scattered: as much as one sum sends."""
        space = self.domain
        whole = space.gather(rows).contiguous()
        with full_precision(self.device):
            image = space.scatter_sum(self._engine.share(self._matrix, whole, self._how))
        if not self._sound and _checks.finite(whole):
            _checks.all_finite(f"{self} @ x", space.total(image.double().sum(1)))
            self._sound = True
        return image

    def _quadratic(self, X: Tensor) -> Tensor:
        """``xᵀ Jᵀ B J x = (J x)ᵀ B (J x)``: no backward pass, about half a product."""
        with full_precision(self.device):
            return self._engine.forms(self._matrix, X.T.contiguous(), self._how)

    @property
    def plan(self) -> Plan:
        """What products will do, see :class:`Plan`; costs about a gradient on one batch.

        >>> import torch
        >>> from torch import nn
        >>> from curvescope.operators.hessian import Hessian
        >>> model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        >>> H = Hessian(Problem(model, (torch.ones(4, 3), torch.tensor([0, 1, 1, 0]))))
        >>> H.plan.strategy, H.plan.many.strategy
        ('streamed tangents', 'kept tape')
        """
        with full_precision(self.device), without_gradients():
            return self._engine.plan(self._matrix, self._how)

    def for_many(self, *, forms: bool = False) -> Curvature:
        """See :meth:`LinearOperator.for_many`: ``keep="auto"`` is decided, now and for good."""
        if self._how.keep == "auto" and forms and not self._matrix.second_order:
            return self  # one forward pass, whose record serves nothing else
        twin = super().for_many(forms=forms)
        assert isinstance(twin, Curvature)
        return twin

    def _prepared(self) -> Curvature:
        with full_precision(self.device), without_gradients():
            keep = self._engine.keep(self._matrix, self._how)
        return self if self._how.keep == keep else self._like(keep=keep)

    @property
    def keeping(self) -> str:
        """``"kept"`` or ``"streamed"``; see :attr:`LinearOperator.keeping`."""
        return "kept" if self._how.keep is True else "streamed"

    def release(self) -> None:
        """Let go what is kept for this problem, that of all operators on it; see :attr:`plan`."""
        self._engine.release()

    def _decided_by(self) -> tuple[object, ...]:
        drawn = any(isinstance(matrix, SampledFisher) for matrix, _ in self.mix.outputs)
        # Draws belong to the place of a sample in its batch.
        problem = self.problem.identity_in_order if drawn else self.problem.identity
        return "curvature", problem, self.mix, self.space.names

    def same_diagonal(self) -> LinearOperator:
        """``Jᵀ B J`` alone where ``E`` has a zero diagonal, as in piecewise linear networks."""
        piecewise = self.problem.companion(PiecewiseLinear)
        if not self._matrix.second_order:
            return self
        if not self.problem.group.agree(piecewise.behind_each_layer(self.problem, self.space)):
            return self
        return self._like(mix=Mix(0.0, self.mix.outputs))

    def _like(
        self, *, mix: Mix | None = None, space: ParamSpace | None = None, keep: bool | None = None
    ) -> Curvature:
        how = self._how if keep is None else replace(self._how, keep=keep)
        return Curvature(
            self.problem, mix or self.mix, space=space or self.space, keep=how.keep,
            columns=how.columns, cuda_graph=how.cuda_graph,
        )  # fmt: skip

    def block(self, name: str) -> Curvature:
        """The diagonal block of a layer (``"fc1"``) or a parameter (``"fc1.weight"``), exactly.

        Nothing before the layer is differentiated, and nothing outside the block is computed. The
        block of a linear or convolution layer is applied in closed form, without differentiation
        (:mod:`curvescope.engine.closed_form`), where that is exact and pays: for every ``Jᵀ B J``,
        and for the Hessian when the network behind the layer is piecewise linear.
        """
        names = self.space.resolve(name, f"{type(self).__name__}(problem)")
        return self._like(space=self.space.select(names))

    def root(self) -> LayerRoot | None:
        """``R`` with ``Rᵀ R`` this matrix, for the block of a layer in closed form; else None.

        It has a row for each sample and output direction. Where there are fewer of them than
        parameters, eigenpairs are cheaper to find from ``R Rᵀ``.
        """
        root = self._engine.root(self._matrix, self._how)
        if root is None:
            return None
        part, [(square, pieces)] = root
        whole = self.problem.whole_weight(self._engine.weight(self._matrix))
        return LayerRoot(self._matrix, part, pieces, (square / whole) ** 0.5)

    def _scaled(self, factor: float) -> LinearOperator:
        return self._like(mix=self.mix * factor)

    def _merged(self, a: float, b: float, other: LinearOperator) -> LinearOperator | None:
        if not isinstance(other, Curvature) or other.problem is not self.problem:
            return None
        if other.space.names != self.space.names:
            return None
        return self._like(mix=self.mix * a + other.mix * b)
