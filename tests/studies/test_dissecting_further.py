"""Further entries of DH at smoke scale: their numbers against references of another kind."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from curvescope.figures.model import Panel
from curvescope.studies.dissecting_hessian import families, variants
from curvescope.studies.dissecting_hessian.autocorrelation import ROWS
from curvescope.studies.dissecting_hessian.correspondence import FIGURES
from curvescope.studies.dissecting_hessian.hyperparameters import alike, trainings
from curvescope.studies.dissecting_hessian.output_spaces import TABLE_10
from curvescope.studies.dissecting_hessian.overlap_deep import kind, networks_of
from curvescope.studies.dissecting_hessian.plain_networks import plain_networks
from curvescope.studies.dissecting_hessian.structures import NETWORKS, lines
from tests.studies.dissecting import outcome, row, settings


def inputs_of(model: nn.Module, layer: str, X: Tensor) -> np.ndarray:
    """What a layer is given, in float64."""
    seen: list[Tensor] = []
    hook = model.get_submodule(layer).register_forward_pre_hook(lambda _, x: seen.append(x[0]))
    with torch.no_grad():
        model(X)
    hook.remove()
    return seen[0].double().numpy()


def moments(x: np.ndarray) -> tuple[float, float]:
    """``(v₁·Ê[x])²`` and ``λ₁/λ₂`` of ``E[xxᵀ]``."""
    values, vectors = np.linalg.eigh(x.T @ x / len(x))
    mean = x.mean(0)
    return float((vectors[:, -1] @ mean) ** 2 / (mean @ mean)), float(values[-1] / values[-2])


def heat(name: str, picture: str) -> dict[str, np.ndarray]:
    """The heat maps of a picture by title."""
    (found,) = [each for each in outcome(name).pictures if each.name == picture]
    assert all(isinstance(panel, Panel) and panel.image for panel in found.panels)
    return {p.title: np.array(p.image.values) for p in found.panels if p.image}


# Correspondence ---------------------------------------------------------------------------------


def test_correspondence_of_fc2_against_a_dense_hessian() -> None:
    outcome("correspondence")
    group = families.group(settings(), families.CIFAR)
    model = group.models[0].double()
    x = torch.from_numpy(inputs_of(model, "fc2", group.data.X.double()))
    fc2, fc3 = (model.get_submodule(name) for name in ("fc2", "fc3"))
    rows = []
    for each in x:
        gate = (fc2(each) > 0).double()
        p = torch.softmax(fc3(fc2(each).relu()), 0)
        G = fc3.weight * gate  # [c, m]
        J = torch.einsum("cm,n->cmn", G, each).flatten(1)
        rows.append(p.sqrt()[:, None] * (J - p @ J))
    R = (torch.cat(rows) / len(x) ** 0.5).detach().numpy()
    model.float()
    h = np.linalg.eigh(R.T @ R)[1][:, ::-1][:, :9]
    v = np.linalg.eigh((x.T @ x / len(x)).numpy())[1][:, ::-1]
    m, n = fc2.weight.shape
    expected = np.square(np.einsum("mnk,nj->jmk", h.reshape(m, n, 9), v)).sum(1)
    ours = heat("correspondence", "correspondence-fc2")["fc2: true Hessian and E[xxᵀ]"]
    np.testing.assert_allclose(ours[:, :9], expected, atol=0.03)


@pytest.mark.parametrize("layer", FIGURES)
def test_columns_of_a_correspondence_are_shares(layer: str) -> None:
    maps = heat("correspondence", f"correspondence-{layer}")
    product = maps[f"{layer}: Kronecker product and E[M]"]
    true = maps[f"{layer}: true Hessian and E[M]"]
    for values in (product, true):
        assert len(values) == {"fc1": 16, "fc2": 12, "conv1": 3, "conv2": 5}[layer]
        np.testing.assert_allclose(values.sum(0), 1, atol=1e-3)
    np.testing.assert_allclose(product.max(0), 1, atol=1e-3)  # one eigenvector of E[M] each


# Three ways of training -------------------------------------------------------------------------


def test_pairs_of_one_way_and_of_two_make_all_pairs() -> None:
    found = outcome("hyperparameters")
    schemes = trainings(settings())
    same = alike(schemes)
    assert [len(own.models) for own in schemes.values()] == [2, 1, 1]
    assert same.tolist() == [True, False, False, False, False, False]
    (picture,) = found.pictures
    for panel in picture.panels:
        every, like, unlike = (np.array(curve.y) for curve in panel.curves)
        np.testing.assert_allclose(every, (like + 5 * unlike) / 6, atol=1e-5)
    starts = [subject.initial["fc1.weight"] for own in schemes.values() for subject in own.subjects]
    assert len({float(weight[0, 0]) for weight in starts}) == 4  # independent of each other
    rates = {(own.family.recipe.lr, own.family.recipe.weight_decay) for own in schemes.values()}
    assert rates == {(0.01, 0.0), (0.001, 0.0), (0.01, 5e-4)}


# Deep networks ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "network"), [("overlap-vgg", "VGG11-W4"), ("overlap-resnet", "ResNet18-W4")]
)
def test_inputs_of_the_last_layer_of_deep_networks(entry: str, network: str) -> None:
    outcome(entry)
    variant = variants.Variant(network, "mnist-6k")
    group = networks_of(settings(), variant)
    found = [moments(inputs_of(model, "fc1", group.data.X)) for model in group.models]
    name = f"{network} on mnist-6k, fc1: mean"
    alignment, ratio = np.mean(found, 0)
    assert row(entry, f"(v₁·Ê[x])², {name}").ours == pytest.approx(alignment, abs=1e-5)
    assert row(entry, f"λ₁/λ₂, {name}").ours == pytest.approx(ratio, rel=1e-3)


def test_every_layer_has_its_curve_and_its_outputs() -> None:
    picture = outcome("overlap-vgg").pictures[0]
    assert [panel.title for panel in picture.panels] == ["conv2", "conv5", "conv6", "fc1"]
    assert [panel.lines for panel in picture.panels] == [{"m = 4": 4}] * 3 + [{"m = 10": 10}]
    assert all(len(panel.curves[0].y) == 8 for panel in picture.panels[:3])
    names = [each.name for each in outcome("overlap-vgg").pictures]
    shown = ("conv5", "conv2", "correspondence")
    assert names[1:] == [f"{start}-vgg11-w4-mnist-6k" for start in shown]


def test_kinds_of_peaks() -> None:
    assert [kind(peak, 100) for peak in (79, 80, 120, 121)] == ["early", "at m", "at m", "delayed"]


# Tables -----------------------------------------------------------------------------------------


def test_printed_means_lie_in_their_ranges() -> None:
    deep = (*variants.VGG, *variants.RESNET)
    printed = [p for v in deep for p in (v.linear, v.convolutional) if p is not None]
    for alignment, ratio in [(p.alignment, p.ratio) for p in (*ROWS, *printed)]:
        for mean, low, high in (alignment, ratio):
            assert low <= mean <= high
    assert len(printed) == 14
    assert all(list(column) == sorted(column) for column in TABLE_10.values())


def test_batch_norm_takes_the_mean_from_the_inputs() -> None:
    plain = plain_networks(settings(), "F-600^4", "mnist").models[0]
    normal = plain_networks(settings(), "F-200^2-BN", "mnist")
    alignment, ratio = np.mean(
        [moments(inputs_of(normal.models[0], layer, normal.data.X)) for layer in ("fc2", "fc3")], 0
    )
    found = row("autocorrelation", "(v₁·Ê[x])², table 8, F-200^2-BN on mnist")
    assert found.ours == pytest.approx(alignment, abs=1e-5)
    found = row("autocorrelation", "λ₁/λ₂, table 8, F-200^2-BN on mnist")
    assert found.ours == pytest.approx(ratio, rel=1e-4)
    assert row("autocorrelation", "(v₁·Ê[x])², table 6").ours > 0.9 > 0.1 > alignment
    assert [name for name, _ in plain.named_children()].count("fc5") == 1


def test_the_top_of_the_output_hessian_of_the_last_hidden_layer() -> None:
    group = plain_networks(settings(), "F-1500^3", "mnist")
    model, X = group.models[0], group.data.X
    z = torch.from_numpy(inputs_of(model, "relu-fc3", X))
    last = model.get_submodule("fc4")
    W, b = last.weight.detach().double(), last.bias.detach().double()
    p = torch.softmax(z.relu() @ W.T + b, 1)
    A = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    G = W * (z > 0).double()[:, None, :]
    M = torch.einsum("bci,bcd,bdj->ij", G, A, G).numpy() / len(z)
    top = np.linalg.eigh(M)[1][:, ::-1][:, :9]
    space = np.linalg.qr((W - W.mean(0)).numpy().T)[0][:, :9]
    expected = np.square(top.T @ space).sum() / 9
    assert row("output-spaces", "F-1500^3 on mnist, fc3").ours == pytest.approx(expected, abs=1e-3)
    assert row("output-spaces", "LeNet5 on mnist-R, fc3").ours == pytest.approx(1, abs=1e-5)


def test_networks_have_the_printed_structure() -> None:
    assert [len(printed.lines) for printed in NETWORKS] == [6, 12, 16]  # lines of tables 3 to 5
    for printed in NETWORKS:
        assert tuple(lines(printed.network, printed.inputs)) == printed.lines
    wider = lines("LeNet5-(fc1-80)", (3, 32, 32))
    different = [i for i, line in enumerate(NETWORKS[1].lines) if line != wider[i]]
    assert different == [7, 8]  # fc1 and its ReLU
    assert all(each.agrees is not False for each in outcome("structures").rows)
    assert row("structures", "table 4, LeNet5: parameters").ours == 62_006


# The full Hessian -------------------------------------------------------------------------------


def test_the_largest_eigenvalue_of_a_deep_network_by_power_iteration() -> None:
    found = outcome("full-hessian-depth").numbers["F-200^4"]
    group = plain_networks(settings(), "F-200^4", "mnist")
    model = group.models[0]
    loss = nn.functional.cross_entropy(model(group.data.X), group.data.y)
    weights = list(model.parameters())
    gradients = torch.autograd.grad(loss, weights, create_graph=True)
    v = [torch.ones_like(w) for w in weights]
    for _ in range(60):
        size = sum(float((part**2).sum()) for part in v) ** 0.5
        v = [part / size for part in v]
        product = sum((g * part).sum() for g, part in zip(gradients, v, strict=True))
        v = list(torch.autograd.grad(product, weights, retain_graph=True))
    largest = sum(float((part**2).sum()) for part in v) ** 0.5
    assert found["true"][0][0] == pytest.approx(largest, rel=0.01)
