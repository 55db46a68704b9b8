"""The monitor as a callback of Lightning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from curvescope.errors import CurvescopeError
from curvescope.integrations.hosted import Hosted, first_samples, seeded
from curvescope.monitor import Monitor

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError:
    raise CurvescopeError(
        "curvescope.integrations.lightning", "needs Lightning", remedy="pip install lightning"
    ) from None


class CurvatureMonitor(Callback):
    """Watches the curvature while a Lightning module trains.

    ::

        trainer = Trainer(callbacks=[CurvatureMonitor(probe=64)])

    Values go to the trainer's loggers, and as JSON lines to a folder where one is given. A
    checkpoint of the trainer carries the monitor's state, and a resumed training goes on with it.
    Validation, whose ``inference_mode`` no gradient survives, is not touched: all is measured in
    the training step, right after the optimizer's.

    Args:
        probe: A fixed sample of the data, as for :class:`curvescope.Monitor`, or how many of the
            first training samples to take.
        loss: As for :class:`curvescope.Monitor`: of the output of ``module(inputs)`` and targets.
        model: What to watch, from the Lightning module; by default the module itself.
        optimizer: Which one, where the module has several.
        folder: Where ``monitor.jsonl`` goes.
        log: More places, as for :class:`curvescope.Monitor`.
        seed: Of the monitor's own generator.
        options: The other keywords of :class:`curvescope.Monitor`: ``track``, ``budget``,
            ``every``, ``on_event``, ….

    On several devices the first process measures; a model that is sharded over them is refused.
    """

    def __init__(
        self,
        probe: Any = 64,
        *,
        loss: Any = "cross_entropy",
        model: Callable[[LightningModule], nn.Module] | None = None,
        optimizer: int = 0,
        folder: Any = None,
        log: Any = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__()
        self._probe, self._model, self._which = probe, model, optimizer
        self._options = {"loss": loss, "generator": seeded("CurvatureMonitor", seed), **options}
        self._folder, self._log = folder, log
        self._state: dict[str, Any] | None = None
        self._hosted: Hosted | None = None

    @property
    def monitor(self) -> Monitor | None:
        """The monitor, from the beginning of the training on."""
        return None if self._hosted is None else self._hosted.monitor

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make the monitor, which measures once, or goes on from the checkpoint's state."""
        if not trainer.is_global_zero:
            return
        _refuse_shards(trainer)
        optimizers = trainer.optimizers
        if not 0 <= self._which < len(optimizers):
            rule = f"the module has {len(optimizers)} optimizers"
            raise CurvescopeError("CurvatureMonitor(optimizer)", rule, given=self._which)
        model = pl_module if self._model is None else self._model(pl_module)
        probe = self._probe
        if isinstance(probe, int):
            loader = trainer.train_dataloader
            probe = first_samples("CurvatureMonitor(probe)", loader, probe)
        given = self._log if isinstance(self._log, list | tuple) else [self._log]
        places = [place for place in (self._folder, *given) if place is not None]
        places.append(lambda values, step: _to_loggers(trainer, values, step))
        self._hosted = Hosted(
            model, probe, optimizers[self._which], lambda: trainer.global_step + 1,
            {**self._options, "log": places},
        )  # fmt: skip
        if self._state is not None:
            self._hosted.monitor.load_state_dict(self._state)
            self._state = None

    def on_before_backward(
        self, trainer: Trainer, pl_module: LightningModule, loss: Tensor
    ) -> None:
        """Note the loss."""
        if self._hosted is not None:
            self._hosted.note_loss(loss * trainer.accumulate_grad_batches)

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Any
    ) -> None:
        """Look once more: the optimizer's hook comes before the closure that makes gradients."""
        inner = getattr(optimizer, "optimizer", optimizer)
        if self._hosted is not None and inner is trainer.optimizers[self._which]:
            self._hosted.monitor.before_step()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Take the hooks off."""
        if self._hosted is not None:
            self._hosted.close()

    def state_dict(self) -> dict[str, Any]:
        """The monitor's state, for the trainer's checkpoint."""
        if self._hosted is not None:
            return self._hosted.monitor.state_dict()
        return self._state or {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Kept until the training begins."""
        self._state = dict(state_dict) or None


def _to_loggers(trainer: Trainer, values: dict[str, float], step: int) -> None:
    for logger in trainer.loggers:
        logger.log_metrics({f"curvature/{name}": value for name, value in values.items()}, step)


def _refuse_shards(trainer: Trainer) -> None:
    name = type(trainer.strategy).__name__
    if any(word in name for word in ("FSDP", "DeepSpeed", "ModelParallel")):
        rule = "a process has only a part of the weights"
        raise CurvescopeError("CurvatureMonitor", rule, given=name)
