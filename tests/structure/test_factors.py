"""Kronecker factors against per-sample references, closed regimes and another library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import curvescope as cs
from curvescope.structure.factors import kronecker_factors
from tests.cases import classes, convert, positions, signs, values
from tests.conformance import assert_relative
from tests.reference.curvature import Reference
from tests.reference.losses import CrossEntropy


def softmax_hessian(z: Tensor) -> Tensor:
    p = torch.softmax(z, -1)
    return torch.diag(p) - torch.outer(p, p)


def reference_factors(
    model: nn.Module, data: list[tuple[Tensor, Tensor]], layer: str, unfold: Any = None
) -> tuple[Tensor, Tensor, Tensor]:
    """DH A.1 and A.2 word by word, one sample and one output entry at a time."""
    module = model.get_submodule(layer)
    seen: dict[str, Tensor] = {}
    handle = module.register_forward_hook(
        lambda _, args, out: seen.update(x=args[0].detach(), y=out)
    )
    M = X2 = X1 = 0
    count = 0
    for inputs, _ in data:
        for x in inputs:
            z = model(x[None])[0]
            rows = [torch.autograd.grad(c, seen["y"], retain_graph=True)[0][0] for c in z]
            G = torch.stack(rows).flatten(2) if rows[0].ndim > 1 else torch.stack(rows)[..., None]
            p = torch.softmax(z.detach(), -1)
            Q = p.sqrt()[:, None] * (torch.eye(len(p)).double() - p)  # DH eq. 28
            N = torch.einsum("cd,dmt->cmt", Q, G)
            patches = seen["x"][0][:, None] if unfold is None else unfold(seen["x"])[0]
            M = M + torch.einsum("cmt,cnt->mn", N, N) / N.shape[2]
            X2, X1 = X2 + patches @ patches.T, X1 + patches
            count += 1
    handle.remove()
    return M / count, X2 / count, (X1 / count).squeeze(-1)


def tanh_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "plain": {"kernel_size": 3},
    "strided": {"kernel_size": 3, "stride": 2, "padding": 1},
    "dilated": {"kernel_size": 2, "dilation": (1, 2), "padding": (0, 1)},
}


def test_linear_layers() -> None:
    model, data = tanh_mlp(), convert(classes(4), torch.float64)
    factors = kronecker_factors(cs.Problem(model, data))
    assert list(factors) == ["0", "2"]
    for layer, ours in factors.items():
        M, X2, X1 = reference_factors(model, data, layer)
        assert_relative(ours.output_hessian, M, rtol=1e-10, what="E[M]")
        assert_relative(ours.autocorrelation, X2, rtol=1e-10, what="E[x xᵀ]")
        assert_relative(ours.mean_input, X1, rtol=1e-10, what="E[x]")
        assert torch.equal(ours.output_hessian, ours.output_hessian.T)
        torch.testing.assert_close(ours.mean_direction, X1 / X1.norm())


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("size", [6, 16])
def test_convolutions(name: str, size: int) -> None:
    """Both forms of the error moment: few positions and many."""
    settings = CONVOLUTIONS[name]
    conv = nn.Conv2d(2, 4, **settings).double()
    data = convert(classes(2, size, size, sizes=(3, 2)), torch.float64)
    width = conv(data[0][0])[0].numel()
    model = nn.Sequential(conv, nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(width, 3))
    model = model.double().eval()
    ours = kronecker_factors(cs.Problem(model, data), layers="0")["0"]
    M, X2, X1 = reference_factors(model, data, "0", lambda x: F.unfold(x, **settings))
    assert_relative(ours.output_hessian, M, rtol=1e-10, what="E[Ñᵀ Ñ / T]")
    assert_relative(ours.autocorrelation, X2, rtol=1e-10, what="E[X Xᵀ]")
    assert_relative(ours.mean_input, X1, rtol=1e-10, what="E[X]")
    left = torch.linalg.svd(X1)[0][:, 0]
    assert abs(float(left @ ours.mean_direction)) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("shape", "make"),
    [
        ((7,), lambda: nn.Conv1d(2, 4, 3, padding="same", groups=2)),
        ((4, 3, 4), lambda: nn.Conv3d(2, 4, (2, 1, 3), padding=1, stride=(1, 2, 1))),
        ((5, 5), lambda: nn.Conv2d(2, 4, 3, padding=1, groups=2)),
        ((5, 5), lambda: nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect")),
    ],
)
def test_moments_of_any_convolution_are_those_of_its_record(
    shape: tuple[int, ...], make: Callable[[], nn.Module]
) -> None:
    from curvescope.record.layers import record_layers
    from curvescope.record.outputs import LossHessian
    from curvescope.record.roots import root

    conv = make().double()
    data = convert(classes(2, *shape, sizes=(4,)), torch.float64)
    width = conv(data[0][0])[0].numel()
    problem = cs.Problem(
        nn.Sequential(conv, nn.Tanh(), nn.Flatten(), nn.Linear(width, 3)).double(), data
    )
    ours = kronecker_factors(problem, layers="0")["0"]
    directions = lambda z, y: root(LossHessian(), problem.loss.at(z, y), z, 0)  # noqa: E731
    record = record_layers(problem, next(problem.batches()), "0", directions)["0"]
    e, x = record.errors, record.inputs
    M = torch.einsum("bktm,bktn->mn", e, e) / (4 * x.shape[1])
    assert_relative(ours.output_hessian, M, rtol=1e-12, what="E[M]")
    assert_relative(
        ours.autocorrelation, torch.einsum("btm,btn->mn", x, x) / 4, rtol=1e-12, what="E[X Xᵀ]"
    )
    assert_relative(ours.mean_input, x.mean(0).T, rtol=1e-12, what="E[X]")


def test_the_product_is_exact_for_one_sample() -> None:
    """``M ⊗ x xᵀ`` needs no decoupling, with the bias too."""
    data = convert(classes(4, sizes=(1,)), torch.float64)
    model = tanh_mlp()
    reference = Reference(model, data, CrossEntropy()).gauss_newton()
    problem = cs.Problem(model, data)
    K = kronecker_factors(problem)["0"].operator()
    assert_relative(K.dense(), reference[:20, :20], rtol=1e-10, what="weight")
    with_bias = kronecker_factors(problem, bias=True)["0"].operator()
    order = [j * 5 + i for j in range(5) for i in range(4)] + [j * 5 + 4 for j in range(5)]
    assert_relative(
        with_bias.dense()[order][:, order], reference[:25, :25], rtol=1e-10, what="with bias"
    )


def test_the_output_hessian_is_the_bias_block() -> None:
    """DH eq. 25: ``H(b) = E[M]``, exactly, for any piecewise linear network."""
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    problem = cs.Problem(model, convert(classes(4), torch.float64))
    factors, H = kronecker_factors(problem), cs.Hessian(problem)
    for layer in ("0", "2"):
        dense = H.block(f"{layer}.bias").dense()
        assert_relative(factors[layer].output_hessian, dense, rtol=1e-10, what=layer)


@pytest.mark.parametrize("kind", ["mse", "binary_logistic"])
def test_other_losses(kind: str) -> None:
    """One linear layer: ``E[M]`` is the mean output Hessian."""
    data = convert(values(4) if kind == "mse" else signs((1,)), torch.float64)
    model = nn.Linear(4, 3 if kind == "mse" else 1).double()
    ours = kronecker_factors(cs.Problem(model, data, loss=kind))[""].output_hessian
    if kind == "mse":
        expected = 2 / 3 * torch.eye(3).double()
    else:
        p = torch.sigmoid(torch.cat([model(x) for x, _ in data]).detach())
        expected = (p * (1 - p)).mean().reshape(1, 1)
    assert_relative(ours, expected, rtol=1e-12, what=kind)


def test_labels_at_positions() -> None:
    """The mean is over the labels that count; the input's over the samples."""
    model = nn.Sequential(nn.Linear(3, 4)).double()
    data = convert(positions(ignored=True), torch.float64)
    ours = kronecker_factors(cs.Problem(model, data))["0"]
    terms = [
        softmax_hessian(model(x)[b, t].detach())
        for x, y in data for b in range(len(y)) for t in range(5) if y[b, t] != -100
    ]  # fmt: skip
    # M is the sum over a sample's positions; Ñ Ñᵀ divides by their number.
    assert_relative(
        ours.output_hessian, torch.stack(terms).sum(0) / len(terms) / 5, rtol=1e-12, what="E[M]"
    )
    x = torch.cat([x for x, _ in data])
    expected = torch.einsum("btm,btn->mn", x, x) / len(x)
    assert_relative(ours.autocorrelation, expected, rtol=1e-12, what="E[X Xᵀ]")


def test_batches_do_not_matter() -> None:
    data = convert(classes(2, 6, 6), torch.float64)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3)).double()
    one = (torch.cat([x for x, _ in data]), torch.cat([y for _, y in data]))
    a, b = kronecker_factors(cs.Problem(model, data)), kronecker_factors(cs.Problem(model, one))
    for layer in a:
        for field in ("output_hessian", "autocorrelation", "mean_input"):
            torch.testing.assert_close(getattr(a[layer], field), getattr(b[layer], field))


def test_by_class() -> None:
    data = convert(classes(2, 6, 6), torch.float64)
    data = [(x, torch.where(y == 1, 2, y)) for x, y in data]  # nobody has label 1
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3)).double()
    plain = kronecker_factors(cs.Problem(model, data), bias=True)
    ours = kronecker_factors(cs.Problem(model, data), bias=True, by_class=True)
    X, y = torch.cat([x for x, _ in data]), torch.cat([y for _, y in data])
    for layer in plain:
        total, parts = ours[layer], ours[layer].classes
        assert [part.share for part in parts] == [float((y == c).double().mean()) for c in range(3)]
        assert not plain[layer].classes
        assert parts[1].output_hessian.abs().max() == 0
        for field in ("output_hessian", "autocorrelation", "mean_input"):
            torch.testing.assert_close(getattr(total, field), getattr(plain[layer], field))
        for c in (0, 2):
            alone = kronecker_factors(cs.Problem(model, (X[y == c], y[y == c])), bias=True)[layer]
            torch.testing.assert_close(parts[c].output_hessian, alone.output_hessian)
            torch.testing.assert_close(parts[c].autocorrelation, alone.autocorrelation)


def test_against_curvlinops() -> None:
    """Exact ("type-2") KFAC of another library: the same Kronecker product, layer by layer."""
    from curvlinops import KFACLinearOperator

    data = convert(classes(2, 6, 6), torch.float64)
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(108, 3)
    ).double()
    model = model.eval()
    params = list(model.parameters())
    for separate in (True, False):
        theirs = KFACLinearOperator(
            model, nn.CrossEntropyLoss(), params, data, fisher_type="type-2",
            kfac_approx="expand", separate_weight_and_bias=separate, check_deterministic=False,
        )  # fmt: skip
        dense = theirs @ torch.eye(theirs.shape[1]).double()
        problem = cs.Problem(model, data)
        for layer, factors in kronecker_factors(problem, bias=not separate).items():
            K = factors.operator().dense()
            weight = problem.params.slice(f"{layer}.weight")
            m, n = factors.output_hessian.shape[0], factors.autocorrelation.shape[0]
            if separate:
                assert_relative(K, dense[weight, weight], rtol=1e-10, what=layer)
                continue
            index = torch.arange(m * n).reshape(m, n)[:, :-1].flatten()
            assert_relative(K[index][:, index], dense[weight, weight], rtol=1e-10, what=layer)


def test_float32() -> None:
    model, data = tanh_mlp(), convert(classes(4), torch.float64)
    exact = kronecker_factors(cs.Problem(model, data))["0"]
    single = kronecker_factors(cs.Problem(model.float(), convert(data, torch.float32)))["0"]
    assert single.output_hessian.dtype == torch.float32
    assert_relative(single.output_hessian, exact.output_hessian, rtol=1e-5, what="E[M]")
    assert_relative(single.autocorrelation, exact.autocorrelation, rtol=1e-5, what="E[x xᵀ]")


def test_edges() -> None:
    narrow = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 2)).double()
    problem = cs.Problem(narrow, (torch.ones(1, 1).double(), torch.tensor([1])))
    factors = kronecker_factors(problem, bias=True, by_class=True)
    assert factors["0"].output_hessian.shape == (1, 1)
    assert factors["2"].autocorrelation.shape == (2, 2)
    expected = cs.GaussNewton(problem).block("2").dense()
    order = [0, 2, 1, 3]  # weights first, then biases
    ours = factors["2"].operator().dense()[order][:, order]
    torch.testing.assert_close(ours, expected)


def test_refusals() -> None:
    model = tanh_mlp()
    data = (torch.randn(2, 4).double(), torch.tensor([0, 1]))
    with pytest.raises(cs.CurvescopeError, match="'9' is not in the model"):
        kronecker_factors(cs.Problem(model, data), layers=["0", "9"])
    with pytest.raises(cs.CurvescopeError, match=r"'1' must be Conv1d, .*Linear.*, got Tanh"):
        kronecker_factors(cs.Problem(model, data), layers="1")
    values_ = (data[0], torch.randn(2, 3).double())
    with pytest.raises(cs.CurvescopeError, match="needs one class label for each sample"):
        kronecker_factors(cs.Problem(model, values_, loss="mse"), by_class=True)
    with pytest.raises(cs.CurvescopeError, match="no target counts"):
        kronecker_factors(cs.Problem(model, (data[0], torch.tensor([-100, -100]))))

    def concave(output: Tensor, target: Tensor) -> Tensor:
        return -((output - target) ** 2).mean()

    with pytest.raises(cs.CurvescopeError, match="loss is not convex in the output"):
        kronecker_factors(cs.Problem(model, values_, loss=concave))
    for wrong, message in (
        ({"sharing": "mean"}, "sharing must be one of"),
        ({"draws": 0}, "draws"),
        ({"draws": 1}, "generator"),
    ):
        with pytest.raises(cs.CurvescopeError, match=message):
            kronecker_factors(cs.Problem(model, data), **wrong)
