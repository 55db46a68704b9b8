"""Optimizing a posterior: gradients against autograd, bases that change, every method."""

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from curvescope.certificates.blocks import Layout
from curvescope.certificates.bound import PriorGrid, complexity
from curvescope.certificates.descent import Descent
from curvescope.certificates.divergence import kl_inverse
from curvescope.certificates.losses import surrogate
from curvescope.certificates.methods import Method, posterior_method
from curvescope.certificates.network import StochasticNetwork
from curvescope.certificates.optimize import optimize, stepping
from curvescope.errors import CurvescopeError
from tests.certificates.models import blobs, mlp, normal, random_bases, state_of, train

SAMPLES = 40


def descent_of(method: Method, generator: torch.Generator) -> Descent:
    model = mlp(5, 4, 1)
    data = blobs(SAMPLES, generator)
    layout = Layout.of(model)
    start = layout.flatten(state_of(model))
    priors = torch.full((2,), 0.05).double()
    if method.layer_priors:
        priors[1] = 0.3
    descent = Descent(
        StochasticNetwork(model, layout, data[0], local=method.local),
        data,
        method,
        mean=start,
        prior_mean=start + 0.1 * normal(layout.size, generator),
        bases=random_bases(layout, generator),
        variance=(0.2 * normal(layout.size, generator) - 3).exp(),
        prior_variance=priors,
        delta=0.025,
    )
    descent.weight.fill_(7.0)
    descent.rate.fill_(1e-3)
    descent.index.copy_(torch.arange(len(descent.index)))
    descent.noise.copy_(normal(len(descent.noise), generator))
    return descent


def explicit_objective(descent: Descent, data: tuple[Tensor, Tensor], theta: Tensor) -> Tensor:
    """The objective written down once more, with autograd for every derivative."""
    method, sizes = descent.method, descent.network.layout.sizes
    mean, rho = theta.unbind(0)
    x, y = (tensor[: len(descent.index)] for tensor in data)
    z = descent.network(x, mean, rho.exp(), descent.bases, descent.noise, rotated=method.rotated)
    if method.surrogate == "error":
        loss = descent.network.expected_error(z, y)
    else:
        loss = surrogate(z, y, kind=method.surrogate, temperature=1.0)
    center = descent.prior_standard
    center = descent.bases.rotate(center) if method.rotated else center
    prior = torch.repeat_interleave(descent._lambda, torch.tensor(sizes))
    terms = (2 * rho).exp() / prior - 1 - 2 * rho + prior.log() + (mean - center) ** 2 / prior
    kl = 0.5 * terms.sum()
    if method.objective == "kl":
        return descent.weight * loss + kl
    return loss + (right_side(kl, descent._lambda[0], method.grid) / 2).sqrt()


def right_side(kl: Tensor, variance: Tensor, grid: PriorGrid) -> Tensor:
    """``B_RE`` for a prior variance anywhere below the grid's largest."""
    j = grid.precision * (grid.largest / variance).log()
    return (kl + 2 * j.log() + math.log(math.pi**2 * SAMPLES / (6 * 0.025))) / (SAMPLES - 1)


def test_the_right_side_is_that_of_a_certificate_at_the_points_of_the_grid() -> None:
    grid, kl = PriorGrid(precision=10, largest=1.0), torch.tensor(50.0).double()
    variances = torch.tensor([grid.variance(3), grid.variance(4)], dtype=torch.float64)
    low, high = right_side(kl, variances, grid).tolist()
    between = float(right_side(kl, variances.prod().sqrt(), grid))
    for value, j in ((low, 3), (high, 4)):
        on_grid = complexity(50.0, [grid.penalty(j)], samples=SAMPLES, delta=0.025, form="seeger")
        assert value == pytest.approx(on_grid.value, rel=1e-12)
    assert low < between < high


@pytest.mark.parametrize("name", ["base", "local"])
def test_a_step_follows_the_gradient_of_the_objective(name: str, generator) -> None:
    method = posterior_method(name, batch_size=16)
    descent = descent_of(method, generator)
    data = (descent._X, descent._y)
    theta = descent._theta.detach().clone().requires_grad_()
    (slope,) = torch.autograd.grad(explicit_objective(descent, data, theta), theta)
    descent.step()
    moved = theta.detach() - descent._theta.detach()
    if method.optimizer == "natural":  # the first average is a tenth of the gradient
        torch.testing.assert_close(10 * descent._first, slope)
        fisher = torch.stack([(-2 * theta[1]).exp(), torch.full_like(theta[1], 2.0)]).detach()
        torch.testing.assert_close(moved, 1e-4 * slope / fisher)
    else:  # the average of squares is a tenth of the square
        torch.testing.assert_close((10 * descent._second).sqrt(), slope.abs())
        assert torch.equal(moved.sign(), slope.sign())


def test_rho_follows_the_gradient_of_the_root_objective(generator) -> None:
    descent = descent_of(posterior_method("base", batch_size=16), generator)
    theta, before = descent._theta.detach().clone(), descent._rho.item()

    def right(rho: float) -> float:
        descent._lambda.fill_(math.exp(2 * rho))
        return explicit_objective(descent, (descent._X, descent._y), theta).item()

    step = 1e-5
    slope = (right(before + step) - right(before - step)) / (2 * step)
    descent._lambda.fill_(math.exp(2 * before))
    descent.step()
    assert descent._rho_second.item() == pytest.approx(0.1 * slope**2, rel=1e-5)
    assert (descent._rho.item() - before) * slope < 0
    assert descent._lambda.tolist() == pytest.approx([math.exp(2 * descent._rho.item())] * 2)


@pytest.mark.parametrize(("q", "K"), [(0.02, 0.06), (0.3, 0.01), (0.1, 0.5)])
def test_the_weight_of_the_error_is_the_derivative_of_the_inverse(q: float, K: float) -> None:
    """``(∂p/∂q)/(∂p/∂K) = logit p − logit q``, by finite differences."""
    step = 1e-6
    by_q = (kl_inverse(q + step, K) - kl_inverse(q - step, K)) / (2 * step)
    by_K = (kl_inverse(q, K + step) - kl_inverse(q, K - step)) / (2 * step)
    p = kl_inverse(q, K)
    expected = math.log(p / (1 - p)) - math.log(q / (1 - q))
    assert by_q / by_K == pytest.approx(expected, rel=1e-5)


def test_layer_priors_go_to_their_optimum(generator) -> None:
    descent = descent_of(posterior_method("local", batch_size=16), generator)
    mean, rho = descent._theta.detach().clone()
    first = descent._lambda.clone()
    descent.adapt_priors(0.5)
    half = descent._lambda.clone()
    descent.adapt_priors(1.0)
    torch.testing.assert_close(half, (first * descent._lambda).sqrt())
    distance = mean - descent.bases.rotate(descent.prior_standard)
    for i, (d, r) in enumerate(zip(*(t.split([24, 5]) for t in (distance, rho)), strict=True)):
        values = torch.linspace(0.3, 3.0, 2701).double() * descent._lambda[i]
        s = (2 * r).exp().sum() + d.square().sum()
        divergences = 0.5 * (s / values + len(r) * values.log())
        assert values[divergences.argmin()].item() == pytest.approx(descent._lambda[i].item())


@pytest.mark.parametrize("name", ["iter", "local"])
@pytest.mark.parametrize("follow", [True, False])
def test_changing_the_basis_keeps_the_mean_and_carries_the_variances(
    name: str, follow: bool, generator
) -> None:
    descent = descent_of(posterior_method(name, batch_size=16, follow=follow), generator)
    descent.step()
    mean, variance, old = descent.mean, descent.variance, descent.bases.clone()
    new = random_bases(descent.network.layout, generator)
    descent.change_basis(new)
    torch.testing.assert_close(descent.mean, mean)
    expected = new.carry(variance, old) if follow else variance
    torch.testing.assert_close(descent.variance, expected)
    kl = descent.standing(0).kl
    assert math.isfinite(kl)
    descent.step()
    assert math.isfinite(descent.standing(0).kl)


METHODS = ("base", "appr", "iter", "iter(d)", "iter.m", "local")


@pytest.mark.parametrize("name", METHODS)
def test_every_method_improves_the_bound(name: str, generator) -> None:
    model = mlp(5, 6, 1)
    data = blobs(200, generator)
    layout = Layout.of(model)
    prior = layout.flatten(state_of(model)).clone()
    train(model, data, steps=100)
    before = state_of(model)
    seen = []
    rate = 1.0 if name == "local" else 0.01
    method = posterior_method(name, epochs=20, batch_size=50, rate=rate, refresh=4)
    found = optimize(model, prior, data, method, generator=generator, progress=seen.append)
    assert found.history[-1].bound < found.history[0].bound
    assert [p.done for p in seen] == list(range(1, 21))
    assert len(found.prior_variances) == 2
    assert (found.prior_variances[0] != found.prior_variances[1]) == (name == "local")
    assert all(0 < v < method.grid.largest for v in found.prior_variances)
    assert (found.posterior.variance > 0).all()
    assert all(torch.equal(before[n], v) for n, v in model.state_dict().items())


def test_the_same_seed_gives_the_same_posterior(generator) -> None:
    model, data = mlp(5, 6, 1), blobs(100, generator)
    prior = Layout.of(model).flatten(state_of(model)).clone()
    train(model, data, steps=30)
    method = posterior_method("local", epochs=3, batch_size=50, refresh=2)
    first, second = (
        optimize(model, prior, data, method, generator=torch.Generator().manual_seed(5))
        for _ in range(2)
    )
    assert torch.equal(first.posterior.mean, second.posterior.mean)
    assert first.history == second.history


def test_a_divergence_is_one_sentence(generator) -> None:
    model, data = mlp(5, 6, 1), blobs(100, generator)
    prior = torch.full((Layout.of(model).size,), 1e200, dtype=torch.float64)
    with pytest.raises(CurvescopeError, match="diverged in epoch 1"):
        optimize(model, prior, data, posterior_method("base", epochs=2), generator=generator)


def test_schedules_of_the_paper_and_ours() -> None:
    iterate = posterior_method("iter")
    rates = [iterate.step_rate(epoch, 0.01) for epoch in (0, 399, 400, 1999)]
    assert rates == pytest.approx([1e-3, 1e-3, 1e-4, 1e-7])
    assert [e for e in range(31) if iterate.refreshes(e)] == [10, 20, 30]
    grows = posterior_method("iter(d)")
    assert [e for e in range(380, 1000) if grows.refreshes(e)] == [
        380, 390, 400, 500, 600, 700,
    ]  # fmt: skip
    assert not any(posterior_method("appr").refreshes(e) for e in range(100))
    local = posterior_method("local", epochs=100)
    assert local.step_rate(0, 0.01) == pytest.approx(0.03)
    assert local.step_rate(50, 0.01) == pytest.approx(0.015)
    assert local.step_rate(0, 1.0) == 0.2


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: posterior_method("magic"), "name must be one of 'base'"),
        (lambda: posterior_method("iter", speed=1), "has no 'speed'"),
        (lambda: posterior_method("iter", basis="x"), "basis must be one of"),
        (lambda: posterior_method("iter", rate=0.0), "rate must be positive"),
        (lambda: posterior_method("iter", epochs=0), "epochs must be an integer"),
    ],
)
def test_misuse_is_one_sentence(call, match: str) -> None:
    with pytest.raises(CurvescopeError, match=match):
        call()


@pytest.mark.gpu
@pytest.mark.parametrize("name", METHODS)
def test_a_captured_step_does_what_a_plain_one_does(name: str, generator, caplog) -> None:
    """The same index, noise and rate, ten steps: graph and plain agree."""
    method = posterior_method(name, batch_size=16)
    results = []
    for graph in (True, False):
        torch.manual_seed(0)
        source = torch.Generator().manual_seed(3)
        model = mlp(5, 4, 1).cuda()
        data = tuple(t.cuda() for t in blobs(SAMPLES, source))
        layout = Layout.of(model)
        start = layout.flatten(state_of(model))
        descent = Descent(
            StochasticNetwork(model, layout, data[0], local=method.local),
            data,
            method,
            mean=start,
            prior_mean=start + 0.1,
            bases=random_bases(layout, source).to("cuda", torch.float64),
            variance=torch.full_like(start, 0.05),
            prior_variance=torch.full((2,), 0.05).double().cuda(),
            delta=0.025,
        )
        descent.weight.fill_(7.0)
        descent.rate.fill_(1e-3)
        with stepping(descent, graph=graph) as step:
            for _ in range(10):
                descent.index.copy_(torch.randperm(SAMPLES, generator=source)[:16])
                descent.noise.copy_(normal(len(descent.noise), source))
                step()
            descent.change_basis(random_bases(layout, source).to("cuda", torch.float64))
            step()
        results.append((descent.mean, descent.variance, descent.standing(176)))
    assert "not captured" not in caplog.text
    torch.testing.assert_close(results[0][0], results[1][0])
    torch.testing.assert_close(results[0][1], results[1][1])
    assert dataclasses.astuple(results[0][2])[:2] == pytest.approx(
        dataclasses.astuple(results[1][2])[:2]
    )


class Waits(torch.nn.Module):
    """Looks at a number on the host, which no CUDA graph can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) * (1.0 if x.sum().item() < math.inf else 2.0)


@pytest.mark.gpu
def test_a_model_that_cannot_be_captured_is_stepped_plainly(generator, caplog) -> None:
    model = Waits().double().cuda()
    data = tuple(t.cuda() for t in blobs(100, generator))
    prior = 0 * Layout.of(model).flatten(state_of(model))
    method = posterior_method("local", epochs=3, batch_size=50)
    found = optimize(model, prior, data, method, generator=generator)
    assert math.isfinite(found.history[-1].bound)
    assert "not captured" in caplog.text
