"""The same data in any form is the same operator, and every sample counts once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import curvescope as cs
from tests import case_models
from tests.cases import BY_NAME, build, convert, dense
from tests.conformance import assert_relative, random_block
from tests.reference.curvature import concatenate
from tests.tolerances import EXACT

RTOL = EXACT[torch.float64]
MATRICES = {
    "hessian": cs.Hessian,
    "gauss_newton": cs.GaussNewton,
    "empirical_fisher": cs.EmpiricalFisher,
}


def batches() -> list:
    return BY_NAME["cross_entropy"].data()


def everything() -> tuple[Tensor, Tensor]:
    return concatenate(batches())[0]


class Iterable:
    """An iterable that is neither a list nor a loader."""

    def __iter__(self) -> Any:
        return iter(batches())


FORMS = {
    "tensors": everything,
    "data set": lambda: TensorDataset(*everything()),
    "list": batches,
    "list-of-lists": lambda: [list(b) for b in batches()],
    "tuple-of-batches": lambda: tuple(batches()),
    "iterable": Iterable,
    "loader": lambda: DataLoader(TensorDataset(*everything()), batch_size=5),
    "loader-shuffled": lambda: DataLoader(
        TensorDataset(*everything()),
        batch_size=5,
        shuffle=True,
        generator=torch.Generator().manual_seed(0),
    ),
    "loader-of-one": lambda: DataLoader(TensorDataset(*everything()), batch_size=1),
    "one-by-one": lambda: [(x[None], y[None]) for x, y in zip(*everything(), strict=True)],
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_data(form: str) -> None:
    problem = cs.Problem(BY_NAME["cross_entropy"].model(), FORMS[form]())
    V = random_block(problem.params.size, 3, torch.float64)
    for matrix, make in MATRICES.items():
        op = make(problem)
        for _ in range(2):
            assert_relative(
                op @ V, dense("cross_entropy", matrix) @ V, rtol=RTOL, what=f"{form} {matrix}"
            )
    assert_relative(
        problem.gradient(), dense("cross_entropy", "gradient"), rtol=RTOL, what="gradient"
    )


def test_a_generator_of_batches() -> None:
    """It can be read once only: either it is kept, or it is refused; it is never silently empty."""
    V = random_block(43, 3, torch.float64)
    try:
        problem = cs.Problem(BY_NAME["cross_entropy"].model(), (b for b in batches()))
        H = cs.Hessian(problem)
        products = [H @ V, H @ V, cs.Hessian(problem) @ V]
    except cs.CurvescopeError as error:
        if not ("list" in str(error) or "iterat" in str(error)):
            raise
    else:
        for product in products:
            assert_relative(
                product, dense("cross_entropy", "hessian") @ V, rtol=RTOL, what="generator"
            )


def test_dict_and_tuple_inputs_equal_tensor_inputs() -> None:
    """The same network called with a tensor, a tuple, a dict, and answering with an object."""

    class ByKeyword(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = BY_NAME["cross_entropy"].model()

        def forward(self, x: Tensor, scale: Tensor) -> Any:
            from types import SimpleNamespace

            return SimpleNamespace(logits=self.net(x * scale))

    V = random_block(43, 3, torch.float64)
    expected = dense("cross_entropy", "hessian") @ V
    twos = [(x / 2, torch.full((len(x), 1), 2.0, dtype=x.dtype), y) for x, y in batches()]
    as_dicts = [({"x": x, "scale": s}, y) for x, s, y in twos]
    as_tuples = [((x, s), y) for x, s, y in twos]
    for data in (as_dicts, as_tuples):
        assert_relative(
            cs.Hessian(cs.Problem(ByKeyword(), data)) @ V,
            expected,
            rtol=RTOL,
            what=f"{type(data[0][0])}",
        )
    whole = (
        {
            "x": torch.cat([b[0]["x"] for b in as_dicts]),
            "scale": torch.full((12, 1), 2.0, dtype=torch.float64),
        },
        everything()[1],
    )
    assert_relative(
        cs.Hessian(cs.Problem(ByKeyword(), whole)) @ V, expected, rtol=RTOL, what="(dict, y)"
    )


@pytest.mark.parametrize("sizes", [(12,), (5, 5, 2), (1, 11), (1,) * 12, (3, 9)])
@pytest.mark.parametrize(
    "name", ["cross_entropy", "mse", "logistic", "callable-huber", "cross_entropy-ignored"]
)
def test_uneven_batches(name: str, sizes: tuple[int, ...]) -> None:
    """However the data is cut, the mean is over samples (cross-entropy: counted positions)."""
    case = BY_NAME[name]
    ((x, y),) = concatenate(case.data())
    data = list(zip(x.split(sizes), y.split(sizes), strict=True))
    problem = cs.Problem(case.model(), data, loss=case.loss)
    V = random_block(problem.params.size, 2, torch.float64)
    assert_relative(problem.value(), dense(name, "value"), rtol=RTOL, what="value")
    for matrix, make in MATRICES.items():
        assert_relative(
            make(problem, keep=False) @ V,
            dense(name, matrix) @ V,
            rtol=RTOL,
            what=f"{matrix} {sizes}",
        )


def test_batches_yield_what_was_given() -> None:
    problem = cs.Problem(BY_NAME["cross_entropy"].model(), batches())
    first, second = list(problem.batches()), list(problem.batches())
    assert len(first) == len(second) == 3


def test_train_mode_keeps_the_batches_apart() -> None:
    """Batch statistics: another cut is another function, and ours is that of the given batches."""
    case = BY_NAME["batch-norm-train"]
    V = random_block(53, 2, torch.float64)
    whole = cs.Problem(case.model(), concatenate(case.data())[0], mode="train")
    difference = cs.Hessian(whole) @ V - dense("batch-norm-train", "hessian") @ V
    assert float(difference.norm()) > 1e-2


def test_value_and_dtype_follow_the_model() -> None:
    for dtype in (torch.float64, torch.float32):
        problem = BY_NAME["mse"].problem(dtype)
        assert problem.dtype == dtype
        assert problem.device == torch.device("cpu")
        assert problem.mode == "eval"
        assert cs.Hessian(problem).dtype == dtype


def test_targets_may_be_integers_for_logistic_and_shared_between_losses() -> None:
    """``cross_entropy`` of two logits ``(0, z)`` is ``binary_logistic`` of ``z``."""

    class TwoLogits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = build(case_models.Squeezed, torch.float64)

        def forward(self, x: Tensor) -> Tensor:
            z = self.net(x)
            return torch.stack([torch.zeros_like(z), z], 1)

    data = BY_NAME["logistic-integer-target"].data()
    H = cs.Hessian(cs.Problem(TwoLogits(), data, loss="cross_entropy"))
    assert_relative(H.dense(), dense("logistic", "hessian"), rtol=RTOL, what="two logits")


def test_mse_counts_output_entries() -> None:
    """Repeating every output leaves the mean over entries, hence H and G, unchanged."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = BY_NAME["mse"].model()

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x).repeat(1, 2)

    data = [(x, y.repeat(1, 2)) for x, y in BY_NAME["mse"].data()]
    problem = cs.Problem(Twice(), data, loss="mse")
    assert_relative(cs.Hessian(problem).dense(), dense("mse", "hessian"), rtol=RTOL, what="H")
    assert_relative(
        cs.GaussNewton(problem).dense(), dense("mse", "gauss_newton"), rtol=RTOL, what="G"
    )


def test_the_users_data_is_not_changed() -> None:
    data = batches()
    before = convert([(x.clone(), y.clone()) for x, y in data], torch.float64)
    cs.Hessian(cs.Problem(build(case_models.mlp, torch.float64), data)) @ torch.ones(
        43, dtype=torch.float64
    )
    for (x, y), (x0, y0) in zip(data, before, strict=True):
        torch.testing.assert_close(x, x0, rtol=0, atol=0)
        torch.testing.assert_close(y, y0, rtol=0, atol=0)
        assert not x.requires_grad


def test_inference_and_no_grad_contexts() -> None:
    """A product works inside the caller's ``torch.no_grad`` as outside."""
    problem = BY_NAME["cross_entropy"].problem()
    v = torch.ones(43, dtype=torch.float64)
    expected = cs.Hessian(problem) @ v
    for keep in (True, False):
        with torch.no_grad():
            product = cs.Hessian(problem, keep=keep) @ v
            gradient = problem.gradient()
        assert_relative(product, expected, rtol=RTOL, what=f"no_grad, keep={keep}")
        assert_relative(gradient, dense("cross_entropy", "gradient"), rtol=RTOL, what="gradient")


@pytest.mark.parametrize("form", ["pair", "two", "batches", "mapping", "iterator", "targets"])
def test_arrays_are_the_tensors_of_their_numbers(form: str) -> None:
    """NumPy's real numbers become those of the model's type, whole numbers become int64."""
    model = torch.nn.Linear(4, 3).float()
    X, y = np.random.default_rng(0).normal(size=(5, 4)), np.arange(5, dtype=np.int32) % 3
    expected = cs.Problem(model, (torch.tensor(X).float(), torch.tensor(y).long()))
    ours: dict[str, Callable[[], cs.Problem]] = {
        "pair": lambda: cs.Problem(model, (X, y)),
        "two": lambda: cs.Problem(model, X, y),
        "batches": lambda: cs.Problem(model, [(X[:3], y[:3]), (X[3:], y[3:])]),
        "mapping": lambda: cs.Problem(model, {"input": X, "labels": y}),
        "iterator": lambda: cs.Problem(model, iter([[X, y]])),
        "targets": lambda: cs.Problem(model, (torch.tensor(X).float(), y)),
    }
    problem = ours[form]()
    torch.testing.assert_close(problem.value(), expected.value())
    assert problem.identity == expected.identity or form == "mapping"  # inputs by name


def test_an_array_that_is_written_to_later_changes_nothing() -> None:
    X, y = np.ones((5, 4), dtype=np.float32), np.arange(5) % 3
    problem = cs.Problem(torch.nn.Linear(4, 3), X, y)
    before = problem.value()
    X[:] = 0.0
    assert torch.equal(problem.value(), before)
