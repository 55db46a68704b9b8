"""The problem: the mean loss of a model over data, as a function of some of its parameters."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.overrides import TorchFunctionMode

from curvescope import _checks, _state
from curvescope.errors import CurvescopeError, ModelError
from curvescope.identity import Settings, Snapshot, digest
from curvescope.problem.batches import Batch, Batches
from curvescope.problem.calling import MISTAKES, call_with, decoder_inputs, output_of
from curvescope.problem.independence import apart
from curvescope.problem.losses import Loss, LossAt, as_loss
from curvescope.problem.losses.own import (
    MODEL,
    own_loss,
    refuse_copied_labels,
    takes_labels,
    to_compare,
)
from curvescope.problem.params import ParamSpace, Selection
from curvescope.problem.soundness import check_mode, check_model, check_weights

log = logging.getLogger("curvescope")
T = TypeVar("T")


class Problem:
    """``L(w) = (1/N) Σ_n ℓ(f(x_n; w), y_n)`` for a model, its data and a choice of variables ``w``.

    Args:
        model: any ``nn.Module``; its flags, gradients, buffers and weights are never changed.
        data: ``(X, y)``, a data set with such ``.tensors``, a ``DataLoader``, or an iterable of
            ``(input, target)`` batches; inputs may be tensors, tuples or mappings. Batches are
            moved to the model's device.
        loss: ``"cross_entropy"``, ``"binary_logistic"``, ``"mse"``, ``"huber"``,
            ``"smooth_l1"``; a torch loss module or function; one of :mod:`curvescope.losses`; or
            any callable of ``(output, target)`` that averages over the samples. For a model that
            computes its loss itself when it is given labels, as those of Hugging Face do, a name
            or a plain loss of torch's must agree with it on the first batch, which also decides
            whether labels are shifted; ``"model"`` takes whichever agrees.
        params: which parameters are variables: all that require grad (default), a layer or
            parameter name, a list of them, or a predicate of ``(name, parameter)``.
        mode: ``"eval"``, or ``"train"``: batch norm uses the statistics of each batch and
            differentiates through them. Dropout is off in both, and running buffers never move.
        batch_size: cuts ``(X, y)`` into batches of this size. Only for ``mode="eval"``, where the
            samples of a batch do not see each other.

    The problem describes the weights and buffers that the model has now. It keeps a copy of them,
    and everything that is computed for it compares them with that copy first: after a change on
    whatever way (an optimizer's step, ``load_state_dict``, a write through ``.data``) it refuses,
    because an operator is one fixed matrix. From the first use on this is so for the settings,
    hooks and children of modules and for what a callable loss is made of, too; what a forward
    writes to its own module does not count. Data that are given as tensors are not copied: a
    problem whose data were written to is refused, but what is kept of them is not touched by it.
    The comparison takes about 1 % of a product over all parameters.

    >>> model = nn.Linear(2, 1, bias=False).double()
    >>> with torch.no_grad():
    ...     _ = model.weight.copy_(torch.tensor([[1.0, 2.0]]))
    >>> X, y = torch.eye(2).double(), torch.zeros(2, 1).double()
    >>> problem = Problem(model, (X, y), loss="mse")
    >>> problem.value().item(), problem.gradient().tolist()
    (2.5, [1.0, 2.0])
    """

    def __init__(
        self,
        model: nn.Module,
        data: Any,
        loss: str | nn.Module | Callable[..., Tensor] | Loss = "cross_entropy",
        *,
        params: Selection = None,
        mode: str = "eval",
        batch_size: int | None = None,
    ) -> None:
        check_model(model)
        self.model: nn.Module = model
        labels = takes_labels(model)
        named = isinstance(loss, str) and loss == MODEL
        if named and not labels:
            rule = "the model's forward takes no labels"
            raise CurvescopeError("Problem(loss='model')", rule, remedy="name the loss")
        self._loss = None if named else as_loss(loss)
        # A model that takes labels may have a loss of its own, looked at when it is needed.
        self._named = to_compare(loss, self._loss) if labels else None
        self.mode = _checks.one_of("Problem", "mode", mode, ("eval", "train"))
        with _state.exclusive(model):
            self.params = ParamSpace.of(model, params)
            self.device, self.dtype = _device_and_dtype(model, self.params)
            check_weights(model)
            self._snapshot = Snapshot(_numbers(model))
            self._loss_numbers = _other_tensors(self._loss, model)
            self._loss_snapshot = Snapshot(self._loss_numbers)
            self._settings: Settings | None = None  # from the first use on
            self._parameters = list(model.named_parameters())
            # Where a forward pass may write to buffers.
            self._statistics = [m for m in model.modules() if mode == "train" and m._buffers]
        if batch_size is not None:
            _checks.positive_int("Problem", "batch_size", batch_size)
            if mode == "train":
                rule = "in `mode='train'` the batches are part of the loss"
                raise CurvescopeError("Problem(batch_size)", rule, remedy="give them as a list")
        self.data = Batches(data, self.device, batch_size)
        self._cut = batch_size is not None and self.data.length != 1
        self._first: torch.Size | None = None  # the shape of the first output
        self._samples_apart: bool | None = None
        if self._named is None:
            for target in self.data.targets:
                self.loss.check_target(target)
        self._ran = False  # whether the model has run once
        self._checked = False  # whether one full pass has looked at targets and outputs
        self._digests: dict[str, Any] = {}  # of the model and the data, once they were needed
        self._companions: dict[Any, Any] = {}  # by class; see companion

    def batches(self, *, own: bool = False) -> Iterator[Batch]:
        """The batches, on the model's device, in the data's own order.

        They may lie in the caller's memory; whoever keeps what is made of them takes them in memory
        of their ``own``, where nobody writes.
        """
        if self._cut and not self._checked:
            self._check_cut()
        yield from self.data.walk(own=own)
        if self.data.rebatched and self._sees_batches:
            rule = f"two passes over the data disagree: {self._why_passes_differ()}"
            raise CurvescopeError("Problem(data)", rule)
        self._checked = True

    def _check_cut(self) -> None:
        """Refuse to cut data where the cuts would be part of the loss."""
        first = next(iter(self.data))
        if not self._sees_batches or not self._repeats(first):
            return
        rule = (
            "the samples of a batch see each other in this model, so that the loss depends on how "
            "they are cut"
        )
        remedy = "leave `batch_size` out, or give the batches that are meant as a list"
        raise CurvescopeError("Problem(batch_size)", rule, remedy=remedy)

    def _repeats(self, batch: Batch) -> bool:
        """Whether the model gives the same output twice."""
        variables = self.variables()
        with self.evaluation():
            a, b = (self.output(variables, batch).detach() for _ in range(2))
        return _close(a, b)

    def samples_apart(self, batch: Batch) -> bool:
        """Whether the samples of a batch do not see each other, see :func:`apart`.

        Tried out once, on the first batch that can tell; in mode="train" the answer is no.
        """
        if self._samples_apart is not None:
            return self._samples_apart
        if self.mode != "eval":
            return False
        variables = self.variables()

        def run(tree: Any) -> Tensor:
            with self.evaluation():
                return self.output(variables, Batch(tree[0], tree[1], batch.index))

        known = apart(run, (batch.inputs, batch.target))
        if known is None:  # one sample alone says nothing
            norms = [m for m in self.model.modules() if isinstance(m, _NormBase)]
            return all(norm.running_mean is not None for norm in norms)
        self._samples_apart = known
        return known

    def check_unchanged(self) -> None:
        """Refuse to go on when the weights or buffers are not those the problem was built with."""
        with _state.exclusive(self.model):  # another thread's evaluation puts other buffers in
            same = self._snapshot.matches(_numbers(self.model))
            if self._settings is None:
                self._settings = Settings(self._described())
            changed = self._settings.difference()
        if not same:
            rule = "the model's weights have changed since the problem was built"
            raise CurvescopeError("Problem", rule, remedy="build a new Problem for the new weights")
        if not self._loss_snapshot.matches(self._loss_numbers):
            rule = "the numbers that the loss refers to have changed since the problem was built"
            remedy = "build a new Problem for the new loss"
            raise CurvescopeError("Problem", rule, remedy=remedy)
        if changed is not None:
            rule = f"{changed} has changed since the problem was first used"
            raise CurvescopeError("Problem", rule, remedy="build a new Problem for what is there")
        if not self.data.unwritten():
            rule = "the data have changed since the problem was built"
            raise CurvescopeError("Problem", rule, remedy="build a new Problem for the new data")

    def _described(self) -> list[object]:
        """All modules, and the loss with those that it is made of."""
        modules: list[object] = list(self.model.modules())
        if self._loss is None:
            return modules
        parts = [part for part in vars(self._loss).values() if isinstance(part, nn.Module)]
        return [*modules, *(module for part in parts for module in part.modules()), self._loss]

    @property
    def loss(self) -> Loss:
        """The loss; for a model that computes one itself from labels, the one that agrees with it.

        Where the model takes labels and the loss was given by name, or is torch's without settings,
        two forward passes of the first batch are made when this is first needed.
        """
        if self._named is not None:
            self._loss, self._named = self._own_loss(self._named), None
        assert self._loss is not None, "given or looked at"
        return self._loss

    def _own_loss(self, given: str | Loss) -> Loss:
        first = next(iter(self.data))
        if not isinstance(first.target, Tensor):
            return as_loss(given)
        variables = self.variables()
        with self.evaluation():
            output = self.output(variables, first).detach()
            try:
                result = self._call(variables, first, {"labels": first.target})
            except ModelError as error:
                if not isinstance(error.__cause__, TypeError):
                    raise
                result = None  # it takes any keywords, but passes these on to one that does not
        return own_loss(self.model, given, output, first.target, result)

    @property
    def identity(self) -> str:
        """A digest of all that decides the loss as a function of the variables, by content.

        Weights, buffers, modules, mode, loss, the chosen variables and the data. In mode="eval"
        neither the order of the samples nor their batches matter, unless the samples of a batch see
        each other even then. Cost: a pass over weights and data, once.
        """
        return self._identity(in_order=self._sees_batches)

    @property
    def identity_in_order(self) -> str:
        """:attr:`identity`, and the order of the samples and the batches that they come in."""
        return self._identity(in_order=True)

    @property
    def data_identity(self) -> str:
        """The part of :attr:`identity` that is the data."""
        return self._data_identity(in_order=self._sees_batches)

    @property
    def _sees_batches(self) -> bool:
        """Whether it matters which samples come together."""
        return self.mode == "train" or not self.samples_apart(next(iter(self.data)))

    def _data_identity(self, *, in_order: bool) -> str:
        if "data" not in self._digests:
            self._digests["data"] = self.data.digests()
        digests: tuple[str, str] = self._digests["data"]
        return digests[in_order]

    def _identity(self, *, in_order: bool) -> str:
        self.check_unchanged()
        if "model" not in self._digests:
            with _state.exclusive(self.model):
                self._digests["model"] = digest(self.model)
        data = self._data_identity(in_order=in_order)
        names = self.params.names
        return digest("problem", self._digests["model"], self.mode, self.loss, names, data)

    # One evaluation ------------------------------------------------------------------------------

    @contextmanager
    def evaluation(self, variables: Container[str] | None = None) -> Iterator[None]:
        """The model as this problem sees it: mode set, attention differentiable; restored after.

        Backward passes belong inside as well, for models with checkpoints; ``variables`` are the
        names that :meth:`output` is called with there, those of the problem by default.
        """
        check_mode("Problem", self.device)
        variables = self.params.shapes if variables is None else variables
        mode: _state.Mode = "norms train" if self.mode == "train" else "eval"
        notice = nullcontext() if self._ran else _state.watching(_AttentionNotice())
        with (
            _state.held(self.model, mode),
            _state.differentiable(),
            notice,
            nullcontext() if self._settings is None else self._settings.evaluation(),
            self._as_called(variables),
        ):
            yield

    @contextmanager
    def _as_called(self, variables: Container[str]) -> Iterator[None]:
        """The model's own tensors as :meth:`output` replaces them.

        A checkpoint runs its layers again in the backward pass, with what it finds in the model:
        the same parameters must be variables there, or it would save other tensors than before and
        derivatives would be wrong; and running statistics must not be written to.
        """
        others = [p for name, p in self._parameters if p.requires_grad != (name in variables)]
        if not others and not self._statistics:
            yield
            return
        flags = [(p, p.requires_grad) for p in others]
        buffers = [(module, dict(module._buffers)) for module in self._statistics]

        def put_back() -> None:
            for p, flag in flags:
                p.requires_grad_(flag)
            for module, own in buffers:
                module._buffers.update(own)

        with _state.undone(put_back):
            for p, flag in flags:
                p.requires_grad_(not flag)
            for module, own in buffers:
                module._buffers.update({n: b if b is None else b.clone() for n, b in own.items()})
            yield

    def variables(self) -> dict[str, Tensor]:
        """Fresh leaves that share the memory of the chosen parameters."""
        chosen = self.params.shapes
        with _state.exclusive(self.model):
            return {
                name: p.detach().requires_grad_()
                for name, p in self.model.named_parameters()
                if name in chosen
            }

    def output(self, variables: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """``f(x; w)`` as a tensor, with everything but ``variables`` held constant."""
        z = output_of(
            "Problem(model)", self._call(variables, batch, decoder_inputs(self.model, batch))
        )
        if not z.is_floating_point() or not z.requires_grad:
            rule = "the model's output does not depend on the chosen parameters"
            raise ModelError("Problem", rule)
        return z

    def _call(
        self, variables: Mapping[str, Tensor], batch: Batch, more: Mapping[str, Tensor]
    ) -> Any:
        state: dict[str, Tensor] = {
            name: p.detach() for name, p in self.model.named_parameters() if name not in variables
        }
        state.update(variables)
        # A forward may write to its buffers (running statistics), but not to the model's.
        state.update({name: b.clone() for name, b in self.model.named_buffers()})
        args, kwargs = _arguments(self.model, batch.inputs)
        try:
            z = call_with(self.model, state, args, {**more, **kwargs})
        except (CurvescopeError, torch.OutOfMemoryError):
            raise
        except MISTAKES as error:
            raise _refused(error, batch, self.dtype) from error
        self._ran = True
        return z

    def loss_at(self, z: Tensor, batch: Batch) -> LossAt:
        """The loss at an output, checked on the first pass over the data."""
        z = z.detach()
        at = self.loss.at(z, batch.target)
        if not self._checked and not bool(torch.isfinite(at.value())):
            rule = f"the loss of batch {batch.index} is not finite"
            remedy = "look for infinite or NaN inputs, or weights that overflow"
            raise CurvescopeError("Problem", rule, remedy=remedy)
        if not self._checked:
            self._check_loss(z, batch)
        return at

    def _check_loss(self, z: Tensor, batch: Batch) -> None:
        if batch.index == 0:
            refuse_copied_labels(self.loss, batch.inputs, batch.target)
        self._first = z.shape if self._first is None else self._first
        variables = [p for name, p in self._parameters if name in self.params.shapes]
        with self.evaluation():
            self.loss.check(z, batch.target, first=self._first, variables=variables)

    # Value, gradient, checks --------------------------------------------------------------------

    def value(self) -> Tensor:
        """The mean loss ``L(w)``; one forward pass."""
        return self._pass(gradient=False)[0]

    def gradient(self) -> Tensor:
        """``∇L(w)`` as a flat vector; one forward and one backward pass."""
        return self._pass(gradient=True)[1]

    def _pass(self, *, gradient: bool) -> tuple[Tensor, Tensor]:
        self.check_unchanged()
        variables = self.variables()
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        slope = torch.zeros(
            self.params.size if gradient else 0, dtype=self.dtype, device=self.device
        )
        weight = 0.0
        for batch in self.batches():
            with self.evaluation():
                z = self.output(variables, batch)
                at = self.loss_at(z, batch)
                total += at.value().double()
                weight += at.weight
                if gradient:
                    pieces = torch.autograd.grad(
                        z, list(variables.values()), at.gradient(), allow_unused=True,
                        materialize_grads=True,
                    )  # fmt: skip
                    slope += self.params.flatten(dict(zip(variables, pieces, strict=True)))
        if weight == 0:
            raise CurvescopeError("Problem(data)", "no target counts (all are ignored)")
        return (total / weight).to(self.dtype), slope / weight

    def check(self) -> None:
        """Refuse a problem whose two identical passes disagree, naming the likely cause.

        Cost: three passes over the data with gradients, twice on the first batch.
        """
        variables, first = self.variables(), next(iter(self.data))
        with self.evaluation():
            a, b = (self.output(variables, first).detach() for _ in range(2))
        if not bool(torch.isfinite(a).all()):
            rule = "the model's output is NaN or infinite for the first batch"
            raise CurvescopeError("Problem.check", rule, remedy="look at its inputs and weights")
        if not _close(a, b):
            rule = f"the model's output is random: {self._random_cause()}"
            raise CurvescopeError("Problem.check", rule)
        (v1, g1), (v2, g2) = self._pass(gradient=True), self._pass(gradient=True)
        if not (_close(v1, v2) and _close(g1, g2)):
            rule = f"two passes over the data disagree: {self._why_passes_differ()}"
            raise CurvescopeError("Problem.check", rule)

    def _why_passes_differ(self) -> str:
        """The likely cause where the same samples have another loss."""
        if not self.data.rebatched:
            return self.data.why_passes_differ()
        cause = "batch norm in mode='train'" if self.mode == "train" else "a model of this kind"
        return (
            f"{cause} with a shuffling loader makes other batches each time, whose samples see "
            "each other; use shuffle=False"
        )

    def _random_cause(self) -> str:
        dropout = [
            n for n, m in self.model.named_modules() if "dropout" in type(m).__name__.lower()
        ]
        if dropout:
            return f"a dropout module that ignores eval mode is likely ({', '.join(dropout)})"
        return "its forward draws random numbers (functional dropout with training=True, noise?)"

    def restrict(self, name: str | list[str]) -> Problem:
        """The same problem with fewer variables: a layer, a parameter, or a list of them."""
        names = [name] if isinstance(name, str) else list(name)
        chosen = {n for item in names for n in self.params.resolve(item, "Problem.restrict")}
        other = object.__new__(Problem)
        other.__dict__.update(self.__dict__)
        other.params = self.params.select(chosen)
        other._companions = {}
        return other

    def companion(self, kind: Callable[[Problem], T]) -> T:
        """The one object of the class ``kind`` that serves this problem, ``kind(self)`` at first.

        The engine of products is such an object: all operators on a problem share it, and it goes
        with the problem. It must refer to the problem weakly, so that both go at once.
        """
        made: T | None = self._companions.get(kind)
        if made is None:  # of two threads that make one, the first decides
            made = self._companions.setdefault(kind, kind(self))
        assert made is not None
        return made

    def __repr__(self) -> str:
        return (
            f"Problem({type(self.model).__name__}, {self.loss.name}, "
            f"{self.params.size:,} variables, mode={self.mode!r})"
        )


# Helpers ----------------------------------------------------------------------------------------


def _device_and_dtype(model: nn.Module, space: ParamSpace) -> tuple[torch.device, torch.dtype]:
    tensors = [*model.named_parameters(), *model.named_buffers()]
    devices = {t.device for _, t in tensors}
    if len(devices) > 1:
        rule = "all parameters and buffers must share a device"
        remedy = "move the model with model.to(...)"
        raise CurvescopeError(
            "Problem(model)", rule, given=", ".join(sorted(map(str, devices))), remedy=remedy
        )
    dtypes = {p.dtype for n, p in model.named_parameters() if n in space.shapes}
    if len(dtypes) > 1 or not dtypes <= {torch.float32, torch.float64}:
        rule = "the chosen parameters must all be float32 or all be float64"
        remedy = "convert with model.float() or model.double()"
        raise CurvescopeError(
            "Problem(model)", rule, given=", ".join(sorted(map(str, dtypes))), remedy=remedy
        )
    return devices.pop(), dtypes.pop()


def _numbers(model: nn.Module) -> list[Tensor]:
    """All numbers that a model's output depends on; faster than ``model.parameters()``."""
    tensors: list[Tensor | None] = []
    modules = [model]
    while modules:
        module = modules.pop()
        tensors += module._parameters.values()
        tensors += module._buffers.values()
        modules += [each for each in module._modules.values() if each is not None]
    return [tensor for tensor in tensors if tensor is not None]


def _arguments(model: nn.Module, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Mappings go in by keyword if ``forward`` takes such keywords, tuples by position."""
    if isinstance(inputs, Mapping):
        try:
            inspect.signature(model.forward).bind(**inputs)
        except TypeError:
            return (inputs,), {}
        return (), dict(inputs)
    if isinstance(inputs, tuple | list):
        return tuple(inputs), {}
    return (inputs,), {}


def _other_tensors(loss: Loss | None, model: nn.Module) -> list[Tensor]:
    """The tensors of a loss that are not the model's."""
    own = {id(t) for t in _numbers(model)}
    return [] if loss is None else [t for t in loss.tensors() if id(t) not in own]


def _refused(error: Exception, batch: Batch, dtype: torch.dtype) -> ModelError:
    x = batch.inputs
    given = f"{x.dtype} {list(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
    remedy = None
    if isinstance(x, Tensor) and x.is_floating_point() and x.dtype != dtype:
        remedy = f"the model is {dtype}: convert the data with x.to({dtype})"
    reason = str(error).strip().splitlines()[0] if str(error).strip() else ""
    if not reason or not isinstance(error, RuntimeError | TypeError | ValueError | IndexError):
        reason = f"{type(error).__name__}{': ' if reason else ''}{reason}"  # KeyError: 'x'
    rule = f"the model refused batch {batch.index} ({given}): {reason}"
    return ModelError("Problem", rule, remedy=remedy)


def _close(a: Tensor, b: Tensor) -> bool:
    tolerance = 1e-4 if a.dtype == torch.float32 else 1e-9
    return bool((a - b).norm() <= tolerance * a.norm())


class _AttentionNotice(TorchFunctionMode):
    """Says once that fused attention, which has no second derivative, is replaced."""

    said = False

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func is F.scaled_dot_product_attention and not _AttentionNotice.said:
            _AttentionNotice.said = True
            log.warning(
                "scaled_dot_product_attention runs on its unfused path here: the fused kernels "
                "have no second derivative"
            )
        return func(*args, **(kwargs or {}))
