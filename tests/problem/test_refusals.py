"""What cannot be right is refused in one sentence: at once, or by the first that could tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import curvescope as cs
from curvescope.errors import MemoryLimitError
from curvescope.flatness.minibatch import minibatch_metric
from curvescope.problem import Problem
from curvescope.problem.passes import Passes


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


def data(samples: int = 9) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    return torch.randn(samples, 4, generator=g), torch.arange(samples) % 3


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(2)


def product(matrix: Any = cs.Hessian, **options: Any) -> Callable[[Problem], Any]:
    def call(problem: Problem) -> Tensor:
        A = matrix(problem, **options)
        return A @ torch.ones(A.shape[0], dtype=A.dtype)

    return call


ROADS: dict[str, Callable[[Problem], Any]] = {
    "value": lambda problem: problem.value(),
    "gradient": lambda problem: problem.gradient(),
    "hessian": product(),
    "hessian-kept": product(keep=True),
    "gauss-newton": product(cs.GaussNewton),
    "fisher": product(cs.EmpiricalFisher),
    "factors": cs.kronecker_factors,
    "layers": cs.layer_statistics,
    "cfac": cs.structure.cfac,
    "classes": cs.class_structure,
    "sharpness": lambda problem: cs.sharpness(problem, generator=generator()),
    "exact": lambda problem: cs.exact_spectrum(cs.GaussNewton(problem)),
}


# Models -----------------------------------------------------------------------------------------


def inference_model() -> nn.Module:
    with torch.inference_mode():
        return network()


MODELS: dict[str, tuple[Callable[[], Any], str]] = {
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(3)), "no shape yet; run the model on a batch"),
    "lazy-buffer": (lambda: nn.Sequential(nn.LazyBatchNorm1d(), nn.Linear(4, 3)), "no shape yet"),
    "scripted": (lambda: torch.jit.script(network()), "scripted or traced"),
    "traced": (lambda: torch.jit.trace(network(), data()[0]), "scripted or traced"),
    "scripted-inside": (
        lambda: nn.Sequential(torch.jit.script(nn.Linear(4, 3))), "scripted or traced",
    ),
    "data-parallel": (lambda: nn.DataParallel(network()), r"DataParallel .* model\.module"),
    "zero-size": (
        lambda: nn.Sequential(nn.Linear(4, 0), nn.Linear(0, 3)), r"'0.weight' .*\[0, 4\] has no",
    ),
    "inference": (inference_model, "made under torch.inference_mode"),
    "function": (lambda: torch.tanh, "needs a torch.nn.Module, got builtin_function"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Initializing zero-element:UserWarning")
@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("name", MODELS)
def test_models_that_are_no_function_of_their_weights(name: str) -> None:
    make, message = MODELS[name]
    with pytest.raises(cs.CurvescopeError, match=message):
        Problem(make(), data())


def test_a_layer_that_the_forward_does_not_use() -> None:
    class Either(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleDict({"a": nn.Linear(4, 3), "b": nn.Linear(4, 3)})

        def forward(self, x: Tensor) -> Tensor:
            return self.layers["a"](x)

    problem = Problem(Either(), data())
    for road in ("factors", "layers", "cfac"):
        with pytest.raises(cs.CurvescopeError, match=r"'layers\.b' is not used in the forward"):
            ROADS[road](problem)
    assert set(cs.kronecker_factors(problem, layers=["layers.a"])) == {"layers.a"}
    assert bool((problem.params.unflatten(problem.gradient())["layers.b.weight"] == 0).all())


# Data -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [True, False], ids=["first", "second"])
@pytest.mark.parametrize("road", ROADS)
def test_empty_batches(road: str, first: bool) -> None:
    X, y = data()
    batches = [(X[:0], y[:0]), (X, y)]
    problem = Problem(network(), batches if first else batches[::-1])
    with pytest.raises(cs.CurvescopeError, match=r"batch [01] is empty.*\[0, 4\]"):
        ROADS[road](problem)


@pytest.mark.parametrize("road", ROADS)
def test_data_in_which_no_target_counts(road: str) -> None:
    X, _ = data()
    problem = Problem(network(), (X, torch.full((len(X),), -100)))
    with pytest.raises(cs.CurvescopeError, match=r"all are ignored|one class label"):
        ROADS[road](problem)


@pytest.mark.parametrize("pairs", [True, False], ids=["list", "whole"])
def test_data_without_targets(pairs: bool) -> None:
    X, _ = data()
    message = "target must be a tensor|must be a pair|needs .X, y."
    with pytest.raises(cs.CurvescopeError, match=message):
        ROADS["sharpness"](Problem(network(), [(X, None)] if pairs else X))


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.parametrize("sparse", [Tensor.to_sparse, Tensor.to_sparse_csr], ids=["coo", "csr"])
def test_sparse_inputs(sparse: Callable[[Tensor], Tensor]) -> None:
    X, y = data()
    with pytest.raises(cs.CurvescopeError, match=r"sparse tensor .*x\.to_dense"):
        Problem(network(), (sparse(X), y))  # given whole: when the problem is made
    with pytest.raises(cs.CurvescopeError, match=r"batch 0 has a sparse tensor"):
        ROADS["hessian"](Problem(network(), [(sparse(X), y)]))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_inputs() -> None:
    X = torch.nested.nested_tensor([torch.ones(4), torch.ones(3)])
    for given in ((X, torch.tensor([0, 1])), [(X, torch.tensor([0, 1]))]):
        with pytest.raises(cs.CurvescopeError, match=r"nested tensor.*to_padded_tensor"):
            ROADS["value"](Problem(network(), given))


def test_data_made_under_inference_mode_is_used() -> None:
    X, y = data()
    with torch.inference_mode():
        same = X.clone(), y.clone()
    expected = ROADS["hessian"](Problem(network(), (X, y)))
    assert torch.equal(ROADS["hessian"](Problem(network(), same)), expected)


@pytest.mark.parametrize("road", ["factors", "cfac", "fisher"])
def test_numbers_that_overflow(road: str) -> None:
    X, y = data()
    with pytest.raises(cs.CurvescopeError, match=r"overflow in float32; .*\.double\(\)"):
        ROADS[road](Problem(network(), (X * 1e30, y)))
    ROADS[road](Problem(network().double(), (X.double() * 1e30, y)))


# Modes of torch -----------------------------------------------------------------------------------


@pytest.mark.parametrize("road", ROADS)
def test_inference_mode(road: str) -> None:
    problem = Problem(network(), data())
    with (
        torch.inference_mode(),
        pytest.raises(cs.CurvescopeError, match=r"under torch\.inference_mode; leave it"),
    ):
        ROADS[road](problem)
    ROADS[road](problem)


@pytest.mark.parametrize("road", ROADS)
def test_autocast(road: str) -> None:
    problem = Problem(network(), data())
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(cs.CurvescopeError, match=r"torch\.autocast would round"),
    ):
        ROADS[road](problem)
    ROADS[road](problem)


def trace_penalty() -> Tensor:
    regularizer = cs.TraceRegularizer("ggn", weight=1.0, generator=generator())
    return regularizer(network(), *data())


def certificate() -> Any:
    model = network()
    initial = {name: t + 0.1 for name, t in model.state_dict().items()}
    return cs.certify(model, initial, data(60), generator=generator(), slack=0.2)


ELSEWHERE: dict[str, Callable[[], Any]] = {
    "regularizer": trace_penalty,
    "minibatch": lambda: minibatch_metric(network(), *data(), generator=generator()),
    "train": lambda: cs.train(network(), data(), cs.Recipe(seed=0, epochs=1, batch_size=4)),
    "certify": certificate,
}


@pytest.mark.parametrize("road", ELSEWHERE)
def test_inference_mode_without_a_problem(road: str) -> None:
    with (
        torch.inference_mode(),
        pytest.raises(cs.CurvescopeError, match=r"under torch\.inference_mode; leave it"),
    ):
        ELSEWHERE[road]()


def test_a_certificate_under_autocast() -> None:
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(cs.CurvescopeError, match=r"certify: torch\.autocast would round"),
    ):
        certificate()


# Sizes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("road", ["factors", "layers", "cfac"])
def test_many_outputs_are_refused_before_they_fill_the_memory(
    road: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("curvescope.record.memory.free", lambda device: 2 << 30)
    X, y = torch.ones(8, 3), torch.arange(8)
    problem = Problem(nn.Linear(3, 10_000), (X, y))
    with pytest.raises(
        MemoryLimitError, match=r"[18]0,000.* take .* GiB, more than half of the 2\.0"
    ):
        ROADS[road](problem)


# Passes that differ -------------------------------------------------------------------------------


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    """Samples that are disturbed whenever they are read."""

    def __init__(self, size: float) -> None:
        self.X, self.y = data(12)
        self.size = size

    def __len__(self) -> int:
        return len(self.X)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.X[i] + self.size * torch.randn(4), self.y[i]


def second(problem: Problem, road: str) -> None:
    """The first call may have one pass, and cannot tell; the second must."""
    for _ in range(2):
        ROADS[road](problem)


REPEATED = ["value", "gradient", "hessian", "hessian-kept", "gauss-newton", "factors", "classes"]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("size", [1.0, 0.01])
@pytest.mark.parametrize("road", [*REPEATED, "sharpness"])
def test_random_augmentation(road: str, size: float, shuffle: bool) -> None:
    torch.manual_seed(3)
    loader = DataLoader(Augmented(size), batch_size=4, shuffle=shuffle)
    problem = Problem(network(), loader)
    if road == "hessian-kept":  # holds its first pass
        product()(problem)
    with pytest.raises(cs.CurvescopeError, match=r"two passes .* disagree: .*augmentation"):
        second(problem, road)


@pytest.mark.parametrize("road", REPEATED)
def test_shuffled_batches_of_a_batch_norm(road: str) -> None:
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    loader = DataLoader(TensorDataset(*data(12)), batch_size=4, shuffle=True)
    problem = Problem(model, loader, mode="train")
    if road in ("factors", "hessian-kept"):
        product()(problem)
    with pytest.raises(cs.CurvescopeError, match=r"disagree: batch norm in mode='train' with a sh"):
        second(problem, "hessian" if road == "factors" else road)


class OverTheBatch(nn.Module):
    """Attention of every sample to all of its batch: no norm, and no derivative need show it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        return (h @ h.mT).softmax(1) @ h


@pytest.mark.parametrize("road", REPEATED)
def test_shuffled_batches_of_samples_that_see_each_other(road: str) -> None:
    torch.manual_seed(4)
    loader = DataLoader(TensorDataset(*data(12)), batch_size=4, shuffle=True)
    problem = Problem(OverTheBatch(), loader)
    if road in ("factors", "hessian-kept"):
        product()(problem)
    message = r"disagree: a model of this kind with a shuffling .* use shuffle=False"
    with pytest.raises(cs.CurvescopeError, match=message):
        second(problem, "hessian" if road == "factors" else road)


def test_samples_that_see_each_other_are_not_cut() -> None:
    X, y = data(12)
    for road in ("value", "hessian", "gauss-newton"):
        with pytest.raises(cs.CurvescopeError, match=r"batch_size.*samples of a batch see each"):
            ROADS[road](Problem(OverTheBatch(), (X, y), batch_size=4))
    Problem(OverTheBatch(), (X, y)).value()
    Problem(OverTheBatch(), (X, y), batch_size=12).value()
    Problem(OverTheBatch(), list(zip(X.split(4), y.split(4), strict=True))).value()
    Problem(network(), (X, y), batch_size=4).value()


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("shuffle", [True, False])
def test_the_same_samples_in_any_order_are_accepted(road: str, shuffle: bool) -> None:
    torch.manual_seed(5)
    loader = DataLoader(TensorDataset(*data(12)), batch_size=5, shuffle=shuffle)
    second(Problem(network(), loader), road)


def test_a_stream_that_ends() -> None:
    class Consumed:
        def __init__(self) -> None:
            self.left = [data(4), data(5)]

        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            while self.left:
                yield self.left.pop()

    problem = Problem(network(), Consumed())
    problem.value()
    with pytest.raises(cs.CurvescopeError, match="data is empty"):
        problem.value()


@pytest.mark.parametrize(
    "changed",
    [
        lambda X, y: (X, y.roll(1)),  # other labels
        lambda X, y: (X[:-1], y[:-1]),  # a sample less
        lambda X, y: (torch.cat([X[1:2], X[1:]]), y),  # one twice
        lambda X, y: (X[:, [1, 0, 2, 3]], y),  # columns exchanged
    ],
)
def test_small_changes_are_noticed(changed: Callable[..., tuple[Tensor, Tensor]]) -> None:
    X, y = data(12)
    passes = Passes()
    assert passes.same([passes.note((X[:7], y[:7])), passes.note((X[7:], y[7:]))])
    assert not passes.same([passes.note(changed(X, y))])
