"""Training with the trace penalty: one pass a step, the same numbers after a kill."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from curvescope.errors import CurvescopeError
from curvescope.flatness import TraceRegularizer
from curvescope.training import Progress, Recipe, train, train_many
from tests.training.problems import data, flat, kill_when_it_waits, model

RECIPE = Recipe(seed=1, epochs=40, lr=0.05, batch_size=16, momentum=0.9)
NETWORKS = {"ggn": "F-8-BN", "hessian": "F-8"}

SCRIPT = """
import sys
from curvescope.training import train
from tests.training.problems import data, model, wait_to_be_killed
from tests.training.test_penalty import NETWORKS, RECIPE, penalty
kind, folder = sys.argv[1:]
train(model(NETWORKS[kind]), data(), RECIPE, folder=folder, penalty=penalty(kind),
      tell=wait_to_be_killed(folder))
"""


def penalty(kind: str, *, seed: int = 0, samples: int | None = None) -> TraceRegularizer:
    g = torch.Generator().manual_seed(seed)
    return TraceRegularizer(kind, weight=0.02, samples=samples, generator=g)


def killed(folder: Path, kind: str) -> None:
    """Train in a process of its own, and kill it in the middle of an epoch."""
    kill_when_it_waits(SCRIPT, kind, str(folder))
    assert (folder / "state.safetensors").exists()
    assert not (folder / "result.json").exists()


@pytest.mark.parametrize("kind", NETWORKS)
def test_kill_9_and_resume_gives_the_same_bits(tmp_path: Path, kind: str) -> None:
    killed(tmp_path / "killed", kind)
    resumed, whole = model(NETWORKS[kind]), model(NETWORKS[kind])
    # The probes come from the folder: the generator of the new regularizer is another one.
    again = penalty(kind, seed=7)
    second = train(resumed, data(), RECIPE, folder=tmp_path / "killed", penalty=again, resume=True)
    first = train(whole, data(), RECIPE, folder=tmp_path / "whole", penalty=penalty(kind))
    for key, tensor in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[key], tensor), key
    assert [replace(e, seconds=0) for e in second.history] == [
        replace(e, seconds=0) for e in first.history
    ]
    plain = model(NETWORKS[kind])
    train(plain, data(), RECIPE)
    assert not torch.equal(flat(plain), flat(whole))


def stop_after(steps: int):
    def tell(progress: Progress) -> None:
        if progress.done == steps:
            raise KeyboardInterrupt

    return tell


def curved() -> nn.Module:
    """Dropout and a smooth activation, for which the Hessian's trace is not that of G."""
    g = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, 3)).double()
    for p in net.parameters():
        p.data = 0.5 * torch.randn(p.shape, generator=g, dtype=p.dtype)
    return net


@pytest.mark.parametrize("samples", [None, 5])
@pytest.mark.parametrize("kind", ["ggn", "hessian"])
def test_dropout_and_drawn_samples_resume_alike(
    tmp_path: Path, kind: str, samples: int | None
) -> None:
    recipe = replace(RECIPE, epochs=6)
    with pytest.raises(KeyboardInterrupt):
        train(
            curved(), data(), recipe, folder=tmp_path, penalty=penalty(kind, samples=samples),
            tell=stop_after(11),
        )  # fmt: skip
    resumed, whole = curved(), curved()
    again = penalty(kind, samples=samples)
    train(resumed, data(), recipe, folder=tmp_path, penalty=again, resume=True)
    train(whole, data(), recipe, penalty=penalty(kind, samples=samples))
    assert torch.equal(flat(resumed), flat(whole))


def test_the_model_runs_once_in_a_step() -> None:
    net, calls = model("F-8"), []
    net.register_forward_hook(lambda *_: calls.append(net.training))
    recipe = replace(RECIPE, epochs=3)
    train(net, data(), recipe, penalty=penalty("ggn"))
    steps = 3 * 4
    # The others look at the model, with five samples at most (two of them in training mode), or
    # measure it.
    assert calls.count(True) == steps + 2
    assert len(calls) <= steps + 7


@pytest.mark.parametrize("kind", ["ggn", "hessian"])
def test_it_is_the_obvious_loop(kind: str) -> None:
    X, y = (t[:1].repeat_interleave(50, 0) for t in data())  # in any order the same
    recipe = replace(RECIPE, epochs=5, batch_size=50, momentum=0.0)
    trained, obvious, trace = curved().eval(), curved().eval(), penalty(kind)
    trained[2].p = obvious[2].p = 0.0
    train(trained, (X, y), recipe, penalty=penalty(kind))
    optimizer = torch.optim.SGD(obvious.parameters(), lr=recipe.lr)
    for _ in range(5):
        optimizer.zero_grad()
        (F.cross_entropy(obvious(X), y) + trace(obvious, X, y)).backward()
        optimizer.step()
    torch.testing.assert_close(flat(trained), flat(obvious), rtol=1e-12, atol=1e-12)


def _dense_trace(net: nn.Module, X: torch.Tensor, y: torch.Tensor) -> float:
    names, values = zip(*net.named_parameters(), strict=True)

    def loss(*weights: torch.Tensor) -> torch.Tensor:
        state = dict(zip(names, weights, strict=True))
        return F.cross_entropy(torch.func.functional_call(net, state, (X,)), y)

    blocks = torch.autograd.functional.hessian(loss, tuple(v.detach() for v in values))
    return sum(
        float(blocks[i][i].reshape(v.numel(), v.numel()).trace()) for i, v in enumerate(values)
    )


def test_it_lowers_the_trace() -> None:
    plain, penalized = model("F-8"), model("F-8")
    recipe = replace(RECIPE, lr=0.1)
    train(plain, data(), recipe)
    train(penalized, data(), recipe, penalty=penalty("ggn"))
    assert _dense_trace(penalized, *data()) < 0.8 * _dense_trace(plain, *data())


def test_the_recipes_loss_is_what_is_trained() -> None:
    X, y = data()
    labels = (y > 0).long()
    g = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 1)).double()
    for p in net.parameters():
        p.data = 0.5 * torch.randn(p.shape, generator=g, dtype=p.dtype)
    expected = F.binary_cross_entropy_with_logits(net(X).flatten(), labels.double()).item()
    recipe = replace(RECIPE, epochs=1, batch_size=50, loss="binary_logistic")
    trace = TraceRegularizer("ggn", weight=0.02, loss="binary_logistic", generator=g)
    assert train(net, (X, labels), recipe, penalty=trace).history[0].loss == pytest.approx(expected)


def test_one_regularizer_is_not_shared() -> None:
    with pytest.raises(CurvescopeError, match="a penalty that draws random numbers"):
        train_many([model(), model()], data(), [RECIPE] * 2, penalty=penalty("ggn"))
