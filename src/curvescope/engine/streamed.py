"""The streamed strategy: each batch is computed, multiplied with and dropped.

The memory is that of one batch, and every product pays for running the model.
"""

from __future__ import annotations

import torch
from torch import Tensor

from curvescope.engine import fitting
from curvescope.engine.closed_form import Sums
from curvescope.engine.linearize import SHARE, Linearizer, add_product, columns_for
from curvescope.engine.matrix import Matrix
from curvescope.errors import CurvescopeError
from curvescope.problem.batches import Batch
from curvescope.record import memory
from curvescope.record.batch import TapeBatch
from curvescope.record.capture import samples_given
from curvescope.record.live import LiveBatch
from curvescope.record.outputs import SampledFisher
from curvescope.record.rules import Untraceable
from curvescope.record.samples import first_samples, pieces


def product(linearizer: Linearizer, matrix: Matrix, rows: Tensor, columns: int | None) -> Sums:
    """``[k, P]`` to ``[k, P]``."""
    total = torch.zeros_like(rows)
    weight = 0.0
    size = samples_at_once(linearizer, matrix)
    for batch in matrix.problem.batches():
        for piece in (batch,) if size is None else pieces(matrix.problem, batch, size):
            weight += add_batch(linearizer, matrix, piece, rows, total, columns)
    return total, weight


def samples_at_once(linearizer: Linearizer, matrix: Matrix) -> int | None:
    """How many samples of a batch go together; None: all. Decided once, and then left at that.

    Targets that are drawn belong to a batch, whose number seeds them: it stays whole.
    """
    if any(isinstance(each, SampledFisher) for each, _ in matrix.mix.outputs):
        return None
    key = (matrix.second_order, matrix.space.names)
    if key not in linearizer.sizes:
        try:
            linearizer.sizes[key] = _fitting(linearizer, matrix)
        except CurvescopeError:  # a model that takes another path for a few samples
            linearizer.sizes[key] = None
    return linearizer.sizes[key]


def _fitting(linearizer: Linearizer, matrix: Matrix) -> int | None:
    problem, measured = matrix.problem, _measured(linearizer, matrix)
    room = SHARE * memory.free(problem.device)
    if measured is None or problem.mode != "eval" or measured.certainly_within(room):
        return None
    few = first_samples(next(iter(problem.data)))
    size = measured.peak(room).within(room)
    return size if size < measured.samples and problem.samples_apart(few) else None


def _measured(linearizer: Linearizer, matrix: Matrix) -> fitting.Measured | None:
    batch = next(iter(matrix.problem.data))
    samples = samples_given(batch)
    if samples is None:
        return None

    def act(few: Batch) -> None:
        row = fitting.ones(matrix.problem, matrix.space.size)
        with linearizer.trying(matrix.streamed_depth(1)):
            add_batch(linearizer, matrix, few, row, torch.zeros_like(row), None)

    return fitting.Measured(batch, samples, act)


def peak(linearizer: Linearizer, matrix: Matrix, *, cut: bool = True) -> int | None:
    """Bytes that a single product takes while it runs; None where no batch can be cut.

    Without ``cut`` those that it would take on whole batches.
    """
    measured = _measured(linearizer, matrix)
    if measured is None:
        return None
    room = SHARE * memory.free(matrix.problem.device)
    size = samples_at_once(linearizer, matrix) if cut else None
    try:
        return measured.peak(room).of(size or measured.samples)
    except CurvescopeError:
        return None


def add_batch(
    linearizer: Linearizer, matrix: Matrix, batch: Batch, rows: Tensor, total: Tensor,
    columns: int | None,
) -> float:  # fmt: skip
    """Add the products of a batch that is used once; the weight of its terms.

    A single column is pushed through while the batch is computed; several are worth a tape.
    """
    depth = matrix.streamed_depth(len(rows))
    if len(rows) == 1 and linearizer.pushes(depth):
        try:
            return _push(matrix, batch, rows[0], total[0])
        except Untraceable:  # a tape follows more than this does; if it cannot either, it says so
            linearizer.record_instead(depth)
    if not matrix.second_order and linearizer.tapes(matrix.depth):
        return _pull_back(batch, matrix, rows, total, columns)
    linearized = linearizer.linearize(matrix.problem, batch, depth=matrix.depth, keep=False)
    add_product(linearized, matrix, rows, total, columns)
    return linearized.weight


def _push(matrix: Matrix, batch: Batch, row: Tensor, total: Tensor) -> float:
    live = LiveBatch(matrix.problem, batch, matrix.space, row)
    for name, g in live.product(matrix.mix).items():
        total[matrix.space.slice(name)] += g.flatten()
    return live.weight


def _pull_back(
    batch: Batch, matrix: Matrix, rows: Tensor, total: Tensor, columns: int | None
) -> float:
    """Gauss–Newton products: the backward pass of the first column is the recording."""
    tape = TapeBatch(matrix.problem, batch)
    u = tape.middle(matrix.mix, tape.push_forward(matrix.space, rows[:1]))[0]
    gradients = tape.record_backward(u, second_order=False)
    for name in matrix.space.names:
        if name in gradients:
            total[0, matrix.space.slice(name)] += gradients[name].flatten()
    if len(rows) > 1:
        add_product(tape, matrix, rows[1:], total[1:], columns)
    return tape.weight


def forms(matrix: Matrix, rows: Tensor, columns: int | None) -> Sums:
    """``xᵀ Jᵀ B J x`` for the rows, ``[k]``: batches are recorded forwards only."""
    total = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    weight = 0.0
    for batch in matrix.problem.batches():
        tape = TapeBatch(matrix.problem, batch)
        add_forms(tape, matrix, rows, total, columns)
        weight += tape.weight
    return total, weight


def add_forms(
    tape: TapeBatch, matrix: Matrix, rows: Tensor, total: Tensor, columns: int | None
) -> None:
    """Add one batch's ``xᵀ Jᵀ B J x``."""
    size = columns
    if size is None:
        width = tape.push_width(matrix.space)
        size = columns_for(matrix.problem, width, convolves=tape.convolves)
    for piece, out in zip(rows.split(size), total.split(size), strict=True):
        out += tape.quadratic(matrix.mix, matrix.space, piece)
