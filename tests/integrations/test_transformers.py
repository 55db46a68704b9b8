"""The callback of transformers' Trainer: the same bits, and a log that goes on when resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import curvescope as cs
from curvescope.monitor import read_log

transformers = pytest.importorskip("transformers")

from curvescope.integrations.transformers import STATE, CurvatureCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of accelerate and of torch's own schedulers


def model() -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=17, n_positions=12, n_embd=8, n_layer=1, n_head=2, resid_pdrop=0.1,
        use_cache=False,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


class Text(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, i: int) -> dict[str, Any]:
        g = torch.Generator().manual_seed(i)
        tokens = torch.randint(17, (12,), generator=g)
        return {"input_ids": tokens, "labels": tokens.clone()}


def fit(folder: Path, callbacks: list[Any], *, resume: Any = None, **options: Any) -> Any:
    defaults = {
        "max_steps": 6, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2,
        "learning_rate": 0.02, "save_steps": 3, "max_grad_norm": 0.5,
    }  # fmt: skip
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), report_to=[], disable_tqdm=True, use_cpu=True, seed=3,
        logging_strategy="no", **(defaults | options),
    )  # fmt: skip
    trainer = transformers.Trainer(model(), arguments, train_dataset=Text(), callbacks=callbacks)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


@pytest.mark.parametrize("options", [{}, {"bf16": True}], ids=["float32", "bfloat16"])
def test_training_has_the_same_bits(tmp_path: Path, options: dict[str, Any]) -> None:
    seen: list[int] = []

    def log(values: dict[str, float], step: int) -> None:
        if "loss" in values:  # else it is an event
            seen.append(step)

    watch = CurvatureCallback(probe=16, track="full", every=2, log=log)
    alone = fit(tmp_path / "alone", [], save_strategy="no", **options).model.state_dict()
    watched = fit(tmp_path / "watched", [watch], save_strategy="no", **options).model.state_dict()
    for name, value in alone.items():
        assert torch.equal(watched[name], value), name
    log = read_log(tmp_path / "watched" / "curvature")
    assert [r.step for r in log.records] == seen == [0, 2, 4, 6]
    assert {"directional/sharpness", "top/preconditioned", "noise/scale"} <= {*log.names}


def test_values_are_those_of_the_model_after_its_step(tmp_path: Path) -> None:
    """The loss is the model's own, and the limit has the rate of the step that was made."""
    watch = CurvatureCallback(probe=4, track=("top",), every=6, tol=1e-5, max_products=400)
    trained = fit(tmp_path, [watch], save_strategy="no").model.eval()
    record = read_log(tmp_path / "curvature").records[-1]
    batch = torch.stack([Text()[i]["input_ids"] for i in range(4)])
    with torch.no_grad():
        own = trained(input_ids=batch, labels=batch).loss.item()
    assert record.values["loss"] == pytest.approx(own, rel=1e-5)
    H = cs.Hessian(trained, [{"input_ids": batch, "labels": batch}], loss="model")
    g = torch.Generator().manual_seed(0)
    top = cs.eigenpairs(H, 1, tol=1e-4, generator=g).values[0].item()
    assert record.values["top/hessian"] == pytest.approx(top, rel=2e-3)
    rate = 0.02 * (1 - 5 / 6)  # the linear schedule's sixth rate
    assert record.values["top/threshold"] == pytest.approx(19 * 2 / rate, rel=1e-5)


def test_a_resumed_training_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    def watch() -> CurvatureCallback:
        return CurvatureCallback(probe=16, track=("directional", "top", "noise"), every=1)

    fit(tmp_path / "whole", [watch()])
    fit(tmp_path / "parts", [watch()])
    saved = tmp_path / "parts" / "checkpoint-3"
    assert (saved / STATE).exists()
    fit(tmp_path / "parts", [watch()], resume=str(saved))
    whole, parts = (read_log(tmp_path / name / "curvature") for name in ("whole", "parts"))
    assert [r.step for r in parts.records] == [0, 1, 2, 3, 4, 5, 6]
    for ours, expected in zip(parts.records, whole.records, strict=True):
        for name, value in expected.values.items():
            if "seconds" not in name and name != "share":
                assert ours.values[name] == value, (expected.step, name)
    (saved / STATE).unlink()
    with pytest.raises(cs.CurvescopeError, match="holds no state of the monitor"):
        fit(tmp_path / "parts", [watch()], resume=str(saved))
