"""The monitor on a language model with a collator's batches, and transformers' Adafactor."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import curvescope as cs
import tests.foreign.images  # noqa: F401  # so that torchvision's names are there
from curvescope.monitor.limits import Before, stability_limits

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.foreign


def language_model() -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=2, resid_pdrop=0.0
    )
    return transformers.GPT2LMHeadModel(config)


@pytest.mark.parametrize("beta", [None, 0.9])
def test_batches_of_a_collator_and_adafactor(beta: float | None) -> None:
    from transformers.optimization import Adafactor

    model = language_model().train()
    tokens = torch.randint(0, 11, (16, 8), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}
    opt = Adafactor(model.parameters(), lr=0.02, relative_step=False, beta1=beta, weight_decay=0.0)
    monitor = cs.Monitor(
        model, batch, loss="model", optimizer=opt, every=1, tol=1e-4,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    parameters = list(model.parameters())
    for number in (1, 3):  # the second gradient is larger, so that it is clipped
        (number * model(**batch).loss).backward()
        before = [p.detach().clone() for p in parameters]
        gradients = [p.grad.clone() for p in parameters]
        old = [opt.state[p]["exp_avg"].clone() if opt.state[p] and beta else 0 for p in parameters]
        opt.step()
        record = monitor.step()
        opt.zero_grad()
    assert record is not None
    values = record.values
    assert values["loss"] == pytest.approx(float(model.eval()(**batch).loss.detach()), rel=1e-5)
    keys = [id(p) for p in parameters]
    past = Before(dict(zip(keys, before, strict=True)), dict(zip(keys, gradients, strict=True)))
    limits = stability_limits(opt, parameters, past)
    assert limits is not None
    assert limits.inverse_root is not None
    # The step is −η (mean of gradients / P); without momentum that is the last gradient's share.
    b = beta or 0.0
    shares = [
        (opt.state[p]["exp_avg"] - b * last) / (1 - b) if beta else w - p.detach()
        for p, w, last in zip(parameters, before, old, strict=True)
    ]
    made = torch.cat([share.reshape(-1) for share in shares])
    slope = torch.cat([g.reshape(-1) for g in gradients])
    ours = 0.02 * slope * limits.inverse_root**2
    assert torch.allclose(ours, made, rtol=1e-3, atol=1e-3 * float(made.abs().max()))
    assert limits.threshold == pytest.approx((1 + b) / (1 - b) * 2 / 0.02)
    H = cs.Hessian(cs.Problem(model, [batch], loss="model"))
    P = cs.monitor.Preconditioned(H, limits.inverse_root)
    top = cs.eigenpairs(P, 1, generator=torch.Generator().manual_seed(1)).values[0]
    assert values["top/preconditioned"] == pytest.approx(float(top), rel=1e-3)
    assert {"trace/ggn", "noise/scale", "directional/sharpness"} <= values.keys()
