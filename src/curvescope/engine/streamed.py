"""The streamed strategy: each batch is computed, multiplied with and dropped.

The memory is that of one batch, and every product pays for running the model.
"""

from __future__ import annotations

import torch
from torch import Tensor

from curvescope.engine.linearize import Linearizer, add_product, columns_for
from curvescope.engine.matrix import Matrix
from curvescope.problem.batches import Batch
from curvescope.record.batch import TapeBatch
from curvescope.record.live import LiveBatch
from curvescope.record.rules import Untraceable

Sums = tuple[Tensor, float]  # over the terms of the loss, and the weight of these terms


def product(linearizer: Linearizer, matrix: Matrix, rows: Tensor, columns: int | None) -> Sums:
    """``[k, P]`` to ``[k, P]``."""
    total = torch.zeros_like(rows)
    weight = 0.0
    for batch in matrix.problem.batches():
        weight += add_batch(linearizer, matrix, batch, rows, total, columns)
    return total, weight


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
