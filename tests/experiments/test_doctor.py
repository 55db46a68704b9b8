"""The doctor: what it says of models that can be analyzed, and of those that cannot."""

from __future__ import annotations

import json
import re
import time
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import curvescope as cs
from curvescope import io
from curvescope.errors import CurvescopeError
from curvescope.experiments.analyze import analyze
from curvescope.experiments.configuration import Settings
from curvescope.experiments.doctor import Diagnosis, doctor
from curvescope.experiments.doctor.examination import estimate_analysis, estimate_certificate
from curvescope.experiments.doctor.forecast import Forecaster
from curvescope.experiments.doctor.products import measure
from curvescope.experiments.doctor.questions import attention
from curvescope.experiments.doctor.records import duration
from curvescope.experiments.doctor.watch import peak
from curvescope.networks import network
from curvescope.problem import Problem

SMALL = Settings(steps=6, probes=4, trace_probes=8, outliers=3, layer_pairs=4, class_rows=200)


def g() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def rows(model: nn.Module, *, loss: Any = "cross_entropy", samples: int = 40) -> Problem:
    X = torch.randn(samples, 6, generator=g())
    return Problem(model, (X, torch.arange(samples) % 3), loss=loss)


def images(name: str) -> Problem:
    X = torch.randn(12, 1, 16, 16, generator=g())
    return Problem(network(name, (1, 16, 16), 10), (X, torch.arange(12) % 10))


def text() -> Problem:
    data = cs.dataset("python-topics-T16")
    return Problem(network("GPT-1x32", 16, data.classes), (data.X[:6], data.y[:6]))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(6, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x[:, None].expand(-1, 4, -1))[0][:, -1])


class Tied(nn.Module):
    """One weight under two names, one that is frozen, and a module that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again = nn.Linear(6, 6), nn.Linear(6, 6)
        self.again.weight = self.first.weight
        self.head = nn.Linear(6, 3)
        self.head.bias.requires_grad_(False)
        self.spare = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.again(torch.tanh(self.first(x)))))


class Own(nn.Module):
    """A model whose own loss is cross-entropy with something added."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.layer, self.penalty = nn.Linear(6, 3), weight

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        z = self.layer(x)
        if labels is None:
            return {"logits": z}
        loss = nn.functional.cross_entropy(z, labels) + self.penalty * z.square().mean()
        return {"loss": loss, "logits": z}


class OnceExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * ctx.saved_tensors[0].exp()


class TwiceExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * ctx.saved_tensors[0].exp()


class Exp(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function.apply(x)


class Noise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 0.05 * torch.randn_like(x)


def chain(*middle: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Sequential(*middle), nn.Linear(8, 3))


MODELS = {
    "perceptron": lambda: images("F-20^2"),
    "LeNet5": lambda: images("LeNet5"),
    "batch norm": lambda: images("LeNet5-BN"),
    "GPT": text,
    "LSTM": lambda: rows(Recurrent()),
    "tied": lambda: rows(Tied()),
    "own loss": lambda: rows(Own(0.0)),
}
REFUSED = {
    "a loss that is not the model's": (
        lambda: rows(Own(0.1)),
        "the model's own loss is .* and no loss that the library knows gives that number",
    ),
    "an operation without derivative": (
        lambda: rows(chain(Exp(OnceExp))),
        r"module '1\.0' \(Exp\) has no second derivative",
    ),
    "a random forward": (
        lambda: rows(chain(Noise())),
        "the model's output is random|draws random numbers",
    ),
}


@cache
def examined(name: str) -> tuple[Problem, dict[str, Tensor], Diagnosis]:
    """A problem, its weights before the examination, and the diagnosis."""
    problem = MODELS[name]()
    before = {key: value.clone() for key, value in problem.model.state_dict().items()}
    return problem, before, doctor(problem, settings=SMALL)


@pytest.mark.parametrize("name", MODELS)
def test_models_that_can_be_analyzed(name: str, tmp_path: Path) -> None:
    problem, before, diagnosis = examined(name)
    assert diagnosis.ok
    assert diagnosis.advice
    assert all(question.ok for question in diagnosis.questions)
    assert all(note.recorded and note.twice for note in diagnosis.modules if note.called)
    assert diagnosis.measured is not None
    assert {p.matrix for p in diagnosis.measured.products} == {"H", "G"}
    for what in ("density", "analysis"):
        forecast = diagnosis.forecast(what)
        assert forecast.seconds is not None
        assert forecast.seconds > 0
        assert forecast.bytes
        assert forecast.seconds == pytest.approx(sum(seconds for _, seconds in forecast.steps))
    for key, value in problem.model.state_dict().items():
        assert torch.equal(value, before[key])
    io.save(tmp_path / "diagnosis.json", diagnosis)
    assert io.load(tmp_path / "diagnosis.json", Diagnosis) == diagnosis
    assert diagnosis.advice in str(diagnosis)


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_are_refused_in_one_sentence(name: str) -> None:
    make, message = REFUSED[name]
    diagnosis = doctor(make(), settings=SMALL)
    assert not diagnosis.ok
    assert diagnosis.advice == ""
    assert diagnosis.measured is None
    assert not diagnosis.forecasts
    assert re.search(message, diagnosis.refusal), diagnosis.refusal
    assert "\n" not in diagnosis.refusal
    assert str(diagnosis).endswith(diagnosis.refusal)


def test_something_else_is_no_problem() -> None:
    with pytest.raises(CurvescopeError, match=r"doctor\(problem\): needs a Problem, got Linear"):
        doctor(nn.Linear(2, 2))  # type: ignore[arg-type]


# Module by module --------------------------------------------------------------------------------


def test_the_smallest_module_is_blamed_and_the_others_are_not() -> None:
    """Others around it, and a function with a derivative of its own, which is recorded."""
    diagnosis = doctor(rows(chain(Exp(TwiceExp), Exp(OnceExp), nn.Tanh())), settings=SMALL)
    notes = {note.name: note for note in diagnosis.modules}
    assert not notes["1.1"].recorded
    assert not notes["1.1"].twice
    assert "the backward of OnceExp has no derivative" in notes["1.1"].problem
    assert all(note.recorded and note.twice for name, note in notes.items() if name != "1.1")


def test_closed_forms_are_those_of_the_plans() -> None:
    problem, _, diagnosis = examined("LeNet5")
    for note in diagnosis.modules:
        if not note.parameters:
            assert note.closed_form == ()
            continue
        for matrix, operator in (("H", cs.Hessian), ("G", cs.GaussNewton)):
            plan = operator(problem, keep=True).block(f"{note.name}.weight").plan
            assert (matrix in note.closed_form) == ("closed form" in plan.strategy)


def test_a_shared_weight_and_an_unused_module_are_said() -> None:
    diagnosis = examined("tied")[2]
    assert diagnosis.tied == (("first.weight", "again.weight"),)
    assert diagnosis.frozen == ("head.bias",)
    notes = {note.name: note for note in diagnosis.modules}
    assert "shares its weight (first.weight = again.weight)" in notes["first"].why_not
    assert not notes["spare"].called
    answers = {question.what: question.answer for question in diagnosis.questions}
    assert "does not depend on spare.weight, spare.bias" in answers["variables"]
    assert "see each other" not in answers["samples"].removeprefix("do not see each other")


def test_attention() -> None:
    note = examined("GPT")[2].attention
    assert note is not None
    assert (note.calls, note.blockwise, note.longest, note.scores) == (1, 1, 16, 0)
    assert "in blocks of queries" in note.how
    assert examined("LSTM")[2].attention is None

    class Masked(nn.Module):
        """A mask with a gradient of its own, which the blockwise rule does not cover."""

        def __init__(self) -> None:
            super().__init__()
            self.mask = nn.Parameter(torch.zeros(5, 5))

        def forward(self, x: Tensor) -> Tensor:
            out = F.scaled_dot_product_attention(x, x, x, attn_mask=self.mask, dropout_p=0.0)
            return out.sum((1, 2))

    note = attention(Problem(Masked(), (torch.randn(6, 2, 5, 3), torch.arange(6) % 3)))
    assert note is not None
    assert note.scores == 6 * 2 * 5 * 5 * 4  # samples, heads, T × T, bytes
    assert "unfused path" in note.how


def test_a_loss_of_the_model_and_one_of_the_caller() -> None:
    answers = {q.what: q.answer for q in examined("own loss")[2].questions}
    assert "as the model computes it itself" in answers["loss"]
    answers = {q.what: q.answer for q in examined("LSTM")[2].questions}
    assert "the model computes none of its own" in answers["loss"]


def test_bad_numbers_in_the_data_end_the_examination() -> None:
    X = torch.randn(8, 6, generator=g())
    X[3, 2] = float("nan")
    diagnosis = doctor(Problem(nn.Linear(6, 3), (X, torch.arange(8) % 3)), settings=SMALL)
    assert "the first batch has NaN or infinite numbers" in diagnosis.refusal


def test_a_certificate_that_cannot_be_has_a_reason() -> None:
    forecast = examined("GPT")[2].forecast("certificate")
    assert forecast.seconds is None
    assert "one label each" in forecast.because
    assert examined("perceptron")[2].forecast("certificate").seconds


# Estimates against what is then measured ----------------------------------------------------------


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("operator", [cs.Hessian, cs.GaussNewton])
def test_memory_and_time_of_a_product(
    operator: Any, keep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over eight batches, from four: bytes within 25 %, time within a factor of 1.5.

    Clocks count the processor's time, so that other work on the machine does not decide.
    """
    monkeypatch.setattr(time, "perf_counter", time.process_time)
    X = torch.randn(800, 200, generator=g())
    model = network("F-300^2", 200, 10)
    problem = Problem(model, (X, torch.arange(800) % 10), batch_size=100)
    measured = measure(problem)
    product = measured.product("H" if operator is cs.Hessian else "G", kept=keep)
    assert product is not None
    assert (measured.samples, measured.batches) == (800, 8)
    A, v = operator(problem, keep=keep), torch.randn(problem.params.size, 8, generator=g())
    most, after = peak(lambda: A @ v, problem.device)
    assert product.peak_block == pytest.approx(most, rel=0.25)
    assert product.held == pytest.approx(after if keep else 0, rel=0.05)
    for columns, estimate in ((1, product.one), (8, product.block)):
        times = []
        for _ in range(7):
            started = time.perf_counter()
            A @ v[:, :columns]
            times.append(time.perf_counter() - started)
        assert 1 / 1.5 < estimate / median(times) < 1.5


def test_memory_of_a_density() -> None:
    X = torch.randn(400, 200, generator=g())
    problem = Problem(network("F-300^2", 200, 10), (X, torch.arange(400) % 10), batch_size=100)
    settings = Settings(steps=12, probes=8)
    forecast = Forecaster(problem, measure(problem)).density_alone(settings)
    most, _ = peak(
        lambda: cs.spectral_measure(cs.Hessian(problem), steps=12, probes=8, generator=g()),
        problem.device,
    )
    assert forecast.bytes == pytest.approx(most, rel=0.25)


def test_the_estimate_of_an_analysis_has_its_stages(tmp_path: Path) -> None:
    problem = rows(chain(nn.ReLU()))
    forecast = estimate_analysis(problem, settings=SMALL, layers=["0"], test=problem)
    names = [name for name, _ in forecast.steps]
    assert names == [
        "overview", "sharpness", "spectrum H", "spectrum G", "spectrum E", "layers", "classes",
        "report",
    ]  # fmt: skip
    few = estimate_analysis(problem, settings=SMALL, layers=[], classes=False)
    assert {"layers", "classes"}.isdisjoint(name for name, _ in few.steps)
    analyze(problem, tmp_path, seed=0, settings=SMALL)  # the estimate has changed nothing
    assert estimate_certificate(problem).seconds


def test_json_of_a_diagnosis() -> None:
    shown = json.loads(json.dumps(io.encode(examined("GPT")[2])[0]))
    assert shown["modules"][0]["name"] == "embedding"


def test_durations() -> None:
    assert [duration(s) for s in (0.0005, 0.5, 119, 121, 7199, 7201)] == [
        "0.5 ms", "500 ms", "119 s", "2 min", "120 min", "2 h",
    ]  # fmt: skip
