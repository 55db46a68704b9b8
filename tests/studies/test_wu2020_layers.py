"""Wu et al. (2020) at the smallest scale: numbers against dense computations in NumPy."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from curvescope.figures.model import Picture
from curvescope.studies import catalog, outcome
from curvescope.studies.networks import Group
from curvescope.studies.run import Run
from curvescope.studies.wu2020.hyperparameters import WAYS, alike
from curvescope.studies.wu2020.layers import layer_study
from curvescope.studies.wu2020.overlap_deep import kind, networks

WORK = Path(mkdtemp(prefix="curvescope-"))


def run_of(name: str) -> Run:
    study = catalog.study_named(f"wu2020/{name}")
    assert study is not None
    return Run(study, "smoke", WORK)


@cache
def computed(name: str) -> tuple[outcome.Outcome, tuple[Picture, ...]]:
    return outcome.compute(run_of(name))


def value(name: str, what: str) -> float:
    return computed(name)[0].values[what].ours


def group(study: str, key: str) -> Group:
    return run_of(study).networks(key)


def inputs_of(model: nn.Module, layer: str, X: Tensor) -> np.ndarray:
    """What a layer is given, in float64."""
    given: list[Tensor] = []
    hook = model.get_submodule(layer).register_forward_pre_hook(lambda _, x: given.append(x[0]))
    with torch.no_grad():
        model(X)
    hook.remove()
    return given[0].double().numpy()


def moments(x: np.ndarray) -> tuple[float, float, float]:
    """``(v₁·Ê[x])²``, ``λ₁/λ₂`` of ``E[xxᵀ]`` and ``‖E[x]‖²`` over the covariance's largest."""
    values, vectors = np.linalg.eigh(x.T @ x / len(x))
    mean = x.mean(0)
    aligned = (vectors[:, -1] @ mean) ** 2 / (mean @ mean)
    dominance = mean @ mean / np.linalg.eigvalsh(np.cov(x.T, bias=True))[-1]
    return float(aligned), float(values[-1] / values[-2]), float(dominance)


def hessian_root(model: nn.Module, layer: str, X: Tensor) -> np.ndarray:
    """Rows whose Gram matrix is G by the layer's weight, H of a piecewise linear network."""
    weight = model.double().get_parameter(f"{layer}.weight")
    rows = []
    for x in X.double():
        z = model(x[None])[0]
        J = torch.stack(
            [torch.autograd.grad(out, weight, retain_graph=True)[0].flatten() for out in z]
        )
        p = torch.softmax(z.detach(), 0)
        rows.append(p.sqrt()[:, None] * (J - p @ J))
    model.float()
    return (torch.cat(rows) / len(X) ** 0.5).detach().numpy()


# Layers -------------------------------------------------------------------------------------------


def test_a_layer_against_its_dense_hessian_and_its_inputs() -> None:
    run, digits = run_of("overlap-mnist"), group("overlap-mnist", "f200")
    study = layer_study(run, digits, "fc2", 40)
    tops = []
    for place, model in enumerate(digits.models):
        rows = hessian_root(model, "fc2", digits.few.X)
        values, vectors = np.linalg.eigh(rows.T @ rows)
        ours = study["true"][place].numpy()
        np.testing.assert_allclose(ours, values[::-1][:40], rtol=2e-3, atol=1e-4 * values[-1])
        expected = moments(inputs_of(model, "fc2", digits.few.X))
        np.testing.assert_allclose(study["structure"][place], expected, rtol=1e-3)
        tops.append(vectors[:, ::-1])
    for k in (1, 9, 24):
        share = np.square(tops[0][:, :k].T @ tops[1][:, :k]).sum() / k
        assert float(study.between.curves[0, k - 1]) == pytest.approx(share, abs=0.02)


def test_singular_values_of_the_first_eigenvectors_against_a_dense_hessian() -> None:
    lenet = group("eigenvectors", "lenet5")
    model = lenet.models[0]
    rows = hessian_root(model, "fc1", lenet.few.X)
    vectors = np.linalg.eigh(rows.T @ rows)[1]
    shape = model.get_parameter("fc1.weight").shape
    for i in (0, 1):  # far enough from their neighbors to be compared one by one
        sigma = np.linalg.svd(vectors[:, -1 - i].reshape(shape), compute_uv=False)
        ours = value("eigenvectors", f"fc1: first singular value of h_{i + 1}")
        assert ours == pytest.approx(sigma[0], abs=0.02)


def test_correspondence_of_fc2_against_a_dense_hessian() -> None:
    lenet = group("eigenvectors", "lenet5")
    model = lenet.models[0]
    rows = hessian_root(model, "fc2", lenet.few.X)
    h = np.linalg.eigh(rows.T @ rows)[1][:, ::-1][:, :9]
    x = inputs_of(model, "fc2", lenet.few.X)
    v = np.linalg.eigh(x.T @ x / len(x))[1][:, ::-1]
    m, n = model.get_parameter("fc2.weight").shape
    expected = np.square(np.einsum("mnk,nj->jmk", h.reshape(m, n, 9), v)).sum(1)
    ours = heat("eigenvectors", "correspondence-fc2")["fc2: true Hessian and E[xxᵀ]"]
    np.testing.assert_allclose(ours[:, :9], expected, atol=0.03)
    mean = value("eigenvectors", "fc2: mean of Corr(v₁, h_i), i ≤ 9")
    assert mean == pytest.approx(expected[0].mean(), abs=0.01)


def heat(name: str, picture: str) -> dict[str, np.ndarray]:
    """The heat maps of a picture by title."""
    (found,) = [each for each in computed(name)[1] if each.name == picture]
    return {p.title: np.array(p.image.values) for p in found.panels if p.image}


@pytest.mark.parametrize(("layer", "m"), [("fc1", 16), ("fc2", 12), ("conv1", 3), ("conv2", 5)])
def test_columns_of_a_correspondence_are_shares(layer: str, m: int) -> None:
    maps = heat("eigenvectors", f"correspondence-{layer}")
    product = maps[f"{layer}: Kronecker product and E[M]"]
    for shares in (product, maps[f"{layer}: true Hessian and E[M]"]):
        assert len(shares) == m
        np.testing.assert_allclose(shares.sum(0), 1, atol=1e-3)
    np.testing.assert_allclose(product.max(0), 1, atol=1e-3)  # one eigenvector of E[M] each


def test_overlap_pictures_mark_the_outputs() -> None:
    by_title = {panel.title: panel for panel in computed("overlap-cifar")[1][0].panels}
    assert by_title["fc1"].lines == {"m = 16": 16}
    labels = [curve.label for curve in by_title["fc1"].curves]
    assert labels == ["between models", "expected from the factors"]


def test_finished_parts_are_not_computed_again() -> None:
    first, _ = computed("overlap-mnist")
    told: list[str] = []
    again, _ = outcome.compute(replace(run_of("overlap-mnist"), tell=told.append))
    assert told == []
    assert again.values == first.values


# Inputs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", ["fc1", "fc2", "fc3"])
def test_the_mean_against_the_covariance_layer_by_layer(layer: str) -> None:
    digits = group("autocorrelation", "f200")
    found = [moments(inputs_of(model, layer, digits.few.X)) for model in digits.models]
    title = f"F-200², MNIST, {layer}"
    ours = value("autocorrelation", f"‖E[x]E[x]ᵀ‖/‖Σ‖, {title}")
    assert ours == pytest.approx(np.mean([row[2] for row in found]), rel=1e-3)
    product = np.mean([row[0] ** 0.5 for row in found])
    assert value("autocorrelation", f"|v₁·Ê[x]|, {title}") == pytest.approx(product, rel=1e-4)


def test_a_row_of_the_tables_leaves_out_the_first_layer() -> None:
    digits = group("autocorrelation", "f200")
    found = [
        moments(inputs_of(model, layer, digits.few.X))
        for model in digits.models
        for layer in ("fc2", "fc3")
    ]
    alignment, ratio, _ = np.mean(found, 0)
    ours = value("autocorrelation", "(v₁·Ê[x])², F-200², MNIST, fc")
    assert ours == pytest.approx(alignment, abs=1e-5)
    assert value("autocorrelation", "λ₁/λ₂, F-200², MNIST, fc") == pytest.approx(ratio, rel=1e-3)


def test_the_first_layer_needs_no_training() -> None:
    digits = group("autocorrelation", "f200")
    pixels = (digits.data.X[:300].flatten(1).double().numpy() + 1) / 2
    _, _, dominance = moments(pixels)
    ours = value("autocorrelation", "‖E[x]E[x]ᵀ‖/‖Σ‖, T networks, fc1")
    assert ours == pytest.approx(dominance, rel=1e-3)


def test_batch_norm_takes_the_mean_away_and_pooling_brings_it_back() -> None:
    before = group("batch-norm", "lenet5-bn")
    after = group("batch-norm-order", "lenet5-bn-late")
    names = [name for name, _ in after.models[0].named_children()]
    assert names.index("maxpool1") < names.index("bn-conv1") < names.index("conv2")
    means = [
        abs(inputs_of(own.models[0], "conv2", own.data.X).mean((0, 2, 3))).max()
        for own in (before, after)
    ]
    assert means[1] < 0.5 * means[0]
    early, late = (
        value(study, f"‖E[x]E[x]ᵀ‖/‖Σ‖, LeNet5-BN, {title}, fc1")
        for study, title in (("batch-norm", "CIFAR10"), ("batch-norm-order", "norms after pooling"))
    )
    assert late < early


def test_the_row_with_batch_norm_against_its_inputs() -> None:
    normal = group("batch-norm-further", "f200-bn")
    found = [
        moments(inputs_of(model, layer, normal.few.X))[:2]
        for model in normal.models
        for layer in ("fc2", "fc3")
    ]
    alignment, ratio = np.mean(found, 0)
    ours = value("batch-norm-further", "(v₁·Ê[x])², F-200²-BN, MNIST, fc")
    assert ours == pytest.approx(alignment, abs=1e-4)
    assert value("batch-norm-further", "λ₁/λ₂, F-200²-BN, MNIST, fc") == pytest.approx(
        ratio, rel=1e-3
    )
    largest = value("batch-norm-further", "largest (v₁·Ê[x])², F-200²-BN, MNIST, fc")
    assert largest == pytest.approx(max(row[0] for row in found), abs=1e-4)


# Several networks ---------------------------------------------------------------------------------


def test_pairs_of_one_way_and_of_two_make_all_pairs() -> None:
    run = run_of("hyperparameters")
    ways = {name: run.networks(key) for name, key in WAYS.items()}
    assert [len(own.models) for own in ways.values()] == [2, 1, 1]
    assert alike(ways).tolist() == [True, False, False, False, False, False]
    for panel in computed("hyperparameters")[1][0].panels:
        every, like, unlike = (np.array(curve.y) for curve in panel.curves)
        np.testing.assert_allclose(every, (like + 5 * unlike) / 6, atol=1e-5)
    starts = [net.initial["fc1.weight"] for own in ways.values() for net in own.networks]
    assert len({float(weight[0, 0]) for weight in starts}) == 4  # independent of each other
    recipes = [own.description.recipe for own in ways.values()]
    assert [(r.lr, r.weight_decay) for r in recipes] == [(0.01, 0.0), (0.001, 0.0), (0.01, 5e-4)]


@pytest.mark.parametrize("network", ["VGG11-W4", "ResNet18-W4"])
def test_inputs_of_the_last_layer_of_deep_networks(network: str) -> None:
    own = networks(run_of("overlap-deep"), network, "mnist-6k")
    found = [moments(inputs_of(model, "fc1", own.few.X))[:2] for model in own.models]
    alignment, ratio = np.mean(found, 0)
    ours = value("overlap-deep", f"(v₁·Ê[x])², {network}, digits, fc")
    assert ours == pytest.approx(alignment, abs=1e-5)
    ours = value("overlap-deep", f"λ₁/λ₂, {network}, digits, fc")
    assert ours == pytest.approx(ratio, rel=1e-3)


def test_every_layer_has_its_curve_and_its_outputs() -> None:
    pictures = computed("overlap-deep")[1]
    first = pictures[0]
    assert [panel.title for panel in first.panels] == ["conv2", "conv5", "conv6", "fc1"]
    assert [panel.lines for panel in first.panels] == [{"m = 4": 4}] * 3 + [{"m = 10": 10}]
    assert all(len(panel.curves[0].y) == 8 for panel in first.panels[:3])
    starts = ("overlap-vgg11", "conv5-vgg11", "conv2-vgg11", "correspondence-vgg11", "overlap-res")
    for picture, start in zip(pictures, starts, strict=True):
        assert picture.name.startswith(start)


def test_kinds_of_peaks() -> None:
    assert [kind(peak, 100) for peak in (79, 80, 120, 121)] == ["early", "at m", "at m", "delayed"]


# Output Hessians and the full Hessian -------------------------------------------------------------


def test_the_top_of_the_output_hessian_of_the_last_hidden_layer() -> None:
    own = group("output-spaces-further", "f1500x3-cifar")
    model, X = own.models[0], own.few.X
    z = torch.from_numpy(inputs_of(model, "relu-fc3", X))
    last = model.get_submodule("fc4")
    W, b = (p.detach().double() for p in (last.weight, last.bias))
    p = torch.softmax(z.relu() @ W.T + b, 1)
    A = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    G = W * (z > 0).double()[:, None, :]
    M = torch.einsum("bci,bcd,bdj->ij", G, A, G).numpy() / len(z)
    top = np.linalg.eigh(M)[1][:, ::-1][:, :9]
    space = np.linalg.qr((W - W.mean(0)).numpy().T)[0][:, :9]
    expected = np.square(top.T @ space).sum() / 9
    ours = value("output-spaces-further", "F-1500³, MNIST, fc3")
    assert ours == pytest.approx(expected, abs=1e-3)


def test_the_largest_eigenvalue_of_a_deep_network_by_power_iteration() -> None:
    own = group("full-hessian-depth", "f200x4")
    model = own.models[0]
    loss = nn.functional.cross_entropy(model(own.few.X), own.few.y)
    weights = list(model.parameters())
    gradients = torch.autograd.grad(loss, weights, create_graph=True)
    v = [torch.ones_like(w) for w in weights]
    for _ in range(60):
        size = sum(float((part**2).sum()) for part in v) ** 0.5
        v = [part / size for part in v]
        product = sum((g * part).sum() for g, part in zip(gradients, v, strict=True))
        v = list(torch.autograd.grad(product, weights, retain_graph=True))
    largest = sum(float((part**2).sum()) for part in v) ** 0.5
    true = computed("full-hessian-depth")[0].numbers["F-200⁴"]["true"]
    assert true[0][0] == pytest.approx(largest, rel=0.01)


# Printed numbers ----------------------------------------------------------------------------------


def test_printed_means_lie_in_their_printed_ranges() -> None:
    counted = 0
    for study in catalog.find("wu2020"):
        for criterion in study.criteria:
            low, high = criterion.bounds
            if criterion.kind == "number" and low is not None and high is not None:
                assert criterion.paper is not None
                assert low <= criterion.paper <= high, criterion
                counted += 1
    assert counted >= 150


def test_every_row_of_table_10_grows_toward_the_output() -> None:
    rows: dict[str, dict[str, float]] = {}
    for name in ("output-spaces", "output-spaces-further"):
        for criterion in run_of(name).study.criteria:
            if criterion.cite == "table 10" and criterion.paper is not None:
                title, _, layer = criterion.value.rpartition(", ")
                rows.setdefault(title, {})[layer] = criterion.paper
    assert len(rows) == 8
    for row in rows.values():
        assert row["fc1"] < row["fc2"] < row["fc3"]


def test_only_seeds_without_weights_are_trained(tmp_path: Path) -> None:
    told: list[str] = []
    run = replace(run_of("overlap-cifar"), work=tmp_path, tell=told.append)
    one = replace(run.describe("lenet5"), seeds=1)
    first = run.networks("lenet5", one)
    both = run.networks("lenet5")
    assert [line.partition(",")[0].split(" × ")[0] for line in told] == ["training 1"] * 2
    for name, weight in first.models[0].state_dict().items():
        assert torch.equal(weight, both.models[0].state_dict()[name])
    told.clear()
    run.networks("lenet5")
    assert told == []
