"""Training on a GPU: the CUDA graph takes the same steps as the plain loop and as the CPU."""

from __future__ import annotations

import copy
import time
import warnings
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from curvescope.networks import network
from curvescope.training import Progress, Recipe, train, train_many
from curvescope.training import loop as training_loop
from curvescope.training.engine import Engine, RecordedEngine
from curvescope.training.learner import Learner
from tests.training.problems import data, flat, model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

# 50 samples in batches of 1: stretches of 32 and 18 steps; in batches of 16: 4 steps, one shorter.
SETTINGS = {
    "sgd": {"batch_size": 1, "lr": 0.01},
    "momentum": {"batch_size": 16, "momentum": 0.9, "weight_decay": 1e-3, "schedule": "linear"},
    "adam": {"batch_size": 16, "optimizer": "adam", "weight_decay": 0.1},
    "gadam": {"batch_size": 16, "optimizer": "gadam", "weight_decay": 0.1, "average_from": 2},
}


@pytest.fixture(autouse=True)
def _rates_in_single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU the rate is a number of single precision: the CPU gets the same one here."""
    exact = Recipe.rate
    monkeypatch.setattr(
        Recipe, "rate", lambda self, epoch: float(torch.tensor(exact(self, epoch)).float())
    )


def recipe(name: str, **changes: object) -> Recipe:
    return Recipe(**{"seed": 0, "epochs": 5, "lr": 0.02, **SETTINGS[name], **changes})


def images(samples: int, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(samples, *shape, generator=generator, dtype=torch.float64)
    return X, torch.arange(samples) % 3


CASES = [("F-8", "sgd"), *[("F-8-BN", name) for name in ("momentum", "adam", "gadam")]]


@pytest.mark.parametrize(("net", "name"), CASES)
def test_the_graph_gives_what_the_cpu_gives(net: str, name: str) -> None:
    cpu, gpu = model(net), model(net).cuda()
    expected = train(cpu, data(), recipe(name), test=data(seed=1))
    trained = train(gpu, data(), recipe(name), test=data(seed=1))
    for (key, ours), theirs in zip(
        gpu.state_dict().items(), cpu.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-9, atol=1e-11, msg=key)
    for ours, theirs in zip(trained.history, expected.history, strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-9)
        assert ours.accuracy == theirs.accuracy
        assert ours.test_accuracy == theirs.test_accuracy


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        ("LeNet5", (3, 32, 32)),
        ("LeNet5-BN", (1, 28, 28)),
        ("ResNet18-W4", (3, 16, 16)),
        ("VGG11-W8-BN", (1, 28, 28)),
        ("PreResNet-11", (3, 16, 16)),
    ],
)
def test_the_graph_of_a_convolutional_network_gives_what_the_loop_gives(
    net: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = network(net, shape, 3, generator=torch.Generator().manual_seed(0)).double().cuda()
    graph, plain = copy.deepcopy(start), copy.deepcopy(start)
    settings = recipe("momentum", epochs=3, lr=1e-3)
    train(graph, images(70, shape), settings)
    monkeypatch.setattr(
        training_loop, "make_engine", lambda learners, X, y, capture: Engine(learners, X, y)
    )
    train(plain, images(70, shape), settings)
    for key, ours in graph.state_dict().items():
        torch.testing.assert_close(ours, plain.state_dict()[key], rtol=1e-7, atol=1e-9, msg=key)
    assert not torch.equal(flat(graph), flat(start))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_branches_side_by_side_give_what_each_gives_alone(dtype: torch.dtype) -> None:
    names = ("F-8", "F-8-BN", "F-5^3", "F-8")
    recipes = [recipe("momentum", seed=i, lr=0.02 / (i + 1)) for i in range(3)]
    recipes.append(recipe("adam"))
    together = [model(name, seed=i, dtype=dtype).cuda() for i, name in enumerate(names)]
    alone = copy.deepcopy(together)
    many = train_many(together, data(dtype=dtype), recipes, test=data(seed=1, dtype=dtype))
    rtol, atol = (1e-9, 1e-11) if dtype == torch.float64 else (1e-4, 1e-5)
    for net, lone, each, result in zip(together, alone, recipes, many, strict=True):
        single = train(lone, data(dtype=dtype), each, test=data(seed=1, dtype=dtype))
        torch.testing.assert_close(flat(net), flat(lone), rtol=rtol, atol=atol)
        assert result.history[-1].loss == pytest.approx(single.history[-1].loss, rel=rtol)


def test_an_epoch_never_waits_for_the_device() -> None:
    X, y = (tensor.cuda() for tensor in data(70))
    learners = [Learner(model(seed=i).cuda(), recipe("sgd")) for i in range(2)]
    orders = torch.stack([torch.randperm(70) for _ in learners]).cuda()
    for make in (Engine, RecordedEngine):
        engine = make(learners, X, y)
        torch.cuda.synchronize()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch calls the mode a prototype
                torch.cuda.set_sync_debug_mode("error")
            *_, steps = engine.epoch(orders)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert steps == 70


def test_recording_changes_nothing() -> None:
    X, y = (tensor.cuda() for tensor in data())
    net = model("F-8-BN").cuda().train()
    learner = Learner(net, recipe("momentum"))
    before = {name: tensor.clone() for name, tensor in learner.tensors().items()}
    RecordedEngine([learner], X, y)
    torch.cuda.synchronize()
    for name, tensor in learner.tensors().items():
        assert torch.equal(tensor, before[name]), name


def test_replays_are_counted_as_changes() -> None:
    """A graph writes behind autograd's back: a kept product would take the weights for the same."""
    net, versions = model().cuda(), []
    train(net, data(), recipe("sgd"), tell=lambda _: versions.append(net.fc1.weight._version))
    assert len(set(versions)) == len(versions) > 5


def test_interrupted_on_the_gpu_and_resumed(tmp_path) -> None:
    def stop(progress: Progress) -> None:
        if progress.done > 2 * 4:
            raise KeyboardInterrupt

    whole, resumed = model("F-8-BN").cuda(), model("F-8-BN").cuda()
    train(whole, data(), recipe("gadam"))
    with pytest.raises(KeyboardInterrupt):
        train(model("F-8-BN").cuda(), data(), recipe("gadam"), folder=tmp_path, tell=stop)
    trained = train(resumed, data(), recipe("gadam"), folder=tmp_path, resume=True)
    assert len(trained.history) == 5
    torch.testing.assert_close(flat(resumed), flat(whole), rtol=1e-10, atol=1e-12)


class Shrink:
    """A penalty that works on the device alone."""

    def __init__(self, capturable: bool) -> None:
        self.capturable, self.calls = capturable, 0

    def __call__(self, net: nn.Module, X: Tensor, y: Tensor) -> Tensor:
        self.calls += 1
        return sum((p**2).sum() for p in net.parameters()) * 0.05


def test_a_penalty_is_captured_only_if_it_says_so() -> None:
    nets, penalties = [model().cuda() for _ in range(3)], [Shrink(True), Shrink(False)]
    settings = recipe("sgd", epochs=4)
    train(nets[0], data(), settings, penalty=penalties[0])
    train(nets[1], data(), settings, penalty=penalties[1])
    train(nets[2], data(), replace(settings, weight_decay=0.1))
    for net in nets[:2]:
        torch.testing.assert_close(flat(net), flat(nets[2]), rtol=1e-9, atol=1e-11)
    assert penalties[1].calls == 200
    assert penalties[0].calls == 3 * 50  # two warm-ups and the capture


def test_dropout_draws_new_numbers_at_each_replay_and_leaves_the_generator() -> None:
    def fresh() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 40), nn.Dropout(0.5), nn.Linear(40, 3)).double().cuda()

    nets = [fresh(), fresh()]
    state = torch.cuda.get_rng_state()
    for net in nets:
        train(net, data(), recipe("sgd"))
    assert torch.equal(torch.cuda.get_rng_state(), state)
    torch.testing.assert_close(flat(nets[0]), flat(nets[1]), rtol=1e-10, atol=1e-12)
    same = torch.ones(50, 6, dtype=torch.float64), torch.zeros(50, dtype=torch.int64)
    still = train(fresh(), same, recipe("momentum", batch_size=50, lr=0.0))
    assert len({epoch.loss for epoch in still.history}) == 5  # only the dropout differs


def test_a_model_that_looks_at_values_is_trained_without_a_graph() -> None:
    class Looking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x) * (2.0 if x.sum().item() > 0 else 1.0)

    torch.manual_seed(0)
    gpu = Looking().double()
    cpu = copy.deepcopy(gpu)
    train(cpu, data(), recipe("momentum"))
    with pytest.warns(UserWarning, match="no CUDA graph"):
        train(gpu.cuda(), data(), recipe("momentum"))
    torch.testing.assert_close(flat(gpu).cpu(), flat(cpu), rtol=1e-9, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("runs", [1, 5])
def test_an_epoch_of_mnist_is_quick(runs: int) -> None:
    """Issue 4: 469 steps of F-200² in at most 0.15 s; five networks share the device."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(60_000, 1, 28, 28, generator=generator)
    y = torch.randint(10, (60_000,), generator=generator)
    nets = [network("F-200^2", (1, 28, 28), 10, generator=generator).cuda() for _ in range(runs)]
    recipes = [Recipe(seed=seed, epochs=12) for seed in range(runs)]
    started = time.perf_counter()
    results = train_many(nets, (X, y), recipes)
    total = time.perf_counter() - started
    pace = sorted(epoch.seconds for epoch in results[0].history)[6]
    print(f"{runs} runs: {pace * 1e3:.1f} ms an epoch, {total:.1f} s for twelve with set-up")
    assert pace <= 0.15 * (1 if runs == 1 else 3)
