"""Random probe vectors: isotropic, ``E[ω ωᵀ] = I``.

Rademacher signs have the least variance in Hutchinson's estimator among vectors of independent
entries; Gaussian vectors are invariant under rotation, which Lanczos quadrature on a spectrum
and XTrace's resphering use; spherical vectors are Gaussian ones scaled to length ``√n``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from curvescope import _checks, _random
from curvescope.operators.base import LinearOperator

KINDS = ("rademacher", "gaussian", "sphere")


def draw(
    A: LinearOperator, count: int, *, kind: str = "rademacher", generator: torch.Generator
) -> Tensor:
    """``count`` probes for ``A`` as rows ``[count, n]``.

    Each is drawn on its own, so that the numbers do not depend on how many are drawn at a time.

    >>> from curvescope.operators.simple import Identity
    >>> I = Identity(4, dtype=torch.float64, device="cpu")
    >>> rows = draw(I, 3, generator=torch.Generator().manual_seed(0))
    >>> rows.shape, (rows**2).sum(1)
    (torch.Size([3, 4]), tensor([4., 4., 4.], dtype=torch.float64))
    """
    _checks.one_of("draw(A, count)", "kind", kind, KINDS)
    n = A.shape[1]
    source = _random.rademacher if kind == "rademacher" else _random.gaussian
    rows = [source((n,), generator, A.dtype, A.device) for _ in range(count)]
    block = torch.stack(rows) if rows else torch.empty(0, n, dtype=A.dtype, device=A.device)
    if kind == "sphere":
        block *= n**0.5 / torch.linalg.vector_norm(block, dim=1, keepdim=True)
    return block
