"""Errors name options and files, not functions and arguments."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from curvescope.cli.app import run
from curvescope.cli.wording import in_users_words
from curvescope.training import Recipe
from tests.cli.test_analyze import OWN

# What a function, a class or an argument of the library looks like in a message.
INTERNAL = re.compile(
    r"\b(?:Recipe|Confidence|Problem|RunDirectory|Certificate)\b|\b(?!iter)[a-z]\w+\(['\"a-z]|\w=['\"\d]"
    r"|average_from|batch_size|weight_decay|prior_split|per_class|allow_pickle|inventory"
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
        ([*ANALYZE, "--loss", "hinge"], "--loss must be one of"),
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
    said = in_users_words(str(caught.value))
    assert "--" in said
    assert INTERNAL.search(said) is None


def test_differences_between_configurations_name_options() -> None:
    text = "'a': … (recipe.weight_decay is 0 there and 1 here; data.asked.per_class is 1 there …)"
    assert "(--weight-decay is 0 there and 1 here; --per-class is 1 there" in in_users_words(text)


def test_what_is_no_option_is_left_alone() -> None:
    for text in (
        "'/data/per_class/x.json': cannot be read (No such file); check the path",
        "--model 'net.py:build': failed when called (ValueError: batch--size)",
        "compare: needs at least two runs, got 1",
    ):
        assert in_users_words(text, ["analyze"]) == text
    missing = "dataset('cifar-10'): data_batch_1 not found in d; put the files into d"
    assert in_users_words(missing, ["reproduce"]).startswith("data set ('cifar-10'): data_batch_1")
    assert "--root" in in_users_words(missing, ["reproduce"])
