"""The monitor as a callback of the Trainer of Hugging Face's transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from curvescope.errors import CurvescopeError
from curvescope.integrations.hosted import Hosted, first_samples, seeded
from curvescope.io import Checkpoint
from curvescope.monitor import Monitor

try:
    from transformers import TrainerCallback
except ImportError:
    raise CurvescopeError(
        "curvescope.integrations.transformers",
        "needs transformers",
        remedy="pip install transformers",
    ) from None

STATE = "curvature.safetensors"


class CurvatureCallback(TrainerCallback):
    """Watches the curvature while a ``Trainer`` trains.

    ::

        trainer = Trainer(model, args, train_dataset=data, callbacks=[CurvatureCallback(probe=16)])

    Values go as JSON lines to ``output_dir/curvature``, and wherever ``log`` says, for example
    ``log=wandb.log``. Checkpoints carry the monitor's state, and a resumed training goes on with
    it.

    Args:
        probe: A fixed sample of the data, as for :class:`curvescope.Monitor`, or how many of the
            first training samples to take, collated as the trainer does.
        loss: As for :class:`curvescope.Monitor`; by default the model's own.
        folder: Where ``monitor.jsonl`` goes, ``output_dir/curvature`` by default; False: nowhere.
        log: More places, as for :class:`curvescope.Monitor`.
        seed: Of the monitor's own generator.
        options: The other keywords of :class:`curvescope.Monitor`: ``track``, ``budget``,
            ``every``, ``on_event``, ….

    On several devices the first process measures; a model that is sharded over them is refused.
    """

    def __init__(
        self,
        probe: Any = 16,
        *,
        loss: Any = "model",
        folder: Any = None,
        log: Any = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        self._probe, self._folder, self._log = probe, folder, log
        self._options = {"loss": loss, "generator": seeded("CurvatureCallback", seed), **options}
        self._hosted: Hosted | None = None

    @property
    def monitor(self) -> Monitor | None:
        """The monitor, from the beginning of the training on."""
        return None if self._hosted is None else self._hosted.monitor

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Make the monitor, which measures once, or goes on from the checkpoint's state."""
        if not state.is_world_process_zero:
            return
        if getattr(args, "fsdp", None) or getattr(args, "deepspeed", None):
            rule = "a process has only a part of the weights"
            raise CurvescopeError("CurvatureCallback", rule, given="FSDP or DeepSpeed")
        probe = self._probe
        if isinstance(probe, int):
            loader = kwargs["train_dataloader"]
            probe = first_samples("CurvatureCallback(probe)", loader, probe)
        output = Path(args.output_dir)
        folder = output / "curvature" if self._folder is None else self._folder
        given = self._log if isinstance(self._log, list | tuple) else [self._log]
        places = [place for place in (folder or None, *given) if place is not None]
        self._hosted = Hosted(
            kwargs["model"], probe, kwargs["optimizer"], lambda: state.global_step + 1,
            {**self._options, "log": places},
        )  # fmt: skip
        if state.global_step:
            self._resume(output / f"checkpoint-{state.global_step}")

    def _resume(self, folder: Path) -> None:
        monitor, checkpoint = self.monitor, self._checkpoint(folder)
        saved = checkpoint.load()
        if saved is None:
            rule = f"{str(folder)!r} holds no state of the monitor"
            remedy = "leave the callback out, or begin a new training"
            raise CurvescopeError("CurvatureCallback", rule, remedy=remedy)
        assert monitor is not None
        prefix = "vectors/"
        vectors = {
            name.removeprefix(prefix): vector
            for name, vector in saved.tensors.items()
            if name.startswith(prefix)
        }
        generator = saved.tensors["generator"]
        monitor.load_state_dict({**saved.notes, "vectors": vectors, "generator": generator})

    def _checkpoint(self, folder: Path) -> Checkpoint:
        return Checkpoint(folder / STATE, where="CurvatureCallback")

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The monitor's state, beside what the trainer has just saved."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if self.monitor is None or not folder.is_dir():
            return
        notes = self.monitor.state_dict()
        tensors = {f"vectors/{name}": vector for name, vector in notes.pop("vectors").items()}
        tensors["generator"] = notes.pop("generator")
        self._checkpoint(folder).save(tensors, notes)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take the hooks off."""
        if self._hosted is not None:
            self._hosted.close()
