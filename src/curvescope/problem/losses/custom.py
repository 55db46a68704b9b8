"""Any other callable, differentiated twice."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from curvescope.errors import CurvescopeError
from curvescope.problem.losses.base import Loss, LossAt, no_likelihood
from curvescope.problem.losses.probes import OutputRoot

Function = Callable[[Tensor, Any], Tensor]
Average = str | Callable[[Tensor, Any], "Tensor | float"]


class Custom(Loss):
    """A callable of ``(output, target)`` that gives the mean over a batch.

    What it averages over decides how batches are put together, and is checked on the data: the
    loss of a batch must be the weighted mean of the losses of its two parts.

    Args:
        function: the callable; it is given the model's output as one tensor, and the targets.
        average: ``"samples"`` (default), ``"elements"`` (the entries of the output), or a callable
            of ``(output, target)`` that gives the weight of a batch, such as the number of
            positions that are not ignored. Targets that cannot be cut into samples are refused
            unless this is given, for then it cannot be checked.
        name: what to call it.

    >>> def mean_of_counted(z, y):  # NaN marks what is not known
    ...     return (z - y)[~y.isnan()].square().mean()
    >>> loss = Custom(mean_of_counted, average=lambda z, y: (~y.isnan()).sum())
    >>> at = loss.at(torch.zeros(2, 2), torch.tensor([[1.0, torch.nan], [2.0, 3.0]]))
    >>> round(at.value().item(), 5), at.weight  # the sum 1 + 4 + 9
    (14.0, 3.0)
    """

    convex = False  # not known to be
    closed_form = False

    def __init__(
        self, function: Function, *, average: Average | None = None, name: str | None = None
    ) -> None:
        if not callable(function):
            rule = "needs a callable of (output, target)"
            raise CurvescopeError("Custom(function)", rule, given=repr(function))
        if not callable(average) and average not in (None, "samples", "elements"):
            rule = "must be 'samples', 'elements' or a callable of (output, target)"
            raise CurvescopeError("Custom(average)", rule, given=repr(average))
        self.function, self._average = function, average or "samples"
        self._declared = average is not None
        inner: Any = function
        while isinstance(inner, partial):
            inner = inner.func
        self.name = name or str(getattr(inner, "__name__", type(inner).__name__))
        self.average = self._average if isinstance(self._average, str) else "weights"
        self.even = self.average != "weights"

    def weight(self, output: Tensor, target: Any) -> float:
        """What a batch weighs in the mean over all."""
        if callable(self._average):
            return float(self._average(output, target))
        return float(output.shape[0] if self._average == "samples" else output.numel())

    def at(self, output: Tensor, target: Any) -> CustomAt:
        """See :class:`Loss`."""
        return CustomAt(self, output, target)

    def mean(self, output: Tensor, target: Any) -> Tensor:
        """See :class:`Loss`."""
        try:
            loss = self.function(output, target)
        except (CurvescopeError, torch.OutOfMemoryError):
            raise
        except (RuntimeError, TypeError, ValueError, LookupError, AttributeError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise CurvescopeError(
                "Problem(loss)",
                f"{self.name!r} is given the output as a tensor {list(output.shape)} and the "
                f"target, and failed: {reason}",
                remedy="for the loss that a model returns itself say `loss='model'`",
            ) from error
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            rule = "the callable must return one number, the mean over the batch"
            raise CurvescopeError("Problem(loss)", rule)
        return loss.reshape(())

    def probe(self, output: Tensor, target: Any) -> OutputRoot:
        """See :class:`Loss`: no root is known."""
        rule = f"the loss {self.name!r} has no known root of its output Hessian"
        remedy = "use one that the library knows, such as 'cross_entropy', or `kind='hessian'`"
        raise CurvescopeError("TraceRegularizer(kind='ggn')", rule, remedy=remedy)

    def check(self, output: Tensor, target: Any) -> None:
        """See :class:`Loss`: the whole against two parts, in several ways."""
        n = output.shape[0]
        if n < 2:
            return
        if not _can_be_cut(target, n):
            if not self._declared:
                self._refuse("its targets cannot be cut into samples, so that this is not checked")
            return
        whole = self._sum(output, target)
        for cut in sorted({1, max(1, n // 3), n - 1}):  # one alone would do for balanced classes
            parts = [
                self._sum(output[part], _cut(target, part)) for part in (slice(cut), slice(cut, n))
            ]
            self._compare(whole, parts, output.dtype)

    def _sum(self, output: Tensor, target: Any) -> tuple[float, float]:
        """The loss of some samples, and what they weigh."""
        with torch.no_grad():
            return float(self.mean(output.detach(), target)), self.weight(output, target)

    def _compare(
        self, whole: tuple[float, float], parts: list[tuple[float, float]], dtype: torch.dtype
    ) -> None:
        if abs(whole[1] - sum(w for _, w in parts)) > 1e-6 * abs(whole[1]):
            self._refuse("the weight of a batch is not the sum of the weights of its parts")
        sums = [mean * w if w else 0.0 for mean, w in (whole, *parts)]
        slack = (1e-4 if dtype == torch.float32 else 1e-9) * sum(map(abs, sums))
        if not abs(sums[0] - sums[1] - sums[2]) <= slack:
            self._refuse(
                f"a batch has the loss {whole[0]:.6g} and its two parts {parts[0][0]:.6g} and "
                f"{parts[1][0]:.6g}, of which that is not the mean over {self.average}"
            )

    def _refuse(self, reason: str) -> NoReturn:
        rule = f"{self.name!r} must average over {self.average}, but {reason}"
        remedy = "say what it averages over with cs.losses.Custom(function, average=...)"
        raise CurvescopeError("Problem(loss)", rule, remedy=remedy)


class CustomAt(LossAt):
    """Value, gradient and Hessian by differentiating the callable at the output."""

    def __init__(self, loss: Custom, output: Tensor, target: Any) -> None:
        self._loss = loss
        self.count, self.weight = output.shape[0], loss.weight(output.detach(), target)
        with torch.enable_grad():
            self._z = output.detach().requires_grad_()
            self._mean = loss.mean(self._z, target)
            if not self.weight:  # nothing counts, and the mean may be 0/0
                self._g = torch.zeros_like(output)
            else:
                (self._g,) = torch.autograd.grad(self._mean, self._z, create_graph=True)

    def value(self) -> Tensor:
        """See :class:`LossAt`."""
        return self._mean.detach() * self.weight if self.weight else self._g.sum()

    def gradient(self) -> Tensor:
        """See :class:`LossAt`."""
        return self._g.detach() * self.weight

    def hessian(self, t: Tensor) -> Tensor:
        """See :class:`LossAt`."""
        if not self._g.requires_grad:  # a loss that is linear in the output
            return torch.zeros_like(t)
        try:
            rows = [
                torch.autograd.grad(
                    self._g, self._z, column, retain_graph=True, materialize_grads=True
                )[0]
                for column in t
            ]
        except (RuntimeError, NotImplementedError) as error:
            if "derivative" not in str(error) and "not implemented" not in str(error):
                raise
            raise CurvescopeError(
                "Problem(loss)",
                f"{self._loss.name!r} has no second derivative in torch, so that there is no "
                "Hessian and no Gauss–Newton matrix",
                remedy="write it with operations that can be differentiated twice",
            ) from error
        return torch.stack(rows) * self.weight

    def slopes(self) -> Tensor:
        """See :class:`LossAt`: a term is a sample, and all have the same weight."""
        if self._loss.average == "weights":
            rule = f"{self._loss.name!r} does not say what one sample weighs"
            remedy = "use a loss that averages over samples or elements"
            raise CurvescopeError("EmpiricalFisher", rule, remedy=remedy)
        return self.terms(self.gradient()[None]) / (self.weight / self.count) ** 0.5

    def sample(self, samples: int, generator: torch.Generator) -> Tensor:
        """See :class:`LossAt`: a callable does not say which distribution it belongs to."""
        no_likelihood(self._loss.name)


def _can_be_cut(target: Any, n: int) -> bool:
    """Whether all targets are tensors with ``n`` samples; no targets can be cut as well."""
    leaves = [leaf for leaf in pytree.tree_leaves(target) if leaf is not None]
    return all(isinstance(t, Tensor) and t.ndim and t.shape[0] == n for t in leaves)


def _cut(target: Any, part: slice) -> Any:
    return pytree.tree_map_only(Tensor, lambda t: t[part], target)
