"""The Gram form: the spectrum of G from its rows, for every kind of layer and of memory."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from curvescope.errors import CurvescopeError
from curvescope.operators import row_blocks, rows
from curvescope.operators.gauss_newton import EmpiricalFisher, GaussNewton, MonteCarloFisher
from curvescope.operators.gram import GramForm
from curvescope.operators.hessian import Hessian
from curvescope.operators.rows import LayerRows, WrittenRows
from curvescope.operators.simple import LowRank
from curvescope.problem import Problem
from curvescope.record import memory
from curvescope.record.extended import class_directions
from curvescope.spectra.exact import exact_spectrum
from tests.cases import BY_NAME, dense
from tests.conformance import assert_relative

F64 = torch.float64
CASES = [
    "cross_entropy", "cross_entropy-ignored", "cross_entropy-class-axis-1", "logistic-column",
    "mse-positions", "frozen-mse", "params-parameter", "params-list", "reused-module",
    "conv-groups-no-bias", "conv-1d-transposed", "batch-norm-eval", "batch-norm-train",
    "batch-norm-no-statistics", "sdpa-causal-positions", "logits-object-dict-input",
    "tuple-input", "control-flow", "checkpoint",
]  # fmt: skip


def check_spectrum(K: Tensor, matrix: Tensor, *, rtol: float = 1e-12) -> None:
    """The non-zero eigenvalues of both are the same, and the rest vanishes."""
    ours, theirs = (torch.linalg.eigvalsh(m).flip(0) for m in (K, matrix))
    k = min(len(ours), len(theirs))
    scale = float(theirs[0])
    assert_relative(ours[:k], theirs[:k], rtol=rtol, what="spectrum", scale=scale)
    assert float(ours[k:].abs().sum() + theirs[k:].abs().sum()) <= rtol * scale


@pytest.mark.parametrize("name", CASES)
def test_gauss_newton(name: str) -> None:
    G = GaussNewton(BY_NAME[name].problem())
    form = G.dual()
    assert isinstance(form, GramForm)
    K = form.matrix()
    assert K.shape == (form.size, form.size)
    assert torch.equal(K, K.T)
    check_spectrum(K, dense(name, "gauss_newton"))
    torch.testing.assert_close(form.diagonal(), K.diagonal(), atol=1e-14, rtol=1e-12)


@pytest.mark.parametrize("name", ["cross_entropy", "mse", "conv-stride-padding"])
def test_empirical_fisher_and_multiples(name: str) -> None:
    A = 2.5 * EmpiricalFisher(BY_NAME[name].problem())
    form = A.dual()
    assert form is not None
    assert form.size == 12  # one row for each sample
    check_spectrum(form.matrix(), 2.5 * dense(name, "empirical_fisher"))


def test_layers_sum_to_the_whole_and_have_their_own_spectra() -> None:
    problem = BY_NAME["residual-batch-norm-eval"].problem()
    form = GaussNewton(problem).dual()
    assert isinstance(form, GramForm)
    G = dense("residual-batch-norm-eval", "gauss_newton")
    total = torch.zeros(form.size, form.size, dtype=F64)
    for layer in problem.params.layers:
        own = form.restrict(layer).matrix()
        total += own
        index = problem.params.indices(problem.params.resolve(layer))
        check_spectrum(own, G[index][:, index])
        block = GaussNewton(problem).block(layer).dual()
        assert block is not None
        torch.testing.assert_close(block.matrix(), own, atol=1e-14, rtol=1e-12)
    torch.testing.assert_close(total, form.matrix(), atol=1e-13, rtol=1e-12)


def test_the_class_rows_have_the_same_spectrum_and_a_row_for_each_class() -> None:
    problem = BY_NAME["cross_entropy"].problem()
    fewer, all_classes = GaussNewton(problem).dual(), GramForm(problem, class_directions)
    assert fewer is not None
    assert (fewer.size, all_classes.size) == (12 * 2, 12 * 3)
    check_spectrum(all_classes.matrix(), dense("cross_entropy", "gauss_newton"))


def test_what_has_no_gram_form() -> None:
    problem = BY_NAME["cross_entropy"].problem()
    G = GaussNewton(problem)
    generator = torch.Generator().manual_seed(0)
    for A in (Hessian(problem), G - Hessian(problem), -1.0 * G, G + EmpiricalFisher(problem)):
        assert A.dual() is None
    assert MonteCarloFisher(problem, generator=generator).dual() is None
    assert GaussNewton(BY_NAME["callable-not-convex"].problem()).dual() is None


def test_low_rank() -> None:
    U = torch.randn(50, 4, dtype=F64)
    scales = torch.tensor([3.0, 0.5, 0.0, 2.0], dtype=F64)
    A = LowRank(U, scales)
    form = A.dual()
    assert form is not None
    check_spectrum(form.matrix(), A.dense())
    assert LowRank(U, -scales).dual() is None
    assert LowRank(U, scales, torch.randn(50, 4, dtype=F64)).dual() is None


# Blocks, slices and forms -----------------------------------------------------------------------


def convolutional() -> tuple[nn.Module, Tensor, Tensor]:
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 3), nn.ReLU(),
        nn.Flatten(), nn.BatchNorm1d(4), nn.Linear(4, 3),
    ).double()  # fmt: skip
    return model, torch.randn(11, 2, 6, 6, dtype=F64), torch.arange(11) % 3


@pytest.mark.parametrize("free", [1 << 30, 40_000, 12_000])
def test_blocks_do_not_change_the_matrix(free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, X, y = convolutional()
    problem = Problem(model, (X, y), batch_size=4)
    expected = GaussNewton(problem).dual()
    assert isinstance(expected, GramForm)
    K = expected.matrix()
    monkeypatch.setattr(memory, "free", lambda device: free)
    monkeypatch.setattr(row_blocks, "_CHUNK", {"cpu": 20_000})
    monkeypatch.setattr(rows, "_TILE", 8)
    form = GaussNewton(problem).dual()
    assert isinstance(form, GramForm)
    monkeypatch.setattr(type(form.footprint()), "fits", True)
    assert (len(form.source.blocks()) > 1) == (free < 1 << 30)
    torch.testing.assert_close(form.matrix(), K, atol=1e-14, rtol=1e-12)


@pytest.mark.parametrize(("T", "by_positions"), [(1, True), (3, True), (40, False)])
def test_both_forms_of_a_layer_agree(T: int, by_positions: bool) -> None:
    g = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, dtype=F64, generator=g)  # noqa: E731
    a = LayerRows(draw(4, 2, T, 5), draw(4, T, 60))
    b = LayerRows(draw(3, 2, T, 5), draw(3, T, 60))
    assert a.by_positions == by_positions
    plain = [
        torch.einsum("bktm,btn->bkmn", r.errors, r.inputs).reshape(r.count, -1) for r in (a, b)
    ]
    expected = plain[0] @ plain[1].T
    for left in (a, a.written()):
        for right in (b, b.written()):
            out = torch.zeros(8, 6, dtype=F64)
            left.add_products(right, out)
            torch.testing.assert_close(out, expected)
    torch.testing.assert_close(a.squared_norms(), plain[0].square().sum(1))
    torch.testing.assert_close(a.written().squared_norms(), plain[0].square().sum(1))
    assert isinstance(LayerRows(draw(2, 2, 40, 5), draw(2, 40, 6)).compact(), WrittenRows)


def test_batches_of_different_lengths() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    g = torch.Generator().manual_seed(0)
    data = [
        (torch.randn(2, T, 3, dtype=F64, generator=g), torch.randint(2, (2, T), generator=g))
        for T in (1, 3, 7)
    ]
    problem = Problem(model, data)
    form = GaussNewton(problem).dual()
    assert form is not None
    assert form.size == 2 * (1 + 3 + 7)
    check_spectrum(form.matrix(), GaussNewton(problem).dense())


def test_a_loader_that_shuffles() -> None:
    model, X, y = convolutional()
    loader = DataLoader(TensorDataset(X, y), batch_size=3, shuffle=True)
    form = GaussNewton(Problem(model, loader)).dual()
    assert form is not None
    check_spectrum(form.matrix(), GaussNewton(Problem(model, (X, y))).dense())


def test_float32_rows_lose_only_the_square_of_their_rounding() -> None:
    """Products in float64 keep eigenvalues far below 1e-7 λ_max, where float32 ones end."""
    torch.manual_seed(0)
    model = nn.Linear(40, 4, bias=False)
    X = torch.randn(20, 40) * torch.logspace(0, -9, 40)
    y = torch.arange(20) % 4
    exact = exact_spectrum(GaussNewton(Problem(model.double(), (X.double(), y)))).values.flip(0)
    form = GaussNewton(Problem(model.float(), (X, y))).dual()
    assert form is not None
    K = form.matrix()
    assert K.dtype == F64
    ours = torch.linalg.eigvalsh(K).flip(0)
    ratio = exact / exact[0]
    deep = (ratio > 1e-10) & (ratio < 1e-7)
    assert int(deep.sum()) >= 5
    torch.testing.assert_close(ours[deep], exact[deep], rtol=0.05, atol=0)


# What is said beforehand ------------------------------------------------------------------------


def test_it_says_how_large_it_will_be(monkeypatch: pytest.MonkeyPatch) -> None:
    form = GaussNewton(BY_NAME["cross_entropy"].problem()).dual()
    assert isinstance(form, GramForm)
    footprint = form.footprint()
    assert footprint.size == 24
    assert footprint.total_bytes == 3 * 8 * 24**2
    assert str(footprint).startswith("24 × 24 entries, 13.5 KiB with its eigenvalues")
    monkeypatch.setattr(memory, "free", lambda device: 1 << 10)
    with pytest.raises(CurvescopeError, match=r"24 × 24 entries.* take fewer samples, or spectral"):
        form.matrix()


def test_targets_that_are_all_ignored() -> None:
    model = nn.Linear(2, 3).double()
    problem = Problem(model, (torch.randn(4, 2, dtype=F64), torch.full((4,), -100)))
    with pytest.raises(CurvescopeError, match="no target counts"):
        GramForm(problem, class_directions).matrix()


def test_a_saturated_network_has_a_finite_gram_matrix() -> None:
    layer = nn.Linear(2, 3, bias=False).double()
    with torch.no_grad():
        layer.weight.copy_(1e4 * torch.eye(3, 2))
    X, y = torch.randn(6, 2, dtype=F64), torch.arange(6) % 3
    for form in (
        GaussNewton(Problem(layer, (X, y))).dual(),
        GramForm(Problem(layer, (X, y)), class_directions),
    ):
        assert form is not None
        assert bool(torch.isfinite(form.matrix()).all())


class Detached(nn.Module):
    """A layer whose output reaches the loss, and one whose output does not."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x) + F.relu(self.unused(x)).detach()


def test_a_layer_without_influence_contributes_nothing() -> None:
    problem = Problem(Detached().double(), (torch.randn(5, 3, dtype=F64), torch.arange(5) % 2))
    form = GaussNewton(problem).dual()
    assert isinstance(form, GramForm)
    check_spectrum(form.matrix(), GaussNewton(problem).dense())
    assert float(form.restrict("unused").matrix().abs().max()) == 0.0
