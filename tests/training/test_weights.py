"""Weights on disk: what comes back, and one sentence for every file that does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from curvescope import io
from curvescope._checks import CurvescopeError
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
    with pytest.raises(CurvescopeError, match="cannot be read"):
        load_weights(path.parent, model())  # a folder without a finished run


def test_a_file_that_does_not_name_its_network(path: Path) -> None:
    foreign = nn.Linear(6, 3)
    for metadata in ({}, {"curvescope": "no JSON"}, {"curvescope": "[1]"}, {"curvescope": "{}"}):
        io.write_tensors(path, foreign.state_dict(), metadata)
        assert load_weights(path, nn.Linear(6, 3)).get("network") is None
        with pytest.raises(CurvescopeError, match="does not say which network it belongs to"):
            load_network(path)
