"""Features, errors and weights of layers against moments written out example by example."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from curvescope.problem import Problem
from curvescope.structure import moments as module
from curvescope.structure.layers import MomentStatistics, WeightStatistics, layer_statistics
from curvescope.structure.moments import layer_moments
from tests.cases import BY_NAME
from tests.conformance import assert_relative

F64 = torch.float64


def network(classes: int = 3) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 7), nn.Tanh(),
        nn.Linear(7, classes),
    ).double()  # fmt: skip


def images(samples: int, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(samples, 2, 6, 6, dtype=F64, generator=g)


def replications(model: nn.Module, X: Tensor, layer: str) -> tuple[Tensor, Tensor, Tensor]:
    """``h: [N, T, n]``, ``δ: [N, C, T, m]`` and ``p: [N, C]``, one sample at a time."""
    target: nn.Module = model.get_submodule(layer)
    inputs, errors, probabilities = [], [], []
    for x in X:
        kept: list[Tensor] = []
        handle = target.register_forward_hook(lambda m, a, out, kept=kept: kept.extend([a[0], out]))
        z = model(x[None])
        handle.remove()
        h, out = kept[0].detach(), kept[1]
        p = torch.softmax(z, 1)[0].detach()
        rows = []
        for c in range(len(p)):
            slope = p.clone()
            slope[c] -= 1
            (d,) = torch.autograd.grad(z, out, slope[None], retain_graph=True)
            rows.append(d[0].reshape(d.shape[1], -1).T)  # [T, m]
        errors.append(torch.stack(rows))
        inputs.append(F.unfold(h, 3)[0].T if h.ndim == 4 else h)
        probabilities.append(p)
    return torch.stack(inputs), torch.stack(errors), torch.stack(probabilities)


def sorted_spectrum(matrix: Tensor) -> Tensor:
    return torch.linalg.eigvalsh(matrix).flip(0)


def knocked_out(A: Tensor, B: Tensor) -> Tensor:
    """TR def. 3.2 with a pseudo-inverse."""
    P = torch.eye(len(A), dtype=F64) - B @ torch.linalg.pinv(B, hermitian=True, rtol=1e-12)
    return sorted_spectrum(P @ A @ P)


def compare(ours: Tensor, theirs: Tensor, what: str, of: Tensor) -> None:
    """Against the size of the matrix that the spectrum is a part of."""
    scale = float(torch.linalg.matrix_norm(of, 2))
    assert_relative(ours, theirs[: len(ours)], rtol=1e-10, what=what, scale=scale)
    assert float(theirs[len(ours) :].abs().sum()) <= 1e-10 * scale


@pytest.mark.parametrize("layer", ["0", "4", "6"])
@pytest.mark.parametrize("batch_size", [None, 4])
def test_moments_and_their_parts(layer: str, batch_size: int | None) -> None:
    model, X = network(), images(13)
    y = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2])  # unbalanced
    found = layer_statistics(Problem(model, (X, y), batch_size=batch_size), layers=layer)[layer]
    h, d, p = replications(model, X, layer)
    N, T, _ = h.shape
    # features
    H = torch.einsum("itn,itk->nk", h, h) / (N * T)
    means = torch.stack([h[y == c].mean((0, 1)) for c in range(3)])
    share = torch.tensor([6, 4, 3], dtype=F64) / 13
    H_class = torch.einsum("c,cn,ck->nk", share, means, means)
    features = found.features
    compare(features.total, sorted_spectrum(H), "H", H)
    compare(features.class_part, sorted_spectrum(H_class), "H_class", H)
    compare(features.within, sorted_spectrum(H - H_class), "H_within", H)
    compare(features.without_class, knocked_out(H, H_class), "H without class", H)
    center = share @ means
    assert features.global_mean == pytest.approx(float(center @ center), rel=1e-12)
    assert len(features.diagonal) == 0
    # errors: a replication is an example at a position, with the weight p / N
    w = (p / N)[:, :, None].expand(N, 3, T)
    D = torch.einsum("ict,ictm,ictk->mk", w, d, d)
    parts = {k: torch.zeros_like(D) for k in ("class", "cross", "diagonal", "within")}
    total, weight = torch.zeros(d.shape[3], dtype=F64), torch.zeros((), dtype=F64)
    for c in range(3):
        own, others = y == c, [k for k in range(3) if k != c]
        W = w[own].sum((0, 2))
        M = torch.einsum("ict,ictm->cm", w[own], d[own]) / W[:, None]
        mean = (W[others, None] * M[others]).sum(0) / W[others].sum()
        total, weight = total + W[others].sum() * mean, weight + W[others].sum()
        parts["class"] += W[others].sum() * torch.outer(mean, mean)
        parts["diagonal"] += W[c] * torch.outer(M[c], M[c])
        for k in others:
            parts["cross"] += W[k] * torch.outer(M[k] - mean, M[k] - mean)
        rest = d[own] - M[:, None]
        parts["within"] += torch.einsum("ict,ictm,ictk->mk", w[own], rest, rest)
    assert_relative(sum(parts.values()), D, rtol=1e-12, what="the four parts")
    errors = found.errors
    both = parts["class"] + parts["cross"]
    compare(errors.total, sorted_spectrum(D), "Δ", D)
    compare(errors.class_part, sorted_spectrum(parts["class"]), "Δ_class", D)
    compare(errors.class_and_cross, sorted_spectrum(both), "Δ_class + Δ_cross", D)
    compare(errors.diagonal, sorted_spectrum(parts["diagonal"]), "Δ_{c=c'}", D)
    compare(errors.within, sorted_spectrum(parts["within"]), "Δ_within", D)
    compare(errors.without_class, knocked_out(D, parts["class"]), "Δ without class", D)
    compare(errors.without_cross, knocked_out(D, both), "Δ without class and cross", D)
    assert errors.global_mean == pytest.approx(float(total @ total / weight), rel=1e-10)


def test_small_pieces_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(network(), (images(9), torch.arange(9) % 3))
    whole = layer_moments(problem)
    monkeypatch.setattr(module, "_CHUNK", 1)
    for name, own in layer_moments(problem).items():
        for field in ("second_features", "feature_means", "second_errors", "error_means"):
            theirs = getattr(whole[name], field)
            assert_relative(getattr(own, field), theirs, rtol=1e-12, what=f"{name}: {field}")


def test_the_class_part_of_weights_is_minus_the_gradient_when_features_do_not_vary() -> None:
    model = network()
    X = images(3)[[0, 0, 1, 1, 1, 2]]
    problem = Problem(model, (X, torch.tensor([0, 0, 1, 1, 1, 2])))
    moments = layer_moments(problem)
    gradient = problem.params.unflatten(problem.gradient())
    for name in ("4", "6"):  # at one position
        expected = -gradient[f"{name}.weight"]
        assert_relative(moments[name].weight_class(), expected, rtol=1e-10, what=name)


def test_the_knockout_of_weights() -> None:
    problem = Problem(network(), (images(8), torch.arange(8) % 3))
    statistics: WeightStatistics = layer_statistics(problem)["4"].weights
    W = problem.model.get_submodule("4").weight.detach()  # type: ignore[union-attr]
    W_class = layer_moments(problem)["4"].weight_class()
    U, s, Vh = torch.linalg.svd(W_class, full_matrices=False)
    U, V = U[:, :3], Vh[:3].T  # rank C
    expected = (torch.eye(7) - U @ U.T) @ W @ (torch.eye(12) - V @ V.T)
    compare(statistics.total, torch.linalg.svdvals(W), "W", W)
    compare(statistics.class_part, s, "W_class", W)
    compare(statistics.without_class, torch.linalg.svdvals(expected), "W without class", W)


def moments_of(total: list[float], class_part: list[float], left: list[float]) -> MomentStatistics:
    a, b, c = (torch.tensor(x, dtype=F64) for x in (total, class_part, left))
    return MomentStatistics(a, b, b, b[:0], c, c, c, 0.0, 2e-13)


def test_numbers_of_a_spectrum() -> None:
    found = moments_of([90.0, 10.0, 8.0, 2.0, 1.0], [80.0, 8.0, 4.0], [2.0, 1.0, 0.0, 0.0, 0.0])
    assert found.whiskers == (8.0, 4.0)
    assert found.whitening == 2.0
    assert found.separation == pytest.approx((92 / 3) / 2)
    assert found.outliers == 3
    # the smallest eigenvalue of dependent means is rounding, and not a whisker
    assert moments_of([3.0] * 5, [80.0, 8.0, 4.0, 1e-15], [1.0] * 5).whiskers == (8.0, 4.0)
    assert moments_of([1.0], [0.0], [0.0]).whiskers == (0.0, 0.0)
    # nothing but rounding is left without the class means: no outlier, and no edge to compare with
    within = moments_of([2.7e-4, 1.2e-4, 5.2e-20], [2.7e-4, 1.2e-4], [1e-30, 0.0, 0.0])
    assert within.outliers == 2
    assert within.separation == float("inf")
    # an eigenvalue far below the largest one is still an outlier if rounding is below it
    assert moments_of([1.0, 1e-9], [1.0, 1e-9], [1e-12, 0.0]).outliers == 2


@pytest.mark.parametrize("dtype", [F64, torch.float32])
@pytest.mark.parametrize(
    "scale", [1.0, 20.0]
)  # probabilities of all sizes, and nearly certain ones
def test_errors_of_the_last_layer_have_one_outlier_less_than_classes(
    dtype: torch.dtype, scale: float
) -> None:
    """They sum to zero, so that ``Δ`` has the rank ``C − 1`` and the class means all of it."""
    C = 6
    model = nn.Linear(C, C, bias=False).to(dtype)
    with torch.no_grad():
        model.weight.copy_(scale * torch.eye(C) + 0.1 * images(1)[0, 0])
    y = torch.arange(60) % C
    noise = 0.1 * torch.randn(60, C, generator=torch.Generator().manual_seed(3))
    X = (torch.eye(C)[y] + noise).to(dtype)
    errors = layer_statistics(Problem(model, (X, y)))[""].errors
    assert int((errors.total > 1e-6 * errors.total[0]).sum()) == C - 1
    assert errors.outliers == C - 1


# Edges -------------------------------------------------------------------------------------------


def test_classes_that_are_empty_single_or_more_than_features() -> None:
    model = nn.Sequential(nn.Linear(4, 2), nn.Tanh(), nn.Linear(2, 6)).double()
    X = torch.randn(7, 4, dtype=F64)
    y = torch.tensor([0, 0, 0, 1, 4, 4, 5])  # 2 and 3 are empty, 1 and 5 have one example
    found = layer_statistics(Problem(model, (X, y)))["2"]
    assert len(found.features.class_part) == 2  # no more than features
    assert float(found.features.without_class.max()) < 1e-12  # nothing is left beside the means
    for statistics in (found.features, found.errors):
        for field in ("total", "class_part", "class_and_cross", "within", "without_cross"):
            assert bool(torch.isfinite(getattr(statistics, field)).all())


def test_two_classes() -> None:
    found = layer_statistics(BY_NAME["logistic-column"].problem())
    assert all(own.classes == 2 for own in found.values())


def test_probabilities_that_underflow() -> None:
    model = nn.Linear(2, 3, bias=False).double()
    with torch.no_grad():
        model.weight.mul_(1e5)
    X = torch.randn(9, 2, dtype=F64)
    found = layer_statistics(Problem(model, (X, torch.arange(9) % 3)))[""]
    assert bool(torch.isfinite(found.errors.total).all())
    assert bool(torch.isfinite(found.errors.class_and_cross).all())
