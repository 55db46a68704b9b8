"""What a gradient and a product take here: measured on the first batches, counted up to all."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import islice

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from curvescope.experiments.doctor.records import MATRICES, Measured, Product
from curvescope.experiments.doctor.watch import beside, once, peak, seconds
from curvescope.operators.curvature import Curvature
from curvescope.operators.gauss_newton import GaussNewton
from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem
from curvescope.problem.batches import Batch

COLUMNS = 8
"""Columns of a block: the probes of a density."""
_QUICK, _FEW = 0.05, 4  # a gradient so quick is taken over so many batches
_LOOKING = 10.0  # seconds that are spent on counting the samples of a loader


def on(problem: Problem, *batches: Batch) -> Problem:
    """The problem on some batches alone."""
    return Problem(
        problem.model, [(batch.inputs, batch.target) for batch in batches], loss=problem.loss,
        params=list(problem.params.names), mode=problem.mode,
    )  # fmt: skip


def passes(problem: Problem) -> Measured:
    """Times of passes over all data, without products: about ten gradients on the first batch."""
    return _Sample(problem).measured(())


def measure(problem: Problem, *, lean: bool = False) -> Measured:
    """Times and bytes of passes and products over all data of a problem.

    Cost: one pass over the data without the model, and on the first batch about a hundred
    gradients.

    Args:
        problem: The problem.
        lean: Only those products that estimators take, kept or streamed; a third of the cost.
    """
    sample = _Sample(problem)
    products: list[Product] = []
    for matrix, operator in zip(MATRICES, (Hessian, GaussNewton), strict=True):
        plan = operator(problem).plan.many
        keeps = plan is not None and plan.keeps
        if not lean or not keeps:
            products.append(sample.streamed(matrix, operator))
        if keeps:
            products.append(sample.kept(matrix, operator))
    return sample.measured(tuple(products))


class _Sample:
    """The first batches of a problem, and how often they go into the whole data."""

    def __init__(self, problem: Problem) -> None:
        self.samples, self.batches, self._loading = count(problem)
        self._device = problem.device
        batches = list(islice(problem.data, 1))
        self._one = on(problem, *batches)
        self._one.gradient()
        if once(self._one.gradient, self._device) < _QUICK:
            batches = list(islice(problem.data, _FEW))
            self._one = on(problem, *batches)
            self._one.gradient()
        self._share = self.samples / sum(map(_samples, batches))
        self._gradient = seconds(self._one.gradient, self._device)
        self._rows = _columns(self._one)

    def measured(self, products: tuple[Product, ...]) -> Measured:
        """The passes, and the products that were measured."""
        forward, gradient = (
            self._time(self._one.value),
            self._loading + self._share * self._gradient,
        )
        gradient_peak, _ = peak(self._one.gradient, self._device)
        forward = self._loading + forward
        return Measured(self.samples, self.batches, forward, gradient, gradient_peak, products)

    def streamed(self, matrix: str, operator: Callable[..., Curvature]) -> Product:
        """A product that linearizes every batch anew."""
        A: Curvature = operator(self._one, keep=False)
        (one, peak_one), (block, peak_block) = self._both(A)
        one, block = self._loading + one, self._loading + block
        return Product(
            matrix, A.plan.strategy, COLUMNS, one, block, 0.0, 0, peak_one, peak_block
        )  # fmt: skip

    def kept(self, matrix: str, operator: Callable[..., Curvature]) -> Product:
        """A product with batches that stay linearized."""
        A: Curvature = operator(self._one, keep=True)
        filling = self._loading + self._share * once(A.for_many, self._device)
        (one, peak_one), (block, peak_block) = self._both(A)
        strategy, held = A.plan.strategy, int(A.plan.held * self._share)
        A.release()
        return Product(
            matrix, strategy, COLUMNS, one, block, filling, held, held + peak_one, held + peak_block
        )  # fmt: skip

    def _both(self, A: Curvature) -> list[tuple[float, int]]:
        """Seconds and bytes of a product with one column, and with all of them."""
        results = []
        for rows in (self._rows[:, 0], self._rows):
            act = partial(A.__matmul__, rows)
            peak_bytes, _ = peak(act, self._device)
            results.append((self._time(act), peak_bytes))
        return results

    def _time(self, act: Callable[[], object]) -> float:
        """Seconds over all data, by the side of the gradient's."""
        return self._share * self._gradient * beside(act, self._one.gradient, self._device)


def _columns(problem: Problem) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = (problem.params.size, COLUMNS)
    return torch.randn(shape, generator=generator).to(problem.device, problem.dtype)


def _samples(batch: Batch) -> int:
    leaves = [t for t in pytree.tree_leaves(batch.inputs) if isinstance(t, Tensor) and t.ndim]
    return len(leaves[0]) if leaves else 1


def count(problem: Problem) -> tuple[int, int, float]:
    """Samples, batches, and the seconds of a pass over the data without the model."""
    samples = batches = 0
    started = time.perf_counter()
    length = problem.data.length
    for batch in problem.data:
        samples, batches = samples + _samples(batch), batches + 1
        if length is not None and time.perf_counter() - started > _LOOKING:
            break
    took = time.perf_counter() - started
    whole = 1.0 if length is None else length / batches
    return round(samples * whole), round(batches * whole), took * whole
