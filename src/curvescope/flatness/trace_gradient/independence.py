"""Which rows of a layer belong to which sample, in a model of any kind, tried out."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from curvescope._state import differentiable, watching, without_gradients
from curvescope.flatness.trace_gradient.capture import Capture
from curvescope.flatness.trace_gradient.forward import (
    batch_norms_train,
    quiet,
    run,
    samples_of,
)
from curvescope.flatness.trace_gradient.pullback import pull_back
from curvescope.problem.calling import call_with
from curvescope.problem.independence import apart, take
from curvescope.record.samples import positions

_FEW = 5  # enough for samples that see others than their neighbors, or in larger batches alone
_Flags = tuple[bool, ...]
_Rows = tuple[int, tuple[int, ...]]  # how many samples were tried out, and the answer
_known: WeakKeyDictionary[nn.Module, dict[_Flags, _Rows]] = WeakKeyDictionary()


def rows_per_sample(model: nn.Module, X: Any) -> tuple[int, ...]:
    """For each layer that a pass goes through, how many consecutive rows belong to a sample.

    0 where it is not so (a layer that counts something else first), and nothing at all where
    samples see each other, or where the batch is one sample: the gradients of such layers are taken
    for the whole batch, which is right for every model. Tried out once for every model, at the cost
    of a few passes of a few samples, and again when other parameters are variables or other modules
    are in training mode; batch norms are looked at every time.

    The answer must hold for a whole training. So weights that are zero are tried out with other
    values (a gate that is closed at first hides what it will let through), and a model in training
    mode is tried out in that mode as well (a norm of the user's own may take the statistics of the
    batch there).

    >>> import torch
    >>> rows_per_sample(nn.Linear(2, 2), torch.eye(2))
    (1,)
    >>> rows_per_sample(nn.Sequential(nn.Linear(2, 2), nn.Softmax(0)), torch.eye(2))
    ()
    """
    if batch_norms_train(model):
        return ()
    flags = (
        *(p.requires_grad for p in model.parameters()),
        *(m.training for m in model.modules()),
    )
    samples, known = min(samples_of(X), _FEW), _known.setdefault(model, {})
    tried, rows = known.get(flags, (0, ()))
    if samples > tried:  # what holds for some samples holds for fewer
        found = _try_out(model, X)
        if found is None:
            return ()
        known[flags] = samples, (rows := found)
    return rows


def _try_out(model: nn.Module, X: Any) -> tuple[int, ...] | None:
    """None where one sample cannot tell."""
    few = take(X, slice(0, _FEW))
    samples = samples_of(few)
    with differentiable(), quiet(model) as call:
        opened = _opened(model)
        variables = [p for p in opened.values() if p.requires_grad]
        with watching(Capture(variables, second_order=False)) as capture:
            z = call(few, opened)
        separate = apart(lambda x: call(x, opened), few, z)
    if not separate or not capture.layers():
        return None if separate is None else ()
    if any(m.training for m in model.modules()) and not _apart_in_training(model, few, samples):
        return ()
    return positions(lambda u: pull_back(capture, z, u, create_graph=False)[0], z, samples)


def _opened(model: nn.Module) -> dict[str, Tensor]:
    """The parameters by name, with numbers between 0.05 and 0.1 where they are zero."""
    opened = {}
    for name, p in model.named_parameters():
        numbers = torch.linspace(0.05, 0.1, p.numel(), dtype=p.dtype, device=p.device)
        moved = torch.where(p.detach() == 0, numbers.reshape(p.shape), p.detach())
        opened[name] = moved.requires_grad_(p.requires_grad)
    return opened


def _apart_in_training(model: nn.Module, few: Any, samples: int) -> bool:
    """Whether the first sample's output stays when all others are replaced by copies of it.

    The batch keeps its size and random numbers are drawn alike, so that dropout does not matter.
    """
    devices = {p.device for p in model.parameters() if p.is_cuda}
    outputs = []
    for batch in (few, take(few, torch.zeros(samples, dtype=torch.long))):
        buffers = {name: b.clone() for name, b in model.named_buffers()}
        with torch.random.fork_rng(devices=list(devices)), without_gradients():
            torch.default_generator.manual_seed(0)  # torch.manual_seed would reach all devices
            for device in devices:
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(0)
            z = run(lambda *a, **k: call_with(model, buffers, a, k), batch)  # noqa: B023
        outputs.append(z[: len(z) // samples])
    one, other = outputs
    tolerance = torch.finfo(one.dtype).eps ** 0.5
    return bool((one - other).norm() <= tolerance * one.norm())
