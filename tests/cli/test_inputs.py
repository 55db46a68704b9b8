"""The user's own code and files: what is wrong with them, and what is wanted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from curvescope.cli.app import run
from curvescope.cli.inputs import choose_device

OWN = """
import numpy as np
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width, depth=2):
        super().__init__()

def build():
    return nn.Linear(6, 3)

def sized(width, *, depth):
    return nn.Linear(width, 3)

def broken():
    return 1 + "a"

def load(n):
    return torch.zeros(n, 6), torch.arange(n) % 3

def splits(split, n):
    return load(n)

def arrays():
    return np.zeros((9, 6), np.float32), np.arange(9) % 3
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_inputs.py").write_text(OWN)
    X, y = np.zeros((9, 6), np.float32), np.arange(9) % 3
    np.savez("named.npz", X_train=X, y_train=y)
    np.savez("half.npz", X=X, y=y, X_test=X)
    np.savez("objects.npz", X=X, y=np.array([None] * 9))
    np.savez("right.npz", X=X, y=y)
    Path("torn.npz").write_bytes(Path("right.npz").read_bytes()[:200])
    Path("text.npz").write_text("X, y")


def refusal(capsys, *, model: str = "own_inputs.py:build", data: str = "right.npz") -> str:
    assert run(["analyze", "--model", model, "--data", data, "--out", "out"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert not Path("out").exists()
    return said


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("own_inputs.py:Net", "but it is Net(width, depth=2); give width a default"),
        ("own_inputs.py:sized", "but it is sized(width, *, depth); give width and depth a default"),
        ("own_inputs:sized", "is called without arguments"),
        ("own_inputs.py:broken", "failed when called (TypeError: unsupported operand"),
        ("own_inputs.py", "must name a function of the file too, as own_inputs.py:build"),
    ],
)
def test_a_model_that_wants_arguments(capsys, model: str, words: str) -> None:
    assert words in refusal(capsys, model=model)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("own_inputs.py:load", "but it is load(n); give n a default"),
        ("own_inputs.py:splits", "but it is splits(split, n); give n a default"),
        ("own_inputs.py", "must be an .npz archive, a function as in file.py:load, or the name"),
        ("named.npz", "needs arrays X and y for training and, if there is test data, X_test"),
        ("named.npz", "it holds X_train, y_train"),
        ("half.npz", "it holds X, y, X_test"),
        ("objects.npz", "y holds Python objects, which are not read since they can execute code"),
        ("torn.npz", "is not an archive of plain arrays (File is not a zip file)"),
        ("text.npz", "is not an archive of plain arrays (File is not a zip file)"),
        ("none.npz", "there is no such file"),
    ],
)
def test_data_that_cannot_be_used(capsys, data: str, words: str) -> None:
    said = refusal(capsys, data=data)
    assert words in said
    assert "allow_pickle" not in said


def test_a_device_that_is_not_there() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    there = torch.cuda.device_count()
    with pytest.raises(ValueError, match=f"--device 'cuda:{there}': cannot be used, torch finds"):
        choose_device(f"cuda:{there}")
    if not torch.backends.mps.is_available():
        with pytest.raises(ValueError, match="--device 'mps': cannot be used, torch finds"):
            choose_device("mps")
