"""Any other callable, differentiated twice."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from curvescope.errors import CurvescopeError
from curvescope.problem.calling import call_with
from curvescope.problem.losses.base import Loss, LossAt, no_likelihood
from curvescope.problem.losses.probes import OutputRoot

Function = Callable[[Tensor, Any], Tensor]
Average = str | Callable[[Tensor, Any], "Tensor | float"]


class Custom(Loss):
    """A callable of ``(output, target)`` that gives the mean over a batch.

    What it averages over decides how batches are put together, and is checked on the data: the
    loss of a batch must be the weighted mean of the losses of its two parts. It must be a function
    of the output and the target alone: one that draws random numbers, or that reads the weights of
    the model itself (a penalty on them), is refused, because it would have further derivatives.
    Parameters of the callable are constants.

    Args:
        function: the callable; it is given the model's output as one tensor, and the targets.
        average: ``"samples"`` (default), ``"elements"`` (the entries of the output), or a callable
            of ``(output, target)`` that gives the weight of a batch, such as the number of
            positions that are not ignored. It must be given where it cannot be checked: for targets
            that cannot be cut into samples, and for samples of different sizes.
        name: what to call it.

    >>> def mean_of_counted(z, y):  # NaN marks what is not known
    ...     return (z - y)[~y.isnan()].square().mean()
    >>> loss = Custom(mean_of_counted, average=lambda z, y: (~y.isnan()).sum())
    >>> at = loss.at(torch.zeros(2, 2), torch.tensor([[1.0, torch.nan], [2.0, 3.0]]))
    >>> round(at.value().item(), 5), at.weight  # the sum 1 + 4 + 9
    (14.0, 3.0)
    """

    convex = False  # unknown, so not assumed
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
        """The weight of a batch in the mean over all data."""
        if callable(self._average):
            return float(self._average(output, target))
        return float(output.shape[0] if self._average == "samples" else output.numel())

    def at(self, output: Tensor, target: Any) -> CustomAt:
        """See :class:`Loss`."""
        return CustomAt(self, output, target)

    def mean(self, output: Tensor, target: Any) -> Tensor:
        """See :class:`Loss`."""
        try:
            loss = self._call(output, target)
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

    def _call(self, output: Tensor, target: Any) -> Tensor:
        """A module writes to copies of its buffers: running statistics are not moved."""
        if not isinstance(self.function, nn.Module):
            return self.function(output, target)
        buffers = {name: b.clone() for name, b in self.function.named_buffers()}
        result: Tensor = call_with(self.function, buffers, (output, target))
        return result

    def tensors(self) -> list[Tensor]:
        """See :class:`Loss`: tensors of the callable, its closure and its globals."""
        return list(dict.fromkeys(_tensors_of(self.function)))

    def probe(self, output: Tensor, target: Any) -> OutputRoot:
        """See :class:`Loss`: no root is known."""
        rule = f"the loss {self.name!r} has no known root of its output Hessian"
        remedy = "use one that the library knows, such as 'cross_entropy', or `kind='hessian'`"
        raise CurvescopeError("TraceRegularizer(kind='ggn')", rule, remedy=remedy)

    def check(
        self, output: Tensor, target: Any, *, first: torch.Size, variables: Sequence[Tensor]
    ) -> None:
        """See :class:`Loss`: its inputs, and the mean of a batch against those of two parts."""
        self._check_graph(output, target, variables)
        if output.shape[1:].numel() != first[1:].numel() and not self._declared:
            self._refuse(
                f"samples with outputs {list(first[1:])} and {list(output.shape[1:])} have other "
                "numbers of elements, so that a mean over elements would be another one"
            )
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
            self._compare(whole, parts)

    def _check_graph(self, output: Tensor, target: Any, variables: Sequence[Tensor]) -> None:
        """Refuse a loss that is random, that does not depend on the output, or on more than it."""
        if not self.weight(output, target):
            return  # nothing counts, and the mean may be 0/0
        where = f"Problem(loss={self.name!r})"
        z = output.detach().requires_grad_()
        with torch.enable_grad():
            once, again = self.mean(z, target), self.mean(z, target)
        if abs(float(once.detach() - again.detach())) > _slack(once) * abs(float(once.detach())):
            rule = "the loss must be the same number each time, and is random"
            remedy = "put what draws (a dropout in it?) into evaluation mode"
            raise CurvescopeError(where, rule, remedy=remedy)
        if any(leaf is variable for leaf in _leaves(once) for variable in variables):
            rule = (
                "the loss must be a function of the output and the target alone, and reads the "
                "model's weights by itself, so that derivatives by the output are not all"
            )
            remedy = (
                "leave out a penalty on the weights; η/2 ‖w‖² adds η w to the gradient and η I to "
                "the Hessian"
            )
            raise CurvescopeError(where, rule, remedy=remedy)

    def _sum(self, output: Tensor, target: Any) -> tuple[float, float, float]:
        """The summed loss of some samples, their weight, and the relative rounding."""
        with torch.no_grad():
            mean = self.mean(output.detach(), target)
        slack = max(_slack(mean), _slack(output))
        return float(mean), self.weight(output, target), slack

    def _compare(
        self, whole: tuple[float, float, float], parts: list[tuple[float, float, float]]
    ) -> None:
        if abs(whole[1] - sum(w for _, w, _ in parts)) > 1e-6 * abs(whole[1]):
            self._refuse("the weight of a batch is not the sum of the weights of its parts")
        sums = [mean * w if w else 0.0 for mean, w, _ in (whole, *parts)]
        if not abs(sums[0] - sums[1] - sums[2]) <= whole[2] * sum(map(abs, sums)):
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
            self._g = torch.zeros_like(output)
            if self.weight:  # else nothing counts, and the mean may be 0/0
                self._g = self._gradient()

    def _gradient(self) -> Tensor:
        g: Tensor | None = None
        if self._mean.requires_grad:
            (g,) = torch.autograd.grad(self._mean, self._z, create_graph=True, allow_unused=True)
        if g is None:
            where = f"Problem(loss={self._loss.name!r})"
            rule = "the loss must be computed from the output by operations with a derivative"
            raise CurvescopeError(
                where,
                rule,
                given="one that does not depend on it",
                remedy="look for detach() in it",
            )
        return g

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
    """Whether all targets are tensors with ``n`` samples, or there are none."""
    leaves = [leaf for leaf in pytree.tree_leaves(target) if leaf is not None]
    return all(isinstance(t, Tensor) and t.ndim and t.shape[0] == n for t in leaves)


def _cut(target: Any, part: slice) -> Any:
    return pytree.tree_map_only(Tensor, lambda t: t[part], target)


def _slack(t: Tensor) -> float:
    """The relative rounding allowed in a mean."""
    return 1e-9 if t.dtype == torch.float64 else 1e-4


def _leaves(t: Tensor) -> Iterator[Tensor]:
    """The tensors at which the graph of ``t`` begins."""
    queue, visited = [t.grad_fn], set()
    while queue:
        node = queue.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, Tensor):
            yield leaf
        queue += [parent for parent, _ in node.next_functions]


def _tensors_of(thing: Any) -> Iterator[Tensor]:
    """Tensors of a callable: a module's, bound arguments, captured and global variables."""
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, nn.Module):
        yield from thing.parameters()
        yield from thing.buffers()
        for module in thing.modules():
            yield from (t for t in vars(module).values() if isinstance(t, Tensor))
    elif isinstance(thing, partial):
        yield from _all_of((thing.func, *thing.args, *thing.keywords.values()))
    elif isinstance(thing, types.MethodType):
        yield from _all_of((thing.__self__, thing.__func__))
    elif isinstance(thing, types.FunctionType):
        yield from _all_of(thing.__defaults__ or ())
        values = [thing.__globals__.get(name) for name in thing.__code__.co_names]
        for cell in thing.__closure__ or ():
            with suppress(ValueError):  # not assigned yet
                values.append(cell.cell_contents)
        yield from _all_of(v for v in values if isinstance(v, Tensor | nn.Module | partial))


def _all_of(things: Iterable[Any]) -> Iterator[Tensor]:
    for thing in things:
        yield from _tensors_of(thing)
