"""Misuse gives one clear sentence: a ``CurvescopeError`` that says what is wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import curvescope as cs
from tests import case_models
from tests.cases import build, classes, convert, positions, signs, values

DOUBLE = torch.float64


def mlp(**options: Any) -> nn.Module:
    return build(lambda: case_models.mlp(**options), DOUBLE)


def data() -> list:
    return convert(classes(4), DOUBLE)


def use(model: nn.Module, batches: Any, loss: Any = "cross_entropy", **options: Any) -> None:
    """Build a problem and use it, so that an error may come at either time."""
    problem = cs.Problem(model, batches, loss=loss, **options)
    cs.Hessian(problem) @ torch.ones(problem.params.size, dtype=problem.dtype)


def one_sentence(error: pytest.ExceptionInfo) -> None:
    """One line, not a wrapped traceback."""
    assert isinstance(error.value, ValueError)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite(bad: float) -> None:
    model = mlp()
    with torch.no_grad():
        model.fc2.weight[1, 2] = bad
    with pytest.raises(
        cs.CurvescopeError, match=r"(?i)(?=.*fc2\.weight)(?=.*(finite|nan))"
    ) as error:
        use(model, data())
    one_sentence(error)


@pytest.mark.parametrize("empty", [[], (), "loader", "batch"])
def test_empty_data(empty: Any) -> None:
    X, y = torch.zeros(0, 4, dtype=DOUBLE), torch.zeros(0, dtype=torch.int64)
    if empty == "loader":
        empty = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, y), batch_size=2)
    elif empty == "batch":
        empty = (X, y)
    with pytest.raises(cs.CurvescopeError, match=r"(?i)(empty|no (batch|sample|data))") as error:
        use(mlp(), empty)
    one_sentence(error)


def test_all_positions_ignored() -> None:
    """Nothing to average over is as empty as no data."""
    model = build(case_models.Positions, DOUBLE)
    batches = [(x, torch.full_like(y, -100)) for x, y in convert(positions(), DOUBLE)]
    with pytest.raises(
        cs.CurvescopeError, match=r"(?i)(ignored|-100|empty|no (position|sample|data))"
    ) as error:
        use(model, batches)
    one_sentence(error)


@pytest.mark.parametrize("label", [3, -1, 17])
def test_labels_out_of_range(label: int) -> None:
    batches = data()
    batches[-1][1][0] = label
    with pytest.raises(
        cs.CurvescopeError, match=rf"(?i)(?=.*(label|target|class))(?=.*{label})(?=.*\b(2|3)\b)"
    ) as error:
        use(mlp(), batches)
    one_sentence(error)


def test_logistic_labels_out_of_range() -> None:
    batches = [(x, 2 * y) for x, y in convert(signs(), DOUBLE)]
    with pytest.raises(
        cs.CurvescopeError, match=r"(?i)(?=.*(label|target))(?=.*0)(?=.*2)"
    ) as error:
        use(build(case_models.Squeezed, DOUBLE), batches, "binary_logistic")
    one_sentence(error)


WRONG_SHAPES = {
    "cross_entropy-matrix": ("cross_entropy", lambda y: torch.stack([y, y], 1)),
    "cross_entropy-too-few": ("cross_entropy", lambda y: y[:-1]),
    "cross_entropy-one-hot": ("cross_entropy", lambda y: nn.functional.one_hot(y, 3)),
    "mse-vector": ("mse", lambda y: torch.zeros(len(y), dtype=DOUBLE)),
    "mse-broadcast": ("mse", lambda y: torch.zeros(len(y), 1, dtype=DOUBLE)),
    "mse-one-row": ("mse", lambda y: torch.zeros(1, 3, dtype=DOUBLE)),
    "mse-too-wide": ("mse", lambda y: torch.zeros(len(y), 4, dtype=DOUBLE)),
    "logistic-three-outputs": ("binary_logistic", lambda y: torch.zeros(len(y), dtype=DOUBLE)),
}


@pytest.mark.parametrize("name", WRONG_SHAPES)
def test_target_of_the_wrong_shape(name: str) -> None:
    """Shapes that torch would refuse late, and those that it would broadcast in silence."""
    loss, change = WRONG_SHAPES[name]
    batches = [(x, change(y)) for x, y in data()]
    shape = r"\[\d+(, \d+)*\]|\(\d+,( \d+)*\)|torch\.Size"
    with pytest.raises(
        cs.CurvescopeError, match=rf"(?i)(?=.*(target|output))(?=.*({shape}))"
    ) as error:
        use(mlp(), batches, loss)
    one_sentence(error)


WRONG_DTYPES = {
    "cross_entropy-float": ("cross_entropy", lambda y: y.double(), "float64"),
    "cross_entropy-bool": ("cross_entropy", lambda y: y > 0, "bool"),
    "mse-int": ("mse", lambda y: torch.zeros(len(y), 3, dtype=torch.int64), "int64"),
}


@pytest.mark.parametrize("name", WRONG_DTYPES)
def test_target_of_the_wrong_dtype(name: str) -> None:
    loss, change, dtype = WRONG_DTYPES[name]
    batches = [(x, change(y)) for x, y in data()]
    with pytest.raises(cs.CurvescopeError, match=rf"(?i)(?=.*target)(?=.*{dtype})") as error:
        use(mlp(), batches, loss)
    one_sentence(error)


def test_input_of_another_dtype_than_the_weights() -> None:
    with pytest.raises(cs.CurvescopeError, match=r"(?i)(?=.*float32)(?=.*float64)") as error:
        use(mlp(), convert(classes(4), torch.float32))
    one_sentence(error)


def test_no_parameter_requires_grad() -> None:
    model = mlp()
    model.requires_grad_(False)
    with pytest.raises(cs.CurvescopeError, match=r"(?i)no parameter.*require") as error:
        use(model, data())
    one_sentence(error)
    with pytest.raises(cs.CurvescopeError, match=r"(?i)no parameter"):
        use(mlp(), data(), params=lambda name, parameter: False)
    with pytest.raises(cs.CurvescopeError, match=r"(?i)no parameter"):
        use(nn.Tanh(), data())


@pytest.mark.parametrize("params", ["fc9", ["fc1", "fc9"], "fc1.wait", "fc"])
def test_a_layer_that_does_not_exist(params: Any) -> None:
    """The message names what was asked for and lists what there is."""
    wanted = params if isinstance(params, str) else params[-1]
    with pytest.raises(cs.CurvescopeError, match=rf"'{wanted}'.*fc1.*fc2") as error:
        use(mlp(), data(), params=params)
    one_sentence(error)


def test_restrict_to_a_layer_that_does_not_exist() -> None:
    with pytest.raises(cs.CurvescopeError, match=r"'fc9'.*fc1.*fc2"):
        cs.Problem(mlp(), data()).restrict("fc9")


def test_mixed_devices_of_parameters() -> None:
    model = mlp()
    model.fc2.weight = nn.Parameter(model.fc2.weight.detach().to("meta"))
    with pytest.raises(cs.CurvescopeError, match=r"(?i)(?=.*device)(?=.*meta)(?=.*cpu)") as error:
        use(model, data())
    one_sentence(error)


def test_mixed_dtypes_of_parameters() -> None:
    model = mlp()
    model.fc2.float()
    with pytest.raises(
        cs.CurvescopeError, match=r"(?i)(?=.*parameters)(?=.*float32)(?=.*float64)"
    ) as error:
        use(model, data())
    one_sentence(error)


def test_unknown_words() -> None:
    with pytest.raises(cs.CurvescopeError, match=r"(?i)loss.*cross_entropy.*'hinge'"):
        cs.Problem(mlp(), data(), loss="hinge")
    with pytest.raises(cs.CurvescopeError, match=r"(?i)mode.*'eval'.*'train'.*'test'"):
        cs.Problem(mlp(), data(), mode="test")


def test_a_model_that_is_no_module() -> None:
    with pytest.raises(cs.CurvescopeError, match=r"(?i)(?=.*model)(?=.*Module)"):
        cs.Problem(lambda x: x, data())


def test_data_that_is_no_data() -> None:
    with pytest.raises(cs.CurvescopeError, match=r"(?i)data"):
        use(mlp(), 7)
    with pytest.raises(cs.CurvescopeError, match=r"(?i)(batch|data|target)"):
        use(mlp(), [torch.zeros(3, 4, dtype=DOUBLE)])


def test_a_list_of_two_arrays_is_no_pair() -> None:
    X, y = torch.zeros(5, 4, dtype=DOUBLE), torch.zeros(5, dtype=torch.int64)
    with pytest.raises(cs.CurvescopeError, match=r"each batch must be a pair"):
        use(mlp(), [X.numpy(), y.numpy()])


def test_a_loss_in_the_place_of_targets() -> None:
    with pytest.raises(cs.CurvescopeError, match=r"third argument is targets.*write loss="):
        cs.Problem(mlp(), data(), "mse")


def test_inputs_and_targets_of_different_lengths() -> None:
    X, y = torch.zeros(5, 4, dtype=DOUBLE), torch.zeros(6, dtype=torch.int64)
    with pytest.raises(cs.CurvescopeError, match=r"(?i)(?=.*5)(?=.*6)"):
        use(mlp(), (X, y))


def test_a_loss_that_is_no_scalar() -> None:
    with pytest.raises(cs.CurvescopeError, match=r"(?i)loss.*(scalar|mean|one number|0-dim)"):
        use(mlp(), data(), lambda output, target: (output**2).sum(1))
    with pytest.raises(cs.CurvescopeError, match=r"(?i)(?=.*loss)(?=.*(mean|sum))"):
        use(mlp(), data(), nn.CrossEntropyLoss(reduction="sum"))
    with pytest.raises(cs.CurvescopeError, match=r"(?i)(?=.*loss)(?=.*(mean|none))"):
        use(mlp(), data(), nn.CrossEntropyLoss(reduction="none"))


@pytest.mark.parametrize("operator", ["Hessian", "GaussNewton", "EmpiricalFisher"])
def test_vectors_that_do_not_fit(operator: str) -> None:
    op = getattr(cs, operator)(cs.Problem(mlp(), data()))
    with pytest.raises(cs.CurvescopeError, match=rf"{operator}.*\[43\].*got \[42\]") as error:
        op @ torch.zeros(42, dtype=DOUBLE)
    one_sentence(error)
    with pytest.raises(
        cs.CurvescopeError, match=rf"{operator}.*torch\.float64, got torch\.float32"
    ) as error:
        op @ torch.zeros(43)
    one_sentence(error)


class OnceDifferentiable(torch.autograd.Function):
    """A function whose backward refuses to be differentiated."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 2 * grad * ctx.saved_tensors[0]


class Square(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return OnceDifferentiable.apply(x)


def test_a_model_that_cannot_be_differentiated_twice_names_the_module() -> None:
    model = nn.Sequential()
    model.add_module("fc1", nn.Linear(4, 3, dtype=DOUBLE))
    model.add_module("square", Square())
    with pytest.raises(cs.CurvescopeError, match=r"square|Square") as error:
        use(model, data())
    one_sentence(error)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_lstm_is_right_or_named(dtype: torch.dtype) -> None:
    """A fused recurrent kernel is either differentiated twice correctly or refused by name."""
    from tests.cases import Case
    from tests.conformance import check_products
    from tests.tolerances import EXACT

    case = Case("lstm", case_models.Lstm, lambda: classes(3, 3))
    try:
        H = cs.Hessian(case.problem(dtype))
        H @ torch.zeros(H.shape[0], dtype=dtype)
    except cs.CurvescopeError as error:
        if "lstm" not in str(error).lower():
            raise
    else:
        check_products(H, case.reference().hessian(), rtol=EXACT[dtype])


def test_outputs_that_are_neither_tensor_nor_logits() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 3, dtype=DOUBLE)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"scores": self.fc(x)}

    with pytest.raises(cs.CurvescopeError, match=r"(?i)output.*(tensor|logits)"):
        use(Words(), data())


def test_half_precision_weights_are_refused() -> None:
    """Curvature is computed in float32 or float64."""
    with pytest.raises(cs.CurvescopeError, match=r"(?i)(float16|half|bfloat16)"):
        use(mlp().to(torch.bfloat16), convert(values(4), torch.bfloat16), "mse")
