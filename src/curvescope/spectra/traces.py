"""Traces, Frobenius norms and diagonals from products with random vectors.

Hutchinson's estimator (1990): ``tr A = E[ωᵀ A ω]`` for isotropic ``ω``; likewise
``‖A‖_F² = E ‖A ω‖²`` and ``diag A = E[ω ∘ A ω]``. Where a few large eigenvalues carry the variance
it pays to find them first and to estimate only the rest: XTrace (Epperly, Tropp and Webber 2024)
for the trace, the split of Hutch++ (Meyer et al. 2021) for the Frobenius norm. When the budget
reaches the dimension, all three are computed exactly from the ``n`` unit vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from curvescope import _checks
from curvescope.operators.base import LinearOperator
from curvescope.spectra import probes as probing
from curvescope.spectra.control import Status, Watch, require_finite, require_symmetric
from curvescope.spectra.estimate import Estimate, Samples
from curvescope.spectra.rows import multiply
from curvescope.spectra.xtrace import Images, range_basis, xtrace

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from curvescope.spectra.control import Control

Sampler = Callable[[Tensor], Tensor]
"""Samples ``[b, …]`` from probes ``X: [b, n]``, row by row; ``b`` products."""


def trace(
    A: LinearOperator,
    *,
    generator: torch.Generator,
    probes: int = 32,
    method: str = "hutchinson",
    block: int = 32,
    **control: Unpack[Control],
) -> Estimate[float]:
    """``tr A``, the sum of the eigenvalues; ``/ n`` gives their mean (SP-7).

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
        return xtrace(A, products, generator=generator, block=block, **control)

    def sample(X: Tensor) -> Tensor:
        return A.quadratic(X.T)

    samples, spent, status = _sample(
        "trace", A, probes, sample, generator, block, forms=True, **control
    )
    if probes >= A.shape[0]:
        return _exact(float(samples.mean) * samples.count, spent, samples.count, status)
    return samples.estimate(spent, status)


def frobenius(
    A: LinearOperator,
    *,
    generator: torch.Generator,
    probes: int = 32,
    method: str = "hutchinson",
    block: int = 32,
    **control: Unpack[Control],
) -> Estimate[float]:
    """``‖A‖_F = √(Σ λ_i²)``; its square is ``tr A²`` (SP-7).

    ``method="hutchinson"``: the mean of ``‖A ω‖²``. ``method="hutch++"``: a third of the products
    finds an orthonormal ``Q`` near the range, then ``‖A‖_F² = ‖A Q‖_F² + E ‖A (I − Q Qᵀ) ω‖²``,
    the first part exactly, the second from the remaining third. The standard error is that of the
    square, halved and divided by the norm (delta method).

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
        return _hutch_plus_plus(A, probes, generator, block, **control)

    def sample(X: Tensor) -> Tensor:
        return multiply(A, X).double().square().sum(1)

    samples, spent, status = _sample("frobenius", A, probes, sample, generator, block, **control)
    if probes >= A.shape[0]:
        value = math.sqrt(float(samples.mean) * samples.count)
        return _exact(value, spent, samples.count, status)
    return _root(samples, 0.0, spent, status)


def _hutch_plus_plus(
    A: LinearOperator,
    probes: int,
    generator: torch.Generator,
    block: int,
    **control: Unpack[Control],
) -> Estimate[float]:
    """``‖A‖_F² = ‖A Q‖_F² + E ‖A (I − Q Qᵀ) ω‖²``, a third of the products for each part."""
    third, began, samples = probes // 3, generator.get_state(), Samples((), A.device)
    stages: dict[str, Images] = {}

    def state() -> dict[str, Tensor]:
        return {"generator": began, **{name: images.done for name, images in stages.items()}}

    def take(name: str, rows: Tensor, before: int) -> Tensor:
        stages[name] = Images(A, rows, block, saved.get(name))
        for done in stages[name]:
            watch.tick(before + done, probes, before + done)
        return stages[name].done

    known = 0.0
    settings = {"method": "hutch++", "probes": probes, "block": block, "generator": generator}
    watch = Watch("frobenius", A, settings, state, **control)
    with watch:
        saved = watch.restore() or {}
        if saved:
            generator.set_state(began := saved["generator"])
        start = probing.draw(A, third, kind="gaussian", generator=generator)
        Q = range_basis(take("range", start, 0).T)[0]
        inside = take("inside", Q.T, third)
        known = float(inside.double().square().sum())
        rank = Q.shape[1]
        rows = probing.draw(A, probes - third - rank, generator=generator)
        take("rest", rows - (rows @ Q) @ Q.T, third + rank)
    if "rest" in stages and len(stages["rest"].done):
        samples.add(stages["rest"].done.double().square().sum(1))
    require_finite(f"frobenius({A})", samples.mean)
    status = Status.INTERRUPTED if watch.interrupted else Status.DONE
    products = watch.products + sum(len(images.done) for images in stages.values())
    return _root(samples, known, products, status)


def _root(samples: Samples, known: float, products: int, status: Status) -> Estimate[float]:
    """The root of ``known`` and the mean of the samples of a square."""
    norm = math.sqrt(known + float(samples.mean))
    error = float(samples.stderr) / (2 * norm) if norm else 0.0
    return Estimate(norm, error, products, samples.count, status)


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

    def sample(X: Tensor) -> Tensor:
        return X * multiply(A, X)

    samples, spent, status = _sample(
        "diagonal", A, probes, sample, generator, block, shape=(A.shape[0],), **control
    )
    mean, stderr = samples.mean.to(A.dtype), samples.stderr.to(A.dtype)
    if probes >= A.shape[0]:
        if status is Status.DONE:
            stderr = torch.zeros_like(stderr)
        mean = mean * samples.count
    return Estimate(mean, stderr, spent, samples.count, status)


def _settings(
    where: str, A: LinearOperator, generator: torch.Generator, probes: int, block: int
) -> None:
    require_symmetric(where, A)
    _checks.generator(where, generator)
    _checks.positive_int(where, "probes", probes)
    _checks.positive_int(where, "block", block)


def _exact(value: float, products: int, probes: int, status: Status) -> Estimate[float]:
    """A value from all unit vectors; an interrupted sum says nothing."""
    done = status is Status.DONE
    return Estimate(value, 0.0 if done else math.inf, products, probes, status)


def _sample(
    task: str,
    A: LinearOperator,
    probes: int,
    sample: Sampler,
    generator: torch.Generator,
    block: int,
    *,
    shape: tuple[int, ...] = (),
    forms: bool = False,
    **control: Unpack[Control],
) -> tuple[Samples, int, Status]:
    """Samples from ``probes`` signs, or all unit vectors if they suffice; products; the end."""
    n = A.shape[0]
    exact = probes >= n
    total = n if exact else probes
    samples = Samples(shape, A.device)

    def state() -> dict[str, Tensor]:
        return {**samples.state(), "generator": generator.get_state()}

    settings = {"method": "plain", "probes": probes, "block": block, "generator": generator}
    watch = Watch(task, A, settings, state, forms=forms, **control)
    with watch:
        saved = watch.restore()
        if saved is not None:
            samples.load(saved)
            generator.set_state(saved["generator"])
        while samples.count < total:
            b = min(block, total - samples.count)
            if exact:
                rows = torch.zeros(b, n, dtype=A.dtype, device=A.device)
                rows[torch.arange(b), torch.arange(samples.count, samples.count + b)] = 1
            else:
                rows = probing.draw(A, b, generator=generator)
            samples.add(sample(rows))
            watch.tick(samples.count, total, samples.count)
    require_finite(f"{task}({A})", samples.mean)
    status = Status.INTERRUPTED if watch.interrupted else Status.DONE
    return samples, samples.count + watch.products, status
