"""Traces, Frobenius norms and diagonals from products with random vectors.

Hutchinson's estimator (1990): ``tr A = E[ωᵀ A ω]`` for isotropic ``ω``, and
``‖A‖_F² = E ‖A ω‖²`` and ``diag A = E[ω ∘ A ω]``. Where a few large eigenvalues carry the variance
it pays to compute them first and to estimate only the rest: XTrace (Epperly, Tropp and Webber 2024)
for the trace, the split of Hutch++ (Meyer et al. 2021) for the Frobenius norm. When the budget
reaches the dimension, all three are computed exactly from the ``n`` unit vectors.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from curvescope import _checks
from curvescope.operators.base import LinearOperator
from curvescope.spectra.control import require_finite, require_symmetric
from curvescope.spectra.estimate import Estimate, Samples
from curvescope.spectra.images import Staged, range_basis
from curvescope.spectra.resumable import End, Estimator, R, run, state_of
from curvescope.spectra.xtrace import XTrace

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from curvescope.spectra.control import Control


def trace(
    A: LinearOperator,
    *,
    generator: torch.Generator,
    probes: int = 32,
    method: str = "hutchinson",
    block: int = 32,
    **control: Unpack[Control],
) -> Estimate[float]:
    """``tr A``, the sum of the eigenvalues; ``/ n`` gives their mean.

    ``method="hutchinson"``: the mean of ``ωᵀ A ω`` over Rademacher probes, of variance
    ``2 (‖A‖_F² − Σ a_ii²) / probes``. ``method="xtrace"`` spends the same products on leave-one-out
    deflation: for a decaying spectrum its error falls much faster, for a flat one it is about
    ``√2`` larger, as half of the products find directions.

    The Hessian of a piecewise linear network has the diagonal of its Gauss–Newton part, from which
    its trace is then taken: with less variance, and from forward passes alone
    (:meth:`LinearOperator.quadratic`).

    Cost: ``probes`` products in blocks of ``block`` columns and ``2 · block · n`` numbers of memory
    (XTrace: ``2 · probes · n``); exact for ``probes ≥ n``.

    >>> from curvescope.operators.simple import Diagonal
    >>> A = Diagonal(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    >>> estimate = trace(A, probes=2, generator=torch.Generator().manual_seed(0))
    >>> estimate.value, estimate.stderr, estimate.products     # signs are exact on a diagonal
    (10.0, 0.0, 2)
    """
    where = f"trace({A})"
    _settings(where, A, generator, probes, block)
    A = A.same_diagonal()
    _checks.one_of(where, "method", method, ("hutchinson", "xtrace"))
    if method == "xtrace" and probes < A.shape[0]:
        products = _checks.positive_int(where, "probes", probes, 4)
        return run(XTrace, A, control, generator=generator, products=products, block=block)
    return run(Trace, A, control, generator=generator, probes=probes, block=block)


def frobenius(
    A: LinearOperator,
    *,
    generator: torch.Generator,
    probes: int = 32,
    method: str = "hutchinson",
    block: int = 32,
    **control: Unpack[Control],
) -> Estimate[float]:
    """``‖A‖_F = √(Σ λ_i²)``; its square is ``tr A²``.

    ``method="hutchinson"``: the mean of ``‖A ω‖²``. ``method="hutch++"``: a third of the products
    finds an orthonormal ``Q`` near the range, then ``‖A‖_F² = ‖A Q‖_F² + E ‖A (I − Q Qᵀ) ω‖²``,
    the first part exactly, the second from the remaining third. The standard error is that of the
    square, halved and divided by the norm (delta method): with 6 to 8 products, of which two or
    three are samples, it was too small by a factor of up to 1.8 where few eigenvalues carry the
    norm; the interval held there too.

    Cost: ``probes`` products; exact for ``probes ≥ n``.

    >>> from curvescope.operators.simple import Diagonal
    >>> A = Diagonal(torch.tensor([3.0, 4.0, 0.0]))
    >>> frobenius(A, probes=2, generator=torch.Generator().manual_seed(0)).value
    5.0
    """
    where = f"frobenius({A})"
    _settings(where, A, generator, probes, block)
    _checks.one_of(where, "method", method, ("hutchinson", "hutch++"))
    if method == "hutch++" and probes < A.shape[0]:
        probes = _checks.positive_int(where, "probes", probes, 6)
        return run(HutchPlusPlus, A, control, generator=generator, probes=probes, block=block)
    return run(Frobenius, A, control, generator=generator, probes=probes, block=block)


def diagonal(
    A: LinearOperator,
    *,
    generator: torch.Generator,
    probes: int = 32,
    block: int = 32,
    **control: Unpack[Control],
) -> Estimate[Tensor]:
    """``diag A``: the mean of ``ω ∘ A ω`` over Rademacher probes (Bekas, Kokiopoulou, Saad 2007).

    The standard error is a vector too: entry ``i`` has variance ``Σ_{j≠i} a_ij² / probes``.

    Cost: ``probes`` products, ``O(block · n)`` numbers of memory; exact for ``probes ≥ n``.

    >>> from curvescope.operators.simple import Diagonal
    >>> A = Diagonal(torch.tensor([1.0, 2.0, 3.0]))
    >>> diagonal(A, probes=1, generator=torch.Generator().manual_seed(0)).value
    tensor([1., 2., 3.])
    """
    where = f"diagonal({A})"
    _settings(where, A, generator, probes, block)
    A = A.same_diagonal()
    return run(Diagonal, A, control, generator=generator, probes=probes, block=block)


class _Sampled(Estimator[R]):
    """Samples from ``probes`` signs, or from all unit vectors if these suffice."""

    state = state_of("samples")

    def __init__(
        self, A: LinearOperator, *, generator: torch.Generator, probes: int, block: int
    ) -> None:
        self.operator, self.samples = A, Samples(self._shape(A), A.device)
        self.exact = probes >= A.shape[0]
        self._generator, self._block = generator, block
        self._total = min(probes, A.shape[0])

    def _shape(self, A: LinearOperator) -> tuple[int, ...]:
        """The shape of a sample."""
        return ()

    @abstractmethod
    def sample(self, X: Tensor) -> Tensor:
        """Samples ``[b, …]`` from probes ``X: [b, n]``, row by row; ``b`` products."""

    @property
    def done(self) -> int:
        """Samples so far."""
        return self.samples.count

    @property
    def total(self) -> int:
        """Samples in all."""
        return self._total

    def step(self) -> None:
        """A block of samples."""
        space, b = self.operator.domain, min(self._block, self.total - self.done)
        if self.exact:
            rows = space.units(self.done, b)
        else:
            rows = space.random(b, generator=self._generator)
        self.samples.add(self.sample(rows))

    def mean(self) -> Tensor:
        """The mean of the samples, if they are numbers."""
        require_finite(f"{self.task}({self.operator})", self.samples.mean)
        return self.samples.mean


class Trace(_Sampled[Estimate[float]]):
    """``ωᵀ A ω``."""

    task, forms = "trace", True

    def sample(self, X: Tensor) -> Tensor:
        """``ωᵀ A ω`` of each probe; quadratic forms may cost less than products."""
        return self.operator.forms_on_rows(X)

    def result(self, end: End) -> Estimate[float]:
        """The mean over probes, or the sum over unit vectors."""
        mean = float(self.mean())
        if self.exact:
            return _exact(mean * self.done, self.done, end)
        return self.samples.estimate(end.products, end.status)


class Frobenius(_Sampled[Estimate[float]]):
    """``‖A ω‖²``."""

    task = "frobenius"

    def sample(self, X: Tensor) -> Tensor:
        """``‖A ω‖²`` of each probe."""
        A = self.operator
        return A.domain.total(A.on_rows(X).double().square().sum(1))

    def result(self, end: End) -> Estimate[float]:
        """The root of the mean over probes, or of the sum over unit vectors."""
        mean = float(self.mean())
        if self.exact:
            return _exact(math.sqrt(mean * self.done), self.done, end)
        return _root(self.samples, 0.0, end)


class Diagonal(_Sampled[Estimate[Tensor]]):
    """``ω ∘ A ω``."""

    task, vectors = "diagonal", ("mean", "squares")

    def _shape(self, A: LinearOperator) -> tuple[int, ...]:
        return (A.domain.count,)

    def sample(self, X: Tensor) -> Tensor:
        """``ω ∘ A ω`` of each probe."""
        return X * self.operator.on_rows(X)

    def result(self, end: End) -> Estimate[Tensor]:
        """The mean over probes, or the exact sum over unit vectors; whole, on every rank."""
        space, rows = self.operator.domain, torch.stack([self.mean(), self.samples.stderr])
        mean, stderr = space.gather(rows.to(self.operator.dtype))
        if self.exact:
            mean = mean * self.done
            stderr = torch.zeros_like(stderr) if end.complete else stderr
        return Estimate(mean, stderr, end.products, self.done, end.status)


class HutchPlusPlus(Staged[Estimate[float]]):
    """``‖A‖_F² = ‖A Q‖_F² + E ‖A (I − Q Qᵀ) ω‖²``, a third of the products for each part."""

    task = "frobenius"
    stages = vectors = ("range", "inside", "rest")

    def __init__(
        self, A: LinearOperator, *, generator: torch.Generator, probes: int, block: int
    ) -> None:
        self._generator, self._probes = generator, probes
        self._start = A.domain.random(probes // 3, kind="gaussian", generator=generator)
        super().__init__(A, block)

    def rows(self, stage: str) -> Tensor:
        """Test vectors of the range, then its basis, then probes orthogonal to it."""
        if stage == "range":
            return self._start
        if stage == "inside":
            self._Q = range_basis(self._space, self.images["range"])
            return self._Q.T
        left = self._probes - len(self._start) - self._Q.shape[1]
        rows = self._space.random(left, generator=self._generator)
        return rows - self._space.total(rows @ self._Q) @ self._Q.T

    @property
    def total(self) -> int:
        """All products."""
        return self._probes

    def result(self, end: End) -> Estimate[float]:
        """The sum of both parts, which is available from the last stage on."""
        samples, exact = Samples((), self._operator.device), 0.0
        if "rest" in self.images:
            exact = float(self._space.total(self.images["inside"].double().square().sum()))
            if len(self.images["rest"]):
                samples.add(self._space.total(self.images["rest"].double().square().sum(1)))
        require_finite(f"frobenius({self._operator})", samples.mean)
        return _root(samples, exact, end)


def _exact(value: float, probes: int, end: End) -> Estimate[float]:
    """An exact value from all unit vectors; infinite error if interrupted."""
    return Estimate(value, 0.0 if end.complete else math.inf, end.products, probes, end.status)


def _root(samples: Samples, exact: float, end: End) -> Estimate[float]:
    """``√(exact + mean)`` with the mean of the samples, and its standard error."""
    norm = math.sqrt(exact + float(samples.mean))
    error = float(samples.stderr) / (2 * norm) if norm else 0.0
    return Estimate(norm, error, end.products, samples.count, end.status)


def _settings(
    where: str, A: LinearOperator, generator: torch.Generator, probes: int, block: int
) -> None:
    require_symmetric(where, A)
    _checks.generator(where, generator)
    _checks.positive_int(where, "probes", probes)
    _checks.positive_int(where, "block", block)
