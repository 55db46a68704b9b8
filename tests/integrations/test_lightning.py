"""The callback of Lightning: training is the same to the bit, and the log goes on when resumed."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import curvescope as cs
import tests.foreign.images  # noqa: F401  (a torchvision that was built for another torch)
from curvescope.monitor import read_log

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    L = pytest.importorskip("lightning.pytorch")

from curvescope.integrations.lightning import CurvatureMonitor

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's own, about workers and loggers
X = torch.randn(48, 6, generator=torch.Generator().manual_seed(1))
Y = X[:, :3].argmax(1)


class Net(L.LightningModule):
    def __init__(self, rate: float = 0.05, dropout: float = 0.2) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(dropout), nn.Tanh(), nn.Linear(8, 3)
        )
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: Any, _: int) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self(x).float(), y)

    def validation_step(self, batch: Any, _: int) -> None:
        self(batch[0])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.rate)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def fit(
    folder: Path, callbacks: list[Any], *, resume: Any = None, random: bool = True, **options: Any
) -> Any:
    L.seed_everything(0)
    model = Net(dropout=0.2 if random else 0.0)
    loader = DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=random)
    defaults = {"max_epochs": 2, "accumulate_grad_batches": 2, "gradient_clip_val": 0.5}
    defaults["enable_checkpointing"] = False
    trainer = L.Trainer(
        default_root_dir=folder, accelerator="cpu", devices=1, logger=False, callbacks=callbacks,
        enable_progress_bar=False, enable_model_summary=False, **(defaults | options),
    )  # fmt: skip
    trainer.fit(model, loader, DataLoader(TensorDataset(X, Y), batch_size=16), ckpt_path=resume)
    return trainer, model


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_training_has_the_same_bits(tmp_path: Path, precision: str) -> None:
    losses: list[float] = []
    watch = CurvatureMonitor(
        probe=32, track="full", every=2, folder=tmp_path / "log",
        log=lambda values, step: losses.append(values["loss"]) if "loss" in values else None,
    )  # fmt: skip
    _, alone = fit(tmp_path, [], precision=precision)
    trainer, watched = fit(tmp_path, [watch], precision=precision)
    for name, value in alone.state_dict().items():
        assert torch.equal(watched.state_dict()[name], value), name
    log = read_log(tmp_path / "log")
    assert [r.step for r in log.records] == [0, 2, 4, 6]  # 12 batches, two for each step
    assert trainer.global_step == 6
    assert losses == [r.values["loss"] for r in log.records]
    assert log.header.settings["model"] == "Net"
    assert watch.monitor is not None
    assert {"directional/sharpness", "top/preconditioned", "noise/scale"} <= {*log.names}


def test_what_is_measured_is_the_curvature_of_that_step(tmp_path: Path) -> None:
    """After each step: the rate of the step, not of the next one, and the weights after it."""
    weights: dict[int, dict[str, Tensor]] = {}
    rates: dict[int, float] = {}

    class Note(L.Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
            state = {k: v.detach().clone() for k, v in module.state_dict().items()}
            weights.setdefault(trainer.global_step, state)  # buffers move before the next step

        def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
            rates[trainer.global_step + 1] = optimizer.param_groups[0]["lr"]

    watch = CurvatureMonitor((X[:16], Y[:16]), track=("top",), every=1, tol=1e-6, mode="eval",
                             folder=tmp_path / "log", max_products=400)  # fmt: skip
    fit(tmp_path, [watch, Note()], max_epochs=1)
    records = read_log(tmp_path / "log").records[1:]
    assert [r.step for r in records] == [1, 2, 3]
    for record in records:
        model = Net()
        model.load_state_dict(weights[record.step])
        top = torch.linalg.eigvalsh(cs.Hessian(model, X[:16], Y[:16]).dense())[-1].item()
        assert record.values["top/hessian"] == pytest.approx(top, rel=1e-3)
        beta, rate = 0.9, rates[record.step]
        limit = (1 + beta) / (1 - beta) * (2 / rate - 0.01)
        assert record.values["top/threshold"] == pytest.approx(limit, rel=1e-6)


def test_a_resumed_training_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    def callbacks(name: str) -> list[Any]:
        checkpoint = L.callbacks.ModelCheckpoint(
            dirpath=tmp_path / name, every_n_train_steps=3, save_top_k=-1, filename="{step}"
        )
        watch = CurvatureMonitor(32, track=("directional", "top", "noise"), every=1,
                                 folder=tmp_path / name / "log")  # fmt: skip
        return [watch, checkpoint]

    # Lightning's checkpoints hold no random state, so that nothing here is random.
    how: dict[str, Any] = {"enable_checkpointing": True, "random": False}
    fit(tmp_path, callbacks("whole"), **how)
    fit(tmp_path, callbacks("parts"), max_epochs=1, **how)
    [saved] = (tmp_path / "parts").glob("step=3.ckpt")
    fit(tmp_path, callbacks("parts"), resume=str(saved), **how)
    whole, parts = (read_log(tmp_path / name / "log") for name in ("whole", "parts"))
    assert [r.step for r in parts.records] == [0, 1, 2, 3, 4, 5, 6]
    for ours, expected in zip(parts.records, whole.records, strict=True):
        for name, value in expected.values.items():
            if "seconds" not in name and name != "share":
                assert ours.values[name] == value, (expected.step, name)


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(cs.CurvescopeError, match="the module has 1 optimizers, got 2"):
        fit(tmp_path, [CurvatureMonitor(8, optimizer=2)])
    with pytest.raises(cs.CurvescopeError, match="seed must be an integer"):
        CurvatureMonitor(8, seed=-1)
