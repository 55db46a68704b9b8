"""Products from several threads on one model: the same numbers, and the same model afterwards."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import curvescope as cs
from curvescope._state import exclusive, held
from curvescope.problem import Problem
from tests.problem.test_problem_leaves_no_trace import _assert_same, snapshot

THREADS, ROUNDS, SAMPLES = 4, 6, 12


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)
    )


def batch_norm() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(), nn.Linear(8, 3)
    )


def attention() -> nn.Module:
    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix, self.out = nn.MultiheadAttention(2, 1, batch_first=True), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = x.unflatten(1, (3, 2))
            return self.out(self.mix(x, x, x, need_weights=False)[0].flatten(1))

    return Attends()


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp, "conv": conv, "batch-norm": batch_norm, "attention": attention,
}  # fmt: skip


def build(name: str) -> nn.Module:
    torch.manual_seed(3)
    return MODELS[name]().double().train()


def batches(seed: int = 4) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(SAMPLES, 6, generator=g, dtype=torch.float64)
    return list(zip(X.split(4), (torch.arange(SAMPLES) % 3).split(4), strict=True))


@pytest.fixture(autouse=True)
def _quick_switches() -> Iterator[None]:
    """Threads take turns every few microseconds instead of every five milliseconds."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def at_once(work: Callable[[int], Any]) -> list[Any]:
    """What ``work(thread)`` returns in each of some threads that begin together."""
    barrier = threading.Barrier(THREADS)

    def begin(i: int) -> Any:
        barrier.wait()
        return work(i)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(begin, range(THREADS)))


def columns(size: int) -> list[Tensor]:
    g = torch.Generator().manual_seed(5)
    return [torch.randn(size, 3, generator=g, dtype=torch.float64) for _ in range(ROUNDS)]


@pytest.mark.parametrize("share", ["operator", "problem", "model"])
@pytest.mark.parametrize("keep", [True, False, "auto"], ids=["kept", "streamed", "auto"])
@pytest.mark.parametrize(
    ("name", "mode"), [*((name, "eval") for name in MODELS), ("batch-norm", "train")]
)
def test_products_are_those_of_one_thread(name: str, mode: str, keep: Any, share: str) -> None:
    model = build(name)

    def problem() -> Problem:
        return Problem(model, batches(), mode=mode)

    expected_on = cs.Hessian(problem(), keep=keep)
    X = columns(expected_on.shape[0])
    expected = [expected_on @ x for x in X]
    before, objects = snapshot(model), list(model.parameters())
    one = problem()
    A = cs.Hessian(one, keep=keep)

    def work(thread: int) -> list[Tensor]:
        match share:
            case "operator":
                own = A
            case "problem":
                own = cs.Hessian(one, keep=keep)
            case _:
                own = cs.Hessian(problem(), keep=keep)
        order = [(thread + i) % ROUNDS for i in range(ROUNDS)]
        found = {i: own @ X[i] for i in order}
        return [found[i] for i in range(ROUNDS)]

    for products in at_once(work):
        for product, right in zip(products, expected, strict=True):
            torch.testing.assert_close(product, right, rtol=1e-13, atol=1e-14)
    assert all(a is b for a, b in zip(model.parameters(), objects, strict=True))
    after = snapshot(model)
    for key, value in before.items():
        _assert_same(key, after[key], value)


def test_blocks_of_layers_from_many_threads() -> None:
    model = build("mlp")
    problem = Problem(model, batches())
    names = ["0", "2", "4"]

    def block(problem: Problem, name: str) -> Tensor:
        return cs.GaussNewton(problem).block(name).dense()

    expected = {name: block(Problem(model, batches()), name) for name in names}
    for found in at_once(lambda i: {n: block(problem, n) for n in names[i % 3 :] + names[: i % 3]}):
        for name in names:
            torch.testing.assert_close(found[name], expected[name], rtol=1e-12, atol=1e-13)


def test_other_functions_beside_products() -> None:
    """Evaluation, a regularizer, factors and class structure while another thread multiplies."""
    model = build("batch-norm")
    X = torch.cat([x for x, _ in batches()])
    y = torch.cat([t for _, t in batches()])
    model[1].eval()
    v = torch.ones(Problem(model, batches()).params.size, dtype=torch.float64)

    def penalty() -> Tensor:
        g = torch.Generator().manual_seed(1)
        return cs.TraceRegularizer("ggn", weight=1.0, generator=g)(model, X, y).detach()

    jobs: list[Callable[[], Any]] = [
        lambda: cs.Hessian(Problem(model, batches()), keep=False) @ v,
        lambda: cs.evaluate(model, (X, y)).loss,
        penalty,
        lambda: cs.kronecker_factors(Problem(model, batches()))["0"].autocorrelation,
    ]
    expected = [job() for job in jobs]
    before = snapshot(model)
    for i, found in enumerate(at_once(lambda i: [jobs[i]() for _ in range(ROUNDS)])):
        for value in found:
            torch.testing.assert_close(value, expected[i], rtol=1e-12, atol=1e-13)
    after = snapshot(model)
    for key, value in before.items():
        _assert_same(key, after[key], value)


def test_layers_are_named_while_other_threads_evaluate() -> None:
    """Closed forms look at the model's own weights, whatever a product has put in their place."""
    model = build("mlp")
    v = torch.ones(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    expected = cs.kronecker_factors(Problem(model, batches()))

    def multiply() -> None:
        for _ in range(60):
            cs.Hessian(Problem(model, batches()), keep=False) @ v

    def look() -> None:
        for _ in range(30):
            problem = Problem(model, batches())
            for name, factors in cs.kronecker_factors(problem).items():
                torch.testing.assert_close(factors.autocorrelation, expected[name].autocorrelation)

    at_once(lambda i: [multiply, look][i % 2]())


def test_two_models_with_a_part_in_common() -> None:
    torch.manual_seed(6)
    body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh()).double()
    models = [nn.Sequential(body, nn.Linear(8, 3).double()) for _ in range(THREADS)]
    v = torch.ones(sum(p.numel() for p in models[0].parameters()), dtype=torch.float64)

    def products(model: nn.Module, mode: str) -> list[Tensor]:
        return [cs.Hessian(Problem(model, batches(), mode=mode), keep=False) @ v for _ in range(4)]

    modes = ["eval", "train"]
    expected = [products(model, modes[i % 2]) for i, model in enumerate(models)]
    objects = list(body.parameters())
    for i, found in enumerate(at_once(lambda i: products(models[i], modes[i % 2]))):
        for product, right in zip(found, expected[i], strict=True):
            torch.testing.assert_close(product, right, rtol=1e-13, atol=1e-14)
    assert all(a is b for a, b in zip(body.parameters(), objects, strict=True))


# Locks ---------------------------------------------------------------------------------------


def blocked(model: nn.Module) -> bool:
    """Whether another thread still waits for the model after a fifth of a second."""
    return not _entered(model, 0.2)


def free(model: nn.Module) -> bool:
    """Whether another thread gets at the model, however slow the machine is."""
    return _entered(model, 20)


def _entered(model: nn.Module, seconds: float) -> bool:
    entered = threading.Event()

    def enter() -> None:
        with exclusive(model):
            entered.set()

    thread = threading.Thread(target=enter, daemon=True)
    thread.start()
    return entered.wait(seconds)


def test_different_models_run_side_by_side() -> None:
    one, other = mlp(), mlp()
    with held(one, "eval"):
        assert blocked(one)
        assert free(other)
    assert free(one)


class Watched(torch.utils.data.Dataset):
    """A data set that a caller reads under a lock of its own."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.free = model, []

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        self.free.append(free(self.model))
        return torch.full((6,), i / SAMPLES, dtype=torch.float64), i % 3


ROADS: dict[str, Callable[[Problem], Any]] = {
    "value": lambda problem: problem.value(),
    "streamed": lambda problem: cs.Hessian(problem, keep=False) @ _ones(problem),
    "kept": lambda problem: cs.Hessian(problem, keep=True) @ _ones(problem),
    "gauss-newton": lambda problem: cs.GaussNewton(problem, keep=False) @ _ones(problem),
    "block": lambda problem: cs.GaussNewton(problem, keep=True).block("0").dense(),
    "classes": lambda problem: cs.class_structure(problem),
    "factors": lambda problem: cs.kronecker_factors(problem),
    "scores": lambda problem: cs.sharpness(
        problem, generator=torch.Generator().manual_seed(0), steps=4
    ),
}


def _ones(problem: Problem) -> Tensor:
    return torch.ones(problem.params.size, dtype=torch.float64)


@pytest.mark.parametrize("road", ROADS)
def test_no_lock_is_held_while_data_is_read(road: str) -> None:
    model = build("mlp")
    data = Watched(model)
    ROADS[road](Problem(model, torch.utils.data.DataLoader(data, batch_size=6)))
    assert data.free
    assert all(data.free)


def test_a_suspended_pass_holds_no_lock() -> None:
    model = build("mlp")
    walk = iter(Problem(model, batches()).batches())
    next(walk)
    assert free(model)


def test_a_model_that_another_thread_trains_is_refused() -> None:
    model = build("mlp").float()
    data = torch.randn(12, 6, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
    refusals: list[str] = []

    def look() -> None:
        try:
            cs.evaluate(model, data)
        except cs.CurvescopeError as error:
            refusals.append(str(error))

    def tell(_: Any) -> None:
        cs.evaluate(model, data)  # this thread may
        thread = threading.Thread(target=look)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()

    cs.train(model, data, cs.Recipe(seed=0, epochs=1, batch_size=6), tell=tell)
    assert len(refusals) == 2
    assert "trained in another thread" in refusals[0]
    look()
    assert len(refusals) == 2


# Ctrl-C ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp", "batch-norm", "attention"])
def test_ctrl_c_at_any_moment(name: str) -> None:
    """Interrupted products leave the model, torch's switches and the locks as they were."""
    model = build(name)
    problem = Problem(model, batches(), mode="train")
    H, v = cs.Hessian(problem, keep=False), torch.ones(problem.params.size, dtype=torch.float64)
    expected = H @ v
    before, objects = snapshot(model), list(model.parameters())
    times = []
    for _ in range(5):
        started = time.perf_counter()
        H @ v
        times.append(time.perf_counter() - started)
    armed, interrupted, span = False, 0, 1.2 * min(times)

    def interrupt(*_: Any) -> None:
        if armed:
            signal.raise_signal(signal.SIGINT)

    handler = signal.signal(signal.SIGALRM, interrupt)
    try:
        for i in range(250):
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, span * (i + 1) / 250)
                H @ v
                armed = False
            except KeyboardInterrupt:
                interrupted += 1
            armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            gc.collect(1)  # an interrupted context may be left when its traceback goes
            assert all(a is b for a, b in zip(model.parameters(), objects, strict=True))
            assert {n: m.training for n, m in model.named_modules()} == before["training"]
    finally:
        signal.signal(signal.SIGALRM, handler)
    assert interrupted > 50
    assert free(model)
    after = snapshot(model)
    for key, value in before.items():
        _assert_same(key, after[key], value)
    assert torch.equal(H @ v, expected)
