"""Curvature matrices of a problem: ``residual · E + Jᵀ B J``, one class for all of them.

With ``z = f(x; w)`` and its Jacobian ``J``, the Hessian of the loss is ``H = E + Jᵀ ∂²ℓ J`` where
``E = Σ_c (∂ℓ/∂z_c) ∂²z_c/∂w²`` (TR 5.2). Sums and multiples of such matrices over one problem are
such matrices again, and cost one sweep over the data.
"""

from __future__ import annotations

from torch import Tensor

from curvescope import _checks
from curvescope._state import full_precision
from curvescope.errors import CurvescopeError
from curvescope.operators.base import LinearOperator
from curvescope.operators.layer import LayerRoot, layers_of
from curvescope.problem import ParamSpace, Problem
from curvescope.record.outputs import Mix, SampledFisher
from curvescope.record.sweep import Footprint, Options, sweep_of
from curvescope.record.vanishing import residual_has_no_diagonal


class Curvature(LinearOperator):
    """A curvature matrix over the parameters of a problem.

    Args:
        problem: what is differentiated.
        mix: which combination of ``E`` and ``Jᵀ B J``.
        space: the parameters of this block (default: all of the problem's).
        options: how products are made; the matrices below take its fields as keywords:

    Options:
        keep: ``"auto"`` streams a lone product, and keeps the linearized batches for many if they
            fit into half of the free memory: for those of an estimator from the first one on (see
            :meth:`plan`), else from the second one on; ``True`` keeps at once; ``False`` streams.
        columns: how many columns go through the data together (default: chosen from free memory).
        cuda_graph: replay kept products as a CUDA graph, for small models on a GPU (``keep=True``).
    """

    def __init__(
        self,
        problem: Problem,
        mix: Mix,
        *,
        space: ParamSpace | None = None,
        options: Options | None = None,
    ) -> None:
        if not isinstance(problem, Problem):
            where = f"{type(self).__name__}(problem)"
            raise CurvescopeError(where, "needs a Problem", given=type(problem).__name__)
        self._mix, self._options = mix, options or Options()
        self._options.check(type(self).__name__, problem)
        self.problem, self.space = problem, space or problem.params
        self._sound = False  # whether a product has been looked at for overflow
        n = self.space.size
        psd = mix.psd(convex=problem.loss.convex)
        super().__init__(
            (n, n), dtype=problem.dtype, device=problem.device, symmetric=True, psd=psd
        )

    def _matmat(self, X: Tensor) -> Tensor:
        with full_precision(self.device):
            Y = layers_of(self.problem).product(self._mix, self.space, X, self._options)
            if Y is None:
                Y = sweep_of(self.problem).product(self._mix, self.space, X, self._options)
        if not self._sound and _checks.finite(X):
            _checks.all_finite(f"{self} @ x", Y)
            self._sound = True
        return Y

    def _decided_by(self) -> tuple[object, ...]:
        drawn = any(isinstance(matrix, SampledFisher) for matrix, _ in self._mix.outputs)
        # Draws belong to the place of a sample in its batch.
        problem = self.problem.identity_in_order if drawn else self.problem.identity
        return "curvature", problem, self._mix, self.space.names

    def plan(self, *, forms: bool = False) -> str:
        """``"kept"`` or ``"streamed"``; see :meth:`LinearOperator.plan`."""
        keep = self._options.keep
        if forms and self._mix.residual == 0.0:
            return ""
        with full_precision(self.device):
            if layers_of(self.problem).plan(self._mix, self.space, self._options):
                return "kept"
            return sweep_of(self.problem).plan(keep, second_order=self._mix.residual != 0.0)

    def _quadratic(self, X: Tensor) -> Tensor:
        """``xᵀ Jᵀ B J x = (J x)ᵀ B (J x)``: no backward pass, about half a product."""
        if self._mix.residual == 0.0:
            with full_precision(self.device):
                sweep = sweep_of(self.problem)
                forms = sweep.quadratic(self._mix, self.space, X, self._options)
            if forms is not None:
                return forms
        return super()._quadratic(X)

    def same_diagonal(self) -> LinearOperator:
        """``Jᵀ B J`` alone where ``E`` has a zero diagonal, as in piecewise linear networks."""
        if self._mix.residual == 0.0 or not residual_has_no_diagonal(self.problem, self.space):
            return self
        return self._like(Mix(0.0, self._mix.outputs), self.space)

    def _like(self, mix: Mix, space: ParamSpace) -> Curvature:
        return Curvature(self.problem, mix, space=space, options=self._options)

    def block(self, name: str) -> Curvature:
        """The diagonal block of a layer (``"fc1"``) or a parameter (``"fc1.weight"``), exactly.

        Nothing before the layer is differentiated, and nothing outside the block is computed. The
        block of a linear or convolution layer is applied in closed form, without differentiation
        (:mod:`curvescope.operators.layer`), where that is exact: for every ``Jᵀ B J``, and for the
        Hessian when the network behind the layer is piecewise linear.
        """
        names = self.space.resolve(name, f"{type(self).__name__}(problem)")
        return self._like(self._mix, self.space.select(names))

    def root(self) -> LayerRoot | None:
        """``R`` with ``Rᵀ R`` this matrix, for the block of a layer in closed form; else None.

        It has a row for each sample and output direction. Where there are fewer of them than
        parameters, eigenpairs are cheaper to find from ``R Rᵀ``.
        """
        return layers_of(self.problem).root(self._mix, self.space, self._options)

    def footprint(self) -> Footprint:
        """What keeping this operator's linearization would hold, before it is kept."""
        layers = layers_of(self.problem)
        part = layers.part(self.space)
        if part is not None and layers.applies(part, self._mix):
            return layers.footprint(part.layer, self._mix)
        return sweep_of(self.problem).footprint(second_order=self._mix.residual != 0.0)

    def _scaled(self, factor: float) -> LinearOperator:
        return self._like(self._mix * factor, self.space)

    def _merged(self, own: float, factor: float, other: LinearOperator) -> LinearOperator | None:
        if not isinstance(other, Curvature) or other.problem is not self.problem:
            return None
        if other.space.names != self.space.names:
            return None
        return self._like(self._mix * own + other._mix * factor, self.space)
