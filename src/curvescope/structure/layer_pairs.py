"""Top eigenpairs of a layer's block, from the smaller of its two forms.

The block is ``A = Rᵀ R`` with a row of ``R`` for each sample and output direction. Where there are
fewer rows than weights, the search runs on ``R Rᵀ``, whose vectors are shorter by as much: a Krylov
method then spends its time on products and not on keeping long vectors orthogonal.

With ``R Rᵀ u = θ u + ρ`` the vector ``v = Rᵀ u / √θ`` has the residual ``A v − θ v = Rᵀ ρ / √θ``.
``‖Rᵀ ρ‖`` could be as large as ``√θ_1 ‖ρ‖``, but ``ρ`` lies in the pending directions of the Krylov
decomposition and is nearly orthogonal to the leading eigenvectors. With blocks of two vectors the
residuals of all pairs lie in one plane: ``‖Rᵀ ρ‖`` of the three largest is computed and gives the
factor for the others. Pairs that converged further, while the search looked for overlooked ones,
have residuals of rounding. These lie in no plane, and far below the search's bounds of
``‖ρ‖``. How far is computed for the three largest and for three of the first pairs, and three times
the largest of the six ratios is taken for the others, unless that exceeds their tolerance. Else
``‖Rᵀ ρ‖`` is computed.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from curvescope import _checks
from curvescope.operators.base import LinearOperator
from curvescope.operators.curvature import Curvature
from curvescope.operators.layer import LayerRoot
from curvescope.spectra.control import Status
from curvescope.spectra.eigensolver import EigenPairs, eigenpairs

# Columns per product. Two share one read of the stored rows; larger blocks need more products in
# all (``benchmarks/layers.py`` measures the search).
BLOCK = 2
MEMORY = 1 << 30  # bytes of memory for the stored products of one search
# Three unit residuals whose smallest singular value exceeds this do not lie in one plane.
STRAY = 0.4
# Residuals of rounding are at most this share of their bounds.
ROUNDING = 0.3
# A unit vector is in the span of the multiplied vectors if its residual there is at most this.
CLOSE = {torch.float64: 1e-12, torch.float32: 1e-5}


class _RowGram(LinearOperator):
    """``R Rᵀ``, which stores ``Rᵀ q`` of every ``q`` that it was multiplied with.

    A Ritz vector ``u`` of a Krylov search is a combination of such ``q``, and ``Rᵀ u`` is the same
    combination of the stored ``Rᵀ q``: the eigenvectors of the block need no further product.
    """

    def __init__(self, root: LayerRoot) -> None:
        size = root.shape[0]
        super().__init__((size, size), dtype=root.dtype, device=root.device, psd=True)
        self._root = root
        self._multiplied: list[Tensor] = []  # rows q
        self._gathered: list[Tensor] = []
        self._bytes = 0

    def _decided_by(self) -> tuple[object, ...]:
        return "gram", self._root

    def _matmat(self, X: Tensor) -> Tensor:
        gathered = self._root.gather(X)
        self._bytes += gathered.numel() * gathered.element_size()
        if self._bytes <= MEMORY:
            self._multiplied.append(X.T.clone())
            self._gathered.append(gathered)
        else:
            self._multiplied, self._gathered = [], []
        return self._root.spread(gathered)

    def pulled(self, U: Tensor) -> Tensor:
        """``Rᵀ U: [P, k]``, from stored products where ``U`` lies in the span of these ``q``."""
        if not self._multiplied:
            return self._root._rmatmat(U)
        Q = torch.cat(self._multiplied)
        C = Q @ U  # without restarts the rows of Q are orthonormal
        C += Q @ (U - Q.T @ C)
        if self._misses(Q, C, U):
            C = torch.linalg.lstsq(Q.double().T, U.double()).solution.to(U)
        if self._misses(Q, C, U):
            return self._root._rmatmat(U)
        return self._root.scatter(C.T @ torch.cat(self._gathered))

    def _misses(self, Q: Tensor, C: Tensor, U: Tensor) -> bool:
        rest = torch.linalg.vector_norm(U - Q.T @ C, dim=0)
        return not float(rest.max()) <= CLOSE[U.dtype]


def layer_eigenpairs(
    block: Curvature, k: int, *, generator: torch.Generator, tol: float = 1e-5
) -> EigenPairs:
    """The ``k`` largest eigenpairs of a layer's block to ``‖A v − θ v‖ ≤ tol · θ``.

    A block with a closed form and fewer rows (samples times output directions) than half of its
    parameters is searched through its rows; every other one by :func:`curvescope.eigenpairs`
    itself, which gives the same pairs.

    Cost: ``products`` of the result, and up to 1 GiB of memory in which they are stored to form the
    block's vectors; beyond that half a product more for each pair.

    Args:
        block: ``H.block("fc1")`` or ``H.block("fc1.weight")``.
        k: how many pairs.
        generator: the source of the start vector.
        tol: the residual relative to each eigenvalue.

    >>> from torch import nn
    >>> from curvescope.operators.hessian import Hessian
    >>> from curvescope.problem import Problem
    >>> X, y = torch.tensor([[3.0, 0, 0, 4.0, 0, 0, 0, 0]]).double(), torch.zeros(1, 1).double()
    >>> block = Hessian(Problem(nn.Linear(8, 1).double(), (X, y), loss="mse")).block("weight")
    >>> pairs = layer_eigenpairs(block, 1, generator=torch.Generator().manual_seed(0))
    >>> round(float(pairs.values), 6), pairs.converged  # 2 ‖x‖²
    (50.0, True)
    """
    where = f"layer_eigenpairs({block}, {k})"
    k = _checks.positive_int(where, "k", k)
    tol = _checks.finite_float(where, "tol", tol, minimum=0.0)
    root = block.root()
    if root is None or not k <= root.shape[0] <= block.shape[0] // 2:
        return eigenpairs(block, k, tol=tol, relative="value", generator=generator)
    products, inner = 0, tol
    for last in (False, True):
        gram = _RowGram(root)
        pairs = eigenpairs(gram, k, tol=inner, relative="value", generator=generator, block=BLOCK)
        theta = pairs.values.clamp_min(torch.finfo(root.dtype).tiny)
        residuals, spent = _residuals(root, pairs)
        products += pairs.products + spent
        excess = float((residuals / (tol * theta)).max()) if tol else 0.0
        if last or excess <= 1.0 or not pairs.converged:
            break
        inner = tol / (2 * excess)
    accurate = bool((residuals <= tol * theta).all())
    return replace(
        pairs,
        local=gram.pulled(pairs.vectors) / theta.sqrt(),
        domain=None,
        residuals=residuals,
        tolerance=tol * theta,
        converged=pairs.converged and accurate,
        products=products,
        status=pairs.status if accurate or not pairs.converged else Status.PRECISION,
    )


def _residuals(root: LayerRoot, pairs: EigenPairs) -> tuple[Tensor, int]:
    """``‖Rᵀ ρ‖ / √θ`` of all pairs, and the number of products used."""
    roots = pairs.values.clamp_min(torch.finfo(root.dtype).tiny).sqrt()

    def residuals_of(index: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        """``ρ`` with ``‖ρ‖`` and ``‖Rᵀ ρ‖``."""
        u = pairs.vectors[:, index]
        rho = root.spread(root.gather(u)) - u * pairs.values[index]
        pulled = (rho * root.spread(root.gather(rho))).sum(0).clamp_min(0).sqrt()
        return rho, torch.linalg.vector_norm(rho, dim=0), pulled

    worst = pairs.residuals.argsort(descending=True)[: BLOCK + 1].tolist()
    rho, sizes, pulled = residuals_of(worst)
    sizes = sizes.clamp_min(torch.finfo(root.dtype).tiny)
    stretch = (pulled / sizes).amax()
    if len(worst) < len(roots) and float(torch.linalg.svdvals(rho / sizes)[-1]) > STRAY:
        first = [i for i in range(len(roots)) if i not in worst][: BLOCK + 1]
        _, more, further = residuals_of(first)
        worst, sizes, pulled = worst + first, torch.cat([sizes, more]), torch.cat([pulled, further])
        bounds = pairs.residuals[worst]
        rounding = bool((sizes <= ROUNDING * bounds).all())
        stretch = 3 * (pulled / bounds).amax() if rounding else torch.full_like(stretch, torch.inf)
    residuals = pairs.residuals * stretch
    residuals[worst] = pulled
    if len(worst) > BLOCK + 1:  # an estimate above the tolerance is replaced by the computed norm
        above = (residuals > roots * pairs.tolerance).nonzero()[:, 0].tolist()
        above = [i for i in above if i not in worst]
        if above:
            residuals[above] = residuals_of(above)[2]
            worst += above
    return residuals / roots, 2 * len(worst)
