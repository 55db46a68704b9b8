"""The penalty on a GPU: the same numbers as on the CPU, also replayed as a CUDA graph."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from curvescope.flatness import TraceRegularizer, minibatch_metric, sharpness
from curvescope.flatness.trace_gradient.signs import Signs
from curvescope.problem import Problem
from curvescope.training import Progress, Recipe, train

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True, scope="module")
def cublas() -> None:
    """The first product in autograd's own thread warns that it makes a context; let it."""
    if torch.cuda.is_available():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            a = torch.ones(2, 2, device="cuda", requires_grad=True)
            (a @ a).sum().backward()


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def cnn(*, norm: bool) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.BatchNorm2d(16) if norm else nn.Identity(),
            nn.ReLU(),
            nn.Conv2d(16, 8, 3, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(8 * 9, 4),
        ).double()


def batch() -> tuple[Tensor, Tensor]:
    X = torch.randn(10, 3, 8, 8, generator=generator(1), dtype=torch.float64)
    return X, torch.randint(4, (10,), generator=generator(2))


def test_signs_are_those_of_the_cpu() -> None:
    streams = Signs(generator()), Signs(generator())
    here, there = torch.ones(1), torch.ones(1, device="cuda")
    for shape in ((5, 7), (1000,)):
        assert torch.equal(streams[0].draw(shape, here), streams[1].draw(shape, there).cpu())


@pytest.mark.parametrize("kind", ["ggn", "hessian"])
@pytest.mark.parametrize("norm", [True, False])
def test_value_and_gradient_are_those_of_the_cpu(kind: str, norm: bool) -> None:
    found = []
    for device in ("cpu", "cuda"):
        model, (X, y) = cnn(norm=norm).to(device).train(), batch()
        regularizer = TraceRegularizer(kind, weight=1.0, generator=generator())
        step = regularizer.objective(model, X.to(device), y.to(device))
        step.total.backward()
        found.append(
            torch.cat([step.penalty.reshape(1), *(p.grad.reshape(-1) for p in model.parameters())])
        )
    torch.testing.assert_close(found[0], found[1].cpu(), rtol=1e-8, atol=1e-10)


def test_a_captured_step_draws_new_probes_and_trains() -> None:
    """Ten replayed steps end where ten launched ones end."""
    ends = []
    for graph in (False, True):
        model, (X, y) = cnn(norm=True).cuda().train(), batch()
        X, y = X.cuda(), y.cuda()
        regularizer = TraceRegularizer("ggn", weight=0.01, generator=generator())
        assert regularizer.capturable
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        def step(model=model, regularizer=regularizer, optimizer=optimizer, X=X, y=y) -> None:
            optimizer.zero_grad()
            regularizer.objective(model, X, y).total.backward()
            optimizer.step()

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        if graph:
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured):
                step()
            for _ in range(10):
                captured.replay()
        else:
            for _ in range(10):
                step()
        ends.append(copy.deepcopy([p.detach().cpu() for p in model.parameters()]))
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)


def test_report_and_mini_batch_metric() -> None:
    model, (X, y) = cnn(norm=True).cuda().eval(), batch()
    X, y = X.cuda(), y.cuda()
    report = sharpness(Problem(model, (X, y)), test=(X, y), generator=generator())
    other = sharpness(Problem(cnn(norm=True).eval(), batch()), test=batch(), generator=generator())
    assert report.hessian.trace.value == pytest.approx(other.hessian.trace.value, rel=1e-6)
    assert report.loss_gap.value == 0.0
    metric = minibatch_metric(model, X, y, generator=generator())
    assert abs(metric.trace.value - report.gauss_newton.trace.value) <= 5 * metric.trace.stderr


@pytest.mark.parametrize("norm", [True, False])
def test_training_with_the_penalty_is_that_of_the_cpu(tmp_path: Path, norm: bool) -> None:
    """Captured in a graph, interrupted and resumed on the GPU; the probes are the same anywhere."""
    X = torch.randn(60, 3, 8, 8, generator=generator(1), dtype=torch.float64)
    y = torch.randint(4, (60,), generator=generator(2))
    recipe = Recipe(seed=0, epochs=4, lr=0.02, batch_size=20, momentum=0.9)
    here, there = cnn(norm=norm), cnn(norm=norm).cuda()

    def penalty() -> TraceRegularizer:
        return TraceRegularizer("ggn", weight=0.01, generator=generator(3))

    train(here, (X, y), recipe, penalty=penalty())

    def stop(progress: Progress) -> None:
        if progress.done >= 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(copy.deepcopy(there), (X, y), recipe, folder=tmp_path, penalty=penalty(), tell=stop)
    train(there, (X, y), recipe, folder=tmp_path, penalty=penalty(), resume=True)
    for ours, theirs in zip(here.parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(theirs.cpu(), ours, rtol=1e-6, atol=1e-8)
