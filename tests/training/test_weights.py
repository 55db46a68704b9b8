"""Weights on disk: what comes back, and one sentence for every file that does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from curvescope import io
from curvescope.errors import CurvescopeError
from curvescope.networks import network
from curvescope.training import load_network, load_weights, save_weights
from tests.training.problems import flat, model


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "w.safetensors"


def test_parameters_buffers_and_notes_come_back(path: Path) -> None:
    net, other = model("F-8-BN", seed=1), model("F-8-BN", seed=2)
    net.train()(torch.randn(9, 6, dtype=torch.float64))  # moves the statistics
    save_weights(path, net, {"epoch": 3})
    notes = load_weights(path, other)
    assert notes["epoch"] == 3
    assert notes["network"]["name"] == "F-8-BN"
    for name, tensor in net.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor), name


def test_a_network_is_rebuilt_from_its_file(path: Path) -> None:
    net = network("LeNet5-(fc1-9)", (1, 16, 16), 4, init="xavier")
    for dtype in (torch.float32, torch.float64):
        save_weights(path, net.to(dtype))
        back = load_network(path)
        assert back.spec == net.spec
        assert flat(back).dtype == dtype
        assert torch.equal(flat(back), flat(net))
        assert not back.training


def test_other_precision_is_converted(path: Path) -> None:
    save_weights(path, model())
    single = model(seed=5, dtype=torch.float32)
    load_weights(path, single)
    torch.testing.assert_close(flat(single), flat(model()).float())


def test_tied_weights_are_stored_under_both_names(path: Path) -> None:
    net = nn.ModuleDict({"a": nn.Linear(2, 2)})
    net["b"] = net["a"]
    save_weights(path, net)
    assert set(io.read_tensors(path)[0]) == {"a.weight", "a.bias", "b.weight", "b.bias"}
    load_weights(path, net)


class Tied(nn.Module):
    """Two layers that share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
        self.b.weight = self.a.weight


def test_one_name_of_a_tied_weight_is_enough(path: Path) -> None:
    stored, net = Tied(), Tied()
    safetensors.torch.save_model(stored, str(path))
    assert "b.weight" not in io.read_tensors(path)[0]
    load_weights(path, net)
    for name, tensor in stored.state_dict().items():
        assert torch.equal(net.state_dict()[name], tensor), name


def test_what_is_not_tied_must_be_there(path: Path) -> None:
    safetensors.torch.save_model(Tied(), str(path))
    apart = Tied()
    apart.b.weight = nn.Parameter(torch.ones(3, 3))
    with pytest.raises(CurvescopeError, match=r"'b\.weight' of the model is not in the file"):
        load_weights(path, apart)
    safetensors.torch.save_file({"a.weight": torch.ones(3, 3), "a.bias": torch.ones(3)}, path)
    with pytest.raises(CurvescopeError, match=r"'b\.bias' of the model is not in the file"):
        load_weights(path, Tied())


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ("F-9", r"another architecture \(F-9\), 'fc1.weight' is \[9, 6\] in the file and \[8, 6\]"),
        ("F-8^2", r"another architecture \(F-8\^2\), 'fc3.*' of the file is not in the model"),
        ("logistic", r"another architecture \(logistic\), 'fc2.weight' of the model is not in the"),
    ],
)
def test_another_architecture_is_named(path: Path, stored: str, message: str) -> None:
    save_weights(path, model(stored))
    net = model()
    before = flat(net)
    with pytest.raises(CurvescopeError, match=message):
        load_weights(path, net)
    assert torch.equal(flat(net), before)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_not_finite_are_refused(path: Path, value: float) -> None:
    bad, net = model(), model(seed=3)
    with torch.no_grad():
        bad.get_submodule("fc2").bias[1] = value
    save_weights(path, bad)
    before = flat(net)
    with pytest.raises(CurvescopeError, match=r"fc2\.bias contains NaN or infinity"):
        load_weights(path, net)
    assert torch.equal(flat(net), before)


def test_truncated_foreign_and_missing_files_are_refused(path: Path) -> None:
    save_weights(path, model())
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])
    with pytest.raises(CurvescopeError, match="truncated, damaged or foreign"):
        load_weights(path, model())
    torch.save(model().state_dict(), path)
    with pytest.raises(CurvescopeError, match="truncated, damaged or foreign"):
        load_weights(path, model())
    path.unlink()
    with pytest.raises(CurvescopeError, match="cannot be read"):
        load_weights(path, model())


def test_a_folder_must_be_that_of_a_finished_run(tmp_path: Path) -> None:
    advice = r"; name a \.safetensors file or the folder of a finished run"
    with pytest.raises(CurvescopeError, match=f"but not that of a training run{advice}"):
        load_weights(tmp_path, model())
    (tmp_path / "weights").mkdir()
    for load in (load_network, lambda path: load_weights(path, model())):
        with pytest.raises(CurvescopeError, match=f"a training run without final weights{advice}"):
            load(tmp_path)


def test_a_file_that_does_not_name_its_network(path: Path) -> None:
    foreign = nn.Linear(6, 3)
    for metadata in ({}, {"curvescope": "no JSON"}, {"curvescope": "[1]"}, {"curvescope": "{}"}):
        io.write_tensors(path, foreign.state_dict(), metadata)
        assert load_weights(path, nn.Linear(6, 3)).get("network") is None
        with pytest.raises(CurvescopeError, match="does not say which network it belongs to"):
            load_network(path)
