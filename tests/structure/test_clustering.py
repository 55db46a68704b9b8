"""Mean logit gradients by their definition, and their picture."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import Tensor, nn

import curvescope as cs
from curvescope.structure.clustering import logit_clusters, tsne
from tests.cases import classes, convert


def by_definition(model: nn.Module, X: Tensor, y: Tensor, layer: str) -> tuple[Tensor, Tensor]:
    """DH eq. 53 and 54, one sample and one logit at a time."""
    module = model.get_submodule(layer)
    seen: list[Tensor] = []
    handle = module.register_forward_hook(lambda _, args, out: seen.append(out))
    delta, gamma = [], []
    for x in X:
        z = model(x[None])[0]
        p = torch.softmax(z.detach(), 0)
        Q = p.sqrt()[:, None] * (torch.eye(len(p)).double() - p)
        grads = [torch.autograd.grad(c, [module.weight, seen[-1]], retain_graph=True) for c in z]
        delta.append(Q @ torch.stack([g[0].flatten() for g in grads]))
        gamma.append(Q @ torch.stack([g[1].flatten() for g in grads]))
    handle.remove()
    c = len(p)
    means = [
        torch.stack([torch.stack(part)[y == i].mean(0) for i in range(c)])
        for part in (delta, gamma)
    ]
    return means[0], means[1]


def distances(points: Tensor) -> Tensor:
    flat = points.flatten(0, 1)
    return torch.cdist(flat, flat)


@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_points_have_the_distances_of_the_definition(kind: str) -> None:
    if kind == "linear":
        data = convert(classes(4, sizes=(7, 5)), torch.float64)
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    else:
        data = convert(classes(2, 5, 5, sizes=(7, 5)), torch.float64)
        model = nn.Sequential(
            nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 3)
        ).double()
    data = [(x, torch.arange(len(y)) % 3) for x, y in data]
    ours = logit_clusters(cs.Problem(model, data), "0")
    X, y = torch.cat([x for x, _ in data]), torch.cat([y for _, y in data])
    for clusters, expected in zip(
        (ours.weight, ours.output), by_definition(model, X, y, "0"), strict=True
    ):
        torch.testing.assert_close(
            distances(clusters.points), distances(expected), rtol=1e-7, atol=1e-8
        )
        norms = clusters.logit_centers.norm(dim=1)
        gram = expected.mean(0).flatten(1).norm(dim=1)
        torch.testing.assert_close(norms, gram, rtol=1e-7, atol=1e-9)
        flat, middle = expected.flatten(0, 1), expected.mean((0, 1))
        between = 3 * (expected.mean(0) - middle).square().sum()
        total = (flat - middle).square().sum()
        assert clusters.logit_share == pytest.approx(float(between / total))


def test_a_class_without_samples() -> None:
    model = nn.Linear(2, 3).double()
    clusters = logit_clusters(
        cs.Problem(model, (torch.randn(4, 2).double(), torch.tensor([0, 2, 0, 2]))), ""
    ).output
    assert clusters.present.tolist() == [True, False, True]
    assert clusters.points[1].abs().max() < 1e-12
    assert 0 <= clusters.class_share <= 1


def test_picture() -> None:
    pytest.importorskip("sklearn")
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)).double()
    X, y = torch.randn(40, 4).double(), torch.arange(40) % 4
    clusters = logit_clusters(cs.Problem(model, (X, y)), "0").weight
    pictures = [
        tsne(clusters, generator=torch.Generator().manual_seed(1), perplexity=5.0) for _ in range(2)
    ]
    assert pictures[0].points.shape == (4, 4, 2)
    assert pictures[0].logit_centers.shape == pictures[0].class_centers.shape == (4, 2)
    torch.testing.assert_close(pictures[0].points, pictures[1].points)
    assert bool(torch.isfinite(pictures[0].points).all())
    with pytest.raises(cs.CurvescopeError, match="between 0 and the 24 points, got 30"):
        tsne(clusters, generator=torch.Generator(), perplexity=30)


def test_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)
    model = nn.Linear(2, 2).double()
    clusters = logit_clusters(
        cs.Problem(model, (torch.randn(4, 2).double(), torch.tensor([0, 1, 0, 1]))), ""
    ).output
    with pytest.raises(cs.CurvescopeError, match="needs scikit-learn; install it with"):
        tsne(clusters, generator=torch.Generator())


def test_refusals() -> None:
    model = nn.Linear(2, 2).double()
    problem = cs.Problem(
        model, (torch.randn(3, 2).double(), torch.randn(3, 2).double()), loss="mse"
    )
    with pytest.raises(cs.CurvescopeError, match="needs cross-entropy with one class label"):
        logit_clusters(problem, "")
