"""Models, weights and data from the user's own files: found, checked, never executed unasked."""

from __future__ import annotations

import inspect
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from curvescope.data import dataset
from curvescope.errors import CurvescopeError
from curvescope.experiments import load, trained
from curvescope.identity import digest
from curvescope.networks import network
from curvescope.training import Recipe, save_weights, train

MODULE = """
import torch
from torch import nn

def build():
    return nn.Linear(3, 2)

def load():
    return torch.eye(3), torch.tensor([0, 1, 1])

def both():
    return {"train": load(), "test": (torch.eye(3)[:1], torch.tensor([1]))}

def by_split(split):
    return load() if split == "train" else (torch.eye(3)[:2], torch.tensor([1, 0]))

def broken():
    raise RuntimeError("no such thing")

number = 3
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the user's module, as the current directory."""
    (tmp_path / "mine_for_load.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine_for_load", raising=False)
    return tmp_path


@pytest.mark.parametrize("place", ["mine_for_load", "mine_for_load.py"])
def test_code_is_found_in_the_current_directory(here: Path, place: str) -> None:
    before = list(sys.path)
    with load.importable(here):
        assert isinstance(load.load_model(f"{place}:build"), nn.Linear)
        splits = load.load_data(f"{place}:load")
        assert (len(splits.train[1]), splits.test) == (3, None)
        assert len(load.load_data(f"{place}:both").test[1]) == 1
        assert len(load.load_data(f"{place}:by_split").test[1]) == 2
    assert sys.path == before


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nowhere_to_be_found:build", "cannot be imported .ModuleNotFoundError"),
        ("nowhere.py:build", "there is no such file"),
        ("mine_for_load:missing", "has no 'missing'"),
        ("mine_for_load:number", "must be a function, got int"),
        ("mine_for_load:broken", r"failed when called .RuntimeError: no such thing"),
        ("mine_for_load:load", r"must return a torch\.nn\.Module, got tuple"),
        ("LeNet5", "needs --data by its name too"),
    ],
)
def test_a_wrong_model_is_one_sentence(here: Path, text: str, words: str) -> None:
    with load.importable(here), pytest.raises(CurvescopeError, match=words) as caught:
        load.load_model(text)
    assert "\n" not in str(caught.value)


def test_a_network_by_name_takes_its_shape_from_the_data() -> None:
    model = load.load_model("F-4", dataset("digits"))
    assert [tuple(p.shape) for p in model.parameters()] == [(4, 64), (4,), (10, 4), (10,)]


@pytest.mark.parametrize("name", ["w.pt", "w.pth", "pytorch_model.bin", "w.ckpt"])
def test_only_safetensors_are_read(tmp_path: Path, name: str) -> None:
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("a weights file was executed",))

    (tmp_path / name).write_bytes(pickle.dumps(Trap()))
    with pytest.raises(CurvescopeError, match="only safetensors files are read"):
        load.read_weights(tmp_path / name, nn.Linear(1, 1))


def test_weights_reach_the_model(tmp_path: Path) -> None:
    model, other = nn.Linear(3, 2), nn.Linear(3, 2)
    save_weights(tmp_path / "w.safetensors", model)
    load.read_weights(tmp_path / "w.safetensors", other)
    assert torch.equal(model.weight, other.weight)


def test_arrays(tmp_path: Path) -> None:
    X, y = np.eye(3, dtype=np.float32), np.array([0, 1, 1], dtype=np.uint8)
    np.savez(tmp_path / "a.npz", X=X, y=y, X_test=X[:1], y_test=y[:1])
    splits = load.load_data(str(tmp_path / "a.npz"))
    assert torch.equal(splits.train[0], torch.eye(3))
    assert splits.train[1].dtype == torch.int64
    assert (len(splits.test[1]), splits.name) == (1, "a.npz")


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": np.eye(2)}, "needs the arrays X and y, got x"),
        ({"X": np.eye(2, dtype=np.uint8), "y": np.zeros(2)}, "must be floating point"),
        ({"X": np.eye(2), "y": np.zeros(3)}, "must have the same number of rows"),
        ({"X": np.eye(0), "y": np.zeros(0)}, "must have the same number of rows"),
        ({"X": np.array([{}], dtype=object), "y": np.zeros(1)}, "not an archive of plain arrays"),
    ],
)
def test_wrong_arrays_are_one_sentence(tmp_path: Path, arrays, words: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(CurvescopeError, match=words):
        load.load_data(str(tmp_path / "a.npz"))


def test_files_that_are_missing_or_no_archive(tmp_path: Path) -> None:
    with pytest.raises(CurvescopeError, match="there is no such file"):
        load.load_data(str(tmp_path / "none.npz"))
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(CurvescopeError, match="not an archive of plain arrays"):
        load.load_data(str(tmp_path / "text.npz"))


def test_samples_need_data_in_memory() -> None:
    loader = DataLoader(TensorDataset(torch.eye(4), torch.arange(4)))
    with pytest.raises(CurvescopeError, match="needs data in memory"):
        load.choose_samples(loader, 2, torch.Generator())
    X, _ = load.choose_samples(dataset("digits"), 10**6, torch.Generator())
    assert len(X) == len(dataset("digits"))


def test_a_wrong_device_is_one_sentence() -> None:
    for name in ("gpu7", "cuda:99"):
        with pytest.raises(CurvescopeError, match="cannot be used"):
            load.choose_device(name)


# Training runs --------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"normalize": "pixel", "per_class": 5}])
def test_a_training_run_brings_its_network_and_its_data(tmp_path: Path, changes) -> None:
    data = dataset("digits", **changes)
    model = network("F-4", data.input_shape, 10)
    train(model, data, Recipe(seed=0, epochs=1, lr=0.01), folder=tmp_path / "run")
    assert trained.finished_run(tmp_path / "run").config.recipe.epochs == 1
    found = trained.load_run(tmp_path / "run")
    for a, b in zip(found.parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b)
    splits = trained.load_run_data(tmp_path / "run")
    assert torch.equal(splits.train.X, data.X)
    assert splits.test.split == "test"
    assert splits.test.normalization.kind == data.normalization.kind


def test_other_data_under_the_same_name_is_refused(tmp_path: Path) -> None:
    data = dataset("digits", per_class=5, seed=3)
    model = network("F-4", data.input_shape, 10)
    train(model, data, Recipe(seed=0, epochs=1), folder=tmp_path / "run")
    with pytest.raises(CurvescopeError, match="is not what it was trained on; give --root"):
        trained.load_run_data(tmp_path / "run")
    assert torch.equal(trained.load_run_data(tmp_path / "run", seed=3).train.X, data.X)


def test_a_diverged_run_is_to_be_trained_again(tmp_path: Path) -> None:
    data = dataset("digits", per_class=5)
    model = network("F-4", data.input_shape, 10)
    assert train(model, data, Recipe(seed=0, epochs=2, lr=1e30), folder=tmp_path / "run").diverged
    words = r"run': the training diverged in epoch \d; train again with a smaller --lr"
    with pytest.raises(CurvescopeError, match=words):
        trained.finished_run(tmp_path / "run")


def test_what_is_no_training_run(tmp_path: Path) -> None:
    with pytest.raises(CurvescopeError, match="is not the folder of a training run; make one"):
        trained.finished_run(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CurvescopeError, match="holds no Training, but something else"):
        trained.finished_run(tmp_path)
    data = dataset("digits", per_class=5)
    model = network("F-4", data.input_shape, 10)
    train(model, data, Recipe(seed=0, epochs=1), folder=tmp_path / "run")
    (tmp_path / "run" / "weights" / "final.safetensors").unlink()
    with pytest.raises(CurvescopeError, match="has no final weights"):
        trained.finished_run(tmp_path / "run")


def test_final_weights_are_those_of_their_run(tmp_path: Path) -> None:
    data = dataset("digits", per_class=5)
    for seed in (0, 1):
        model = network("F-4", data.input_shape, 10, generator=torch.Generator().manual_seed(seed))
        train(model, data, Recipe(seed=seed, epochs=1), folder=tmp_path / str(seed))
    final = tmp_path / "0" / "weights" / "final.safetensors"
    for other in (tmp_path / "1" / "weights" / "final.safetensors", final.with_stem("initial")):
        final.write_bytes(other.read_bytes())
        with pytest.raises(CurvescopeError, match="is of another run or another epoch"):
            trained.load_run(tmp_path / "0")


LEAVES = """
import argparse
import sys

def build():
    sys.exit(0)

def arguments():
    return argparse.ArgumentParser().parse_args()
"""


def test_code_that_exits_does_not_take_us_along(here: Path, monkeypatch) -> None:
    (here / "leaves_for_load.py").write_text(LEAVES)
    (here / "leaves_at_once.py").write_text("import sys\nsys.exit(0)\n")
    ours = ["curvescope", "analyze", "--model", "leaves_for_load.py:build"]
    monkeypatch.setattr(sys, "argv", ours)
    with pytest.raises(CurvescopeError, match=r"failed when called \(SystemExit: 0\)"):
        load.load_model("leaves_for_load.py:build")
    with pytest.raises(CurvescopeError, match=r"cannot be imported \(SystemExit: 0\)"):
        load.load_model("leaves_at_once.py:build")
    with pytest.raises(CurvescopeError, match="got Namespace"):
        load.load_model("leaves_for_load.py:arguments")  # our arguments are not theirs
    assert sys.argv is ours


NETWORK = """
from torch import nn

class Net(nn.Linear):
    def __init__(self):
        super().__init__(3, {outputs})
"""


@pytest.mark.parametrize("stem", ["random", "pickle", "model"])
def test_a_file_is_registered_under_a_name_that_no_module_has(here: Path, stem: str) -> None:
    taken = sys.modules.get(stem)
    for outputs in (2, 3):
        (here / str(outputs)).mkdir()
        (here / str(outputs) / f"{stem}.py").write_text(NETWORK.format(outputs=outputs))
    models = [load.load_model(f"{outputs}/{stem}.py:Net") for outputs in (2, 3)]
    assert taken is None or sys.modules[stem] is taken
    assert [model.out_features for model in models] == [2, 3]
    assert len({type(model).__module__ for model in models}) == 2
    for outputs, model in zip((2, 3), models, strict=True):
        assert f"__init__(3, {outputs})" in inspect.getsource(type(model))
        assert type(pickle.loads(pickle.dumps(model))) is type(model)


def test_code_in_a_file_named_like_a_library_module_is_part_of_an_identity(here: Path) -> None:
    digests = []
    for outputs in (2, 3):
        (here / "random.py").write_text(NETWORK.format(outputs=outputs) + "# " * outputs)
        digests.append(digest(type(load.load_model("random.py:Net"))))
    assert digests[0] != digests[1]


def test_code_has_one_identity_whether_it_is_imported_or_named_as_a_file(here: Path) -> None:
    digests = []
    with load.importable(here):
        for place in ("mine_for_load", "mine_for_load.py"):
            sys.modules.pop("mine_for_load", None)
            digests.append(digest(load.load_loss(f"{place}:by_split")))
    assert digests[0] == digests[1]


def test_a_file_is_executed_once_until_it_changes(here: Path) -> None:
    (here / "counted.py").write_text(NETWORK.format(outputs=2))
    first, second = (type(load.load_model("counted.py:Net")) for _ in range(2))
    assert first is second
    (here / "counted.py").write_text(NETWORK.format(outputs=10))
    assert load.load_model("counted.py:Net").out_features == 10
    (here / "counted.py").write_text("raise ValueError('no')")
    with pytest.raises(CurvescopeError, match="ValueError: no"):
        load.load_model("counted.py:Net")
    assert load.module_name("counted.py") not in sys.modules


@pytest.mark.parametrize("y", [np.array(["a", "b"]), np.array([1j, 2.0])])
def test_targets_that_are_no_numbers(here: Path, y: np.ndarray) -> None:
    np.savez(here / "odd.npz", X=np.eye(2), y=y)
    with pytest.raises(CurvescopeError, match=r"y must be numbers.*number the classes"):
        load.load_data(str(here / "odd.npz"))
