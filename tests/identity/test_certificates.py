"""A certification's folder × ways of being another certification: refused, or computed anew."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from curvescope import io
from curvescope.certificates import (
    Certificate,
    Confidence,
    PriorGrid,
    certify,
    posterior_method,
)
from curvescope.certificates import evaluate as evaluation
from curvescope.errors import CurvescopeError
from tests.certificates.models import blobs, state_of, train

Request = dict[str, Any]
quick = posterior_method("local", epochs=4, batch_size=50)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def network(activation: type[nn.Module] = nn.ReLU, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 6), activation(), nn.Linear(6, 1)).double()


def request() -> Request:
    """One certification, made anew each time from the same numbers."""
    model, data = network(), blobs(100, seeded())
    initial = state_of(model)
    train(model, data, steps=50)
    return {
        "model": model, "initial_state": initial, "data": data, "method": quick, "slack": 0.02,
        "generator": seeded(), "confidence": Confidence(),
    }  # fmt: skip


def with_model(r: Request, model: nn.Module) -> Request:
    return {**r, "model": model}


def retrained(r: Request) -> Request:
    return with_model(r, train(copy.deepcopy(r["model"]), r["data"], steps=5))


def written_through_data(r: Request) -> Request:
    r["model"][0].weight.data[0, 0] += 1e-3
    return r


def swapped_columns(r: Request) -> Request:
    """Other weights with the same sum."""
    with torch.no_grad():
        r["model"][2].weight.copy_(r["model"][2].weight.flip(1))
    return r


def other_activation(r: Request) -> Request:
    other = network(nn.Tanh)
    other.load_state_dict(r["model"].state_dict())
    return with_model(r, other)


def frozen_bias(r: Request) -> Request:
    model = copy.deepcopy(r["model"])
    model[2].bias.requires_grad_(False)
    with torch.no_grad():
        model[2].bias.copy_(r["initial_state"]["2.bias"])
    return with_model(r, model)


def with_buffer(r: Request) -> Request:
    model = copy.deepcopy(r["model"])
    model.register_buffer("scale", torch.ones(1, dtype=torch.float64))
    initial = {**r["initial_state"], "scale": torch.ones(1, dtype=torch.float64)}
    return {**r, "model": model, "initial_state": initial}


def same_sum(r: Request) -> Request:
    """Another prior mean with the same sum, which was the whole key once."""
    initial = {name: value.clone() for name, value in r["initial_state"].items()}
    initial["0.weight"] = initial["0.weight"].flip(0)
    return {**r, "initial_state": initial}


def relabeled(r: Request) -> Request:
    X, y = r["data"]
    return {**r, "data": (X, torch.cat([1 - y[:1], y[1:]]))}


def with_method(**changes: Any) -> Callable[[Request], Request]:
    return lambda r: {**r, "method": posterior_method("local", **{
        "epochs": 4, "batch_size": 50, **changes})}  # fmt: skip


OTHERS: dict[str, Callable[[Request], Request]] = {
    "another network": retrained,
    "a weight changed through .data": written_through_data,
    "weights with the same sum": swapped_columns,
    "another activation": other_activation,
    "a frozen bias": frozen_bias,
    "one more buffer": with_buffer,
    "another initial state": lambda r: {**r, "initial_state": state_of(network(seed=1))},
    "an initial state with the same sum": same_sum,
    "other labels": relabeled,
    "other inputs": lambda r: {**r, "data": (r["data"][0] + 1e-9, r["data"][1])},
    "another order": lambda r: {**r, "data": tuple(part.flip(0) for part in r["data"])},
    "fewer examples": lambda r: {**r, "data": tuple(part[:-1] for part in r["data"])},
    "another seed": lambda r: {**r, "generator": seeded(1)},
    "a generator that went on": lambda r: {**r, "generator": _used(seeded())},
    "another risk of the sample": lambda r: {**r, "confidence": Confidence(0.05, 0.01)},
    "another risk of the draws": lambda r: {**r, "confidence": Confidence(0.025, 0.02)},
    "another slack": lambda r: {**r, "slack": 0.03},
    "another number of epochs": with_method(epochs=5),
    "another grid": with_method(grid=PriorGrid(precision=20.0, largest=100.0)),
    "another inequality": with_method(form="seeger"),
    "another loss": with_method(surrogate="logistic"),
    "another basis": with_method(basis="standard"),
    "a split": lambda r: {**r, "prior_split": 0.5},
    "other examples of the prior": lambda r: {**r, "prior_data": blobs(30, seeded(8))},
    "a test set": lambda r: {**r, "test": blobs(30, seeded(7))},
}


def _used(generator: torch.Generator) -> torch.Generator:
    torch.rand(1, generator=generator)
    return generator


class Stop(Exception):
    pass


def stopped(folder: Path, task: str) -> None:
    """What a kill leaves in the middle of one of the two tasks."""

    def stop(progress: Any) -> None:
        if progress.task == task and progress.done > 1:
            raise Stop

    with pytest.raises(Stop):
        certify(**request(), checkpoint=folder, progress=stop)


@pytest.fixture(params=["optimize", "draw"])
def folder(request_task: str, tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setattr("curvescope.certificates.optimize.EVERY", 0.0)
    monkeypatch.setattr(evaluation, "_SAVE_EVERY", 0.0)
    stopped(tmp_path, request_task)
    return tmp_path


@pytest.fixture(params=["optimize", "draw"])
def request_task(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_same_request_goes_on_to_the_same_certificate(folder: Path) -> None:
    again = certify(**request(), checkpoint=folder)
    whole = certify(**request())
    assert again == whole
    for name, tensor in whole.posterior.tensors().items():
        assert torch.equal(again.posterior.tensors()[name], tensor)


@pytest.mark.parametrize("task", ["optimize", "draw"])
def test_another_request_is_refused(tmp_path: Path, monkeypatch, task: str) -> None:
    monkeypatch.setattr("curvescope.certificates.optimize.EVERY", 0.0)
    monkeypatch.setattr(evaluation, "_SAVE_EVERY", 0.0)
    stopped(tmp_path, task)
    files = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    for other in OTHERS.values():
        with pytest.raises(CurvescopeError, match="belongs to another certification"):
            certify(**other(request()), checkpoint=tmp_path)
        assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == files


def rewrite(file: Path, **changes: Any) -> None:
    """A changed file with a checksum that is right."""
    tensors, metadata = io.read_tensors(file)
    io.write_tensors(file, {**tensors, **changes}, metadata)


def finish(folder: Path) -> Certificate:
    return certify(**request(), checkpoint=folder)


def test_the_prior_is_never_read(tmp_path: Path, monkeypatch) -> None:
    """It was once, and a changed checkpoint gave a certificate with a smaller bound."""
    monkeypatch.setattr(evaluation, "_SAVE_EVERY", 0.0)
    stopped(tmp_path, "draw")
    file = tmp_path / "posterior.safetensors"
    tensors, _ = io.read_tensors(file)
    assert "prior_mean" not in tensors
    rewrite(file, prior_mean=tensors["mean"])
    (tmp_path / "draws.safetensors").unlink()
    assert torch.equal(finish(tmp_path).posterior.prior_mean, finish_whole().posterior.prior_mean)


def finish_whole() -> Certificate:
    return certify(**request())


def test_another_posterior_has_draws_and_a_divergence_of_its_own(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(evaluation, "_SAVE_EVERY", 0.0)
    stopped(tmp_path, "draw")
    file = tmp_path / "posterior.safetensors"
    tensors, _ = io.read_tensors(file)
    rewrite(file, mean=1.01 * tensors["mean"])
    with pytest.raises(CurvescopeError, match="belongs to another evaluation"):
        finish(tmp_path)
    (tmp_path / "draws.safetensors").unlink()
    other, r = finish(tmp_path), request()
    result = other.verify(
        model=r["model"], initial_state=r["initial_state"], data=r["data"], generator=seeded(3)
    )
    assert result.verdict == "verified"  # the bound of another posterior, and true of it


def test_draws_that_were_made_up_do_not_verify(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(evaluation, "_SAVE_EVERY", 0.0)
    stopped(tmp_path, "draw")
    file = tmp_path / "draws.safetensors"
    tensors, metadata = io.read_tensors(file)
    errors, done = json.loads(metadata["notes"])
    assert errors > 0
    io.write_tensors(file, tensors, {**metadata, "notes": json.dumps([0, done])})
    forged, r = finish(tmp_path), request()
    result = forged.verify(model=r["model"], initial_state=r["initial_state"], data=r["data"])
    assert result.verdict == "refuted"


@pytest.mark.parametrize("name", ["posterior", "draws", "course"])
@pytest.mark.parametrize("place", [-1, -40, 30])
def test_a_file_in_which_a_bit_has_changed_is_refused(tmp_path, monkeypatch, name, place) -> None:
    monkeypatch.setattr("curvescope.certificates.optimize.EVERY", 0.0)
    monkeypatch.setattr(evaluation, "_SAVE_EVERY", 0.0)
    stopped(tmp_path, "optimize" if name == "course" else "draw")
    file = tmp_path / f"{name}.safetensors"
    raw = bytearray(file.read_bytes())
    raw[place] ^= 1
    file.write_bytes(bytes(raw))
    with pytest.raises(CurvescopeError, match=r"checksum is wrong|safetensors file|no checksum"):
        finish(tmp_path)


def test_the_initial_state_may_not_lie_among_the_parts(tmp_path: Path) -> None:
    r = request()
    file = tmp_path / "posterior.safetensors"
    io.write_tensors(file, r["initial_state"])
    before = file.read_bytes()
    with pytest.raises(CurvescopeError, match="is no checkpoint; "):
        certify(**{**r, "initial_state": file}, checkpoint=tmp_path)
    assert file.read_bytes() == before
