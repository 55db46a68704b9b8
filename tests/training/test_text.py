"""Training on text: labels at several positions, Adam's averages, and resuming."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from curvescope import Problem
from curvescope.data import Dataset, dataset
from curvescope.errors import CurvescopeError
from curvescope.networks import network
from curvescope.training import Progress, Recipe, evaluate, load_network, train
from curvescope.training.folder import TrainingFolder

RECIPE = Recipe(
    seed=3, epochs=4, lr=3e-3, batch_size=8, optimizer="adamw", weight_decay=0.1,
    schedule="cosine", warmup=1.0, checkpoints=(2,),
)  # fmt: skip


def text(samples: int = 20) -> Dataset:
    data = dataset("python-topics-T16")
    return Dataset(data.X[:samples], data.y[:samples], data.classes, data.name)


def gpt() -> nn.Module:
    return network("GPT-1x32", 16, text().classes)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_loss_and_error_are_those_of_a_character() -> None:
    model, data = gpt(), text()
    fit = evaluate(model, data)
    with torch.no_grad():
        z = model(data.X).flatten(0, 1)
    assert fit.loss == pytest.approx(F.cross_entropy(z, data.y.flatten()).item(), rel=1e-6)
    right = (z.argmax(1) == data.y.flatten()).double().mean().item()
    assert (fit.accuracy, fit.error) == (pytest.approx(right), pytest.approx(1 - right))
    assert Problem(model, data).value().item() == pytest.approx(fit.loss, rel=1e-6)


def test_a_training_is_torch_s_adamw_with_the_cosine_of_each_step(tmp_path: Path) -> None:
    """The obvious loop; the moments kept in the middle are those of torch's own optimizer."""
    data = text()
    model, theirs = gpt().double(), gpt().double()
    run = train(model, data, RECIPE, test=data, folder=tmp_path)
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1.0, weight_decay=0.1)
    orders = _orders(len(data))
    moments = TrainingFolder(tmp_path).moments("epoch-00002")
    for epoch in range(1, 5):
        losses = 0.0
        for rows, rate in zip(orders[epoch - 1].split(8), RECIPE.rates(epoch, 3), strict=True):
            optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad()
            z = theirs(data.X[rows])
            loss = F.cross_entropy(z.flatten(0, 1), data.y[rows].flatten())
            loss.backward()
            optimizer.step()
            losses += loss.item() * len(rows)
        assert run.history[epoch - 1].loss == pytest.approx(losses / len(data), rel=1e-9)
        if epoch == 2:
            assert (moments.epoch, moments.steps) == (2, 6)
            P = moments.preconditioner()
            for name, parameter in theirs.named_parameters():
                state = optimizer.state[parameter]
                torch.testing.assert_close(moments.mean[name], state["exp_avg"])
                expected = (state["exp_avg_sq"] / (1 - 0.999**6)).sqrt() + 1e-8
                torch.testing.assert_close(P[name], expected)
    torch.testing.assert_close(flat(model), flat(theirs))


def _orders(samples: int) -> list[Tensor]:
    """The permutations that the recipe's seed draws, as the run draws them."""
    from curvescope import _random

    generator = _random.child(torch.Generator().manual_seed(RECIPE.seed))
    orders = []
    for _ in range(RECIPE.epochs):
        orders.append(torch.randperm(samples, generator=generator))
        torch.randint(2**62, (), generator=generator)
    return orders


@pytest.mark.parametrize("stop", [1, 5, 8])
def test_a_stopped_training_goes_on_to_the_same_bits(tmp_path: Path, stop: int) -> None:
    whole = gpt()
    train(whole, text(), RECIPE, folder=tmp_path / "whole")

    def tell(progress: Progress) -> None:
        if progress.done == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(gpt(), text(), RECIPE, folder=tmp_path / "run", tell=tell)
    resumed = gpt()
    train(resumed, text(), RECIPE, folder=tmp_path / "run", resume=True)
    assert torch.equal(flat(resumed), flat(whole))
    assert torch.equal(flat(load_network(tmp_path / "run")), flat(whole))
    one, other = (TrainingFolder(tmp_path / name).moments("final") for name in ("whole", "run"))
    assert one.steps == other.steps == 12
    assert all(torch.equal(one.square[name], other.square[name]) for name in one.square)
    for name in ("initial", "epoch-00002", "final"):
        assert TrainingFolder(tmp_path / "run").weights(name).exists()


def test_moments_of_another_run_are_refused(tmp_path: Path) -> None:
    train(gpt(), text(), RECIPE, folder=tmp_path / "one")
    train(gpt(), text(10), RECIPE, folder=tmp_path / "other")
    for file in (tmp_path / "one" / "moments").iterdir():
        file.replace(tmp_path / "other" / "moments" / file.name)
    with pytest.raises(CurvescopeError, match="final"):
        TrainingFolder(tmp_path / "other").moments("final")


def test_a_run_by_sgd_has_no_moments(tmp_path: Path) -> None:
    train(gpt(), text(), Recipe(seed=0, epochs=1), folder=tmp_path)
    assert not (tmp_path / "moments").exists()
    with pytest.raises(CurvescopeError, match=r"moments/final\.json"):
        TrainingFolder(tmp_path).moments("final")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (lambda y: y[:, :5], "needs class indices of shape"),
        (lambda y: y[:, 0], "must give one row of outputs for each input"),
        (lambda y: y + 500, "labels must lie in 0 … "),
        (lambda y: -100 * torch.ones_like(y), "labels must lie in 0 … .*got -100"),
    ],
)
def test_labels_that_do_not_fit_are_refused(labels, message: str) -> None:
    data = text()
    with pytest.raises(CurvescopeError, match=message):
        train(gpt(), (data.X, labels(data.y)), RECIPE)


def test_pixels_are_no_text() -> None:
    with pytest.raises(CurvescopeError, match="the model does not take inputs of shape"):
        train(gpt(), (torch.rand(4, 16), torch.zeros(4, 16, dtype=torch.int64)), RECIPE)
