"""A monitor whose steps are taken by an optimizer that somebody else's loop calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from curvescope._random import check_seed, global_generators_kept
from curvescope.errors import CurvescopeError
from curvescope.monitor import Monitor

Options = Mapping[str, Any]
"""The keywords of :class:`curvescope.Monitor`."""


class Hosted:
    """Measures right after each step of an optimizer, before anything else can change.

    A hook of the optimizer calls the monitor, so that learning rates are still those of the step,
    whatever the framework's loop does next.
    """

    def __init__(
        self,
        model: nn.Module,
        probe: Any,
        optimizer: Any,
        number: Callable[[], int],
        options: Options,
    ) -> None:
        self.monitor = Monitor(model, probe, optimizer=optimizer, **options)
        self._number = number
        self._loss: float | None = None
        inner: torch.optim.Optimizer = getattr(optimizer, "optimizer", optimizer)
        self._hook = inner.register_step_post_hook(self._after)

    def note_loss(self, loss: torch.Tensor) -> None:
        """The training loss of the coming step, unless a device would have to be waited for."""
        if loss.device.type == "cpu":
            self._loss = float(loss.detach())

    def _after(self, *_: Any) -> None:
        loss, self._loss = self._loss, None
        self.monitor.step(self._number(), loss=loss)

    def close(self) -> None:
        """Take the hooks off the optimizer."""
        self._hook.remove()
        self.monitor.close()


def seeded(where: str, seed: int) -> torch.Generator:
    """The monitor's own generator."""
    return torch.Generator().manual_seed(check_seed(where, seed))


def first_samples(where: str, loader: Any, count: int) -> Any:
    """The first samples of a loader's data set, collated as the loader does, without its sampler.

    No generator is moved.
    """
    dataset, collate = getattr(loader, "dataset", None), getattr(loader, "collate_fn", None)
    sized = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if not sized or collate is None:
        rule = "the training data cannot be indexed"
        raise CurvescopeError(where, rule, remedy="give the `probe` as (X, y) or a batch")
    assert dataset is not None
    with global_generators_kept():
        batch = collate([dataset[i] for i in range(min(count, len(dataset)))])
    return [batch]
