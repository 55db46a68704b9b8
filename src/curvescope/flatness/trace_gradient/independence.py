"""Which rows of a layer's input belong to which sample: determined by running the model."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from curvescope._state import differentiable, watching, without_gradients
from curvescope.flatness.trace_gradient.capture import Capture
from curvescope.flatness.trace_gradient.forward import (
    batch_norms_train,
    frozen_calls,
    run,
    samples_of,
)
from curvescope.flatness.trace_gradient.pullback import pull_back
from curvescope.problem.calling import call_with
from curvescope.problem.independence import apart, take
from curvescope.record.samples import positions

_FEW = 5  # samples of the trial: also shows a dependence on others than the neighbors
_Flags = tuple[bool, ...]
_Rows = tuple[int, tuple[int, ...]]  # samples of the trial, and rows per sample of each layer
_cache: WeakKeyDictionary[nn.Module, dict[_Flags, _Rows]] = WeakKeyDictionary()


def rows_per_sample(model: nn.Module, X: Any) -> tuple[int, ...]:
    """How many consecutive rows belong to a sample, for each layer in the order of the pass.

    0 for a layer whose first dimension is not that of the samples; ``()`` where the output for a
    sample depends on other samples, or the batch is one sample. Gradients of such layers are taken
    over the whole batch, which is right for every model. Determined once for every model, at the
    cost of a few passes of a few samples, and again when ``requires_grad`` or ``training`` of some
    part changes; batch norms are checked every time.

    The answer must hold for a whole training. So zero weights are replaced in the trial (a gate
    that is closed at first hides dependences), and a model in training mode is run in that mode as
    well (a user-defined norm may take the statistics of the batch there).

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
    samples, cached = min(samples_of(X), _FEW), _cache.setdefault(model, {})
    tried, rows = cached.get(flags, (0, ()))
    if samples > tried:  # the answer for more samples holds for fewer
        result = _try_out(model, X)
        if result is None:
            return ()
        cached[flags] = samples, (rows := result)
    return rows


def _try_out(model: nn.Module, X: Any) -> tuple[int, ...] | None:
    """The rows per sample, from a trial; None for a single sample, which shows no dependence."""
    few = take(X, slice(0, _FEW))
    samples = samples_of(few)
    with differentiable(), frozen_calls(model) as call:
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
    """The parameters by name, zeros replaced by numbers between 0.05 and 0.1."""
    opened = {}
    for name, p in model.named_parameters():
        numbers = torch.linspace(0.05, 0.1, p.numel(), dtype=p.dtype, device=p.device)
        moved = torch.where(p.detach() == 0, numbers.reshape(p.shape), p.detach())
        opened[name] = moved.requires_grad_(p.requires_grad)
    return opened


def _apart_in_training(model: nn.Module, few: Any, samples: int) -> bool:
    """Whether the first sample's output is unchanged when all others are replaced by copies of it.

    Batch size and random numbers are the same in both passes, so that dropout does not matter.
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
