"""Every loss is one mean over all data, however they are cut, and torch's own on the whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import curvescope as cs
from curvescope.flatness.network_scores import scores
from curvescope.operators.gram import GramForm
from curvescope.record.extended import class_directions
from curvescope.record.outputs import LossHessian
from curvescope.record.roots import root

N, C, T = 9, 4, 3
W = torch.tensor([1.0, 2.0, 5.0, 0.5]).double()


def _g(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def dense() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, C)).double()


def column() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 1)).double()


def channels() -> nn.Module:
    """``[N, 3, T] → [N, C, T]``, torch's order."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Conv1d(3, 4, 1), nn.Tanh(), nn.Conv1d(4, C, 1)).double()


def labels(*shape: int, ignored: int | None = None) -> Tensor:
    y = torch.randint(C, (N, *shape), generator=_g(3))
    if ignored is not None:
        y = torch.where(torch.rand(y.shape, generator=_g(4)) < 0.3, ignored, y)
        y[-1] = ignored  # the last batch of 4 + 4 + 1, and one of the single samples
    return y


def probabilities(*shape: int) -> Tensor:
    return torch.softmax(2 * torch.randn(N, C, *shape, generator=_g(5)).double(), 1)


@dataclass(frozen=True)
class Case:
    name: str
    loss: Any
    y: Tensor
    model: Callable[[], nn.Module] = dense
    positions: tuple[int, ...] = ()
    reference: Callable[[Tensor, Tensor], Tensor] | None = None

    def __str__(self) -> str:
        return self.name

    def X(self) -> Tensor:
        return torch.randn(N, 3, *self.positions, generator=_g(2)).double()

    def torch_loss(self, z: Tensor, y: Tensor) -> Tensor:
        return (self.reference or self.loss)(z, y)


CE, BCE = nn.CrossEntropyLoss, nn.BCEWithLogitsLoss
soft_K = torch.rand(N, C, generator=_g(6)).double()
hard_K = (soft_K > 0.5).double()
real_K = torch.randn(N, C, generator=_g(7)).double()
P = torch.tensor([1.0, 3.0, 0.2, 1.0]).double()


def over_counted(z: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(z, y, label_smoothing=0.2) * 1.0


def _custom(average: Any) -> cs.losses.Custom:
    return cs.losses.Custom(over_counted, average=average)


CASES = [
    Case("cross-entropy", CE(), labels()),
    Case("function", F.cross_entropy, labels()),
    Case("ignored", CE(), labels(ignored=-100)),
    Case("ignore-index-2", CE(ignore_index=2), labels(ignored=2)),
    Case("weights", CE(weight=W), labels()),
    Case("weights-single-precision", CE(weight=W.float()), labels(), reference=CE(weight=W)),
    Case("weights-ignored", CE(weight=W), labels(ignored=-100)),
    Case("smoothing", CE(label_smoothing=0.1), labels()),
    Case("smoothing-ignored", partial(F.cross_entropy, label_smoothing=0.3), labels(ignored=-100)),
    Case(
        "everything", CE(weight=W, label_smoothing=0.1, ignore_index=1), labels(ignored=1)
    ),
    Case("probabilities", CE(), probabilities()),
    Case("probabilities-weights-smoothing", CE(weight=W, label_smoothing=0.2), probabilities()),
    Case("positions", CE(), labels(T, ignored=-100), channels, (T,)),
    Case("positions-square", CE(weight=W), labels(C, ignored=-100), channels, (C,)),
    Case("positions-probabilities", CE(weight=W), probabilities(C), channels, (C,)),
    Case("logistic", BCE(), hard_K[:, :1], column),
    Case("logistic-pos-weight", BCE(pos_weight=P[:1]), soft_K[:, :1], column),
    Case("logistic-several", BCE(), hard_K),
    Case("logistic-soft", F.binary_cross_entropy_with_logits, soft_K),
    Case("logistic-weights", BCE(weight=W, pos_weight=P), soft_K),
    Case("mse", nn.MSELoss(), real_K),
    Case("mse-function", F.mse_loss, real_K),
    Case("huber", nn.HuberLoss(delta=0.7), real_K),
    Case("huber-function", partial(F.huber_loss, delta=0.5), real_K),
    Case("smooth-l1", nn.SmoothL1Loss(beta=0.6), real_K),
    Case("smooth-l1-positions", F.smooth_l1_loss, probabilities(T), channels, (T,)),
    Case("l1", nn.L1Loss(), real_K),
    Case("smooth-l1-0", nn.SmoothL1Loss(beta=0.0), real_K),
    Case(
        "custom-weights", _custom(lambda z, y: (y != -100).sum()), labels(ignored=-100),
        reference=over_counted,
    ),
    Case("custom-samples", over_counted, labels()),
    Case(
        "custom-elements", cs.losses.Custom(F.l1_loss, average="elements"), real_K,
        reference=F.l1_loss,
    ),
]  # fmt: skip

CUTS = {"one batch": (9,), "4+4+1": (4, 4, 1), "single samples": (1,) * 9}


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12 * float(theirs.abs().max()))


def problem(case: Case, sizes: tuple[int, ...] = (9,)) -> cs.Problem:
    data = list(zip(case.X().split(sizes), case.y.split(sizes), strict=True))
    return cs.Problem(case.model(), data, loss=case.loss)


@dataclass
class Truth:
    """torch's loss of the whole, with its derivatives by double backward."""

    value: Tensor
    gradient: Tensor
    H: Tensor
    G: Tensor


def truth(case: Case) -> Truth:
    model = case.model()
    names = [n for n, _ in model.named_parameters()]
    shapes = [p.shape for p in model.parameters()]
    w = torch.cat([p.detach().flatten() for p in model.parameters()])

    def output(w: Tensor) -> Tensor:
        pieces = w.split([s.numel() for s in shapes])
        state = {n: p.reshape(s) for n, p, s in zip(names, pieces, shapes, strict=True)}
        return torch.func.functional_call(model, state, (case.X(),))

    def loss(w: Tensor) -> Tensor:
        return case.torch_loss(output(w), case.y)

    w = w.requires_grad_()
    (g,) = torch.autograd.grad(loss(w), w)
    z = output(w).detach()
    J = torch.autograd.functional.jacobian(output, w).flatten(0, -2)
    B = torch.autograd.functional.hessian(lambda z: case.torch_loss(z, case.y), z)
    H = torch.autograd.functional.hessian(loss, w)
    return Truth(loss(w).detach(), g, H, J.T @ B.reshape(z.numel(), -1) @ J)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_mean_does_not_depend_on_how_data_are_cut(case: Case) -> None:
    expected = truth(case)
    for sizes in CUTS.values():
        ours = problem(case, sizes)
        close(ours.value(), expected.value)
        close(ours.gradient(), expected.gradient)
        close(cs.Hessian(ours).dense(), expected.H)
        close(cs.GaussNewton(ours).dense(), expected.G)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_convex_loss_has_all_that_one_has(case: Case) -> None:
    ours = problem(case, (4, 4, 1))
    G = cs.GaussNewton(ours)
    if not ours.loss.convex:
        assert not G.psd
        return
    assert G.psd
    expected = truth(case).G
    # the root: exact spectra, and blocks in closed form
    spectrum = cs.exact_spectrum(G)
    values = torch.cat([torch.zeros(spectrum.zeros).double(), spectrum.values]).sort().values
    reference = torch.linalg.eigvalsh(expected)
    assert float((values - reference).abs().max()) <= 1e-13 + 1e-12 * float(reference[-1])
    form = GramForm(ours, lambda loss, z, y: root(LossHessian(), loss.at(z, y), z, 0))
    dual = torch.linalg.eigvalsh(form.matrix()).flip(0)[: len(reference)]
    dual = torch.cat([dual, dual.new_zeros(max(0, len(reference) - len(dual)))])
    assert float((dual.flip(0) - reference).abs().max()) <= 1e-13 + 1e-12 * float(reference[-1])
    last = list(ours.params.layers)[-1]
    inside = torch.cat([torch.arange(len(expected))[ours.params.slice(n)]
                        for n in ours.params.resolve(last)])  # fmt: skip
    close(cs.GaussNewton(ours).block(last).dense(), expected[inside][:, inside])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_trace_of_the_regularizer_is_that_of_the_matrix(case: Case) -> None:
    ours = problem(case)
    if not ours.loss.closed_form:
        with pytest.raises(cs.CurvescopeError, match="no known root of its output Hessian"):
            cs.TraceRegularizer("ggn", weight=1.0, generator=_g(), loss=case.loss)
        return
    exact = cs.TraceRegularizer("ggn", weight=1.0, generator=_g(), loss=case.loss, probes=64)
    model = case.model()
    found = exact.objective(model, case.X(), case.y)
    close(found.loss.detach(), truth(case).value)
    trace = float(truth(case).G.trace())
    if not case.positions:  # with 64 probes every output is taken
        assert float(found.penalty.detach()) == pytest.approx(trace, rel=1e-12, abs=1e-14)
    (slope,) = torch.autograd.grad(found.loss, [next(model.parameters())])
    assert slope.abs().max() > 0


LIKELY = [c for c in CASES if not c.name.startswith(("huber", "smooth-l1", "l1", "custom"))]


@pytest.mark.parametrize("case", LIKELY, ids=str)
def test_the_sampled_fisher_tends_to_the_gauss_newton_matrix(case: Case) -> None:
    ours = problem(case, (4, 4, 1))
    fisher = cs.MonteCarloFisher(ours, samples=4000, generator=_g(8)).dense()
    G = truth(case).G
    assert float((fisher - G).norm() / G.norm()) < 0.1


@pytest.mark.parametrize("name", ["huber", "smooth-l1", "custom-samples"])
def test_a_loss_without_a_distribution_is_not_sampled(name: str) -> None:
    case = next(c for c in CASES if c.name == name)
    fisher = cs.MonteCarloFisher(problem(case), samples=2, generator=_g())
    with pytest.raises(cs.CurvescopeError, match="has no known distribution of targets"):
        fisher.dense()


EMPIRICAL = {
    "weights": lambda z, y: (F.cross_entropy(z, y, reduction="none"), W[y]),
    "smoothing": lambda z, y: (
        F.cross_entropy(z, y, reduction="none", label_smoothing=0.1), torch.ones(N).double(),
    ),
    "everything": lambda z, y: (
        F.cross_entropy(z, y, W, reduction="none", label_smoothing=0.1, ignore_index=1)
        / W[y] * (y != 1), W[y] * (y != 1),
    ),
    "probabilities": lambda z, y: (
        F.cross_entropy(z, y, reduction="none"), torch.ones(N).double(),
    ),
    "logistic-weights": lambda z, y: (
        F.binary_cross_entropy_with_logits(
            z, y, W.expand(N, C), reduction="none", pos_weight=P.expand(N, C)
        ).flatten(), torch.ones(N * C).double(),
    ),
    "mse": lambda z, y: ((z - y).square().mean(1), torch.ones(N).double()),
    "huber": lambda z, y: (
        F.huber_loss(z, y, reduction="none", delta=0.7).mean(1), torch.ones(N).double(),
    ),
    "custom-elements": lambda z, y: ((z - y).abs().mean(1), torch.ones(N).double()),
}  # fmt: skip


@pytest.mark.parametrize("name", EMPIRICAL)
def test_the_empirical_fisher_weighs_terms_as_the_loss_does(name: str) -> None:
    """``Σ_n w_n g_n g_nᵀ / Σ_n w_n`` with ``g_n`` the gradient of a term."""
    case = next(c for c in CASES if c.name == name)
    model = case.model()
    terms, weights = EMPIRICAL[name](model(case.X()), case.y)
    rows = torch.stack([
        torch.cat([g.flatten() for g in torch.autograd.grad(
            t, list(model.parameters()), retain_graph=True)]) for t in terms
    ])  # fmt: skip
    expected = torch.einsum("n,ni,nj->ij", weights, rows, rows) / weights.sum()
    for sizes in CUTS.values():
        close(cs.EmpiricalFisher(problem(case, sizes)).dense(), expected)


def test_batches_of_uneven_shapes_are_one_mean_over_elements() -> None:
    model = nn.Linear(3, 2).double()
    X = [torch.randn(n, t, 3, generator=_g(n)).double() for n, t in ((4, 5), (2, 1), (1, 7))]
    y = [torch.randn(*x.shape[:2], 2, generator=_g(9)).double() for x in X]
    for loss, summed in ((nn.MSELoss(), F.mse_loss), (nn.HuberLoss(), F.huber_loss)):
        ours = cs.Problem(model, list(zip(X, y, strict=True)), loss=loss)
        flat = [torch.cat([t.flatten(0, 1) for t in part]) for part in (X, y)]
        close(ours.value(), summed(model(flat[0]), flat[1]).detach())
        whole = cs.Problem(model, (flat[0], flat[1]), loss=loss)
        close(cs.Hessian(ours).dense(), cs.Hessian(whole).dense())


def test_scores_of_weighted_terms() -> None:
    case = next(c for c in CASES if c.name == "weights")
    ours = scores(problem(case, (4, 4, 1)))
    z = case.model()(case.X()).detach()
    each, w = F.cross_entropy(z, case.y, reduction="none"), W[case.y]
    mean = (w * each).sum() / w.sum()
    assert ours.loss.value == pytest.approx(float(mean), rel=1e-12)
    spread = ((w * (each - mean)).square().sum() * N / (N - 1)).sqrt() / w.sum()
    assert ours.loss.stderr == pytest.approx(float(spread), rel=1e-12)
    assert ours.samples == N
    assert ours.error is not None
    assert ours.error.value == pytest.approx(float((z.argmax(1) != case.y).double().mean()))


def test_smoothing_leaves_the_class_structure_alone_and_weights_refuse_it() -> None:
    X, y = Case("", None, labels()).X(), labels()
    plain = cs.class_structure(cs.Problem(dense(), (X, y)))
    smooth = cs.class_structure(cs.Problem(dense(), (X, y), loss=CE(label_smoothing=0.3)))
    close(smooth.means, plain.means)
    close(smooth.weights, plain.weights)
    u = class_directions(cs.losses.CrossEntropy(label_smoothing=0.3), torch.zeros(N, C), y)
    assert u.shape == (N, C, C)
    for loss, target in ((CE(weight=W), y), (CE(), probabilities()), (BCE(), soft_K)):
        ours = cs.Problem(dense(), (X, target), loss=loss)
        with pytest.raises(cs.CurvescopeError, match=r"needs one (class )?label"):
            cs.class_structure(ours)
    with pytest.raises(cs.CurvescopeError, match="all of the same weight"):
        cs.kronecker_factors(cs.Problem(dense(), (X, y), loss=CE(weight=W)), by_class=True)
