"""Runs on disk: killed, interrupted, resumed, finished; and folders that are something else."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from curvescope import io
from curvescope.errors import CurvescopeError
from curvescope.training import Progress, Recipe, load_network, load_weights, train, train_many
from curvescope.training.folder import RunFolder, State, TrainingFolder
from curvescope.training.run import configuration, describe
from tests.training.problems import data, flat, kill_when_it_waits, model

RECIPES = {
    "sgd": Recipe(seed=1, epochs=40, lr=0.05, batch_size=16, momentum=0.9, schedule="linear"),
    "gadam": Recipe(
        seed=1,
        epochs=40,
        lr=0.01,
        batch_size=16,
        optimizer="gadam",
        weight_decay=0.1,
        schedule="averaging",
        average_from=5,
        checkpoints=(2, 30),
    ),
}

SCRIPT = """
import sys
from curvescope.training import Recipe, train
from tests.training.problems import data, model, wait_to_be_killed
from tests.training.test_resume import RECIPES
train(model("F-8-BN"), data(), RECIPES[sys.argv[1]], test=data(seed=1), folder=sys.argv[2],
      tell=wait_to_be_killed(sys.argv[2]))
"""


def lines(folder: Path) -> int:
    log = folder / "metrics.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def test_kill_9_and_resume_gives_the_same_bits(tmp_path: Path) -> None:
    name = "gadam"  # the most state: two moments, an average, batch norms
    kill_when_it_waits(SCRIPT, name, str(tmp_path / "killed"))
    assert not (tmp_path / "killed" / "result.json").exists()
    assert (tmp_path / "killed" / "state.safetensors").exists()
    with (tmp_path / "killed" / "metrics.jsonl").open("a") as log:
        log.write('{"epoch": 99, "lo')  # a torn line

    resumed, whole = model("F-8-BN"), model("F-8-BN")
    second = train(
        resumed, data(), RECIPES[name], test=data(seed=1), folder=tmp_path / "killed", resume=True
    )
    first = train(whole, data(), RECIPES[name], test=data(seed=1), folder=tmp_path / "whole")
    for key, tensor in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[key], tensor), key
    assert second.train == first.train
    assert [replace(epoch, seconds=0) for epoch in second.history] == [
        replace(epoch, seconds=0) for epoch in first.history
    ]
    assert lines(tmp_path / "killed") == 40
    for file in sorted((tmp_path / "whole" / "weights").iterdir()):
        other = tmp_path / "killed" / "weights" / file.name
        assert other.read_bytes() == file.read_bytes(), file.name


def stop_after(steps: int):
    def tell(progress: Progress) -> None:
        if progress.done == steps:
            raise KeyboardInterrupt

    return tell


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("steps", [1, 4, 5, 159])
def test_ctrl_c_at_any_step_can_be_resumed(tmp_path: Path, name: str, steps: int) -> None:
    interrupted, whole = model("F-8-BN"), model("F-8-BN")
    with pytest.raises(KeyboardInterrupt):
        train(interrupted, data(), RECIPES[name], folder=tmp_path, tell=stop_after(steps))
    trained = train(model("F-8-BN"), data(), RECIPES[name], folder=tmp_path, resume=True)
    expected = train(whole, data(), RECIPES[name])
    assert trained.train == expected.train
    assert torch.equal(flat(load_network(tmp_path)), flat(whole))
    assert len(trained.history) == 40


def test_after_ctrl_c_only_the_unfinished_epoch_is_lost(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(model(), data(), RECIPES["sgd"], folder=tmp_path, tell=stop_after(31))
    steps: list[int] = []
    train(
        model(),
        data(),
        RECIPES["sgd"],
        folder=tmp_path,
        resume=True,
        tell=lambda progress: steps.append(progress.done),
    )
    assert steps == list(range(29, 161))  # seven epochs of four steps were complete


def test_dropout_resumes_with_the_same_numbers(tmp_path: Path) -> None:
    def fresh() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 3)).double()

    whole, resumed = fresh(), fresh()
    train(whole, data(), RECIPES["sgd"])
    with pytest.raises(KeyboardInterrupt):
        train(fresh(), data(), RECIPES["sgd"], folder=tmp_path, tell=stop_after(70))
    train(resumed, data(), RECIPES["sgd"], folder=tmp_path, resume=True)
    assert torch.equal(flat(whole), flat(resumed))


class Noise:
    """A penalty with random numbers of its own."""

    def __init__(self) -> None:
        self.generator = torch.Generator()

    def reseed(self, seed: int) -> None:
        self.generator.manual_seed(seed)

    def __call__(self, net: nn.Module, X: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        weight = net.get_submodule("fc1").weight
        direction = torch.randn(weight.shape, generator=self.generator, dtype=weight.dtype)
        return 0.1 * (weight * direction).sum()


def test_a_random_penalty_resumes_with_the_same_numbers(tmp_path: Path) -> None:
    recipe = RECIPES["sgd"]
    whole, resumed = model(), model()
    train(whole, data(), recipe, penalty=Noise())
    with pytest.raises(KeyboardInterrupt):
        train(model(), data(), recipe, penalty=Noise(), folder=tmp_path, tell=stop_after(70))
    train(resumed, data(), recipe, penalty=Noise(), folder=tmp_path, resume=True)
    assert torch.equal(flat(whole), flat(resumed))
    with pytest.raises(CurvescopeError, match="a penalty that draws random numbers"):
        train_many([model(), model()], data(), [recipe] * 2, penalty=Noise())


def test_runs_stopped_at_different_epochs_catch_up(tmp_path: Path) -> None:
    recipes = [replace(RECIPES["sgd"], seed=seed) for seed in range(3)]
    folders = [tmp_path / str(seed) for seed in range(3)]
    for recipe, folder, steps in zip(recipes, folders, (25, 50, None), strict=True):
        if steps is not None:
            with pytest.raises(KeyboardInterrupt):
                train(model(), data(), recipe, folder=folder, tell=stop_after(steps))
    nets = [model() for _ in recipes]
    results = train_many(nets, data(), recipes, folders=folders, resume=True)
    for net, recipe, result in zip(nets, recipes, results, strict=True):
        whole = model()
        train(whole, data(), recipe)
        assert torch.equal(flat(net), flat(whole))
        assert [epoch.epoch for epoch in result.history] == list(range(1, 41))


# Finished runs ------------------------------------------------------------------------------


def test_a_finished_run_is_read_and_not_repeated(tmp_path: Path) -> None:
    recipe = RECIPES["gadam"]
    first = train(model(), data(), recipe, test=data(seed=1), folder=tmp_path)

    def never(progress: Progress) -> None:
        raise AssertionError("trained again")

    net = model()
    again = train(net, data(), recipe, test=data(seed=1), folder=tmp_path, tell=never)
    assert again == first
    assert torch.equal(flat(net), flat(load_network(tmp_path)))


def test_what_a_folder_holds(tmp_path: Path) -> None:
    recipe = RECIPES["gadam"]
    train(model(), data(), recipe, folder=tmp_path)
    names = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file())
    assert names == [
        "config.json",
        "metrics.jsonl",
        *(
            f"moments/{name}.{kind}"
            for name in ("epoch-00002", "epoch-00030", "final")
            for kind in ("json", "safetensors")
        ),
        "result.json",
        "weights/epoch-00002.safetensors",
        "weights/epoch-00030.safetensors",
        "weights/final.safetensors",
        "weights/initial.safetensors",
    ]
    assert TrainingFolder(tmp_path).config.recipe == recipe
    notes = load_weights(tmp_path, model())
    assert notes["averaged"] is True
    assert Recipe(**notes["recipe"]) == recipe
    net = model(seed=9)
    assert load_weights(tmp_path / "weights" / "initial.safetensors", net)["epoch"] == 0
    assert torch.equal(flat(net), flat(model()))
    shorter = model()
    train(shorter, data(), replace(recipe, optimizer="adamw", epochs=40, average_from=39))
    load_weights(tmp_path / "weights" / "epoch-00030.safetensors", net)
    assert not torch.equal(flat(net), flat(shorter))


def test_a_checkpoint_is_the_iterate_of_its_epoch(tmp_path: Path) -> None:
    recipe = Recipe(seed=0, epochs=5, batch_size=16, lr=0.1, checkpoints=(3,))
    train(model(), data(), recipe, folder=tmp_path)
    kept, short = model(seed=9), model()
    load_weights(tmp_path / "weights" / "epoch-00003.safetensors", kept)
    train(short, data(), replace(recipe, epochs=3))
    assert torch.equal(flat(kept), flat(short))


def test_a_diverged_run_is_finished_without_weights(tmp_path: Path) -> None:
    recipe = replace(RECIPES["sgd"], lr=1e200)
    first = train(model(), data(), recipe, folder=tmp_path)
    assert first.diverged == 1
    assert not (tmp_path / "weights" / "final.safetensors").exists()
    assert train(model(), data(), recipe, folder=tmp_path) == first


# Folders that are something else ------------------------------------------------------------


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"recipe": {"lr": 0.06}}, "recipe.lr is 0.05 there and 0.06 here"),
        ({"recipe": {"seed": 2, "epochs": 41}}, "seed is 1 there and 2 here; recipe.epochs is 40"),
        ({"net": model(seed=4)}, "initial_weights is another one"),
        ({"net": model("F-9")}, "network.name is 'F-8' there and 'F-9' here"),
        ({"data": data(seed=2)}, "data.sha256 is"),
        (
            {"penalty": lambda net, X, y: 0 * X.sum()},
            "penalty is None there and '.*lambda> .*' here",
        ),
    ],
)
def test_another_configuration_is_refused(tmp_path: Path, change: dict, message: str) -> None:
    recipe = RECIPES["sgd"]
    train(model(), data(), recipe, folder=tmp_path)
    before = snapshot(tmp_path)
    changed = replace(recipe, **change.get("recipe", {}))
    with pytest.raises(CurvescopeError, match=message):
        train(
            change.get("net", model()),
            change.get("data", data()),
            changed,
            folder=tmp_path,
            resume=True,
            penalty=change.get("penalty"),
        )
    assert snapshot(tmp_path) == before


def layers(activation: nn.Module, *, momentum: float = 0.1) -> nn.Sequential:
    generator = torch.Generator().manual_seed(0)
    norm = nn.BatchNorm1d(5, momentum=momentum)
    net = nn.Sequential(nn.Linear(6, 5), norm, activation, nn.Linear(5, 3)).double()
    for p in net.parameters():
        nn.init.uniform_(p, -0.5, 0.5, generator=generator)
    return net


def with_frozen(part: str) -> nn.Sequential:
    net = layers(nn.ReLU())
    if part == "weight":
        net[0].weight.requires_grad_(False)
    else:
        net[1].eval()
    return net


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (lambda: layers(nn.Tanh()), "model is another one"),
        (lambda: layers(nn.ReLU(), momentum=0.2), "model is another one"),
        (lambda: with_frozen("weight"), r"frozen is \[\] there and \['0.weight'\] here"),
        (lambda: with_frozen("norm"), r"frozen is \[\] there and \['1'\] here"),
    ],
)
def test_the_same_weights_in_another_network_are_refused(
    tmp_path: Path, other: Callable[[], nn.Module], difference: str
) -> None:
    train(layers(nn.ReLU()), data(), RECIPES["sgd"], folder=tmp_path)
    train(layers(nn.ReLU()), data(), RECIPES["sgd"], folder=tmp_path)  # the same one is welcome
    with pytest.raises(CurvescopeError, match=f"another configuration .*{difference}"):
        train(other(), data(), RECIPES["sgd"], folder=tmp_path)


class Pull:
    """A penalty without a ``repr`` of its own."""

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def __call__(self, net: nn.Module, X: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.weight * sum((p**2).sum() for p in net.parameters())


def pull(weight: float):
    return lambda net, X, y: weight * sum((p**2).sum() for p in net.parameters())


@pytest.mark.parametrize("make", [Pull, pull])
def test_another_penalty_of_the_same_name_is_refused(tmp_path: Path, make: Callable) -> None:
    recipe = replace(RECIPES["sgd"], epochs=2)
    train(model(), data(), recipe, folder=tmp_path, penalty=make(0.1))
    train(model(), data(), recipe, folder=tmp_path, penalty=make(0.1))
    with pytest.raises(CurvescopeError, match=r"penalty is '.*' there and '.*' here"):
        train(model(), data(), recipe, folder=tmp_path, penalty=make(0.2))


def test_an_unfinished_run_is_not_continued_unasked(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(model(), data(), RECIPES["sgd"], folder=tmp_path, tell=stop_after(9))
    before = snapshot(tmp_path)
    with pytest.raises(CurvescopeError, match=r"unfinished run; resume=True continues"):
        train(model(), data(), RECIPES["sgd"], folder=tmp_path)
    assert snapshot(tmp_path) == before


def test_foreign_folders_and_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "diary.txt").write_text("dear diary")
    with pytest.raises(CurvescopeError, match="neither empty nor a run directory"):
        train(model(), data(), RECIPES["sgd"], folder=tmp_path)
    with pytest.raises(CurvescopeError, match="is a file; name a folder"):
        train(model(), data(), RECIPES["sgd"], folder=tmp_path / "diary.txt")
    with pytest.raises(CurvescopeError, match="cannot be used"):
        train(model(), data(), RECIPES["sgd"], folder=tmp_path / "diary.txt" / "run")
    with pytest.raises(CurvescopeError, match="every run needs a folder of its own"):
        train_many([model(), model()], data(), [RECIPES["sgd"]] * 2, folders=["a", "a"])
    assert os.listdir(tmp_path) == ["diary.txt"]


def test_what_a_kill_at_the_very_beginning_leaves_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    (tmp_path / ".config.json.123.abc.part").write_text("{")
    train(model(), data(), RECIPES["sgd"], folder=tmp_path)
    assert not list(tmp_path.rglob("*.part"))


def interrupted(folder: Path) -> nn.Module:
    with pytest.raises(KeyboardInterrupt):
        train(model(), data(), RECIPES["sgd"], folder=folder, tell=stop_after(30))
    return model()


def test_a_damaged_state_is_named(tmp_path: Path) -> None:
    net = interrupted(tmp_path)
    state = tmp_path / "state.safetensors"
    tensors, metadata = io.read_tensors(state)
    before, pointers = flat(net), [p.data_ptr() for p in net.parameters()]
    raw = state.read_bytes()
    state.write_bytes(raw[:-7])
    with pytest.raises(CurvescopeError, match="truncated, damaged or foreign"):
        train(net, data(), RECIPES["sgd"], folder=tmp_path, resume=True)
    for broken in (
        {name: t for name, t in tensors.items() if name != "optimizer.momentum.fc1.weight"},
        {**tensors, "parameter.fc1.weight": torch.zeros(3)},
        {**tensors, "parameter.fc1.weight": tensors["parameter.fc1.weight"].float()},
        {**tensors, "weights": torch.zeros(3)},
    ):
        io.write_tensors(state, broken, metadata)
        with pytest.raises(CurvescopeError, match="does not fit the network"):
            train(net, data(), RECIPES["sgd"], folder=tmp_path, resume=True)
    io.write_tensors(state, tensors)
    with pytest.raises(CurvescopeError, match=r"state\.safetensors' is no checkpoint"):
        train(net, data(), RECIPES["sgd"], folder=tmp_path, resume=True)
    assert [p.data_ptr() for p in net.parameters()] == pointers
    assert torch.equal(flat(net), before)


def test_damaged_results_and_logs_are_named(tmp_path: Path) -> None:
    recipe = replace(RECIPES["sgd"], epochs=2)
    train(model(), data(), recipe, folder=tmp_path)
    good = (tmp_path / "metrics.jsonl").read_text()
    (tmp_path / "metrics.jsonl").write_text('{"epoch": 1}\n')
    with pytest.raises(CurvescopeError, match=r"metrics\.jsonl.: holds no Epoch"):
        train(model(), data(), recipe, folder=tmp_path)
    (tmp_path / "metrics.jsonl").write_text(good.splitlines()[0] + "\n")
    with pytest.raises(CurvescopeError, match="the log ends at epoch 1, the run at 2"):
        train(model(), data(), recipe, folder=tmp_path)
    (tmp_path / "metrics.jsonl").write_text(good)
    (tmp_path / "result.json").write_text("[]")
    with pytest.raises(CurvescopeError, match=r"result\.json.: holds no Result"):
        train(model(), data(), recipe, folder=tmp_path)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("metrics.jsonl", "or it belongs to something else"),
        ("result.json", "or it belongs to something else"),
        ("weights/final.safetensors", "is of another run or another epoch"),
    ],
)
def test_files_of_another_run_are_refused(tmp_path: Path, name: str, words: str) -> None:
    recipe = replace(RECIPES["sgd"], epochs=2)
    for folder, seed in (("a", 1), ("b", 2)):
        train(model(), data(), replace(recipe, seed=seed), folder=tmp_path / folder)
    (tmp_path / "a" / name).write_bytes((tmp_path / "b" / name).read_bytes())
    with pytest.raises(CurvescopeError, match=words):
        train(model(), data(), replace(recipe, seed=1), folder=tmp_path / "a")


def test_a_flipped_bit_of_a_state_is_noticed(tmp_path: Path) -> None:
    interrupted(tmp_path)
    state = tmp_path / "state.safetensors"
    raw = bytearray(state.read_bytes())
    raw[-5] ^= 4
    state.write_bytes(raw)
    with pytest.raises(CurvescopeError, match="its checksum is wrong"):
        train(model(), data(), RECIPES["sgd"], folder=tmp_path, resume=True)


def test_a_log_that_lost_epochs_is_named(tmp_path: Path) -> None:
    net = interrupted(tmp_path)
    log = tmp_path / "metrics.jsonl"
    log.write_text("".join(line + "\n" for line in log.read_text().splitlines()[:2]))
    with pytest.raises(CurvescopeError, match="the log ends at epoch 2, the state at 7"):
        train(net, data(), RECIPES["sgd"], folder=tmp_path, resume=True)


def test_states_are_saved_no_more_often_than_they_are_worth(tmp_path: Path, monkeypatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    config = configuration(model(), RECIPES["sgd"], describe(None, data()), None)
    folder = RunFolder(tmp_path, config, resume=False)

    def slow(*arguments: object) -> None:
        clock[0] += 2

    monkeypatch.setattr(io.Checkpoint, "save", slow)
    monkeypatch.setattr(io, "flush", lambda path: None)
    clock[0] = 100
    assert folder.due()
    folder.save(State(1, {}))
    clock[0] += 39
    assert not folder.due()
    clock[0] += 1
    assert folder.due()
