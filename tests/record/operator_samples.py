"""PyTorch's own samples of its operators as tiny models, and what differentiating them must give.

A sample is one call of one operator. Its floating-point arguments are cut from one flat parameter,
so that all of them vary, its results are the model's output, and the mean square of the output's
distance to fixed numbers is the loss: the operator, its backward pass and the derivatives of both
are on the tape. The oracle is double backward of the same model without the library; where torch
cannot do that, or does it wrongly, differences of gradients decide.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import curvescope as cs
from curvescope.engine.engine import Engine

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of packages that PyTorch's tests would like to have
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.opinfo.core import OpInfo, SampleInput
# The import forbids everybody to set torch's switches.
torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True

LARGEST = 3000  # entries of the arguments, or of the result, that a sample may have
STEP = 1e-5  # of differences of gradients
RTOL = 1e-10
ROUGH = 2e-4  # of differences of gradients, relative to the largest product

# They draw random numbers, sort by names or memory, or return what was in memory before.
NOT_FUNCTIONS = {"empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty",
                 "empty_permuted", "resize_", "resize_as_", "as_strided_scatter"}  # fmt: skip


def operators() -> list[OpInfo]:
    """Those that autograd knows in float64 on the CPU, by name."""
    known = [op for op in op_db if op.supports_autograd and op.name not in NOT_FUNCTIONS]
    known = [op for op in known if torch.float64 in op.supported_dtypes("cpu")]
    return sorted(known, key=lambda op: op.full_name)


def samples(op: OpInfo, most: int | None) -> Iterator[tuple[int, SampleInput]]:
    """The samples of one operator, the first alone, or ``most`` spread over the first hundred."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = op.sample_inputs("cpu", torch.float64, requires_grad=False)
        if most is None:
            yield from enumerate(given)
            return
        # Making a sample takes a quarter of the time that judging it does.
        first = list(enumerate(itertools.islice(given, 1 if most == 1 else 100)))
    step = max(1, len(first) // most)
    yield from first[::step][:most]


def function(op: OpInfo) -> Callable[..., Any]:
    """The operator as PyTorch's own checks of gradients call it: symmetric where it must be."""
    return lambda *args, **kwargs: op.gradcheck_wrapper(op.op, *args, **kwargs)


def _varies(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.dtype == torch.float64 and leaf.layout == torch.strided


class OneCall(nn.Module):
    """``theta ↦`` the floating-point results of one call, as a row."""

    def __init__(self, op: Callable[..., Any], sample: SampleInput, only: int | None) -> None:
        super().__init__()
        self._op = op
        leaves, self._spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        self._leaves = [t.detach() if isinstance(t, Tensor) else t for t in leaves]
        moving = [i for i, leaf in enumerate(leaves) if _varies(leaf)]
        self.moving = moving if only is None else moving[only : only + 1]
        pieces = [self._leaves[i].reshape(-1) for i in self.moving]
        # One number more, so that there is something where all arguments or results are empty.
        self.theta = nn.Parameter(torch.cat([*pieces, torch.zeros(1, dtype=torch.float64)]))

    def forward(self, x: Tensor) -> Tensor:
        leaves, start = list(self._leaves), 0
        for i in self.moving:
            t = self._leaves[i]
            piece = self.theta[start : start + t.numel()].view(t.shape) * 1.0
            if not t.is_contiguous():  # the same numbers with gaps between them
                piece = torch.stack([piece, piece], -1)[..., 0]
            leaves[i], start = piece, start + t.numel()
        given, args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        results = pytree.tree_leaves(self._op(given, *args, **kwargs))
        rows = [t.reshape(1, -1) for t in results if _varies(t)]
        return torch.cat([*rows, self.theta[-1:].sin()[None]], 1)


@dataclass(frozen=True)
class Verdict:
    """What came of one sample: ``"tape"``, ``"graph"``, ``"refused"``, ``"left out"``, ``"wrong"``,
    ``"raw"``; and why.
    """  # fmt: skip

    kind: str
    reason: str = ""


def judge(op: Callable[..., Any], sample: SampleInput, only: int | None = None) -> Verdict:
    """Products of one sample's model, beside the oracle."""
    try:
        model = OneCall(op, sample, only)
        x = torch.zeros(1, 1, dtype=torch.float64)
        with torch.enable_grad():
            z = model(x)
        if z.requires_grad:
            torch.autograd.grad(z.sum(), model.theta, retain_graph=True)
    except (RuntimeError, ValueError, TypeError, NotImplementedError, IndexError) as error:
        return Verdict("left out", f"torch itself: {_line(error)}")
    size = model.theta.numel()
    if not model.moving or not z.requires_grad or size > LARGEST or z.numel() > LARGEST:
        return Verdict("left out", "nothing to differentiate, or too large")
    if not bool(torch.isfinite(z).all()):
        return Verdict("left out", "not finite")
    with torch.no_grad():
        again = model(x)
    if not torch.equal(again, z):
        return Verdict("left out", "random")
    target = z.detach() - torch.linspace(0.5, 1.0, z.numel(), dtype=torch.float64)
    g = torch.Generator().manual_seed(0)
    V = torch.randn(size, 3, generator=g, dtype=torch.float64)
    try:
        return _compare(model, x, target, V)
    except cs.CurvescopeError as error:
        return Verdict("refused", _line(error))
    except Exception as error:
        return Verdict("raw", f"{type(error).__name__}: {_line(error)}")


def _compare(model: OneCall, x: Tensor, target: Tensor, V: Tensor) -> Verdict:
    problem = cs.Problem(model, (x, target), loss="mse")
    ours: dict[str, Tensor] = {}
    for keep in (True, False):
        H, G = cs.Hessian(problem, keep=keep), cs.GaussNewton(problem, keep=keep)
        ours[f"H V, keep={keep}"], ours[f"H v, keep={keep}"] = H @ V, (H @ V[:, 0])[:, None]
        ours[f"G V, keep={keep}"], ours[f"G v, keep={keep}"] = G @ V, (G @ V[:, 0])[:, None]
        ours[f"H W, keep={keep}"] = (H @ torch.cat([V, V], 1))[:, 3:]
    engine = "tape" if problem.companion(Engine)._linearizer.tapes("second order") else "graph"
    loss = Oracle(model, x, target)
    for letter, oracle in (("H", loss.hessian), ("G", loss.gauss_newton)):
        expected, doubt = oracle(V)
        for what, result in ours.items():
            if what[0] != letter:
                continue
            right = expected[:, : result.shape[1]]
            size = float(right.norm()) + float(loss.scale(V))
            if not bool(torch.isfinite(right).all()):
                return Verdict("left out", "the oracle is not finite")
            error = float((result - right).norm())
            if not error <= (ROUGH if doubt else RTOL) * size:
                if not doubt:  # torch may be wrong
                    rough = loss.differences(V)[:, : result.shape[1]] if letter == "H" else right
                    if float((result - rough).norm()) <= ROUGH * size:
                        return Verdict(engine, "torch's double backward is wrong")
                return Verdict("wrong", f"{what} by {error / size:.1e} ({engine}) {doubt}")
    return Verdict(engine)


class Oracle:
    """Products by torch's double backward alone."""

    def __init__(self, model: OneCall, x: Tensor, target: Tensor) -> None:
        self._model, self._x, self._target = model, x, target

    def _output(self, theta: Tensor) -> Tensor:
        return torch.func.functional_call(self._model, {"theta": theta}, (self._x,))

    def _gradient(self, theta: Tensor, *, create_graph: bool) -> Tensor:
        loss = ((self._output(theta) - self._target) ** 2).mean()
        return torch.autograd.grad(loss, theta, create_graph=create_graph)[0]

    def scale(self, V: Tensor) -> float:
        """The size of what rounding errors are relative to."""
        theta = self._model.theta.detach().requires_grad_()
        return float(self._gradient(theta, create_graph=False).norm()) * float(V.norm()) * 1e-2

    def hessian(self, V: Tensor) -> tuple[Tensor, str]:
        """``H V``, and why it is only as good as differences, if it is."""
        theta = self._model.theta.detach().requires_grad_()
        try:
            g = self._gradient(theta, create_graph=True)
            if not g.requires_grad:
                return torch.zeros_like(V), ""
            columns = [
                torch.autograd.grad(g, theta, v, retain_graph=True, materialize_grads=True)[0]
                for v in V.T
            ]
        except (RuntimeError, NotImplementedError) as error:
            return self.differences(V), _line(error)
        return torch.stack(columns, 1), ""

    def differences(self, V: Tensor) -> Tensor:
        """``H V`` from gradients on both sides."""
        base = self._model.theta.detach()
        columns = []
        for v in V.T:
            ahead, behind = (
                self._gradient((base + s * STEP * v).requires_grad_(), create_graph=False)
                for s in (1, -1)
            )
            columns.append((ahead - behind) / (2 * STEP))
        return torch.stack(columns, 1)

    def gauss_newton(self, V: Tensor) -> tuple[Tensor, str]:
        """``(2/C) Jᵀ J V`` with rows of ``J`` by backward passes: first derivatives only."""
        theta = self._model.theta.detach().requires_grad_()
        z = self._output(theta)[0]
        eye = torch.eye(len(z), dtype=z.dtype)
        rows = [torch.autograd.grad(z, theta, e, retain_graph=True)[0] for e in eye]
        J = torch.stack(rows)
        return (2 / len(z)) * (J.T @ (J @ V)), ""


def _line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return text[0][:160] if text else type(error).__name__
