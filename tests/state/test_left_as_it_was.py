"""Every function that runs a user's model gives it back as it was, frozen parts included."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import curvescope as cs
from curvescope._state import (
    differentiable,
    fast_precision,
    full_precision,
    strict_precision,
)
from curvescope.certificates.methods import posterior_method
from curvescope.experiments.analyze import analyze
from curvescope.experiments.stages.context import Settings
from curvescope.flatness.minibatch import minibatch_metric
from curvescope.problem import Problem
from curvescope.spectra.rank import rank_bound
from curvescope.structure.classes import class_structure
from curvescope.structure.factors import kronecker_factors
from curvescope.structure.layers import layer_statistics
from tests.problem.test_problem_leaves_no_trace import _assert_same, snapshot


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3)
    )


def frozen_norm() -> nn.Module:
    """A model in training mode whose owner froze the batch norm."""
    model = network().train()
    model[1].eval()
    return model


def only_norm_trains() -> nn.Module:
    """The reverse: everything in evaluation mode but the batch norm."""
    model = network().eval()
    model[1].train()
    return model


def mixed() -> nn.Module:
    """One part each way, one weight frozen, gradients and hooks of the owner's."""
    model = network().train()
    model[3].eval()
    model[0].bias.requires_grad_(False)
    model[4].weight.grad = torch.full_like(model[4].weight, 3.0)
    model[2].register_forward_hook(lambda *_: None)
    return model


MODELS = {"frozen-norm": frozen_norm, "only-norm-trains": only_norm_trains, "mixed": mixed}


def data() -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(1)
    return torch.randn(24, 4, generator=g), torch.arange(24) % 3


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(2)


def problem(model: nn.Module) -> Problem:
    return Problem(model, data())


def vector(model: nn.Module) -> torch.Tensor:
    return torch.ones(problem(model).params.size)


def certificate(model: nn.Module, _: Path) -> None:
    learned = {name for name, p in model.named_parameters() if p.requires_grad}
    state = model.state_dict()
    initial = {name: t + 0.1 if name in learned else t for name, t in state.items()}
    method = posterior_method("local", epochs=1)
    cs.certify(model, initial, data(), generator=generator(), method=method, slack=0.2)


def analysis(model: nn.Module, folder: Path) -> None:
    settings = Settings(steps=4, trace_probes=8, layer_pairs=4)
    analyze(problem(model), folder / "run", seed=0, settings=settings)


def penalty(kind: str) -> Callable[[nn.Module, Path], None]:
    def call(model: nn.Module, _: Path) -> None:
        cs.TraceRegularizer(kind, weight=1.0, generator=generator())(model, *data())

    return call


def product(matrix: Any, keep: bool) -> Callable[[nn.Module, Path], None]:
    def call(model: nn.Module, _: Path) -> None:
        A = matrix(problem(model), keep=keep)
        A @ torch.ones(A.shape[0], 2)

    return call


ROADS: dict[str, Callable[[nn.Module, Path], Any]] = {
    "evaluate": lambda model, _: cs.evaluate(model, data()),
    "certify": certificate,
    "analyze": analysis,
    "regularizer": penalty("ggn"),
    "regularizer-hessian": penalty("hessian"),
    "minibatch": lambda model, _: minibatch_metric(model, *data(), generator=generator()),
    "hessian-kept": product(cs.Hessian, keep=True),
    "hessian-streamed": product(cs.Hessian, keep=False),
    "gauss-newton-streamed": product(cs.GaussNewton, keep=False),
    "factors": lambda model, _: kronecker_factors(problem(model)),
    "layers": lambda model, _: layer_statistics(problem(model), layers=["4"]),
    "classes": lambda model, _: class_structure(problem(model)),
    "spectrum": lambda model, _: cs.exact_spectrum(cs.GaussNewton(problem(model))),
    "sharpness": lambda model, _: cs.sharpness(problem(model), generator=generator(), steps=4),
    "rescale": lambda model, _: cs.flatness.rescale(problem(model), "0", "4", 2.0),
    "rank-bound": lambda model, _: rank_bound(model, (4,), 3),
}


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("kind", MODELS)
def test_the_model_is_as_before(kind: str, road: str, tmp_path: Path) -> None:
    model = MODELS[kind]()
    torch.manual_seed(5)
    before = snapshot(model)
    ROADS[road](model, tmp_path)
    after = snapshot(model)
    for key, value in before.items():
        _assert_same(key, after[key], value)


class Breaks(nn.Module):
    """Fails in the forward pass, as a ctrl-C or a mistake in the user's code would."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.net, self.error = frozen_norm(), error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.net(x)
        raise self.error("broken on purpose")


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, torch.OutOfMemoryError])
@pytest.mark.parametrize("road", ["evaluate", "regularizer", "hessian-kept", "rank-bound"])
def test_the_model_is_as_before_after_an_error(
    road: str, error: type[BaseException], tmp_path: Path
) -> None:
    model = Breaks(error)
    before = snapshot(model)
    with pytest.raises((error, cs.CurvescopeError), match="broken on purpose"):
        ROADS[road](model, tmp_path)
    after = snapshot(model)
    for key, value in before.items():
        _assert_same(key, after[key], value)


class BreaksLater(nn.Module):
    """Fails in one of its forward passes, after others that went well."""

    def __init__(self, kind: str, at: int, error: type[BaseException]) -> None:
        super().__init__()
        model = MODELS[kind]()
        for name, part in model.named_children():
            self.add_module(name, part)  # with its flags
        self.training = model.training
        self.left, self.error = [at], error  # a list, for a number would be an attribute changed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.left[0] -= 1
        for part in self.children():
            x = part(x)
        if self.left[0] == 0:
            raise self.error("broken on purpose")
        return x


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("at", [2, 5])
@pytest.mark.parametrize("road", sorted(set(ROADS) - {"rescale"}))  # which runs copies
@pytest.mark.parametrize("kind", MODELS)
def test_the_model_is_as_before_after_an_error_in_the_middle(
    kind: str, road: str, at: int, error: type[BaseException], tmp_path: Path
) -> None:
    model = BreaksLater(kind, at, error)
    torch.manual_seed(5)
    before = snapshot(model)
    try:
        ROADS[road](model, tmp_path)
    except (KeyboardInterrupt, RuntimeError, cs.CurvescopeError) as raised:
        # A model that fails on a part of a batch is taken for one that needs the whole.
        words = ("broken on purpose", "must not depend on the rest of its batch")
        assert any(each in str(raised) for each in words)  # noqa: PT017
    after = snapshot(model)
    for key, value in before.items():
        _assert_same(key, after[key], value)


# Training ------------------------------------------------------------------------------------


def test_a_frozen_batch_norm_stays_frozen_during_training() -> None:
    model = frozen_norm()
    norm = model[1]
    mean, weight = norm.running_mean.clone(), norm.weight.detach().clone()
    seen: list[list[bool]] = []
    cs.train(
        model,
        data(),
        cs.Recipe(seed=0, epochs=2, batch_size=8),
        test=data(),
        tell=lambda _: seen.append([module.training for module in model.modules()]),
    )
    assert seen == [[True, True, False, True, True, True]] * len(seen)
    assert torch.equal(norm.running_mean, mean)  # statistics rest, weights learn
    assert not torch.equal(norm.weight, weight)
    assert not any(module.training for module in model.modules())


def test_a_frozen_batch_norm_keeps_its_statistics_when_weights_are_averaged() -> None:
    model = frozen_norm()
    mean = model[1].running_mean.clone()
    cs.train(model, data(), cs.Recipe(seed=0, epochs=3, batch_size=8, average_from=2))
    assert torch.equal(model[1].running_mean, mean)


def test_a_model_in_evaluation_mode_trains_as_a_whole() -> None:
    one, other = network().eval(), network().train()
    for model in (one, other):
        cs.train(model, data(), cs.Recipe(seed=0, epochs=1, batch_size=8))
    for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert int(one[1].num_batches_tracked) == 3


def test_flags_after_a_training_that_was_interrupted() -> None:
    model = frozen_norm()
    before = [module.training for module in model.modules()]

    def stop(_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        cs.train(model, data(), cs.Recipe(seed=0, epochs=2, batch_size=8), tell=stop)
    assert [module.training for module in model.modules()] == before


# Torch's switches ----------------------------------------------------------------------------


def _users() -> list[Callable[[], None]]:
    def highest() -> None:
        torch.set_float32_matmul_precision("highest")

    def medium() -> None:
        torch.set_float32_matmul_precision("medium")

    def exact_convolutions() -> None:
        torch.backends.cudnn.allow_tf32 = False

    def by_name() -> None:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        torch.backends.cudnn.conv.fp32_precision = "ieee"

    return [lambda: None, highest, medium, exact_convolutions, by_name]


def _precisions() -> list[str]:
    readers: list[Callable[[], Any]] = [
        torch.get_float32_matmul_precision,
        lambda: torch.backends.cudnn.allow_tf32,
        lambda: torch.backends.cuda.matmul.allow_tf32,
        lambda: torch.backends.cuda.matmul.fp32_precision,
        lambda: torch.backends.cudnn.conv.fp32_precision,
        lambda: torch.backends.mkldnn.matmul.fp32_precision,
        lambda: torch.backends.mkldnn.conv.fp32_precision,
    ]
    return [_said(reader) for reader in readers]


def _said(reader: Callable[[], Any]) -> str:
    try:
        return str(reader())
    except RuntimeError as error:  # torch's word on a mixture of its old and new settings
        return str(error)


@pytest.fixture
def as_at_first() -> Iterator[None]:
    backends = [
        torch.backends.cuda.matmul,
        torch.backends.cudnn.conv,
        torch.backends.cudnn.rnn,
        torch.backends.mkldnn.matmul,
        torch.backends.mkldnn.conv,
    ]
    precision = torch.get_float32_matmul_precision()
    before = [backend.fp32_precision for backend in backends]
    yield
    torch.set_float32_matmul_precision(precision)
    for backend, value in zip(backends, before, strict=True):
        backend.fp32_precision = value


@pytest.mark.usefixtures("as_at_first")
@pytest.mark.parametrize("user", _users())
def test_precision_is_put_back_whichever_way_it_was_set(user: Callable[[], None]) -> None:
    user()
    before = _precisions()
    with fast_precision():
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
        with strict_precision():
            assert torch.backends.cuda.matmul.fp32_precision == "ieee"
            assert torch.backends.cudnn.conv.fp32_precision == "ieee"
            assert torch.backends.mkldnn.matmul.fp32_precision == "ieee"
        assert torch.backends.cudnn.conv.fp32_precision == "tf32"
        with full_precision(torch.device("cuda")):
            assert torch.backends.cudnn.conv.fp32_precision == "ieee"
            assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    assert _precisions() == before


@pytest.mark.usefixtures("as_at_first")
def test_of_two_threads_the_stricter_precision_holds() -> None:
    before = _precisions()
    fast, strict = fast_precision(), strict_precision()
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        one.submit(fast.__enter__).result()
        other.submit(strict.__enter__).result()
        assert torch.backends.cuda.matmul.fp32_precision == "ieee"
        one.submit(fast.__exit__, None, None, None).result()  # in the order they came
        assert torch.backends.cuda.matmul.fp32_precision == "ieee"
        other.submit(strict.__exit__, None, None, None).result()
    assert _precisions() == before


def test_attention_is_unfused_until_the_last_thread_has_finished() -> None:
    before = torch.backends.cuda.flash_sdp_enabled()
    first, second = differentiable(), differentiable()
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        one.submit(first.__enter__).result()
        other.submit(second.__enter__).result()
        one.submit(first.__exit__, None, None, None).result()
        assert not torch.backends.cuda.flash_sdp_enabled()
        other.submit(second.__exit__, None, None, None).result()
    assert torch.backends.cuda.flash_sdp_enabled() == before
