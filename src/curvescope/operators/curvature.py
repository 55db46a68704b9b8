"""Curvature matrices of a problem: ``residual · E + Jᵀ B J``, one class for all of them.

With ``z = f(x; w)`` and its Jacobian ``J``, the Hessian of the loss is ``H = E + Jᵀ ∂²ℓ J`` where
``E = Σ_c (∂ℓ/∂z_c) ∂²z_c/∂w²`` (TR 5.2). Sums and multiples of such matrices over one problem are
such matrices again, and cost one sweep over the data.
"""

from __future__ import annotations

from torch import Tensor

from curvescope._checks import CurvescopeError
from curvescope.linearisation.outputs import Mix
from curvescope.linearisation.sweep import Footprint, Options, sweep_of
from curvescope.operators.base import LinearOperator
from curvescope.problem import ParamSpace, Problem


class Curvature(LinearOperator):
    """A curvature matrix over the parameters of a problem.

    Args:
        problem: what is differentiated.
        mix: which combination of ``E`` and ``Jᵀ B J``.
        space: the parameters of this block (default: all of the problem's).
        options: how products are made; the matrices below take its fields as keywords:

    Options:
        keep: ``"auto"`` streams the first product and keeps the linearised batches from the second
            on if they fit into half of the free memory; ``True`` keeps at once; ``False`` streams.
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
            msg = f"{type(self).__name__}(problem): needs a Problem, got {type(problem).__name__}"
            raise CurvescopeError(msg)
        self._mix, self._options = mix, options or Options()
        self._options.check(type(self).__name__, problem)
        self.problem, self.space = problem, space or problem.params
        n = self.space.size
        psd = mix.psd(convex=problem.loss.convex)
        super().__init__(
            (n, n), dtype=problem.dtype, device=problem.device, symmetric=True, psd=psd
        )

    def _matmat(self, X: Tensor) -> Tensor:
        sweep = sweep_of(self.problem)
        return sweep.product(self._mix, self.space, X, self._options)

    def _like(self, mix: Mix, space: ParamSpace) -> Curvature:
        return Curvature(self.problem, mix, space=space, options=self._options)

    def block(self, name: str) -> Curvature:
        """The diagonal block of a layer (``"fc1"``) or a parameter (``"fc1.weight"``), exactly.

        Nothing before the layer is differentiated, and nothing outside the block is computed.
        """
        names = self.space.resolve(name, f"{type(self).__name__}(problem)")
        return self._like(self._mix, self.space.select(names))

    def footprint(self) -> Footprint:
        """What keeping this operator's linearisation would hold, before it is kept."""
        return sweep_of(self.problem).footprint(second_order=self._mix.residual != 0.0)

    def _scaled(self, factor: float) -> LinearOperator:
        return self._like(self._mix * factor, self.space)

    def _merged(self, own: float, factor: float, other: LinearOperator) -> LinearOperator | None:
        if not isinstance(other, Curvature) or other.problem is not self.problem:
            return None
        if other.space.names != self.space.names:
            return None
        return self._like(self._mix * own + other._mix * factor, self.space)
