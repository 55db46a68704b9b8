"""The pass over the data behind Kronecker factors: moments of all layers, for all labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from curvescope.errors import Inapplicable
from curvescope.layers import LookupKind
from curvescope.problem.batches import Batch
from curvescope.problem.losses import LossAt
from curvescope.problem.problem import Problem
from curvescope.record import memory
from curvescope.record.capture import Capture, capture
from curvescope.record.moments import LayerMoments
from curvescope.record.outputs import LossHessian, generator_of
from curvescope.record.roots import one_by_one
from curvescope.record.samples import first_samples

CACHE = 16 << 20  # bytes of layer inputs and outputs of a piece: about a CPU's last cache
ALL = -1
Members = dict[int, tuple[Tensor | None, int, float]]  # label -> samples; how many; loss weight


def piece_size(problem: Problem, batch: Batch, names: Sequence[str]) -> int:
    """The number of samples whose layer inputs and outputs fit into :data:`CACHE`."""
    if problem.device.type != "cpu":
        return 1 << 30
    few = capture(problem, first_samples(batch), names, shared=True)
    outputs = sum(few.positions[name] * few.layers[name].matrix_shape[0] for name in names)
    numbers = outputs + sum(x.numel() for x in few.inputs.values()) / few.samples
    return max(16, int(CACHE / few.output.element_size() / numbers))


@dataclass
class Pass:
    """Running moments by layer and label; the settings are those of ``kronecker_factors``."""

    sharing: str
    bias: bool
    by_class: bool
    draws: int | None
    seed: int | None
    moments: dict[tuple[str, int], LayerMoments] = field(default_factory=dict)
    classes: int = 0

    def begin_batch(self, batch: Batch) -> None:
        """Labels are drawn for each batch anew, by its number."""
        self._generator = None if self.seed is None else generator_of(self.seed, batch.index)

    def add(self, problem: Problem, piece: Batch, names: Sequence[str], *, by_term: bool) -> None:
        """Add some samples of a batch to the moments of some layers, for every label."""
        record = capture(problem, piece, names, shared=True)
        loss = problem.loss_at(record.output, piece)
        terms = loss.terms(record.output.detach()[None]).shape[1] // record.samples
        by_term = by_term and all(record.positions[name] == terms for name in names)
        members: Members = {ALL: (None, record.samples, loss.weight)}
        if self.by_class:
            members, self.classes = by_label("kronecker_factors", piece, record.output, loss)
        _check_size(record, loss, len({*members, *(label for _, label in self.moments)}))
        for name in names:
            x, positions = record.inputs[name], record.positions[name]
            for label, (index, samples, weight) in members.items():
                moment = self.moments.get((name, label))
                if moment is None:
                    moment = LayerMoments(record, name, self.sharing, bias=self.bias)
                    self.moments[name, label] = moment
                moment.add_inputs(_some(x, index, record.samples), samples, weight, positions)
        with record.backward() as pull_back:
            for u, last in self._directions(record, loss, piece, by_term):
                for name, e in pull_back(u, last).items():
                    for label, (index, samples, _) in members.items():
                        rows = _some(e, index, record.samples)
                        self.moments[name, label].add_errors(rows, samples, apart=by_term)

    def _directions(
        self, record: Capture, loss: LossAt, piece: Batch, by_term: bool
    ) -> Iterator[tuple[Tensor, bool]]:
        if self.draws is None or self._generator is None:
            z = record.output
            yield from one_by_one(LossHessian(), loss, z, piece.index, by_term=by_term)
            return
        # Labels of different terms are drawn independently: their products vanish on average.
        drawn = loss.sample(self.draws, self._generator) / self.draws**0.5
        for k, u in enumerate(drawn):
            yield u, k == self.draws - 1

    def end_batch(self) -> None:
        """The batch is complete."""
        for moment in self.moments.values():
            moment.end_batch()

    def share(self, problem: Problem) -> None:
        """Make the sums over this rank's data those over all data, with the labels of all."""
        if problem.group.alone:
            return
        mine = [list(key) for key in self.moments]
        everywhere = [key for keys in problem.group.plain_of_all(mine) for key in keys]
        self.classes = max(problem.group.counts(self.classes))
        for name, label in sorted({(name, label) for name, label in everywhere}):
            if (name, label) not in self.moments:
                some = next(m for (layer, _), m in self.moments.items() if layer == name)
                self.moments[name, label] = some.without_samples()
            self.moments[name, label].share(problem)


def _check_size(record: Capture, loss: LossAt, labels: int) -> None:
    """Refuse what does not fit into memory: directions, and three copies of all moments."""
    outputs, item = record.output.numel(), record.output.element_size()
    moments = 0
    for name, layer in record.layers.items():
        m, n = layer.matrix_shape
        square = n if isinstance(layer, LookupKind) else n * n
        moments += m * m + square + n * record.positions[name]
    memory.need(
        "kronecker_factors",
        f"{outputs:,} outputs of {record.samples} samples and the factors of {labels} label(s)",
        item * (2 * outputs * loss.rank + 3 * labels * moments),
        record.output.device,
        "use fewer layers, smaller batches or fewer classes, or `draws`",
    )


def _some(t: Tensor, index: Tensor | None, samples: int) -> Tensor:
    """The samples of one label; positions may be folded into the first dimension."""
    if index is None:
        return t
    return t.reshape(samples, -1, *t.shape[1:])[index].flatten(0, 1)


def by_label(where: str, batch: Batch, z: Tensor, loss: LossAt) -> tuple[Members, int]:
    """The samples of each label, and the number of classes; ``where`` is the caller, for errors.

    >>> import torch
    >>> from curvescope.problem.losses import as_loss
    >>> batch, z = Batch(torch.zeros(3, 1), torch.tensor([2, 0, 2]), 0), torch.zeros(3, 4)
    >>> loss = as_loss("cross_entropy").at(z, batch.target)
    >>> by_label("doctest", batch, z, loss)
    ({0: (tensor([1]), 1, 1.0), 2: (tensor([0, 2]), 2, 2.0)}, 4)
    """
    y, outputs = batch.target, z[0].numel()
    labels = isinstance(y, Tensor) and not y.is_floating_point() and y.numel() == z.shape[0]
    if not labels or not loss.count == loss.weight == z.shape[0]:
        rule = "needs one class label for each sample, all of the same weight"
        raise Inapplicable(f"{where}, by class", rule)
    members: Members = {}
    for label in y.unique().tolist():
        index = (y.flatten() == label).nonzero()[:, 0]
        members[label] = (index, len(index), float(len(index)))
    return members, max(outputs, 2)
