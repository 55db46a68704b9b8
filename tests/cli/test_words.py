"""Errors name options and files, not functions and arguments."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from curvescope.cli.app import app, run
from curvescope.cli.words import Words, words_of
from curvescope.errors import CurvescopeError
from curvescope.training import Recipe
from tests.cli.test_analyze import OWN

# What a function, a class or an argument of the library looks like in a message.
INTERNAL = re.compile(
    r"\b(?:Recipe|Confidence|Problem|RunDirectory|Certificate|CurvescopeError|TraceRegularizer)\b"
    r"|\b(?!iter)[a-z]\w+\(['\"a-z]|\w=['\"\d]|\w=(?:True|False|None)\b|`|\bcs\.|\bdeepcopy\b"
    r"|average_from|batch_size|weight_decay|per_class|allow_pickle|inventory|load_weights"
    r"|prior_\w+|initial_state|data_seed|overwrite"
)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_words.py").write_text(OWN)
    (tmp_path / "bad.safetensors").write_text("not weights")
    (tmp_path / "bad.json").write_text("not JSON")


TRAIN = ["train", "F-4", "--data", "digits", "--out", "out"]
ANALYZE = ["analyze", "--model", "own_words.py:build", "--data", "own_words.py:load", "--out", "o"]
CERTIFY = ["certify", "--model", "own_words.py:build", "--data", "own_words.py:load"]
FILES = ["--weights", "bad.safetensors", "--initial", "bad.safetensors"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([*TRAIN, "--lr", "-1"], "--lr must be at least 0.0, got -1.0"),
        ([*TRAIN, "--batch-size", "0"], "--batch-size must be an integer"),
        ([*TRAIN, "--weight-decay", "nan"], "--weight-decay must be a finite number"),
        ([*TRAIN, "--momentum", "2"], "--momentum is for --optimizer sgd and less than 1"),
        ([*TRAIN, "--schedule", "averaging"], "--schedule averaging needs --average-from"),
        ([*TRAIN, "--average-from", "99"], "--average-from must be less than --epochs 30"),
        ([*TRAIN, "--checkpoints", "99"], "--checkpoints must not lie after epoch 30"),
        ([*TRAIN, "--per-class", "9999"], "--per-class 9999 needs 9999 samples"),
        ([*TRAIN, "--init", "he"], "--init must be one of"),
        ([*TRAIN, "--trace-of", "foo"], "--trace-of must be one of 'ggn', 'hessian', got 'foo'"),
        ([*TRAIN, "--trace-of", "hessian"], "--trace-of hessian needs --trace-weight"),
        ([*TRAIN, "--trace-weight", "-1"], "--trace-weight must be"),
        ([*TRAIN, "--device", "foo"], "--device must be auto, cpu, cuda (or cuda:1, …) or mps"),
        (["train", "F-4", "--data", "digits-R"], "--data 'digits-R' needs --data-seed for its"),
        (["train", "F-4", "--data", "nothing"], "a data set must be one of mnist-6k"),
        ([*ANALYZE, "--loss", "hinge"], "curvescope: --loss must be one of"),
        ([*ANALYZE, "--layers", "fc9"], "--layers: 'fc9' is no layer"),
        ([*ANALYZE, "--weights", "bad.safetensors"], "'bad.safetensors': is not a complete"),
        ([*ANALYZE, "--weights", "none.safetensors"], "'none.safetensors': cannot be read"),
        ([*ANALYZE, "--weights", "."], "'.': is a folder, but not that of a training run; name a"),
        ([*ANALYZE, "--device", "cuda:77"], "--device 'cuda:77' cannot be used, torch finds only"),
        ([*CERTIFY, *FILES], "'bad.safetensors': is not a complete"),
        ([*CERTIFY, *FILES, "--delta", "2"], "--delta must lie between 0 and 1"),
        ([*CERTIFY, *FILES, "--draw-delta", "0"], "--draw-delta must lie between 0 and 1"),
        ([*CERTIFY, *FILES, "--slack", "0"], "--slack must be positive"),
        ([*CERTIFY, *FILES, "--method", "magic"], "--method must be one of"),
        (["certify", "none"], "curvescope: 'none': is not the folder of a training run"),
        (["certify", "--verify", "bad.json"], "'bad.json': is not JSON"),
        (["compare", "none", "none"], "'none': is not the folder of a run"),
        (["data", "list", "--root", "none"], "--root must be a folder that exists, got 'none'"),
        (["data", "verify", "nothing"], "a data set must be one of"),
        (["data", "verify", "mnist", "--root", "."], "name their folder with --root, put them"),
        (["data", "fetch", "cifar-100-subset"], "is on no mirror; put cifar-100-subset.npz into"),
        (["train", "F-4", "--data", "mnist", "--root", "."], "name their folder with --root"),
        (
            ["train", "F-4", "--data", "gaussian-mixture-C2-D3-t1"],
            "needs --per-class, --data-seed and --normalize none, since it is drawn",
        ),
        (
            ["train", "LeNet5", "--data", "digits"],
            "network 'LeNet5' needs images of at least 16",
        ),
        (["train", "F-0", "--data", "digits"], "network 'F-0': every width and depth must be an"),
        (
            [*ANALYZE, "--data", "digits"],
            "the model refused batch 0 (torch.float32 [",
        ),
        (
            [*CERTIFY, *FILES, "--delta", "0.4", "--draw-delta", "0.4"],
            "--delta + --draw-delta",
        ),
        (["reproduce", "nothing"], "there is no study 'nothing'; curvescope reproduce list shows"),
        (["compare", "."], "compare: needs at least two runs, got 1"),
        (["demo", "--out", "bad.json"], "'bad.json': is a file; name a folder with --out"),
        (["view", ".", "--host", "0.0.0.0"], "--host must be one IPv4 address of this machine"),
        (["view", ".", "--host", "203.0.113.1"], "choose another --host or --port"),
    ],
)
def test_a_mistake_is_named_by_its_option(capsys, arguments: list[str], named: str) -> None:
    before = sorted(Path().rglob("*.*"))
    assert run(arguments) == 2
    said = capsys.readouterr().err
    assert named in said
    assert said.count("\n") == 1
    assert INTERNAL.search(said) is None
    assert [p for p in sorted(Path().rglob("*.*")) if "__pycache__" not in p.parts] == before


@pytest.mark.parametrize(
    "change",
    [
        {"epochs": 0},
        {"lr": -1},
        {"optimizer": "x"},
        {"optimizer": "gadam"},
        {"momentum": 1.0},
        {"average_from": 9},
        {"checkpoints": (0,)},
        {"checkpoints": (9,)},
        {"loss": "x"},
        {"weight_decay": -1},
    ],
)
def test_no_error_of_a_recipe_speaks_python(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="Recipe") as caught:
        Recipe(**{"seed": 0, "epochs": 3, **change})
    said = words_in("train").about(caught.value)
    assert "--" in said
    assert INTERNAL.search(said) is None


def words_in(command: str) -> Words:
    return words_of(typer.main.get_command(app), [command])


def test_a_run_with_other_settings_is_told_apart_by_options(capsys) -> None:
    short = [*TRAIN, "--epochs", "1", "--per-class", "4", "--quiet"]
    assert run(short) == 0
    capsys.readouterr()
    assert run([*short, "--weight-decay", "0.1", "--data-seed", "3"]) == 2
    said = capsys.readouterr().err
    assert "(--weight-decay is 0.0 there and 0.1 here; --data-seed is None there" in said
    assert said.endswith("; name another folder with --out, or remove it\n")
    assert INTERNAL.search(said) is None


@pytest.mark.parametrize(
    ("command", "error", "said"),
    [
        (
            "analyze",
            CurvescopeError("'/data/per_class/x.json'", "cannot be read", remedy="check the path"),
            "'/data/per_class/x.json': cannot be read; check the path",
        ),
        (
            "analyze",
            CurvescopeError("--model 'net.py:build'", "failed when called (E: batch--size)"),
            "--model 'net.py:build': failed when called (E: batch--size)",
        ),
        (
            "compare",
            CurvescopeError("compare", "needs at least two runs", given=1),
            "compare: needs at least two runs, got 1",
        ),
        (
            "analyze",
            CurvescopeError("class_structure(problem)", "`limit=9` is too little"),
            "limit=9 is too little",
        ),
        ("train", CurvescopeError("dataset('x')", "is damaged"), "--data 'x' is damaged"),
        ("reproduce", CurvescopeError("dataset('x')", "is damaged"), "data set 'x' is damaged"),
        (
            "certify",
            CurvescopeError("'c.json'", "is another", remedy="give `overwrite=True`"),
            "'c.json': is another; give --again",
        ),
        (
            "train",
            CurvescopeError("f", "must be", remedy="call g()", remedy_cli="try again"),
            "f: must be; try again",
        ),
        (
            "train",
            CurvescopeError("f", "must be", remedy="call g()", remedy_cli=""),
            "f: must be",
        ),
    ],
)
def test_the_words_of_a_command(command: str, error: CurvescopeError, said: str) -> None:
    assert words_in(command).about(error) == said
