"""Products through PyTorch's own samples of its operators, and through old and odd forms of calls.

CURVESCOPE_FULL=1 takes every sample of every operator (about an hour on one core); otherwise the
operators of today's models get a few samples each, and all others one.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import curvescope as cs
from curvescope.record.memory import address, held
from curvescope.record.recorder import Recorder
from tests.record.operator_samples import (
    SampleInput,
    Verdict,
    function,
    judge,
    operators,
    samples,
)  # fmt: skip

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

FULL = bool(os.environ.get("CURVESCOPE_FULL"))
OPERATORS = {op.full_name: op for op in operators()}

# What today's models consist of: more samples, and none may need the slower engine.
COMMON = """
    __getitem__ abs addmm baddbmm bmm cat chunk clamp cumsum div.no_rounding_mode einsum erf
    exp expand gather index_put index_select linalg.vector_norm logsumexp masked_fill matmul
    max.reduction_with_dim mean mul narrow neg nn.functional.gelu nn.functional.glu
    nn.functional.hardswish nn.functional.layer_norm nn.functional.linear
    nn.functional.pad.constant nn.functional.rms_norm nn.functional.silu
    nn.functional.softsign permute pow repeat roll rsub rsqrt scatter scatter_add select slice
    softmax split sqrt squeeze stack sub sum tanh topk trace transpose tril unsqueeze var view
    where
""".split()


def show(name: str, verdicts: dict[int, Verdict]) -> None:
    """Nothing is wrong, and every refusal is a sentence of ours."""
    bad = {i: v.reason for i, v in verdicts.items() if v.kind in ("wrong", "raw")}
    assert not bad, f"{name}: {bad}"


@pytest.mark.parametrize("name", COMMON)
def test_operators_of_today_s_models(name: str) -> None:
    op = OPERATORS[name]
    verdicts = {i: judge(function(op), s) for i, s in samples(op, None if FULL else 3)}
    show(name, verdicts)
    kinds = {v.kind for v in verdicts.values()} - {"left out"}
    assert kinds == {"tape"}, verdicts


@pytest.mark.parametrize("letter", sorted({name[0] for name in OPERATORS}))
def test_all_operators(letter: str) -> None:
    for name, op in OPERATORS.items():
        if name[0] == letter and name not in COMMON:
            show(name, {i: judge(function(op), s) for i, s in samples(op, None if FULL else 1)})


def tensor(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def _number_softmax(x: Tensor) -> Tensor:
    return x[0].softmax(0) * x + x.sum().log_softmax(-1) + x.sum().softmax(0)


def _unsqueezed_in_place(x: Tensor) -> Tensor:
    y = x.sin()
    y.unsqueeze_(0)
    return y.cos() * y.view(1, 6)


def _changed_in_place(x: Tensor) -> Tensor:
    return x.sin().mul_(2.0).add_(x.cos()).sub_(x[0] * x[1]).neg_()


def _argument_overwritten(x: Tensor) -> Tensor:
    """Autograd has saved the result of the sigmoid, so that its argument may change."""
    u = x * 2
    y = u.sigmoid()
    u.add_(y)
    return u.cos() * y


def _quotient_overwritten(x: Tensor) -> Tensor:
    y = (x * 2) / (x + 5)
    y.add_(x[0])
    return y.sin()


def _seen_through_a_view(x: Tensor) -> Tensor:
    u = x * 2.0
    v = u[2:]
    w = v.exp()
    u.mul_(x)
    return torch.cat([u.sin(), w, v.cos()])


def _filled_row_by_row(x: Tensor) -> Tensor:
    rows = torch.zeros(3, 6).double()
    for i in range(3):
        rows[i] = x * (i + 1)
    rows[:, 1].mul_(2)
    rows[0, 0] = 3.0
    rows.t()[2].exp_()
    return (rows * rows.sum(0)).cos().sum(0)


def _written_through_a_transposed_view(x: Tensor) -> Tensor:
    u = x.sin()
    v = u.view(2, 3)
    v.t()[1] = x[:2]
    v.fill_diagonal_(2.0)
    u.clamp_(-0.4, 0.4)
    return u * x


def _added_and_masked(x: Tensor) -> Tensor:
    sums = torch.zeros(6).double()
    sums.index_add_(0, torch.tensor([0, 1, 1, 3]), x[:4] ** 2)
    sums[sums > 0.1] = sums[sums > 0.1] * 2
    return sums * x


# Old forms and odd arguments, each as a function of one vector of six numbers.
FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "cat with an empty vector, dim -2": lambda x: torch.cat(
        [torch.empty(0).double(), x.view(1, 2, 3).sin()], -2
    ),
    "cat with an empty vector that varies": lambda x: torch.cat([x[:0], x.view(2, 3).sin()], 1),
    "cat of empty vectors": lambda x: torch.cat([x[:0], torch.empty(0).double(), x[2:].exp()]),
    "cat of another dtype": lambda x: torch.cat([x.sin(), torch.arange(3)]),
    "softmax of a number": _number_softmax,
    "sum of a number": lambda x: x[0].sum(0) + x[1].sum(-1, keepdim=True) * x,
    "transposed number": lambda x: x[0].transpose(0, -1).sin() * x,
    "transposed vector": lambda x: x.transpose(0, -1).sin().t() * x,
    "squeeze beyond": lambda x: x[0].squeeze(-1).squeeze(0) * x.sin(),
    "cumsum of a number": lambda x: x[0].sin().cumsum(0) * x,
    "flip and roll of a column": lambda x: x.sin().view(6, 1).flip(-2).roll(2, 0),
    "number beside matrix": lambda x: x[0] + x.view(2, 3) * x[1] - 2 / x[3],
    "number of another dtype": lambda x: x * torch.tensor(3) + (x > 0) * x.exp(),
    "padding that is not zero": lambda x: F.pad(x.sin(), (1, 2), value=3.0) ** 2,
    "negative padding": lambda x: F.pad(x.view(2, 3).exp(), (-1, 2, 1, -1), value=-1.0),
    "as_strided of a transposed result": lambda x: (
        (x.view(2, 3).sin().t() @ x.view(2, 3)).t().as_strided((2, 2), (1, 3), 1)
    ),
    "expanded": lambda x: x.view(6, 1).expand(6, 4).sin() * x.view(1, 6).expand(6, 6)[:, :4],
    "empty in the middle": lambda x: x.sin() + x[6:].sum() + x[:0].view(0, 3).mean(1).sum(),
    "fully masked rows": lambda x: torch.where(
        torch.ones(6, dtype=torch.bool),
        x.sin(),
        x.masked_fill(torch.ones(6, dtype=torch.bool), -torch.inf).softmax(0),
    ),
    "sign and round": lambda x: x.sign() * x**2 + x.round() * x.abs() + x.floor().sin(),
    "index_fill with a number that varies": lambda x: x.sin().index_fill(
        0, torch.tensor([1, 4]), x[0]
    ),
    "complex in the middle": lambda x: torch.view_as_real(torch.polar(x.exp(), x).square()),
    "changed in place": _changed_in_place,
    "argument overwritten": _argument_overwritten,
    "quotient overwritten": _quotient_overwritten,
    "memory seen through a view": _seen_through_a_view,
    "memory filled row by row": _filled_row_by_row,
    "memory written through a transposed view": _written_through_a_transposed_view,
    "memory added to and masked": _added_and_masked,
    "shape changed in place": _unsqueezed_in_place,
    "lgamma": lambda x: x.abs().lgamma(),
    "hardswish": lambda x: F.hardswish(2 * x),
    "rotary": lambda x: torch.cat([-x[3:], x[:3]]) * x.cos() + x * x.sin(),
    "experts": lambda x: torch.zeros(6).double().scatter(
        0, x.topk(2).indices, x.topk(2).values.exp()
    ),
    "log of a sigmoid": lambda x: F.logsigmoid(3 * x) + F.logsigmoid(x - x[0]),
    "cumulated product": lambda x: x.cumprod(0),
    "cumulated product of a zero": lambda x: torch.cat([x[:2], x[:1] * 0, x[3:]]).cumprod(0),
    "product of a zero": lambda x: torch.cat([x[:2], x[:1] * 0, x[3:]]).prod(0),
}  # fmt: skip
ON_GRAPHS = {
    "complex in the middle", "cumulated product of a zero", "product of a zero",
}  # fmt: skip


@pytest.mark.parametrize("name", list(FORMS))
def test_old_and_odd_forms(name: str) -> None:
    for x in (tensor(6), tensor(12)[::2], tensor(6, seed=1).abs()):
        verdict = judge(FORMS[name], SampleInput(x))
        assert verdict.kind == ("graph" if name in ON_GRAPHS else "tape"), verdict


def test_gradients_that_are_no_derivatives() -> None:
    model = nn.Sequential(nn.Embedding(5, 4, scale_grad_by_freq=True), nn.Flatten()).double()
    problem = cs.Problem(model, (torch.tensor([[1, 1], [2, 3]]), torch.tensor([0, 5])))
    with pytest.raises(cs.CurvescopeError, match="set scale_grad_by_freq=False"):
        cs.GaussNewton(problem) @ torch.ones(problem.params.size).double()


@pytest.mark.parametrize("name", ["cholesky", "linalg.solve", "linalg.det", "linalg.slogdet"])
def test_by_products_of_decompositions(name: str) -> None:
    """Backward passes use factors that autograd does not differentiate, but that depend on us."""
    op = OPERATORS[name]
    verdicts = {i: judge(function(op), s) for i, s in samples(op, 12)}
    show(name, verdicts)
    assert "graph" in {v.kind for v in verdicts.values()} or name == "cholesky"


FRESH = """
    addmm bmm mm nn.functional.linear nn.functional.conv2d nn.functional.conv_transpose2d
    nn.functional.max_pool2d
""".split()


@pytest.mark.parametrize("name", FRESH)
def test_new_memory_is_new(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that promises new memory returns none that anything else refers to."""
    fresh = []
    drain = Recorder.drain

    def noting(self: Recorder) -> list:
        sizes = [tuple(t.shape) for t in self._origins]
        steps = drain(self)
        fresh.extend((step, [None if s is None else sizes[s] for s in step.sources])
                     for step in steps if step.linear.fresh)  # fmt: skip
        return steps

    monkeypatch.setattr(Recorder, "drain", noting)
    op = OPERATORS[name]
    for _, sample in samples(op, 20):
        judge(function(op), sample)
    assert fresh
    for step, shapes in fresh:
        there = [i for i, shape in enumerate(shapes) if shape is not None]
        for given in [[i] for i in there] + [there]:
            for columns in (1, 3):
                lead = (columns,) if columns > 1 else ()
                tangents = [
                    torch.randn(*lead, *shape).double() if i in given else None
                    for i, shape in enumerate(shapes)
                ]
                run = step.linear.block if columns > 1 else step.linear.single
                out = run(*tangents)
                outs = [t for t in (out if isinstance(out, tuple) else (out,)) if t is not None]
                others = {address(t) for t in [*held([step.linear]), *held(tangents)]}
                for t in outs:
                    assert not t.numel() or address(t) not in others, step.name
                    assert t.numel() == len(set(_places(t))), f"{step.name}: overlapping memory"
                assert len({address(t) for t in outs}) == len(outs) or not outs[0].numel()


def _places(t: Tensor) -> list[int]:
    numbers = torch.arange(t.untyped_storage().nbytes() // t.element_size())
    return numbers.as_strided(t.shape, t.stride(), t.storage_offset()).flatten().tolist()
