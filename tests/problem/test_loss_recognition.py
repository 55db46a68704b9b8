"""What a loss stands for: torch's functions and modules, axes, averages, and what is refused."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import curvescope as cs
from curvescope.problem.losses import Custom, as_loss

F64 = torch.float64


def short(value: Any) -> str:
    """A name that is the same in every process."""
    return value if isinstance(value, str) else type(value).__name__


def conv(outputs: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Conv1d(2, outputs, 1).double()


def linear(outputs: int = 3) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Linear(2, outputs).double()


def randn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


# Recognition -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (F.cross_entropy, "cross_entropy"),
        (partial(F.cross_entropy, label_smoothing=0.1), "cross_entropy(label_smoothing=0.1)"),
        (
            partial(partial(F.cross_entropy, ignore_index=0), weight=torch.ones(3)),
            "cross_entropy(class weights, ignore_index=0)",
        ),
        (F.binary_cross_entropy_with_logits, "binary_logistic"),
        (nn.BCEWithLogitsLoss(pos_weight=torch.ones(2)), "binary_logistic(pos_weight)"),
        (F.mse_loss, "mse"),
        (partial(F.huber_loss, delta=0.5), "huber(delta=0.5)"),
        (nn.SmoothL1Loss(beta=2.0), "smooth_l1(beta=2)"),
        (F.l1_loss, "smooth_l1(beta=0)"),
        (partial(F.l1_loss, reduction="mean"), "smooth_l1(beta=0)"),
        (partial(F.mse_loss, size_average=None, reduce=None), "mse"),
    ],
    ids=short,
)
def test_functions_and_modules_are_the_losses_that_they_are(given: Any, name: str) -> None:
    loss = as_loss(given)
    assert (loss.name, loss.convex, loss.closed_form) == (name, True, True)


def test_a_subclass_with_a_forward_of_its_own_is_another_loss() -> None:
    class Twice(nn.CrossEntropyLoss):
        def forward(self, input: Tensor, target: Tensor) -> Tensor:
            return 2 * super().forward(input, target)

    X, y = randn(4, 2), torch.tensor([0, 2, 1, 1])
    ours = cs.Problem(linear(), (X, y), loss=Twice())
    assert isinstance(ours.loss, Custom)
    expected = Twice()(linear()(X), y)
    torch.testing.assert_close(ours.value(), expected.detach())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (nn.CrossEntropyLoss(reduction="sum"), r"must be a mean, got reduction='sum'"),
        (partial(F.cross_entropy, reduction="none"), r"must be a mean, got reduction='none'"),
        (nn.KLDivLoss(reduction="batchmean"), r"must be a mean, got reduction='batchmean'"),
        (partial(lambda z, y, reduction: z, reduction="sum"), r"got reduction='sum'"),
        (partial(F.mse_loss, size_average=False), r"must be a mean, got .*size_average=False"),
        (partial(F.mse_loss, weight=torch.ones(2)), r"MeanSquare does not know .* weight"),
        (partial(F.cross_entropy, torch.ones(2)), r"by keyword, got 1 by position"),
        (partial(F.huber_loss, delta=0.0), r"delta must be positive"),
        (partial(F.cross_entropy, weight=torch.tensor([1.0, -1.0])), r"not negative"),
        (partial(F.cross_entropy, label_smoothing=1.5), r"must lie in 0 … 1, got 1.5"),
        ("hinge", r"loss must be one of 'cross_entropy', .* got 'hinge'"),
        (3, r"needs a name or a callable"),
    ],
    ids=short,
)
def test_what_is_not_a_mean_or_not_known_is_refused(given: Any, message: str) -> None:
    with pytest.raises(cs.CurvescopeError, match=message):
        as_loss(given)


# Axes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [nn.CrossEntropyLoss(), F.cross_entropy], ids=short)
def test_torchs_own_losses_have_torchs_axis_where_both_fit(given: Any) -> None:
    X, y = randn(5, 2, 3), torch.randint(3, (5, 3), generator=torch.Generator().manual_seed(3))
    ours = cs.Problem(conv(3), (X, y), loss=given)
    torch.testing.assert_close(ours.value(), F.cross_entropy(conv(3)(X), y).detach())
    image = nn.Conv2d(2, 3, 1).double()
    X4, y4 = randn(5, 2, 3, 3), torch.randint(3, (5, 3, 3))
    torch.testing.assert_close(
        cs.Problem(image, (X4, y4), loss=given).value(), F.cross_entropy(image(X4), y4).detach()
    )


def test_the_name_takes_either_axis_and_asks_where_both_fit() -> None:
    y = torch.randint(4, (5, 3), generator=torch.Generator().manual_seed(3))
    second = cs.Problem(conv(4), (randn(5, 2, 3), y))
    last = cs.Problem(linear(4), (randn(5, 3, 2), y))
    for ours, axis in ((second, 1), (last, -1)):
        told = cs.Problem(ours.model, list(pairs(ours)), loss=cs.losses.CrossEntropy(axis=axis))
        assert float(told.value()) == float(ours.value())
    square = (randn(5, 2, 4), torch.randint(4, (5, 4)))
    with pytest.raises(cs.CurvescopeError, match=r"second or last; say which .*CrossEntropy\(axis"):
        cs.Problem(conv(4), square).value()
    for axis in (1, -1):
        cs.Problem(conv(4), square, loss=cs.losses.CrossEntropy(axis=axis)).value()
    both = (randn(5, 2, 3), torch.softmax(randn(5, 4, 3), 1))
    with pytest.raises(cs.CurvescopeError, match="the classes may be second or last"):
        cs.Problem(conv(4), both).value()


def pairs(problem: cs.Problem) -> list[tuple[Any, Any]]:
    return [(b.inputs, b.target) for b in problem.batches()]


def test_torchs_loss_on_classes_that_are_last_names_the_remedy() -> None:
    ours = cs.Problem(
        linear(4), (randn(5, 3, 2), torch.randint(4, (5, 3))), loss=nn.CrossEntropyLoss()
    )
    with pytest.raises(cs.CurvescopeError, match=r"say loss=cs\.losses\.CrossEntropy\(axis=-1\)"):
        ours.value()


# Averages of callables ---------------------------------------------------------------------------


def weighted(z: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(z, y, weight=torch.tensor([1.0, 2.0, 5.0]).to(z)) * 1.0


def smoothed(z: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(z, y, label_smoothing=0.2) * 1.0


X, Y = randn(9, 2), torch.tensor([0, 2, 1, 1, 0, 2, 2, 1, 0])


@pytest.mark.parametrize(
    "function",
    [
        weighted,
        lambda z, y: F.cross_entropy(z, y, reduction="sum"),
        lambda z, y: smoothed(z, y.masked_fill(torch.arange(len(y)) == 0, -100)),
        lambda z, y: F.cross_entropy(z, y) + z.mean(0).square().sum(),
        lambda z, y: z.logsumexp(0).sum(),
    ],
    ids=["class weights", "sum", "ignored", "of the mean", "contrast"],
)
@pytest.mark.parametrize("sizes", [(9,), (4, 4, 1)], ids=["one", "three"])
def test_a_callable_that_does_not_average_over_samples_is_refused(
    function: Any, sizes: tuple[int, ...]
) -> None:
    data = list(zip(X.split(sizes), Y.split(sizes), strict=True))
    problem = cs.Problem(linear(), data, loss=function)
    with pytest.raises(
        cs.CurvescopeError, match=r"average over samples, but .*Custom\(function, a"
    ):
        problem.value()
    with pytest.raises(cs.CurvescopeError, match="average over samples, but"):
        cs.Hessian(cs.Problem(linear(), data, loss=function)).dense()


def test_the_check_needs_no_pass_of_the_model_and_is_made_once() -> None:
    calls = {"model": 0, "loss": 0}
    net = linear()
    net.register_forward_hook(lambda *_: calls.__setitem__("model", calls["model"] + 1))

    def counted(z: Tensor, y: Tensor) -> Tensor:
        calls["loss"] += 1
        return smoothed(z, y)

    problem = cs.Problem(net, (X, Y), loss=counted)
    problem.value()
    assert calls == {"model": 1, "loss": 10}  # the value, twice alike, the whole, 3 × two parts
    problem.value()
    assert calls == {"model": 2, "loss": 11}


def test_single_samples_need_no_check() -> None:
    singles = list(zip(X.split(1), Y.split(1), strict=True))
    ours = cs.Problem(linear(), singles, loss=smoothed).value()
    torch.testing.assert_close(ours, smoothed(linear()(X), Y).detach())


def test_what_it_averages_over_can_be_declared_and_is_checked() -> None:
    w = torch.tensor([1.0, 2.0, 5.0]).double()
    loss = cs.losses.Custom(weighted, average=lambda z, y: w[y].sum())
    for sizes in ((9,), (4, 4, 1)):
        data = list(zip(X.split(sizes), Y.split(sizes), strict=True))
        ours = cs.Problem(linear(), data, loss=loss)
        torch.testing.assert_close(ours.value(), weighted(linear()(X), Y).detach())
    wrong = cs.losses.Custom(weighted, average="elements")  # of balanced classes in turn
    with pytest.raises(cs.CurvescopeError, match="average over elements, but"):
        cs.Problem(linear(), (X, Y), loss=wrong).value()
    crooked = cs.losses.Custom(smoothed, average=lambda z, y: len(y) ** 2)
    with pytest.raises(cs.CurvescopeError, match="not the sum of the weights of its parts"):
        cs.Problem(linear(), (X, Y), loss=crooked).value()
    with pytest.raises(cs.CurvescopeError, match="must be 'samples', 'elements' or a callable"):
        cs.losses.Custom(smoothed, average="tokens")
    with pytest.raises(cs.CurvescopeError, match="does not say what one sample weighs"):
        cs.EmpiricalFisher(cs.Problem(linear(), (X, Y), loss=loss)).dense()


def test_targets_that_cannot_be_cut_need_a_declaration() -> None:
    def known(z: Tensor, y: dict[str, Any]) -> Tensor:
        return F.cross_entropy(z, torch.tensor(y["labels"])) * 1.0

    data = [(X, {"labels": Y.tolist()})]
    with pytest.raises(cs.CurvescopeError, match="cannot be cut into samples"):
        cs.Problem(linear(), data, loss=known).value()
    told = cs.Problem(linear(), data, loss=cs.losses.Custom(known, average="samples"))
    torch.testing.assert_close(told.value(), F.cross_entropy(linear()(X), Y).detach())


# What a callable depends on ----------------------------------------------------------------------


def penalized(net: nn.Module) -> Any:
    def loss(z: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(z, y) + 0.1 * sum(p.square().sum() for p in net.parameters())

    return loss


def again(net: nn.Module) -> Any:
    return lambda z, y: F.cross_entropy(z, y) + 0.1 * net(torch.ones(1, 2).double()).square().sum()


@pytest.mark.parametrize("sizes", [(9,), (1,) * 9], ids=["one", "nine"])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("make", [penalized, again])
def test_a_loss_that_reads_the_weights_itself_is_refused(
    make: Any, frozen: bool, sizes: tuple[int, ...]
) -> None:
    """Its gradient would be that of the output's part alone, and its Hessian too."""
    net = linear().requires_grad_(not frozen)
    data = list(zip(X.split(sizes), Y.split(sizes), strict=True))
    params = ["weight"] if frozen else None
    for road in (cs.Problem.value, cs.Problem.gradient, lambda p: cs.Hessian(p).dense()):
        with pytest.raises(cs.CurvescopeError, match="reads the model's weights by itself"):
            road(cs.Problem(net, data, loss=make(net), params=params))


class Scaled(nn.Module):
    """A loss with a parameter and running statistics of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]).double())
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        self.calls += 1
        return F.cross_entropy(z * self.scale, y)


def test_a_loss_with_parameters_of_its_own() -> None:
    net, loss = linear(), Scaled()
    ours = cs.Problem(net, (X, Y), loss=loss)
    scaled = cs.Problem(net, (X, Y), loss=lambda z, y: F.cross_entropy(z * loss.scale.detach(), y))
    torch.testing.assert_close(cs.Hessian(ours).dense(), cs.Hessian(scaled).dense())
    assert (loss.scale.grad, float(loss.calls)) == (None, 0.0)


SCALE = torch.tensor([1.0, 2.0, 3.0]).double()


def changing(kind: str) -> tuple[Any, Tensor]:
    scale = SCALE.clone()
    if kind == "module":
        module = Scaled()
        return module, module.scale
    if kind == "captured":
        return lambda z, y: F.cross_entropy(z * scale, y), scale
    if kind == "bound":
        return partial(lambda z, y, scale: F.cross_entropy(z * scale, y), scale=scale), scale
    return lambda z, y: F.cross_entropy(z * SCALE, y), SCALE


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("kind", ["module", "captured", "bound", "global"])
def test_a_loss_whose_numbers_change_is_noticed(kind: str, keep: bool) -> None:
    loss, scale = changing(kind)
    H = cs.Hessian(cs.Problem(linear(), (X, Y), loss=loss), keep=keep)
    v = torch.ones(H.shape[0], dtype=F64)
    H @ v
    try:
        scale.data.mul_(2.0)
        with pytest.raises(cs.CurvescopeError, match="that the loss refers to have changed"):
            H @ v
    finally:
        scale.data.div_(2.0)
    H @ v


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.drop(z), y)


@pytest.mark.parametrize("sizes", [(9,), (1,) * 9], ids=["one", "nine"])
@pytest.mark.parametrize(
    "loss", [Dropping(), lambda z, y: F.cross_entropy(z + torch.randn_like(z), y)], ids=["a", "b"]
)
def test_a_random_loss_is_refused(loss: Any, sizes: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    data = list(zip(X.split(sizes), Y.split(sizes), strict=True))
    with pytest.raises(cs.CurvescopeError, match="the same number each time, and is random"):
        cs.Problem(linear(), data, loss=loss).value()


@pytest.mark.parametrize(
    "loss",
    [
        lambda z, y: F.cross_entropy(z.detach(), y),
        lambda z, y: torch.zeros((), dtype=F64),
        lambda z, y: nn.Parameter(torch.ones(())).square(),
    ],
    ids=["detached", "constant", "another"],
)
def test_a_loss_that_does_not_depend_on_the_output_is_refused(loss: Any) -> None:
    with pytest.raises(cs.CurvescopeError, match=r"does not depend on it; look for detach\(\)"):
        cs.Problem(linear(), (X, Y), loss=loss).value()


def test_samples_of_different_sizes_need_a_declaration() -> None:
    """The mean over elements and that over samples differ, and no batch alone can tell."""
    parts = [(randn(n, t, 2), randn(n, t, 3, seed=2)) for n, t in ((4, 5), (2, 1), (1, 3))]
    function = lambda z, y: F.mse_loss(z, y) * 1.0  # noqa: E731
    with pytest.raises(cs.CurvescopeError, match=r"outputs \[5, 3\] and \[1, 3\] have other"):
        cs.Problem(linear(), parts, loss=function).value()
    told = cs.Problem(linear(), parts, loss=cs.losses.Custom(function, average="elements"))
    torch.testing.assert_close(told.value(), cs.Problem(linear(), parts, loss="mse").value())


def test_a_loss_in_single_precision_of_a_model_in_double() -> None:
    function = lambda z, y: F.cross_entropy(z.float(), y)  # noqa: E731
    ours = cs.Problem(linear(), (X, Y), loss=function).value()
    torch.testing.assert_close(ours, F.cross_entropy(linear()(X), Y).detach(), rtol=1e-6, atol=0)


# Second derivatives ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [nn.MultiMarginLoss(), F.multi_margin_loss, partial(F.multi_margin_loss, margin=0.5)],
    ids=short,
)
def test_a_loss_without_a_second_derivative_is_one_sentence(given: Any) -> None:
    ours = cs.Problem(linear(), (X, Y), loss=given)
    torch.testing.assert_close(ours.value(), given(linear()(X), Y).detach())
    for operator in (cs.Hessian(ours), cs.GaussNewton(ours)):
        with pytest.raises(cs.CurvescopeError, match="has no second derivative in torch"):
            operator @ torch.ones(ours.params.size, dtype=F64)
    assert cs.EmpiricalFisher(ours).dense().isfinite().all()  # needs the first alone


# Targets -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "loss", "message"),
    [
        (Y == 1, "cross_entropy", r"class indices .*torch.bool"),
        (Y.double(), "cross_entropy", r"class indices .*got torch.float64 \[9\]"),
        (Y - 1, "cross_entropy", r"labels must lie in 0 or above, got -1"),
        (Y, partial(F.cross_entropy, weight=torch.ones(2)), r"must lie in 0 … 1, got 2"),
        (Y, "binary_logistic", r"must lie in 0 … 1, got 2"),
        (Y, "mse", r"mse: needs a real target, got torch.int64"),
        (Y, nn.HuberLoss(), r"huber.*needs a real target"),
        (torch.rand(9, 3), nn.CrossEntropyLoss(ignore_index=1), r"ignore_index needs class ind"),
    ],
    ids=short,
)
def test_targets_that_fit_no_output_are_refused_when_the_problem_is_made(
    target: Tensor, loss: Any, message: str
) -> None:
    with pytest.raises(cs.CurvescopeError, match=message):
        cs.Problem(linear(), (X, target), loss=loss)


@pytest.mark.parametrize(
    ("target", "loss", "message"),
    [
        (torch.rand(9, 2), nn.CrossEntropyLoss(), r"must have the output's shape \[9, 3\]"),
        (torch.rand(9, 3) - 2, nn.CrossEntropyLoss(), r"finite and not negative"),
        (torch.rand(9, 2), "binary_logistic", r"a target for each entry of the output \[9, 3\]"),
        (torch.rand(9, 3), nn.BCEWithLogitsLoss(weight=torch.rand(9, 1)), r"same for all samples"),
        (torch.rand(9, 3), nn.BCEWithLogitsLoss(pos_weight=torch.rand(2)), r"one sample and be"),
        (torch.rand(9), nn.MSELoss(), r"mse: needs a real target of the output's shape"),
    ],
    ids=short,
)
def test_targets_that_do_not_fit_the_output_are_refused(
    target: Tensor, loss: Any, message: str
) -> None:
    with pytest.raises(cs.CurvescopeError, match=message):
        cs.Problem(linear(), (X, target), loss=loss).value()


def test_soft_targets_of_a_confident_network_do_not_cancel() -> None:
    """``p − u`` with both next to one: the entry is summed from the others."""
    z = torch.tensor([[24.0, 0.0, 3.0]])
    u = torch.tensor([[1.0, 0.0, 0.0]])
    at = as_loss(nn.CrossEntropyLoss()).at(z, u)
    exact = torch.softmax(z.double(), 1) - u.double()
    exact[0, 0] = -exact[0, 1:].sum()
    torch.testing.assert_close(at.gradient().double(), exact, rtol=1e-5, atol=0)
