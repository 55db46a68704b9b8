"""Batches taken apart and put together anew where samples do not see each other.

Whether they do is tried out in :mod:`curvescope.problem.independence` for a model as a function,
and by :func:`positions` for the layers inside of it. What is known of a problem is kept with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from curvescope.errors import CurvescopeError
from curvescope.layers import registered_kind
from curvescope.problem.batches import Batch
from curvescope.problem.calling import MISTAKES
from curvescope.problem.function import close
from curvescope.problem.independence import take
from curvescope.problem.losses import LossAt
from curvescope.problem.problem import Problem
from curvescope.record.capture import Capture, Trials, capture, samples_given
from curvescope.record.selection import UnsupportedLayer, layer_of

PROBE = 4
"""Samples on which things are tried out."""


def tensors(batch: Batch) -> list[Tensor]:
    """All tensors of the inputs and of the target."""
    return _leaves((batch.inputs, batch.target))


def _leaves(tree: Any) -> list[Tensor]:
    return [t for t in pytree.tree_leaves(tree) if isinstance(t, Tensor)]


def choose(batch: Batch, which: slice | Tensor) -> Batch:
    """Some samples of a batch; the first dimension of every tensor is that of the samples."""
    return Batch(take(batch.inputs, which), take(batch.target, which), batch.index)


def join(batches: Sequence[Batch]) -> Batch:
    """Several batches as one."""
    if len(batches) == 1:
        return batches[0]

    def cat(*leaves: Any) -> Any:
        return torch.cat(leaves) if isinstance(leaves[0], Tensor) else leaves[0]

    inputs = pytree.tree_map(cat, *(b.inputs for b in batches))
    return Batch(inputs, pytree.tree_map(cat, *(b.target for b in batches)), batches[0].index)


def first_samples(batch: Batch, count: int = PROBE) -> Batch:
    """A few samples of a batch, to try things out on; the batch itself if it cannot be cut."""
    size = samples_given(batch)
    if size is None:
        return batch

    def cut(t: Tensor) -> Tensor:
        return t[:count] if t.ndim and t.shape[0] == size else t

    inputs, target = pytree.tree_map_only(Tensor, cut, (batch.inputs, batch.target))
    return Batch(inputs, target, batch.index)


# Which rows of a layer belong to a sample --------------------------------------------------------


def positions(
    pull_back: Callable[[Tensor], Sequence[Tensor | None]], z: Tensor, samples: int
) -> tuple[int, ...]:
    """How many rows of each layer belong to a sample: ``m`` consecutive ones, or 0 if it is not so.

    The cotangent of one sample's output, tried for the first two and the last, must vanish exactly
    at the rows of all others. So samples that see each other behind a layer are found out, and so
    is a layer that counts something else first (``[T, N, D]``, or that flattened). Where all of it
    vanishes (a layer behind a weight that is zero) nothing is seen, and the layer must have one row
    for each sample. Cost: three backward passes of few samples.

    Args:
        pull_back: From a cotangent of the output to those of the layers' outputs, ``[rows, …]``.
        z: The output for a few samples, consecutive rows for each.
        samples: How many; at least two.
    """
    rows, remainder = divmod(z.shape[0], samples)
    rows_each: list[int] | None = None
    reached: set[int] = set()
    for sample in sorted({0, 1, samples - 1}):
        u = torch.zeros_like(z)
        cotangent = u[sample * rows : (sample + 1) * rows]
        ramp = torch.linspace(1.0, 2.0, cotangent.numel(), dtype=u.dtype, device=u.device)
        cotangent.copy_(ramp.reshape(cotangent.shape))
        errors = pull_back(u)
        if rows_each is None:
            rows_each = [0 if e is None or remainder else _rows(e, samples) for e in errors]
        for i, e in enumerate(errors):
            if e is None or not rows_each[i]:
                continue
            parts = (e.unflatten(0, (samples, rows_each[i])) != 0).flatten(1).any(1)
            if bool(parts[sample]):
                reached.add(i)
            parts[sample] = False
            if bool(parts.any()):
                rows_each[i] = 0
    return tuple(m if m == 1 or i in reached else 0 for i, m in enumerate(rows_each or ()))


def _rows(e: Tensor, samples: int) -> int:
    rows, remainder = divmod(e.shape[0] if e.ndim else 0, samples)
    return 0 if remainder else rows


def check_samples(
    problem: Problem, batch: Batch, layers: Sequence[str], *, shared: bool = False
) -> None:
    """Refuse layers whose samples see each other, tried out on a few samples, once per problem.

    The output of a sample must not depend on what the layer computes for the others, see
    :func:`positions`; and the layer must compute what its kind says.
    """
    trials = problem.companion(Trials)
    unknown = [name for name in layers if name not in trials.layers]
    if not unknown:
        return
    few = first_samples(batch)
    record = capture(problem, few, unknown, shared=shared, look=_agreement(problem))
    if record.samples < 2:
        return
    if _find_common(problem, few, record, shared):
        record = capture(problem, few, unknown, shared=shared)

    with record.backward() as pull_back:

        def errors(u: Tensor) -> list[Tensor]:
            pulled = pull_back(u, False)
            return [
                record.layers[name].rows_first(pulled[name], record.samples) for name in unknown
            ]

        rows_of_layers = positions(errors, record.output, record.samples)
    for name, rows in zip(unknown, rows_of_layers, strict=True):
        if not rows:
            raise UnsupportedLayer(
                "layers",
                f"the samples of a batch see each other behind layer {name!r}, or are not its "
                "first dimension",
                remedy="batch norm needs mode='eval' and running statistics",
            )
        trials.layers.add(name)


def _agreement(problem: Problem) -> Callable[[str, Tensor, Tensor], None]:
    """Refuses a layer that was recognized by what it computes, and computes something else here."""

    def look(name: str, x: Tensor, y: Tensor) -> None:
        kind = layer_of(problem.model, name)
        if registered_kind(kind.module) is None and not kind.agrees(x, y):
            rule = f"layer {name!r} depends on more than its first input and its weight"
            raise UnsupportedLayer("layers", rule, given=type(kind.module).__name__)

    return look


def _find_common(problem: Problem, few: Batch, record: Capture, shared: bool) -> bool:
    """Note layers that are applied once for all samples, as to their positions; whether any is.

    Their input has one shape for any number of samples. Their output is repeated for each sample,
    which must change nothing.
    """
    samples = samples_given(few)
    if samples is None or samples < 2:
        return False
    try:
        other = capture(
            problem, first_samples(few, samples - 1), list(record.layers), shared=shared
        )
    except torch.OutOfMemoryError:
        raise
    except (CurvescopeError, *MISTAKES):  # the model refuses so few samples
        return False
    alike = [
        name
        for name, x in record.inputs.items()
        if x.ndim and x.shape == other.inputs[name].shape and other.samples < record.samples
    ]
    trials = problem.companion(Trials)
    for name in alike:
        trials.common.add(name)
        try:
            z = capture(problem, few, [name], shared=shared).output
            same = close(z.detach(), record.output.detach())
        except torch.OutOfMemoryError:
            raise
        except (CurvescopeError, *MISTAKES):
            same = False
        if not same:
            trials.common.discard(name)
    return bool(trials.common.intersection(alike))


def terms_apart(
    problem: Problem, batch: Batch, layers: Sequence[str], *, shared: bool = False
) -> frozenset[str]:
    """Those of some layers at whose positions only the position's own term of the loss arrives.

    So it is behind the last exchange between positions: the head of a language model, its last
    norm, a segmenting network's last convolution of width one. A position is then a row of its
    own. Tried out on a few samples, once per problem, exactly: positions are numbered in binary
    digits, and what the terms with one digit send back must vanish at the positions with the other.
    """
    trials = problem.companion(Trials)
    unknown = [name for name in layers if name not in trials.terms]
    if unknown:
        check_samples(problem, batch, unknown, shared=shared)
        few = first_samples(batch)
        record = capture(problem, few, unknown, shared=shared)
        loss = problem.loss_at(record.output, few)
        zeros = torch.zeros_like(record.output)[None]
        each = loss.terms(zeros).shape[1] // record.samples
        fitting = {
            name: 1 < each == record.positions[name] and kind.groups == 1
            for name, kind in record.layers.items()
        }
        if any(fitting.values()):
            _try_terms(record, loss, each, fitting)
        trials.terms.update(fitting)
    return frozenset(name for name in layers if trials.terms[name])


def _try_terms(record: Capture, loss: LossAt, each: int, fitting: dict[str, bool]) -> None:
    zeros = torch.zeros_like(record.output)[None]
    terms = torch.zeros_like(loss.terms(zeros))  # [1, B T, c]
    ramp = torch.linspace(1.0, 2.0, terms.numel(), dtype=terms.dtype, device=terms.device)
    numbers = torch.arange(each, device=terms.device)
    reached: set[str] = set()
    with record.backward() as pull_back:
        for digit in range((each - 1).bit_length()):
            for value in (0, 1):
                sending = (numbers >> digit) % 2 == value
                on = sending.repeat(record.samples)[:, None]
                u = loss.scatter(ramp.reshape(terms.shape) * on, zeros)[0]
                for name, e in pull_back(u, False).items():
                    alive = (record.errors(name, e) != 0).flatten(2).any(2).any(0)  # [T]
                    if fitting[name] and bool(alive[~sending].any()):
                        fitting[name] = False
                    if bool(alive.any()):
                        reached.add(name)
    for name in fitting:
        fitting[name] = fitting[name] and name in reached


def pieces(problem: Problem, batch: Batch, size: int) -> Iterator[Batch]:
    """A batch in pieces of ``size`` samples, or whole where its samples see each other."""
    if (samples_given(batch) or size + 1) <= size or not problem.samples_apart(batch):
        yield batch
        return
    for start in range(0, tensors(batch)[0].shape[0], size):
        yield choose(batch, slice(start, start + size))
