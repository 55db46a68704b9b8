"""A kind of layer from one file outside the package, through everything that works by layers.

Every result is that of the same network made of ``nn.Linear``, whose weights are the transposes.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import curvescope as cs
from curvescope.certificates.bases import Bases
from curvescope.certificates.blocks import Layout
from curvescope.certificates.curvature import CurvatureBases
from curvescope.certificates.methods import posterior_method
from curvescope.certificates.network import StochasticNetwork
from curvescope.experiments.analyze import analyze
from curvescope.experiments.configuration import Settings
from curvescope.experiments.store import Finding
from curvescope.flatness.rescaling import rescale
from curvescope.layers import kind
from curvescope.networks.initialization import initialize
from curvescope.operators.gram import GramForm
from curvescope.record.extended import class_directions
from curvescope.record.samples import check_samples
from curvescope.record.selection import UnsupportedLayer, linear_layers
from curvescope.spectra import rank_bound
from curvescope.structure.class_factors import layer_approximations
from curvescope.structure.full_hessian import full_hessian_approximation
from curvescope.structure.layer_comparison import LayerComparison
from curvescope.structure.layer_pairs import layer_eigenpairs

SIZES = ((4, 6), (6, 5), (5, 3))
LAYERS = ("0", "2", "4")


def g() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def transposed(written: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class of the page, whose kind is registered for one test."""
    monkeypatch.setattr(kind, "_KINDS", dict(kind._KINDS))
    written("layer")
    return import_module("transposed").Transposed


def network(layer: Any) -> nn.Sequential:
    parts: list[nn.Module] = []
    for sizes in SIZES:
        parts += [layer(*sizes), nn.ReLU()]
    return nn.Sequential(*parts[:-1]).double()


def data(samples: int = 24) -> tuple[Tensor, Tensor]:
    X = torch.randn(samples, 4, generator=g(), dtype=torch.float64)
    return X, torch.arange(samples) % 3


@pytest.fixture
def models(transposed: Any) -> tuple[nn.Sequential, nn.Sequential]:
    """The network of the new kind, and its twin."""
    torch.manual_seed(0)
    ours, twin = network(transposed), network(nn.Linear)
    with torch.no_grad():
        for name in LAYERS:
            mine, other = ours.get_submodule(name), twin.get_submodule(name)
            mine.bias.uniform_(-0.5, 0.5)
            other.weight.copy_(mine.weight.T)
            other.bias.copy_(mine.bias)
    return ours, twin


@pytest.fixture
def problems(models: tuple[nn.Sequential, nn.Sequential]) -> tuple[cs.Problem, cs.Problem]:
    ours, twin = models
    return cs.Problem(ours, data(), batch_size=10), cs.Problem(twin, data(), batch_size=10)


def order(*names: str) -> Tensor:
    """Where the entries of the twin's flat vector are in ours, over some layers' parameters."""
    places, start = [], 0
    for name in names or LAYERS:
        n, m = SIZES[LAYERS.index(name)]
        places.append(start + torch.arange(n * m).reshape(n, m).T.flatten())
        places.append(start + n * m + torch.arange(m))
        start += n * m + m
    return torch.cat(places)


@pytest.mark.parametrize("matrix", [cs.Hessian, cs.GaussNewton, cs.EmpiricalFisher])
@pytest.mark.parametrize("keep", [True, False])
def test_blocks(problems: Any, matrix: Any, keep: bool) -> None:
    """Closed forms and streamed products: whole layers, weights and biases, one column or many."""
    ours, twin = (matrix(problem, keep=keep) for problem in problems)
    for name in LAYERS:
        expected = twin.block(name).dense()
        places = order(name)
        torch.testing.assert_close(ours.block(name).dense()[places][:, places], expected)
        n, m = SIZES[LAYERS.index(name)]
        weight = places[: n * m]
        block = ours.block(f"{name}.weight").dense()
        torch.testing.assert_close(block[weight][:, weight], expected[: n * m, : n * m])
        torch.testing.assert_close(ours.block(f"{name}.bias").dense(), expected[n * m :, n * m :])
        v = torch.randn(n * m + m, generator=g(), dtype=torch.float64)
        torch.testing.assert_close((ours.block(name) @ v)[places], twin.block(name) @ v[places])


def test_eigenpairs_of_a_layer(problems: Any) -> None:
    """Through the root of the block, and through its Gram form."""
    ours, twin = (cs.GaussNewton(problem, keep=True).block("2.weight") for problem in problems)
    pairs, expected = (layer_eigenpairs(A, 4, tol=1e-9, generator=g()) for A in (ours, twin))
    torch.testing.assert_close(pairs.values, expected.values)
    turned = pairs.vectors[order("2")[:30]]
    inner = (turned * expected.vectors).sum(0).abs()
    torch.testing.assert_close(inner, torch.ones_like(inner))
    torch.testing.assert_close(
        *(cs.exact_spectrum(cs.GaussNewton(p).block("0")).values for p in problems)
    )
    forms = [GramForm(p, class_directions) for p in problems]
    assert set(forms[0].source._groups[0]) == set(LAYERS)  # recorded, not by autograd
    torch.testing.assert_close(forms[0].matrix(), forms[1].matrix())


def test_kronecker_factors(models: Any, problems: Any) -> None:
    for bias in (False, True):
        ours, twin = (cs.kronecker_factors(p, bias=bias) for p in problems)
        for name in LAYERS:
            for part in ("output_hessian", "autocorrelation", "mean_input"):
                torch.testing.assert_close(*(getattr(f[name], part) for f in (ours, twin)))
    # Of one sample the product is the block itself, in the order of the stored weight.
    X, y = data(1)
    one = cs.Problem(models[0], (X, y))
    for name, factors in cs.kronecker_factors(one).items():
        exact = cs.GaussNewton(one).block(f"{name}.weight").dense()
        torch.testing.assert_close(factors.operator().dense(), exact)


def test_layer_statistics_and_class_structure(problems: Any) -> None:
    ours, twin = (cs.structure.layer_statistics(p) for p in problems)
    for name in LAYERS:
        for part in ("features", "errors"):
            torch.testing.assert_close(*(getattr(s[name], part).total for s in (ours, twin)))
        torch.testing.assert_close(ours[name].weights.total, twin[name].weights.total)
    ours, twin = (layer_approximations(p, layers="2", generator=g())["2"] for p in problems)
    for part in ("kfac_error", "cfac_error"):
        mine, other = getattr(ours, part), getattr(twin, part)
        assert mine.distance == pytest.approx(other.distance)
        assert mine.frobenius == pytest.approx(other.frobenius)
    torch.testing.assert_close(ours.class_cosines, twin.class_cosines)
    torch.testing.assert_close(ours.cross_cosines, twin.cross_cosines)
    clusters = [cs.structure.logit_clusters(p, "2").weight for p in problems]
    assert clusters[0].logit_share == pytest.approx(clusters[1].logit_share)


def test_output_hessians(problems: Any) -> None:
    ours, twin = (cs.structure.output_hessian_theory(p, cs.kronecker_factors(p)) for p in problems)
    assert list(ours) == list(twin) == list(LAYERS)
    for name in LAYERS:
        assert ours[name].overlap == pytest.approx(twin[name].overlap)
        torch.testing.assert_close(ours[name].predicted, twin[name].predicted)
    ours, twin = (full_hessian_approximation(p, 3) for p in problems)
    torch.testing.assert_close(ours.values, twin.values)
    torch.testing.assert_close(ours.vectors[order()], twin.vectors)


def test_the_stochastic_network(models: Any) -> None:
    """Without noise the model; with it, what weights drawn by hand give."""
    ours, _ = models
    X, y = data(300)
    layout = Layout.of(ours)
    assert [(b.name, b.rows, b.columns) for b in layout.blocks if b.layer] == [
        ("0", 4, 6), ("2", 6, 5), ("4", 5, 3),
    ]  # fmt: skip
    net = StochasticNetwork(ours, layout, X)
    mean = layout.flatten(ours.state_dict())
    bases, curvature = CurvatureBases(ours, layout, (X, y))(mean)
    assert curvature.shape == mean.shape
    deviation = torch.full_like(mean, 0.1)
    noise = torch.randn(net.noise_size(5), generator=g(), dtype=torch.float64)
    kick = bases.restore(deviation * noise)
    weights = layout.state(mean + kick)
    expected = torch.func.functional_call(ours, weights, (X[:5],))
    torch.testing.assert_close(net(X[:5], mean, deviation, bases, noise), expected)
    plain = Bases.standard(layout)
    torch.testing.assert_close(net(X[:5], mean, 0 * deviation, plain, noise), ours(X[:5]))


def test_the_curvature_bases_are_those_of_the_twin(models: Any) -> None:
    """Inputs and outputs have changed places."""
    found = []
    for model in models:
        layout = Layout.of(model)
        bases, _ = CurvatureBases(model, layout, data(300))(layout.flatten(model.state_dict()))
        found.append({b.name: pair for b, pair in zip(layout.blocks, bases.pairs, strict=True)})
    for name in LAYERS:
        mine, other = found[0][name], found[1][name]
        inner = mine[1].T @ other[0]  # of the output Hessian
        torch.testing.assert_close(inner[:, :2].abs(), torch.eye(len(inner))[:, :2].to(inner))


def test_certificates(models: Any) -> None:
    ours, _ = models
    X, y = data(300)
    start = {name: p.clone() for name, p in ours.state_dict().items()}
    y = (X[:, :3].argmax(1) + y * 0) % 3
    cs.train(ours.float(), (X.float(), y), cs.Recipe(seed=0, epochs=60, lr=0.1))
    start = {name: p.float() for name, p in start.items()}
    method = posterior_method("iter", epochs=3)
    c = cs.certify(ours, start, (X.float(), y), generator=g(), method=method, slack=0.1)
    assert 0 < c.empirical_error < c.bound <= 1
    result = c.verify(model=ours, initial_state=start, data=(X.float(), y), generator=g())
    assert result.verdict == "verified", result


def test_rank_bound_rescaling_and_initial_weights(models: Any, problems: Any) -> None:
    ours, twin = models
    assert rank_bound(ours, (4,), 3) == rank_bound(twin, (4,), 3) == 4 * 3 * (6 + 5 + 3 + 4)
    rescaled = rescale(problems[0], "0", "2", 3.0)
    H = cs.Hessian(rescaled.problem).block("0.weight").dense()
    before = cs.Hessian(problems[0]).block("0.weight").dense()
    torch.testing.assert_close(H, rescaled.block_factor("0.weight") * before)
    initialize(ours, "xavier", generator=g())
    for (n, m), name in zip(SIZES, LAYERS, strict=True):
        bound = (6 / (n + m)) ** 0.5
        most = float(ours.get_submodule(name).weight.detach().abs().max())
        assert 0.8 * bound < most <= bound


def test_analyze(problems: Any, tmp_path: Path) -> None:
    settings = Settings(steps=6, trace_probes=16, layer_pairs=4)
    found = []
    for i, problem in enumerate(problems):
        run = analyze(problem, tmp_path / f"run{i}", seed=0, settings=settings)
        assert [check for _, check in run.checks() if not check.passed] == []
        findings = run.result("layer-2", Finding[LayerComparison]).value
        assert findings is not None
        found.append(findings)
    ours, twin = found
    assert (ours.outputs, ours.inputs) == (twin.outputs, twin.inputs) == (5, 6)
    for part in ("true", "approximate", "overlap", "ratio"):
        torch.testing.assert_close(getattr(ours, part), getattr(twin, part), rtol=1e-4, atol=1e-6)
    for side, pattern in twin.correspondences.items():
        torch.testing.assert_close(ours.correspondences[side], pattern, rtol=1e-3, atol=1e-4)


def test_the_penalty(models: Any) -> None:
    """It sees a product of matrices, whose gradients it takes over the whole batch."""
    ours, _ = models
    X, y = data(6)
    term = cs.TraceRegularizer("ggn", weight=1.0, generator=g())
    values = torch.stack([term(ours, X, y).detach() for _ in range(400)])
    exact = float(cs.GaussNewton(cs.Problem(ours, (X, y))).dense().trace())
    assert abs(float(values.mean()) - exact) < 4 * float(values.std()) / 400**0.5


def test_a_subclass_that_computes_something_else_is_refused(transposed: Any) -> None:
    class Doubled(transposed):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    problem = cs.Problem(nn.Sequential(Doubled(4, 3)).double(), data())
    with pytest.raises(UnsupportedLayer, match="got Doubled with a changed forward"):
        linear_layers(problem, "0")


def test_samples_that_see_each_other_are_refused(transposed: Any) -> None:
    model = nn.Sequential(transposed(4, 5), nn.BatchNorm1d(5, track_running_stats=False))
    problem = cs.Problem(nn.Sequential(*model, nn.Linear(5, 3)).double(), data())
    with pytest.raises(UnsupportedLayer, match="see each other behind layer '0'"):
        check_samples(problem, next(problem.batches()), ["0"])
