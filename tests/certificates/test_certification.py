"""Certificates from end to end: what they say, how they are checked, and what is refused."""

import dataclasses
import json

import pytest
import torch
from torch import Tensor, nn

from curvescope.certificates import (
    Certificate,
    Confidence,
    certify,
    posterior_method,
)
from curvescope.certificates import evaluate as evaluation
from curvescope.certificates.certificate import posterior_file
from curvescope.certificates.divergence import kl_inverse
from curvescope.certificates.request import describe
from curvescope.data import Dataset, dataset
from curvescope.errors import CurvescopeError
from curvescope.networks.names import network
from curvescope.training.weights import save_weights
from tests.certificates.models import blobs, convnet, mlp, normal, state_of, train

Trained = tuple[nn.Module, dict[str, Tensor], tuple[Tensor, Tensor]]
quick = posterior_method("local", epochs=30, batch_size=50)


def trained(samples: int = 400, classes: int = 2, seed: int = 0) -> Trained:
    torch.manual_seed(seed)
    data = blobs(samples, torch.Generator().manual_seed(seed), classes)
    model = mlp(5, 6, 1 if classes == 2 else classes)
    initial = state_of(model)
    return train(model, data), initial, data


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def example() -> tuple[Certificate, Trained]:
    task = trained()
    test = blobs(200, seeded(0))
    certificate = certify(*task, generator=seeded(), method=quick, test=test, slack=0.005)
    return certificate, task


def test_the_numbers_fit_together(example) -> None:
    c, (model, *_) = example
    assert 0 < c.empirical_error < c.error_bound < c.bound < 0.5
    assert not c.vacuous
    assert c.bound == kl_inverse(c.error_bound, c.terms.value)
    assert c.samples == 400
    assert c.confidence.level == 0.965
    assert c.kl == pytest.approx(sum(term.kl for term in c.prior))
    assert [term.layers for term in c.prior] == [("0",), ("2",)]
    assert all(term.variance == c.grid.variance(term.j) for term in c.prior)
    assert c.draws.count % 400 == 0
    assert 0 <= c.orientation.mean_train <= c.bound
    assert c.orientation.stochastic_test is not None
    assert "stochastic network" in c.statement
    assert "Nothing is claimed about the network at the posterior mean" in c.statement
    assert len(c.history) == 30
    assert model.training  # as it was


def test_a_certificate_survives_the_disk_and_verifies(example, tmp_path) -> None:
    c, (model, initial, data) = example
    path = tmp_path / "certificate.json"
    c.save(path)
    back = Certificate.load(path)
    assert dataclasses.replace(back, posterior_sha256="") == c
    result = back.verify(model=model, initial_state=initial, data=data, generator=seeded(3))
    assert result.verdict == "verified", result
    assert {check.what for check in result.checks} == {
        "prior of 0", "prior of 2", "layers", "terms", "empirical error", "bound",
        "divergence of the posterior", "network", "examples", "prior mean", "draws", "fresh draws",
    }  # fmt: skip
    posterior_file(path).unlink()
    alone = Certificate.load(path)
    assert alone.posterior is None
    assert alone.verify().verdict == "consistent"
    with pytest.raises(CurvescopeError, match="posterior is missing"):
        alone.save(path)


def test_every_method_certifies(tmp_path) -> None:
    model, initial, data = trained(120)
    bounds = {}
    for name in ("base", "appr", "iter", "iter(d)", "iter.m", "local"):
        rate = 1.0 if name == "local" else 0.02
        method = posterior_method(name, epochs=10, batch_size=40, rate=rate)
        c = certify(model, initial, data, generator=seeded(), method=method, slack=0.02)
        result = c.verify(model=model, initial_state=initial, data=data, generator=seeded(7))
        assert result.verdict == "verified", result
        assert len(c.prior) == (2 if name == "local" else 1)
        bounds[name] = c.bound
    assert bounds["local"] < min(bounds[name] for name in bounds if name != "local")


def test_a_convolution_network_with_three_classes() -> None:
    torch.manual_seed(0)
    g = seeded(4)
    y = torch.arange(150) % 3
    pattern = normal(3 * 36, g).view(3, 1, 6, 6)
    X = 2 * pattern[y] + 0.5 * normal(150 * 36, g).view(150, 1, 6, 6)
    model = convnet()
    initial = state_of(model)
    train(model, (X, y), steps=60)
    method = posterior_method("local", epochs=8, batch_size=50)
    c = certify(model, initial, (X, y), generator=seeded(), method=method, slack=0.06)
    assert c.draws.block == 100
    assert c.bound < 0.9
    result = c.verify(model=model, initial_state=initial, data=(X, y), generator=seeded(1))
    assert result.verdict == "verified", result


# Refusals -----------------------------------------------------------------------------


class Wrapped(nn.Module):
    """Logits in a dictionary, and a scale that is computed once from a parameter, and kept."""

    def __init__(self, inside: nn.Module, *, keeps: bool) -> None:
        super().__init__()
        self.inside, self.scale = inside, nn.Parameter(torch.zeros(5).double())
        self.keeps, self.kept = keeps, {}

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        if not self.keeps or "scale" not in self.kept:
            self.kept["scale"] = self.scale.exp()
        return {"logits": self.inside(x * self.kept["scale"])}


def test_logits_in_a_dictionary_and_what_a_pass_keeps() -> None:
    bounds, requests = [], []
    for keeps in (False, True):
        torch.manual_seed(0)
        model = Wrapped(mlp(5, 6, 1), keeps=keeps)
        initial = {name: p.detach().clone() for name, p in model.named_parameters()}
        with torch.no_grad():
            model.scale += 0.1
            model(torch.ones(1, 5).double())
        data = blobs(60, seeded(3))
        certificate = certify(
            model, initial, data, generator=seeded(1),
            method=posterior_method("local", epochs=2), slack=0.1,
        )  # fmt: skip
        bounds.append(certificate.bound)
        requests.append(certificate.request)
        model.kept.clear()
        assert describe(
            model, initial, data, generator=seeded(1),
            method=posterior_method("local", epochs=2), slack=0.1,
        ) == certificate.request  # fmt: skip
    assert bounds[0] == bounds[1] < 1
    assert requests[0].network != requests[1].network  # other code runs


def test_an_output_without_logits_is_one_sentence() -> None:
    class Other(nn.Linear):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            return [super().forward(x)]

    model = Other(5, 1).double()
    initial = {name: 0.5 * p.detach() for name, p in model.named_parameters()}
    data = blobs(20, seeded(3))
    with pytest.raises(CurvescopeError, match=r"certify\(model\): the output must be a tensor or"):
        certify(model, initial, data, generator=seeded(1))


def test_a_prior_that_equals_the_trained_weights_is_refused() -> None:
    model, _, data = trained(60)
    with pytest.raises(CurvescopeError, match="prior weights equal the trained ones"):
        certify(model, state_of(model), data, generator=seeded())


def test_a_prior_saved_after_training_began_is_refused(tmp_path) -> None:
    torch.manual_seed(0)
    model = network("F-4", 5, 1)
    data = tuple(t.float() if t.is_floating_point() else t for t in blobs(60, seeded()))
    save_weights(tmp_path / "initial.safetensors", model, {"epoch": 0})
    with torch.no_grad():
        model.get_submodule("fc1").weight.add_(1)
    save_weights(tmp_path / "later.safetensors", model, {"epoch": 3})
    with torch.no_grad():
        model.get_submodule("fc1").weight.add_(1)
    with pytest.raises(CurvescopeError, match="saved after epoch 3, when training had begun"):
        certify(model, tmp_path / "later.safetensors", data, generator=seeded())
    method = posterior_method("local", epochs=2)
    first = tmp_path / "initial.safetensors"
    c = certify(model, first, data, generator=seeded(), method=method, slack=0.1)
    assert c.source.prior_samples == 0
    other = tuple(t.float() if t.is_floating_point() else t for t in blobs(60, seeded(9)))
    c = certify(
        model, tmp_path / "later.safetensors", data, generator=seeded(), method=method, slack=0.1,
        prior_data=other,
    )  # fmt: skip
    assert "trained on 60 other examples" in c.statement


def test_data_that_chose_the_prior_are_refused() -> None:
    model, initial, (X, y) = trained(60)
    with pytest.raises(
        CurvescopeError, match="10 of the 60 examples were used to choose the prior"
    ):
        certify(model, initial, (X, y), generator=seeded(), prior_data=(X[:10], y[:10]))


def test_fitted_statistics_are_refused() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
    initial = state_of(model)
    data = blobs(60, seeded())
    train(model.train(), data, steps=3)
    with pytest.raises(CurvescopeError, match=r"'1.running_mean' is no variable of the posterior"):
        certify(model, initial, data, generator=seeded())
    normalized = dataset("mnist-6k-2", normalize="pixel", per_class=10)
    with pytest.raises(CurvescopeError, match="normalized by pixel statistics"):
        certify(model, initial, normalized, generator=seeded())


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"prior_split": 1.5}, "share between 0 and 1"),
        ({"prior_split": 0.99}, "leaves 59 and 1 examples"),
        ({"method": "magic"}, "name must be one of"),
        ({"generator": None}, "generator must be a"),
        ({"data": (torch.zeros(60, 5), torch.zeros(60))}, "labels must be integers"),
        ({"data": (torch.zeros(60, 5), torch.full((60,), 2))}, r"labels must lie in 0 … 1"),
        ({"data": torch.zeros(60, 5)}, r"needs \(X, y\)"),
        ({"data": (torch.zeros(60, 5), torch.zeros(59).long())}, "same N"),
        ({"data": (torch.full((60, 5), torch.nan), torch.zeros(60).long())}, "NaN or infinity"),
        ({"initial_state": {}}, "must hold '0.weight'"),
        ({"initial_state": "/nowhere.safetensors"}, "cannot be read"),
    ],
)
def test_misuse_is_one_sentence(settings, match: str) -> None:
    model, initial, data = trained(60)
    arguments = {"initial_state": initial, "data": data, "generator": seeded(), **settings}
    with pytest.raises(CurvescopeError, match=match):
        certify(model, **arguments)


# Data-dependent priors, resuming ------------------------------------------------------


def test_a_prior_trained_on_a_split(tmp_path) -> None:
    model, initial, data = trained()
    c = certify(model, initial, data, generator=seeded(), method=quick, prior_split=0.5, slack=0.01)
    assert (c.samples, c.source.prior_samples) == (200, 200)
    assert "trained on 200 other examples (data-dependent prior)" in c.statement
    free = certify(model, initial, data, generator=seeded(), method=quick, slack=0.01)
    assert c.kl < 0.5 * free.kl
    path = tmp_path / "split.json"
    c.save(path)
    result = Certificate.load(path).verify(
        model=model, initial_state=initial, data=data, generator=seeded(5)
    )
    assert result.verdict == "verified", result


def test_a_killed_certification_goes_on(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(evaluation, "_SAVE_EVERY", 0.0)
    model, initial, data = trained(100)
    method = posterior_method("local", epochs=4, batch_size=50)

    def run(checkpoint=None, progress=None, **changes) -> Certificate:
        return certify(
            model, initial, data, generator=seeded(), slack=0.02, checkpoint=checkpoint,
            progress=progress, **{"method": method, **changes},
        )  # fmt: skip

    def stop(progress) -> None:
        if progress.task == "draw":
            raise KeyboardInterrupt

    whole = run()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, stop)
    seen = []
    assert run(tmp_path, seen.append) == whole
    assert all(progress.task == "draw" for progress in seen)
    with pytest.raises(CurvescopeError, match="belongs to another certification"):
        run(tmp_path, method=posterior_method("local", epochs=5))


@pytest.mark.parametrize("name", ["local", "iter", "base", "iter.m"])
def test_a_killed_optimization_goes_on_to_the_same_posterior(tmp_path, monkeypatch, name) -> None:
    """Bases that are refreshed are built on those before: these are kept as well."""
    monkeypatch.setattr("curvescope.certificates.optimize.EVERY", 0.0)
    model, initial, data = trained(100)
    refreshed = {"refresh": 2} if name in ("iter", "iter.m") else {}
    method = posterior_method(name, epochs=6, batch_size=50, **refreshed)
    begun = []

    def run(checkpoint=None, progress=None, **changes) -> Certificate:
        return certify(
            model, initial, data, generator=seeded(), slack=0.02, checkpoint=checkpoint,
            progress=progress, **{"method": method, **changes},
        )  # fmt: skip

    def stop(progress) -> None:
        if progress.done == 3:
            raise KeyboardInterrupt

    whole = run()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, stop)
    with pytest.raises(CurvescopeError, match="belongs to another certification"):
        run(tmp_path, method=posterior_method(name, epochs=7))
    again = run(tmp_path, lambda p: begun.append(p.done) if p.task == "optimize" else None)
    assert begun == [4, 5, 6]
    assert again == whole
    for key, tensor in whole.posterior.tensors().items():
        assert torch.equal(again.posterior.tensors()[key], tensor), key
    assert not (tmp_path / "course.safetensors").exists()


# What the bound is worth --------------------------------------------------------------


def test_random_labels_are_never_certified_below_chance() -> None:
    """With coin-flip labels every classifier errs on half of all new examples: 200 of 200."""
    method = posterior_method("local", epochs=4, batch_size=15, refresh=0)
    below = 0
    for seed in range(200):
        g = seeded(seed)
        X = torch.randn(30, 4, generator=g)
        y = torch.randint(2, (30,), generator=g)
        model = nn.Linear(4, 1)
        initial = {"weight": torch.zeros(1, 4), "bias": torch.zeros(1)}
        with torch.no_grad():  # least squares: fits the random labels as well as it can
            solution = torch.linalg.lstsq(
                torch.cat([X, torch.ones(30, 1)], 1), 2.0 * y - 1
            ).solution
            model.weight.copy_(5 * solution[:4])
            model.bias.copy_(5 * solution[4:])
        c = certify(model, initial, (X, y), generator=g, method=method, slack=0.1)
        below += c.bound < 0.5
    assert below == 0


def test_binary_digits_are_certified_in_seconds(tmp_path) -> None:
    """The embedded digits, 0–4 against 5–9: a non-vacuous bound, and what it says is JSON."""
    data, test = dataset("mnist-6k-2"), dataset("mnist-6k-2", split="test")
    model = network("T-20", (1, 28, 28), 1, generator=seeded())
    initial = state_of(model)
    batches = [(data.X[i::10], data.y[i::10]) for i in range(10)]
    for _ in range(4):
        for batch in batches:
            train(model, batch, steps=3)
    method = posterior_method("local", epochs=15)
    c = certify(model, initial, data, generator=seeded(), method=method, test=test, slack=0.01)
    assert c.bound < 0.45
    assert c.orientation.stochastic_test is not None
    assert c.orientation.stochastic_test < c.bound
    assert json.loads(json.dumps(c.to_json()))["source"]["data"] == "mnist-6k-2"


def test_a_data_set_gives_its_name_and_both_forms_agree() -> None:
    model, initial, (X, y) = trained(60)
    method = posterior_method("local", epochs=2)
    named = Dataset(X, y, classes=2, name="blobs")
    a, b = (
        certify(model, initial, d, generator=seeded(), method=method, slack=0.1)
        for d in (named, (X, y))
    )
    assert a.source.data == "blobs"
    assert a.bound == b.bound


def test_the_confidence_is_the_caller_s() -> None:
    model, initial, data = trained(60)
    method = posterior_method("local", epochs=2)
    sure, unsure = (
        certify(model, initial, data, generator=seeded(), method=method, slack=0.1, confidence=c)
        for c in (Confidence(1e-6, 1e-6), Confidence(0.2, 0.2))
    )
    assert sure.bound > unsure.bound
    assert unsure.confidence.level == 0.6


@pytest.mark.gpu
def test_a_certificate_on_the_gpu() -> None:
    model, initial, (X, y) = trained()
    model = model.cuda()
    data = (X.cuda(), y.cuda())
    c = certify(model, initial, data, generator=seeded(), method=quick, slack=0.005)
    assert c.bound < 0.5
    result = c.verify(model=model, initial_state=initial, data=data, generator=seeded(3))
    assert result.verdict == "verified", result
