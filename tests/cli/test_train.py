"""``curvescope train``: what it prints, what it leaves on disk, and how it fails."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from curvescope.cli import train as train_command
from curvescope.cli.app import run
from curvescope.data import dataset
from curvescope.experiments import training
from curvescope.training import Progress, Recipe, load_network
from curvescope.training import loop as training_loop

SMALL = ["train", "F-12", "--data", "mnist-6k", "--per-class", "20", "--epochs", "3"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def sentence(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("curvescope: ")
    assert captured.err.count("\n") == 1
    return captured.err


def test_a_table_and_a_folder(capsys) -> None:
    assert run([*SMALL, "--checkpoints", "1,2"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "F-12 (9,550 parameters) on mnist-6k, seed 0" in captured.out
    for word in ("train", "test", "accuracy", "wrong", "3 epochs in"):
        assert word in captured.out
    folder = Path("runs/F-12-mnist-6k-seed0")
    assert f"weights: {folder}/weights/final.safetensors" in captured.out
    kept = sorted(path.stem for path in (folder / "weights").iterdir())
    assert kept == ["epoch-00001", "epoch-00002", "final", "initial"]
    assert load_network(folder).spec.name == "F-12"


def test_one_epoch_is_singular(capsys) -> None:
    assert run([*SMALL, "--epochs", "1"]) == 0
    assert re.search(r"^1 epoch in \d+\.\d s$", capsys.readouterr().out, re.MULTILINE)


def test_json_is_all_that_is_printed(capsys) -> None:
    options = ["--json", "--optimizer", "gadam", "--lr", "0.002", "--average-from", "1"]
    assert run([*SMALL, *options, "--out", "here"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    shown = json.loads(captured.out)
    assert shown["network"] == "F-12"
    assert shown["parameters"] == 9550
    assert shown["recipe"]["average_from"] == 1
    assert shown["last_epoch"]["epoch"] == 3
    assert 0 < shown["train"]["accuracy"] <= 1
    assert shown["folder"] == "here"
    assert len(Path("here/metrics.jsonl").read_text().splitlines()) == 3


def test_every_option_reaches_the_recipe(capsys) -> None:
    options = {
        "--lr": 0.2,
        "--batch-size": 64,
        "--momentum": 0.5,
        "--weight-decay": 0.01,
        "--schedule": "step",
        "--seed": 4,
        "--loss": "binary_logistic",
    }
    command = [
        "train",
        "T-5",
        "--data",
        "mnist-6k-2",
        "--per-class",
        "9",
        "--epochs",
        "2",
        "--json",
    ]
    for option, value in options.items():
        command += [option, str(value)]
    assert run(command) == 0
    shown = json.loads(capsys.readouterr().out)
    for option, value in options.items():
        assert shown["recipe"][option[2:].replace("-", "_")] == value
    assert shown["parameters"] == 784 * 5 + 5 + 5 + 1  # one output


@pytest.fixture
def recipes(monkeypatch: pytest.MonkeyPatch) -> list[Recipe]:
    """What the command would train with, if it were not stopped at that moment."""
    given = []

    def stopped(network: str, splits: object, recipe: Recipe, **others: object) -> None:
        given.append(recipe)
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "train_network", stopped)
    return given


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ([], {"lr": 0.05, "momentum": 0.9, "schedule": "linear", "batch_size": 128}),
        (["--optimizer", "adam"], {"lr": 0.001, "momentum": 0.0, "schedule": "linear"}),
        (["--average-from", "2"], {"lr": 0.05, "schedule": "averaging"}),
        (["--lr", "0.01", "--momentum", "0", "--schedule", "constant"], {"lr": 0.01}),
    ],
)
def test_what_is_left_open_is_chosen(
    recipes: list[Recipe], options: list[str], chosen: dict[str, object]
) -> None:
    assert run([*SMALL, *options]) == 130
    assert {key: getattr(recipes[0], key) for key in chosen} == chosen


@pytest.mark.parametrize(("network", "least"), [("F-60^2", 0.9), ("LeNet5", 0.9)])
def test_the_defaults_train_well(capsys, network: str, least: float) -> None:
    """In a third of the epochs that the command would take; 0.1 is what guessing gives."""
    options = ["--data", "mnist-6k", "--per-class", "200", "--epochs", "10", "--json"]
    assert run(["train", network, *options]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["train"]["accuracy"] > least
    assert shown["test"]["accuracy"] > 0.85


def test_a_gpt_learns_python_s_documentation(capsys) -> None:
    """Better than the frequencies of single characters, of which a space is the most common."""
    assert run(["train", "GPT-1x32", "--data", "python-topics-T32", "--epochs", "1"]) == 0
    shown = capsys.readouterr().out
    assert "of all characters: the loss is the mean −log p of the next one" in shown
    folder = Path("runs/GPT-1x32-python-topics-T32-seed0")
    assert run(["train", "GPT-1x32", "--data", "python-topics-T32", "--epochs", "1", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    recipe = summary["recipe"]
    assert (recipe["optimizer"], recipe["schedule"], recipe["warmup"]) == ("adamw", "cosine", 0.1)
    data = dataset("python-topics-T32", split="test")
    common = data.y.unique(return_counts=True)[1].max().item() / data.y.numel()
    assert summary["test"]["accuracy"] > common + 0.1
    assert load_network(folder).spec.name == "GPT-1x32"


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ([], {"lr": 0.002, "batch_size": 16, "weight_decay": 0.1, "checkpoints": (1,)}),
        (["--optimizer", "sgd"], {"lr": 0.05, "momentum": 0.9, "schedule": "cosine"}),
        (["--checkpoints", "", "--warmup", "0"], {"checkpoints": (), "warmup": 0.0}),
    ],
)
def test_what_is_left_open_for_a_gpt(
    recipes: list[Recipe], options: list[str], chosen: dict[str, object]
) -> None:
    command = ["train", "GPT-1x32", "--data", "python-topics-T2000", "--epochs", "2"]
    assert run([*command, *options]) == 130
    assert {key: getattr(recipes[0], key) for key in chosen} == chosen


def test_a_vgg_without_batch_norm_is_initialized_so_that_it_learns(capsys) -> None:
    short = ["--data", "mnist-6k", "--per-class", "1", "--epochs", "1", "--json"]
    found = {}
    for network in ("VGG11-W2", "VGG11-W2-BN"):
        assert run(["train", network, *short, "--out", network]) == 0
        found[network] = json.loads(Path(network, "config.json").read_text())["network"]["init"]
    assert found == {"VGG11-W2": "xavier", "VGG11-W2-BN": "pytorch"}


def test_a_network_that_learns_nothing_is_said(capsys) -> None:
    assert run([*SMALL, "--lr", "0", "--out", "out"]) == 0
    assert "It has learned next to nothing: try another --lr" in capsys.readouterr().out


def test_normalization_and_initialization(capsys) -> None:
    command = [*SMALL, "--epochs", "1", "--normalize", "channel", "--init", "xavier", "--json"]
    assert run(command) == 0
    folder = json.loads(capsys.readouterr().out)["folder"]
    config = json.loads(Path(folder, "config.json").read_text())
    assert config["network"]["init"] == "xavier"
    data = dataset("mnist-6k", per_class=20, normalize="channel")
    assert config["data"]["shapes"][0] == list(data.X.shape)
    assert run([*SMALL, "--epochs", "1", "--init", "xavier"]) == 2  # not the same pixels
    assert "data.sha256" in sentence(capsys)


def test_the_same_command_again_reads_the_result(monkeypatch, capsys) -> None:
    assert run([*SMALL, "--json"]) == 0
    first = capsys.readouterr().out
    monkeypatch.setattr(training_loop, "make_engine", None)  # training again would fail
    assert run([*SMALL, "--json"]) == 0
    assert capsys.readouterr().out == first


def test_ctrl_c_says_how_to_go_on_and_resume_does(monkeypatch, capsys) -> None:
    original = training_loop.train

    def interrupted(*arguments: object, **settings: object) -> object:
        def stop(progress: Progress) -> None:
            if progress.done == 4:  # two steps an epoch
                raise KeyboardInterrupt

        return original(*arguments, **{**settings, "tell": stop})

    monkeypatch.setattr(training_loop, "train", interrupted)
    assert run([*SMALL, "--out", "stopped"]) == 130
    captured = capsys.readouterr()
    assert (
        "the epochs so far are in stopped: the same command with --resume goes on" in captured.err
    )
    monkeypatch.setattr(training_loop, "train", original)
    assert run([*SMALL, "--out", "stopped"]) == 2
    assert "--resume" in sentence(capsys)
    assert run([*SMALL, "--out", "stopped", "--resume"]) == 0
    assert run([*SMALL, "--out", "whole"]) == 0
    final = "weights/final.safetensors"
    assert Path("stopped", final).read_bytes() == Path("whole", final).read_bytes()


def test_divergence_is_said_and_fails(capsys) -> None:
    assert run([*SMALL, "--lr", "1e30", "--optimizer", "sgd", "--weight-decay", "1"]) == 1
    assert "diverged: the loss was not finite in epoch 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["F-200^x", "--data", "mnist-6k"], "F-<width>^<layers>"),
        (["ResNet", "--data", "mnist-6k"], "ResNet18-W<width>"),
        (["F-12", "--data", "mnist-7k"], "mnist-7k"),
        (["LeNet5", "--data", "digits"], "at least 16×16 pixels, got 8×8"),
        (["F-12", "--data", "mnist-6k", "--epochs", "0"], "--epochs must be"),
        (
            ["F-12", "--data", "mnist-6k", "--optimizer", "gadam"],
            "--optimizer gadam needs --average-from",
        ),
        (["F-12", "--data", "mnist-6k", "--checkpoints", "1;2"], "--checkpoints must be epochs"),
        (["F-12", "--data", "mnist-6k", "--device", "abacus"], "--device must be auto, cpu, cuda"),
        (["F-12", "--data", "mnist-6k", "--normalize", "often"], "--normalize must be one of"),
        (["F-12", "--data", "mnist-6k", "--init", "he"], "--init must be one of"),
        (["F-12", "--data", "mnist-6k", "--loss", "binary_logistic"], "labels must lie in 0 … 1"),
    ],
)
def test_mistakes_are_one_sentence_and_leave_nothing(
    capsys, arguments: list[str], named: str
) -> None:
    assert run(["train", *arguments]) == 2
    assert named in sentence(capsys)
    assert list(Path().iterdir()) == []


def test_a_missing_gpu_is_named(monkeypatch, capsys) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert run([*SMALL, "--device", "cuda"]) == 2
    assert "--device 'cuda' cannot be used" in sentence(capsys)


def test_the_bar_shows_the_last_epoch(capsys) -> None:
    console = train_command.Console(force_terminal=True, width=120, stderr=True)
    recipe = Recipe(seed=0, epochs=9)
    last = training_loop.Epoch(2, 0.1, 0.25, 0.5, 0.3, 0.75, 1.0)
    with train_command._bar(console, recipe) as tell:
        tell(Progress(1, 90, (None,)))
        tell(Progress(25, 90, (last,)))
    shown = capsys.readouterr().err
    assert "epoch 3/9" in shown
    assert "loss 0.2500  accuracy 50.00%  test 75.00%" in shown
