"""The regularizer: unbiased value and gradient, what it leaves alone, what it costs."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import curvescope as cs
from curvescope.flatness.regularizer import TraceRegularizer
from tests.cases import build
from tests.flatness.dense import flat_grad, trace_of_gauss_newton, trace_of_hessian
from tests.reference.curvature import Reference
from tests.reference.losses import CrossEntropy
from tests.tolerances import STANDARD_ERRORS

DRAWS = 100


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def mlp(activation: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), activation, nn.Linear(6, 3))


def cnn(norm: bool) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 6, 2, stride=2, bias=not norm),
        nn.BatchNorm2d(6) if norm else nn.Identity(),
        nn.ReLU(inplace=True),
        nn.Conv2d(6, 4, 3, padding=1, groups=2),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4, 3),
    )


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    model[2].weight = model[0].weight
    return model


MODELS = {
    "mlp-relu": lambda: mlp(nn.ReLU()).eval(),
    "mlp-tanh": lambda: mlp(nn.Tanh()).eval(),
    "cnn": lambda: cnn(norm=False).eval(),
    "cnn-batch-norm-eval": lambda: cnn(norm=True).eval(),
    "cnn-batch-norm-train": lambda: cnn(norm=True).train(),
    "tied": lambda: tied().eval(),
}
AFFINE = ("mlp-relu", "cnn", "cnn-batch-norm-eval")  # where tr H = tr G


def case(name: str, samples: int = 5) -> tuple[nn.Module, Tensor, Tensor]:
    model = build(MODELS[name], torch.float64)
    shape = (2, 4, 4) if name.startswith("cnn") else (4,)
    X = torch.randn(samples, *shape, generator=generator(1), dtype=torch.float64)
    return model, X, torch.randint(3, (samples,), generator=generator(2))


def reference(name: str, model: nn.Module, X: Tensor, y: Tensor) -> Reference:
    mode = "train" if name.endswith("train") else "eval"
    return Reference(model, [(X, y)], CrossEntropy(), mode=mode)


@functools.cache
def dense_trace(name: str, kind: str) -> tuple[Tensor, Tensor]:
    """The trace of the dense matrix and its derivative by the weights."""
    dense = reference(name, *case(name))
    exact = (trace_of_gauss_newton if kind == "ggn" else trace_of_hessian)(dense)
    return exact.detach(), flat_grad(dense, exact)


def gradient(penalty: Tensor, model: nn.Module) -> Tensor:
    parts = torch.autograd.grad(
        penalty, list(model.parameters()), allow_unused=True, materialize_grads=True
    )
    return torch.cat([g.reshape(-1) for g in parts])


def assert_within_standard_errors(samples: Tensor, expected: Tensor, what: str) -> None:
    mean, error = samples.mean(0), samples.std(0) / len(samples) ** 0.5
    worst = ((mean - expected).abs() / (error + 1e-12 * expected.abs().max())).max()
    assert float(worst) <= STANDARD_ERRORS, f"{what}: {float(worst):.2f} standard errors away"


@pytest.mark.parametrize("kind", ["ggn", "hessian"])
@pytest.mark.parametrize("name", MODELS)
def test_value_and_gradient_are_unbiased(name: str, kind: str) -> None:
    """The gradient along five fixed directions, against the derivative of the dense trace."""
    model, X, y = case(name)
    exact, slope = dense_trace(name, kind)
    directions = torch.randn(len(slope), 5, generator=generator(3), dtype=torch.float64)
    regularizer = TraceRegularizer(kind, weight=1.0, generator=generator(4))
    values, slopes = [], []
    for _ in range(DRAWS):
        penalty = regularizer(model, X, y)
        values.append(penalty.detach())
        slopes.append(gradient(penalty, model) @ directions)
    assert_within_standard_errors(torch.stack(values)[:, None], exact, "value")
    assert_within_standard_errors(torch.stack(slopes), slope @ directions, "gradient")


@pytest.mark.parametrize("kind", ["ggn", "hessian"])
@pytest.mark.parametrize("name", ["mlp-relu", "cnn"])
def test_all_outputs_as_probes_are_exact(name: str, kind: str) -> None:
    model, X, y = case(name)
    exact, slope = dense_trace(name, kind)
    penalty = TraceRegularizer(kind, weight=2.0, probes=3, generator=generator())(model, X, y)
    assert penalty.item() == pytest.approx(2 * exact.item(), rel=1e-12)
    torch.testing.assert_close(gradient(penalty, model), 2 * slope, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_trace_of_hessian_and_gauss_newton_agree_for_piecewise_affine_models(name: str) -> None:
    H, G = dense_trace(name, "hessian")[0].item(), dense_trace(name, "ggn")[0].item()
    assert (abs(H - G) <= 1e-10 * G) == (name in AFFINE)


def test_a_model_that_changes_between_steps_is_seen() -> None:
    """Another activation from some step on: the trace of its Hessian, which is not that of G."""
    model, X, y = case("mlp-relu")
    regularizer = TraceRegularizer("hessian", weight=1.0, generator=generator())
    regularizer.objective(model, X, y)
    model[1] = nn.Tanh()
    exact = trace_of_hessian(reference("mlp-tanh", model, X, y)).detach()
    values = torch.stack(
        [regularizer.objective(model, X, y).penalty.detach() for _ in range(DRAWS)]
    )
    assert_within_standard_errors(values[:, None], exact, "value")


def test_dropout_is_no_other_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its mask is a constant, so that no second derivative is taken in training mode either."""
    layers = [nn.Linear(4, 6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3)]
    model = nn.Sequential(*layers).double().train()
    _, X, y = case("mlp-relu")
    monkeypatch.delattr(TraceRegularizer, "_quadratic_form")
    regularizer = TraceRegularizer("hessian", weight=1.0, generator=generator())
    with torch.random.fork_rng(devices=[]):
        steps = [regularizer.objective(model, X, y) for _ in range(3)]
    assert all(step.penalty.item() > 0 for step in steps)


def test_one_probe_per_sample_has_less_variance_than_one_per_batch() -> None:
    """Against Hutchinson's ``vᵀ G v``, by far more than the ratio asserted."""
    model, X, y = case("mlp-relu", samples=32)
    regularizer = TraceRegularizer("ggn", weight=1.0, generator=generator())
    ours = torch.stack([regularizer(model, X, y).detach() for _ in range(100)])
    estimate = cs.trace(
        cs.GaussNewton(cs.Problem(model, (X, y))), probes=40, generator=generator(1)
    )
    hutchinson = estimate.stderr * estimate.probes**0.5
    assert float(ours.std()) < 0.4 * hutchinson


def test_objective_shares_the_pass_and_agrees_with_the_call() -> None:
    model, X, y = case("cnn")
    step = TraceRegularizer("ggn", weight=0.3, generator=generator(7)).objective(model, X, y)
    penalty = TraceRegularizer("ggn", weight=0.3, generator=generator(7))(model, X, y)
    assert step.penalty.item() == penalty.item()
    assert step.loss.item() == pytest.approx(F.cross_entropy(model(X), y).item(), rel=1e-12)
    torch.testing.assert_close(step.output, model(X))
    step.total.backward()
    plain = gradient(F.cross_entropy(model(X), y) + penalty, model)
    found = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
    torch.testing.assert_close(found, plain, rtol=1e-12, atol=1e-14)


def test_a_call_leaves_no_trace_in_the_model() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(), nn.Linear(6, 3))
    model = model.double().train()
    model[1].eval()
    before = copy.deepcopy(model.state_dict())
    _, X, y = case("mlp-relu")
    state = torch.get_rng_state()
    TraceRegularizer("ggn", weight=1.0, generator=generator())(model, X, y)
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model.modules()] == [True, True, False, True, True]
    assert all(p.grad is None for p in model.parameters())
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_objective_moves_running_statistics_as_a_plain_pass_does() -> None:
    model, X, y = case("cnn-batch-norm-train")
    other = copy.deepcopy(model)
    TraceRegularizer("ggn", weight=1.0, generator=generator()).objective(model, X, y)
    other(X)
    for a, b in zip(model.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(a, b)


def test_same_generator_same_penalties() -> None:
    model, X, y = case("cnn-batch-norm-train")
    first, second = (TraceRegularizer("ggn", weight=1.0, generator=generator(5)) for _ in range(2))
    a = [first(model, X, y).item() for _ in range(3)]
    b = [second(model, X, y).item() for _ in range(3)]
    assert a == b
    assert len(set(a)) == 3


@pytest.mark.parametrize("kind", ["ggn", "hessian"])
def test_some_samples_are_unbiased_too(kind: str) -> None:
    model, X, y = case("mlp-tanh")
    exact, _ = dense_trace("mlp-tanh", kind)
    regularizer = TraceRegularizer(kind, weight=1.0, samples=2, generator=generator())
    values = torch.stack([regularizer(model, X, y).detach() for _ in range(DRAWS)])
    assert_within_standard_errors(values[:, None], exact, "value")
    assert regularizer.capturable
    step = regularizer.objective(model, X, y)
    assert step.loss.item() == pytest.approx(F.cross_entropy(model(X), y).item())


def test_any_callable_loss_for_the_hessian() -> None:
    model, X, y = case("mlp-tanh")
    smoothed = nn.CrossEntropyLoss(label_smoothing=0.1)
    dense = Reference(model, [(X, y)], CrossEntropy(smoothing=0.1))
    exact = trace_of_hessian(dense)
    regularizer = TraceRegularizer("hessian", weight=1.0, loss=smoothed, generator=generator())
    values = torch.stack([regularizer(model, X, y).detach() for _ in range(DRAWS)])
    assert_within_standard_errors(values[:, None], exact.detach(), "value")


@pytest.mark.parametrize(("name", "limit"), [("mlp", 2.0), ("cnn", 2.25), ("cnn-batch-norm", 2.25)])
def test_multiplications_of_a_step(name: str, limit: float) -> None:
    """Counted, not timed: matrix products and convolutions of a step over those of a plain one."""
    if name == "mlp":
        model = nn.Sequential(
            nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
        )
        X = torch.randn(64, 64, generator=generator())
    else:
        layers: list[nn.Module] = []
        for channels in (3, 64, 64):
            layers.append(nn.Conv2d(channels, 64, 3, padding=1))
            layers += [nn.BatchNorm2d(64)] if name.endswith("norm") else []
            layers.append(nn.ReLU())
        model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
        X = torch.randn(8, 3, 16, 16, generator=generator())
    y = torch.randint(10, (len(X),), generator=generator())
    regularizer = TraceRegularizer("ggn", weight=1.0, generator=generator())
    regularizer.objective(model, X, y)  # tries out whether samples see each other
    with FlopCounterMode(display=False) as plain:
        F.cross_entropy(model(X), y).backward()
    with FlopCounterMode(display=False) as step:
        regularizer.objective(model, X, y).total.backward()
    ratio = step.get_total_flops() / plain.get_total_flops()
    assert 1.0 < ratio <= limit


def test_training_with_the_penalty_lowers_the_trace() -> None:
    traces = []
    for weight in (0.0, 0.05):
        model, X, y = case("mlp-relu", samples=40)
        regularizer = TraceRegularizer("hessian", weight=weight, generator=generator())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        for _ in range(60):
            optimizer.zero_grad()
            regularizer.objective(model, X, y).total.backward()
            optimizer.step()
        G = cs.GaussNewton(cs.Problem(model, (X, y)))
        traces.append(float(G.dense().trace()))
    assert traces[1] < 0.8 * traces[0]


def test_autocast() -> None:
    """Half precision inside the model: the same penalty to its few digits."""
    values = []
    for enabled in (False, True):
        model, X, y = case("cnn-batch-norm-train")
        regularizer = TraceRegularizer("ggn", weight=1.0, generator=generator())
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            step = regularizer.objective(model.float(), X.float(), y)
        step.total.backward()
        values.append(step.penalty.item())
        assert all(bool(p.grad.isfinite().all()) for p in model.parameters())
    assert values[1] == pytest.approx(values[0], rel=0.2)


def test_refusals() -> None:
    model, X, y = case("cnn-batch-norm-train")
    with pytest.raises(cs.CurvescopeError, match=r"kind must be one of 'hessian', 'ggn'"):
        TraceRegularizer("fisher", weight=1.0, generator=generator())
    with pytest.raises(cs.CurvescopeError, match="weight must be at least 0"):
        TraceRegularizer("ggn", weight=-1.0, generator=generator())
    with pytest.raises(cs.CurvescopeError, match="no known root of its output Hessian"):
        TraceRegularizer("ggn", weight=1.0, loss=F.multi_margin_loss, generator=generator())
    with pytest.raises(cs.CurvescopeError, match="batch norm in train mode ties the samples"):
        TraceRegularizer("ggn", weight=1.0, samples=2, generator=generator())(model, X, y)
    with pytest.raises(cs.CurvescopeError, match="no parameter of the model requires grad"):
        TraceRegularizer("ggn", weight=1.0, generator=generator())(
            model.requires_grad_(False), X, y
        )
    model, X, y = case("mlp-relu")
    with pytest.raises(cs.CurvescopeError, match=r"needs class indices of shape \[5\]"):
        TraceRegularizer("ggn", weight=1.0, generator=generator())(model, X, y[:3])
    with pytest.raises(cs.ModelError, match=r"must be a tensor or have \.logits"):
        TraceRegularizer("ggn", weight=1.0, generator=generator())(nn.LSTM(4, 3).double(), X, y)
