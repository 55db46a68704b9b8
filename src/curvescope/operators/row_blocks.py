"""The rows of a problem's Gauss–Newton root, collected in blocks of samples that fit memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from curvescope._state import full_precision
from curvescope.errors import CurvescopeError
from curvescope.operators.layer_rows import in_order, rows_of
from curvescope.operators.rows import Rows, WrittenRows, join
from curvescope.problem import ParamSpace, Problem
from curvescope.problem.batches import Batch
from curvescope.problem.losses import Loss
from curvescope.record import memory, samples, selection
from curvescope.record.layers import record_layers

Directions = Callable[[Loss, Tensor, Any], Tensor]
"""``(loss, z, target) ↦ [B, K, *z.shape[1:]]``: roots of the output matrix of each sample."""

_CHUNK = {"cpu": 128 << 20, "cuda": 4 << 30}  # bytes of inputs and errors recorded at a time
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-9}
_SHARE = 0.4  # of the free memory that the rows of two blocks may take


class RowBlocks:
    """Rows ``J_iᵀ q_k`` over some parameters, in the order of the data: sample, direction.

    The data is read once and held, so that a loader that shuffles does no harm; in a group every
    rank holds that of all, since every row meets every other one. Layers of every
    kind are recorded, also norms and embeddings; every other parameter costs a backward pass for
    each row.
    """

    def __init__(self, problem: Problem, directions: Directions, space: ParamSpace) -> None:
        self.problem, self.space = problem, space
        self._directions = directions

    @property
    def batches(self) -> list[Batch]:
        """The data, read once: of two threads that read it the first decides the order."""
        held: list[Batch] | None = self.__dict__.get("_batches")
        if held is None:
            self.problem.check_unchanged()
            read = self.problem.data.of_all() if self.in_group else list(self.problem.batches())
            held = self.__dict__.setdefault("_batches", read)
        return held

    @property
    def in_group(self) -> bool:
        """Whether the data lie on several ranks."""
        return not self.problem.group.alone

    @cached_property
    def counts(self) -> tuple[int, float]:
        """Rows, and the weight of all terms of the loss; one forward pass over the data."""
        rows, weight = 0, 0.0
        # Before anything is known to fit, the data is not held: it may be large.
        held = None if self.in_group else self.__dict__.get("_batches")
        for batch in held or self.problem.batches():
            z = self._output(self.problem.variables(), batch).detach()
            u = self._pull(z, batch.target)
            rows += u.shape[0] * u.shape[1]
            weight += self.problem.loss_at(z, batch).weight
        return int(self.problem.count(rows)), self.problem.whole_weight(weight)

    def restrict(self, space: ParamSpace) -> RowBlocks:
        """The same rows over fewer parameters."""
        other = RowBlocks(self.problem, self._directions, space)
        other.__dict__.update(_batches=self.batches, counts=self.counts)
        return other

    # Rows of some samples -----------------------------------------------------------------------

    def _output(self, variables: dict[str, Tensor], batch: Batch) -> Tensor:
        with self.problem.evaluation():
            return self.problem.output(variables, batch)

    def _pull(self, z: Tensor, target: Any) -> Tensor:
        return self._directions(self.problem.loss, z, target)

    @cached_property
    def _groups(self) -> tuple[dict[str, tuple[bool, bool]], tuple[str, ...]]:
        """Layers that can be recorded, with (weight, bias) among the variables, and the rest."""
        layers: dict[str, tuple[bool, bool]] = {}
        names = set(self.space.names)
        for layer in self.space.layers:
            parameters = [selection.join(layer, kind) for kind in ("weight", "bias")]
            present = (parameters[0] in names, parameters[1] in names)
            if any(present) and self._can_be_recorded(
                layer, present, names.intersection(parameters)
            ):
                layers[layer] = present
                names -= set(parameters)
        return layers, tuple(n for n in self.space.names if n in names)

    def _can_be_recorded(
        self, layer: str, present: tuple[bool, bool], parameters: set[str]
    ) -> bool:
        """Tried out on a sample: one mixture of its rows must be what autograd says it is."""
        first = next(self.pieces(1))
        try:
            selection.layers_of_any_kind(self.problem, [layer])
            samples.check_samples(self.problem, next(self.pieces(samples.PROBE)), [layer])
            record = record_layers(self.problem, first, [layer], self._mixture)[layer]
        except torch.OutOfMemoryError:
            raise
        except (CurvescopeError, RuntimeError):  # the latter where a checkpoint is recomputed
            return False
        weight, bias = present
        recorded = rows_of(record, weight=weight, bias=bias).written().rows[0]
        pulled = self._pulled(first, [n for n in self.space.names if n in parameters])
        return self._agree(recorded, in_order(record.kind, pulled, weight=weight, bias=bias))

    def _mixture(self, z: Tensor, target: Any) -> Tensor:
        """One direction of each sample, made of all of its own."""
        u = self._pull(z, target)
        weights = torch.linspace(1.0, 2.0, u.shape[1], dtype=u.dtype).to(u.device)
        return torch.tensordot(weights, u, ([0], [1]))[:, None]

    def _pulled(self, first: Batch, names: Sequence[str]) -> list[Tensor]:
        """What autograd says of the mixture of the first sample."""
        variables = self.problem.variables()
        z = self._output(variables, first)
        u = torch.zeros_like(z)
        u[0] = self._mixture(z.detach(), first.target)[0, 0]
        pulled = torch.autograd.grad(z, [variables[n] for n in names], u, materialize_grads=True)
        return [g.detach() for g in pulled]

    def _agree(self, recorded: Tensor, expected: Tensor) -> bool:
        error = float((recorded - expected).norm())
        return error <= _TOLERANCE[self.problem.dtype] * float(expected.norm())

    def rows(self, pieces: Sequence[Batch]) -> list[Rows]:
        """The rows of some samples: one entry for each layer, and one for all else."""
        with full_precision(self.problem.device):
            groups = [self._rows_of(piece) for piece in pieces]
        return [join(parts) for parts in zip(*groups, strict=True)]

    def _rows_of(self, piece: Batch) -> list[Rows]:
        layers, rest = self._groups
        groups: list[Rows] = []
        if layers:
            records = record_layers(self.problem, piece, layers, self._pull)
            for name, (weight, bias) in layers.items():
                groups.append(rows_of(records[name], weight=weight, bias=bias).compact())
        if rest:
            groups.append(self._written(piece, rest))
        return groups

    def _written(self, piece: Batch, names: Sequence[str]) -> WrittenRows:
        """Rows of any parameters: a backward pass for each."""
        variables = self.problem.variables()
        chosen = [variables[name] for name in names]
        rows, per_sample = [], 0
        for single in samples.pieces(self.problem, piece, 1):
            z = self._output(variables, single)
            u = self._pull(z.detach(), single.target)
            per_sample = u.shape[1]
            for b in range(u.shape[0]):
                for direction in u[b]:
                    v = torch.zeros_like(z)
                    v[b] = direction
                    gradients = torch.autograd.grad(
                        z, chosen, v, retain_graph=True, allow_unused=True, materialize_grads=True
                    )
                    rows.append(torch.cat([g.flatten() for g in gradients]))
        return WrittenRows(torch.stack(rows), per_sample)

    # Samples ------------------------------------------------------------------------------------

    def pieces(self, size: int | None = None) -> Iterator[Batch]:
        """The data in pieces of ``size`` samples (default: what is recorded at once)."""
        for batch in self.batches:
            yield from samples.pieces(self.problem, batch, size or self._chunk[0])

    @cached_property
    def _chunk(self) -> tuple[int, int]:
        """Samples to record at once, and samples whose rows fit into memory together."""
        first = next(self.pieces(1))
        layers, _ = self._groups
        device = self.problem.device
        raw = 1
        if layers:
            records = record_layers(self.problem, first, layers, self._pull)
            raw = sum(r.errors.nbytes + r.inputs.nbytes for r in records.values())
        bytes_each = max(1, sum(rows.nbytes() for rows in self._rows_of(first)))
        room = _SHARE * (memory.free(device) - 8 * self.counts[0] ** 2)
        block = min(self.problem.group.counts(max(1, int(room / bytes_each / 2))))
        return max(1, _CHUNK.get(device.type, 1 << 30) // raw), block

    def blocks(self) -> list[list[Batch]]:
        """Pieces grouped into blocks, two of which fit into memory; one shape to a block."""
        chunk, block = self._chunk
        size = min(chunk, block)
        groups: list[list[Batch]] = []
        shape: object = None
        for piece in self.pieces(size):
            now = [t.shape[1:] for t in samples.tensors(piece)]
            if now != shape or len(groups[-1]) * size >= block:
                groups.append([])
                shape = now
            groups[-1].append(piece)
        return groups
