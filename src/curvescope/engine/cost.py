"""What a product costs, as a multiple of one gradient over the same data.

Counted, not timed, so that the same plan says the same everywhere: the multiplications of matrix
products and convolutions on a few samples, as torch's own counter has them. Element-wise work and
the time that it takes to launch operations are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from curvescope._state import watching
from curvescope.problem.batches import Batch
from curvescope.problem.problem import Problem


def _steps(x: Any, *weights: Any) -> int:
    return int(2 * x.shape[0] * x.shape[1] * sum(w.numel() for w in weights))


# Operations that torch's counter does not know, by their arguments.
_FURTHER: dict[str, Callable[..., int]] = {
    "mkldnn::_linear_pointwise": lambda x, *a: 2 * x.numel() * next(
        w.shape[0] for w in reversed(a) if isinstance(w, torch.Tensor) and w.ndim == 2
    ),
    "aten::mkldnn_rnn_layer": lambda x, w, v, *a: _steps(x, w, v),
    "aten::mkldnn_rnn_layer_backward": lambda x, w, v, *a: 2 * _steps(x, w, v),
    "curvescope::recurrent": lambda kind, x, w, *a: _steps(x, w),
    "curvescope::recurrent_backward": lambda kind, h, c, w, h0, c0, out, *a: _steps(out, w),
}  # fmt: skip


class _Multiplications(TorchDispatchMode):
    """Counts the operations of everything that runs under it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        rule = flop_registry.get(_plain(func._overloadpacket))
        if rule is not None:
            self.count += rule(*args, **(kwargs or {}), out_val=out)
        elif func._schema.name in _FURTHER:
            self.count += _FURTHER[func._schema.name](*args)
        return out


def _plain(packet: Any) -> Any:
    """``aten.addmm`` for ``aten.addmm_``, which the registry does not list."""
    name = packet.__name__
    return getattr(torch.ops.aten, name.rstrip("_"), packet) if name.endswith("_") else packet


def count(act: Callable[[], object]) -> int:
    """Operations of matrix products and convolutions in ``act()``.

    >>> A = torch.ones(2, 3)
    >>> count(lambda: A @ A.T)  # 2 · 2 · 2 · 3
    24
    """
    counter = _Multiplications()
    with watching(counter):
        act()
    return counter.count


def in_gradients(problem: Problem, few: Batch, act: Callable[[], object]) -> float | None:
    """The work of ``act()`` on some samples in gradients on the same samples; None without any."""

    def gradient() -> None:
        variables = problem.variables()
        with problem.evaluation():
            z = problem.output(variables, few)
            u = problem.loss_at(z, few).gradient()
            torch.autograd.grad(z, list(variables.values()), u, allow_unused=True)

    unit = count(gradient)
    return count(act) / unit if unit else None
