"""Entries of DH about eigenvectors as matrices and about inputs, against dense references."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from curvescope.studies.dissecting_hessian import families
from curvescope.studies.dissecting_hessian.per_layer import NETWORKS
from tests.studies.dissecting import outcome, row, settings


def test_singular_values_of_the_first_eigenvectors_against_a_dense_hessian() -> None:
    found = np.array(outcome("singular-values").numbers["values"])
    group = families.group(settings(), families.CIFAR)
    model = group.models[0].double()
    weight = model.get_parameter("fc1.weight")
    rows = []
    for x in group.data.X.double():
        z = model(x[None])[0]
        J = torch.stack(
            [torch.autograd.grad(out, weight, retain_graph=True)[0].flatten() for out in z]
        )
        p = torch.softmax(z.detach(), 0)
        rows.append(p.sqrt()[:, None] * (J - p @ J))
    model.float()
    R = (torch.cat(rows) / len(group.data) ** 0.5).detach().numpy()
    # G of a piecewise linear network is its layers' Hessian.
    values, vectors = np.linalg.eigh(R.T @ R)
    assert values[-4] > 1.05 * values[-5]
    for i in (0, 1):  # these are far enough from their neighbors to be compared one by one
        matrix = vectors[:, -1 - i].reshape(weight.shape)
        expected = np.linalg.svd(matrix, compute_uv=False)[:10]
        np.testing.assert_allclose(found[i], expected, atol=0.02)
    np.testing.assert_array_less(np.square(found).sum(1), 1 + 1e-5)


@pytest.mark.parametrize("layer", ["fc1", "fc2", "fc3"])
def test_the_mean_against_the_covariance_layer_by_layer(layer: str) -> None:
    outcome("per-layer")
    group = families.group(settings(), families.MNIST)
    ratios, products = [], []
    for model in group.models:
        seen: list[torch.Tensor] = []
        hook = model.get_submodule(layer).register_forward_pre_hook(lambda _, x: seen.append(x[0]))  # noqa: B023
        with torch.no_grad():
            model(group.data.X)
        hook.remove()
        x = seen[0].double().numpy()
        mean = x.mean(0)
        ratios.append(mean @ mean / np.linalg.eigvalsh(np.cov(x.T, bias=True))[-1])
        top = np.linalg.eigh(x.T @ x / len(x))[1][:, -1]
        products.append(abs(top @ mean) / np.linalg.norm(mean))
    ratio = row("per-layer", f"‖E[x]E[x]ᵀ‖/‖Σ‖, F-200^2, {layer}")
    assert ratio.ours == pytest.approx(np.mean(ratios), rel=1e-3)
    product = row("per-layer", f"|v₁·Ê[x]|, F-200^2, {layer}")
    assert product.ours == pytest.approx(np.mean(products), rel=1e-4)


def test_printed_rows_have_a_number_for_each_layer() -> None:
    for printed in NETWORKS:
        assert len(printed.layers) == len(printed.ratios) == len(printed.products)
        assert all(0 < product <= 1 for product in printed.products)
    first = {p.title: p.ratios[0] for p in NETWORKS}
    assert first["F-200^2"] == 25.142
    assert first["LeNet5"] == first["LeNet5-(fc1-80)"] == 5.474
