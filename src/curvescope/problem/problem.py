"""The problem: the mean loss of a model over data, as a function of some of its parameters."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from curvescope import _checks, _state
from curvescope.errors import CurvescopeError, ModelError
from curvescope.identity import digest
from curvescope.problem.batches import Batch, Batches
from curvescope.problem.calling import more_arguments
from curvescope.problem.causes import different_passes, random_output
from curvescope.problem.contents import Contents
from curvescope.problem.function import ModelFunction, close
from curvescope.problem.leftovers import Caches, model_digest, refuse_leftovers
from curvescope.problem.losses import Loss, LossAt, as_loss
from curvescope.problem.losses.model_loss import (
    MODEL,
    recognize_model_loss,
    refuse_copied_labels,
    takes_labels,
    to_compare,
)
from curvescope.problem.params import Selection
from curvescope.problem.soundness import check_weights
from curvescope.ranks import Group, GroupLike

T = TypeVar("T")


def _pair(data: Any, targets: Any) -> tuple[Any, Any]:
    """``X`` and ``y`` that were given as two arguments."""
    if isinstance(targets, str | nn.Module | Loss) or callable(targets):
        rule = "the third argument is `targets`, for Problem(model, X, y)"
        raise CurvescopeError("Problem", rule, given="a loss", remedy="write loss=…")
    return data, targets


class Problem(ModelFunction):
    """``L(w) = (1/N) Σ_n ℓ(f(x_n; w), y_n)`` for a model, its data and a choice of variables ``w``.

    Args:
        model: any ``nn.Module``; its flags, gradients, buffers and weights are never changed.
        data: ``(X, y)``, a data set with such ``.tensors``, a ``DataLoader``, or an iterable of
            ``(input, target)`` batches; inputs may be tensors, tuples or mappings. Batches are
            moved to the model's device. NumPy arrays are copied; their real numbers become those
            of the model's type.
        targets: ``y``, where ``data`` is ``X`` alone.
        loss: ``"cross_entropy"``, ``"binary_logistic"``, ``"mse"``, ``"huber"``,
            ``"smooth_l1"``; a torch loss module or function; one of :mod:`curvescope.losses`; or
            any callable of ``(output, target)`` that averages over the samples. For a model that
            computes its loss from ``labels``, as those of Hugging Face do, a name or a torch loss
            without settings must give the same value on the first batch, which also decides
            whether labels are shifted; ``"model"`` takes the loss that gives this value.
        params: which parameters are variables: all that require grad (default), a layer or
            parameter name, a list of them, or a predicate of ``(name, parameter)``.
        mode: ``"eval"``, or ``"train"``: batch norm uses the statistics of each batch and
            differentiates through them. Dropout is off in both, and running buffers never move.
        batch_size: cuts ``(X, y)`` into batches of this size. Only for ``mode="eval"`` and models
            whose output for a sample does not depend on the rest of its batch.
        group: the ranks that share the computation, each with its own batches as ``data``:
            ``"world"`` for all processes of ``torch.distributed``, a ``ProcessGroup``, or None for
            this process alone. Every rank then gets the numbers of the whole data, see
            :mod:`curvescope.ranks`, and all of them must call the same things in the same order.

    A problem is fixed: it stores a copy of the model's weights and buffers, and every computation
    first compares them with that copy. After any change (an optimizer's step, ``load_state_dict``,
    a write through ``.data``) it is refused, because an operator is one fixed matrix. From the
    first use on, the settings, hooks and children of modules and the contents of a callable loss
    are compared as well; attributes that a forward sets on its module do not count. Data given as
    tensors are not copied; after a write to them the problem is refused. The comparison takes about
    1 % of a product over all parameters.

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
        targets: Any = None,
        *,
        loss: str | nn.Module | Callable[..., Tensor] | Loss = "cross_entropy",
        params: Selection = None,
        mode: str = "eval",
        batch_size: int | None = None,
        group: GroupLike = None,
    ) -> None:
        self.group = data.group if isinstance(data, Batches) else Group.of(group)
        with self.group.together():
            data = data if targets is None else _pair(data, targets)
            self._build(model, data, loss, params, mode, batch_size)
        self._agree()

    def _build(
        self,
        model: nn.Module,
        data: Any,
        loss: str | nn.Module | Callable[..., Tensor] | Loss,
        params: Selection,
        mode: str,
        batch_size: int | None,
    ) -> None:
        super().__init__(model, params, mode)
        model = self.model
        labels = takes_labels(model)
        named = isinstance(loss, str) and loss == MODEL
        if named and not labels:
            rule = "the model's forward takes no labels"
            raise CurvescopeError("Problem(loss='model')", rule, remedy="name the loss")
        self._loss = None if named else as_loss(loss)
        # A model that takes labels may compute its loss itself, compared at the first access.
        self._named = to_compare(loss, self._loss) if labels else None
        with _state.exclusive(model):
            self._contents = Contents(model, self._loss)
            self._caches = Caches(model)
        if batch_size is not None:
            _checks.positive_int("Problem", "batch_size", batch_size)
            if mode == "train":
                rule = "in `mode='train'` the batches are part of the loss"
                raise CurvescopeError("Problem(batch_size)", rule, remedy="give them as a list")
        shared = isinstance(data, Batches)  # those of another problem
        self.data: Batches = (
            data if shared else Batches(data, self.device, batch_size, self.dtype, self.group)
        )
        self._cut = batch_size is not None and self.data.length != 1
        self._first: torch.Size | None = None  # the shape of the first output
        if self._named is None:
            for target in self.data.targets:
                self.loss.check_target(target)
        self._checked = False  # whether one full pass has checked targets and outputs
        self._companions: dict[Any, Any] = {}  # by class; see companion
        self._weights: list[float] = []  # of all terms of the loss, once it is known
        self._seen: list[bool] = []  # whether batches matter on any rank, once it is known

    def _agree(self) -> None:
        """Refuse ranks with different models or settings."""
        if self.group.alone:
            return
        with self.group.together():
            settings = digest(self.mode, self.loss, self.params.names, self.dtype)
            mine = [self.model_identity, settings]
        everywhere = self.group.plain_of_all(mine)
        for what, digests in zip(("model", "settings"), zip(*everywhere, strict=True), strict=True):
            other = next((r for r, each in enumerate(digests) if each != digests[0]), None)
            if other is not None:
                rule = f"all ranks must have the same {what}; that of rank {other} is another one"
                remedy = "load the same weights on every rank" if what == "model" else None
                raise CurvescopeError("Problem(group)", rule, remedy=remedy)

    def batches(self, *, copied: bool = False) -> Iterator[Batch]:
        """The batches, on the model's device, in the order of the data.

        They may share the caller's memory; with ``copied`` they do not, so that what is stored of
        them stays the same.
        """
        if self._cut and not self._checked:
            self._check_cut()
        yield from self.data.walk(copied=copied)
        if self.data.rebatched and self._sees_batches:
            rule = f"two passes over the data disagree: {different_passes(self.data, self.mode)}"
            raise CurvescopeError("Problem(data)", rule)
        self._checked = True

    def _check_cut(self) -> None:
        """Refuse ``batch_size`` where the loss depends on how the data are cut."""
        first = next(iter(self.data))
        if not self._sees_batches or not self._repeats(first):
            return
        rule = (
            "the samples of a batch see each other in this model, so that the loss depends on how "
            "they are cut"
        )
        remedy = "leave `batch_size` out, or give the batches that are meant as a list"
        raise CurvescopeError("Problem(batch_size)", rule, remedy=remedy)

    def check_unchanged(self) -> None:
        """Refuse to go on after a change of the model, the loss or the data of this problem."""
        self._contents.check_unchanged(self._loss, self.data)

    @property
    def loss(self) -> Loss:
        """The loss; for a model that computes a loss from labels, the one with the same value.

        If the model takes labels and the loss is a name or a torch loss without settings, the first
        access makes two forward passes of the first batch.
        """
        if self._named is not None:
            self._loss, self._named = self._model_loss(self._named), None
        assert self._loss is not None, "passed to the constructor or recognized above"
        return self._loss

    def _model_loss(self, requested: str | Loss) -> Loss:
        first = next(iter(self.data))
        if not isinstance(first.target, Tensor):
            return as_loss(requested)
        variables = self.variables()
        with self.evaluation():
            output = self.output(variables, first).detach()
            try:
                result = self._call(
                    variables, first, more_arguments(self.model, first) | {"labels": first.target}
                )
            except ModelError as error:
                if not isinstance(error.__cause__, TypeError):
                    raise
                result = (
                    None  # forward(**kwargs) passes labels to a function that does not take them
                )
        return recognize_model_loss(self.model, requested, output, first.target, result)

    @property
    def identity(self) -> str:
        """A digest of the contents of the loss function ``L(w)``.

        Weights, buffers, modules, mode, loss, the chosen variables and the data. In ``mode="eval"``
        the order of the samples and their batches do not enter, unless outputs depend on the batch
        even then. Cost: a pass over weights and data and two outputs of the first batch, once. In a
        group it is that of the whole data, however these are shared out, and all ranks must ask.
        """
        return self._identity(in_order=self._in_order)

    @property
    def identity_in_order(self) -> str:
        """:attr:`identity` with the order of the samples and their batches included."""
        return self._identity(in_order=True)

    @property
    def model_identity(self) -> str:
        """The digest of the model in :attr:`identity`: weights, buffers, settings and code.

        What a forward pass leaves behind (caches, counts, its last output) is no part of it.
        """
        return self._contents.model_digest(self._model_digest)

    def _model_digest(self) -> str:
        self.loss  # noqa: B018 (its first access may show the model its labels)
        self._look_for_caches()
        return model_digest(self.model, self._caches, self._first_pass())

    @property
    def data_identity(self) -> str:
        """The digest of the data in :attr:`identity`."""
        return self._contents.data_digest(self.data, in_order=self._in_order)

    @property
    def _sees_batches(self) -> bool:
        """Whether the loss depends on which samples share a batch, as far as this rank sees."""
        return self.mode == "train" or not self.samples_apart(next(iter(self.data)))

    @property
    def _in_order(self) -> bool:
        """The same on any rank."""
        if self.group.alone:
            return self._sees_batches
        if not self._seen:
            self._seen.append(not self.group.agree(not self._sees_batches))
        return self._seen[0]

    def _identity(self, *, in_order: bool) -> str:
        self.check_unchanged()
        model = self.model_identity
        data = self._contents.data_digest(self.data, in_order=in_order)
        return digest("problem", model, self.mode, self.loss, self.params.names, data)

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
        if self.data.is_first(batch):
            refuse_copied_labels(self.loss, batch.inputs, batch.target)
        self._first = z.shape if self._first is None else self._first
        variables = [p for name, p in self._parameters if name in self.params.shapes]
        with self.evaluation():
            self.loss.check(z, batch.target, first=self._first, variables=variables)

    @contextmanager
    def evaluation(self, variables: Container[str] | None = None) -> Iterator[None]:
        """See :class:`ModelFunction`; attributes that a forward sets count as no change."""
        settings = self._contents.settings
        self._look_for_caches()
        with (
            _state.exclusive(self.model),
            self._caches.restored(),
            nullcontext() if settings is None else settings.evaluation(),
            super().evaluation(variables),
        ):
            self._caches.empty()
            yield

    def _look_for_caches(self) -> None:
        if self._caches.are_known:
            return
        run = self._first_pass()
        with _state.exclusive(self.model):
            self._caches.look_for(run)

    def _first_pass(self) -> Callable[[], None]:
        """What evaluates the model on the first batch, which is read here."""
        first = next(iter(self.data))

        def run() -> None:
            settings = self._contents.settings
            with (
                nullcontext() if settings is None else settings.evaluation(),
                super(Problem, self).evaluation(),
            ):
                self._call(self.variables(), first, more_arguments(self.model, first))

        return run

    # Value, gradient, checks --------------------------------------------------------------------

    def value(self) -> Tensor:
        """The mean loss ``L(w)``; one forward pass."""
        return self._pass(gradient=False)[0]

    def gradient(self) -> Tensor:
        """``∇L(w)`` as a flat vector; one forward and one backward pass."""
        return self._pass(gradient=True)[1]

    def _pass(self, *, gradient: bool) -> tuple[Tensor, Tensor]:
        with self.group.together():
            value, weight, slope = self._sums(gradient=gradient)
        return self.mean_(value, weight).to(self.dtype), self.mean_(slope, weight)

    def _sums(self, *, gradient: bool) -> tuple[Tensor, float, Tensor]:
        """Value and gradient as sums over the terms of this rank, with the weight of these."""
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
                    if self.data.is_first(batch):
                        refuse_leftovers(self.model, variables.values(), z)
                    pieces = torch.autograd.grad(
                        z, list(variables.values()), at.gradient(), allow_unused=True,
                        materialize_grads=True,
                    )  # fmt: skip
                    slope += self.params.flatten(dict(zip(variables, pieces, strict=True)))
        return total, weight, slope

    # Sums over the ranks ------------------------------------------------------------------------

    def sum_(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks of what each has summed over its data, in place."""
        if not self.data.counts:
            tensor.zero_()
        return self.group.sum_(tensor)

    def count(self, number: float) -> float:
        """The same of a number, which is exact below 2⁵³."""
        if self.group.alone:
            return number
        device = self.group.device
        return float(self.sum_(torch.tensor(number, dtype=torch.float64, device=device)))

    def concatenate(self, rows: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        """The rows that the ranks have for their data, in the order of the whole data.

        ``counts`` are the numbers of rows of all ranks, where these are known.
        """
        return self.group.concatenate(rows if self.data.counts else rows[:0], counts)

    def mean_(self, total: Tensor, weight: float) -> Tensor:
        """The mean over the terms of the whole data, from a sum over those of this rank; in place.

        ``weight`` is that of this rank's terms.
        """
        total = self.sum_(total)
        return total.div_(self.whole_weight(weight))

    def share_(self, total: Tensor, weight: float) -> Tensor:
        """This rank's share of :meth:`mean_`, which those of all ranks add up to; in place."""
        if not self.data.counts:
            total.zero_()
        return total.div_(self.whole_weight(weight))

    def whole_weight(self, weight: float) -> float:
        """The weight of the terms of the whole data, exchanged once."""
        if not self._weights and not self.group.alone:
            self._weights.append(self.count(weight))
        whole = weight if self.group.alone else self._weights[0]
        if whole == 0:
            raise CurvescopeError("Problem(data)", "no target counts (all are ignored)")
        return whole

    def check(self) -> None:
        """Refuse a problem whose two identical passes disagree, naming the likely cause.

        Cost: three passes over the data with gradients, twice on the first batch.
        """
        with self.group.together():
            self._check_passes()

    def _check_passes(self) -> None:
        variables, first = self.variables(), next(iter(self.data))
        with self.evaluation():
            a, b = (self.output(variables, first).detach() for _ in range(2))
        if not bool(torch.isfinite(a).all()):
            rule = "the model's output is NaN or infinite for the first batch"
            raise CurvescopeError("Problem.check", rule, remedy="look at its inputs and weights")
        if not close(a, b):
            rule = f"the model's output is random: {random_output(self.model)}"
            raise CurvescopeError("Problem.check", rule)
        (v1, g1), (v2, g2) = self._pass(gradient=True), self._pass(gradient=True)
        if not (close(v1, v2) and close(g1, g2)):
            rule = f"two passes over the data disagree: {different_passes(self.data, self.mode)}"
            raise CurvescopeError("Problem.check", rule)

    def restrict(self, name: str | list[str]) -> Problem:
        """The same problem with fewer variables: a layer, a parameter, or a list of them."""
        names = [name] if isinstance(name, str) else list(name)
        chosen = {n for item in names for n in self.params.resolve(item, "Problem.restrict")}
        other = object.__new__(Problem)
        other.__dict__.update(self.__dict__)
        other.params = self.params.select(chosen)
        other._companions = {}
        other._contents = copy(self._contents)
        return other

    def renewed(self) -> Problem:
        """The same problem for the weights that the model has now.

        For a model in training: what was found out about the problem and depends on no weights
        (which loss, what can be recorded, whether a product fits into memory) is not found again.

        >>> model = nn.Linear(1, 1, bias=False)
        >>> problem = Problem(model, (torch.ones(1, 1), torch.zeros(1, 1)), loss="mse")
        >>> _ = model.weight.detach().fill_(2.0)
        >>> problem.renewed().gradient().tolist()
        [4.0]
        """
        other = object.__new__(Problem)
        other.__dict__.update(self.__dict__)
        with _state.exclusive(self.model):
            check_weights(self.model)
            other._contents = Contents(self.model, self._loss)
            other._caches = self._caches.renewed(self.model)
        kept = ((kind, getattr(made, "renewed", None)) for kind, made in self._companions.items())
        other._companions = {kind: renewed() for kind, renewed in kept if renewed is not None}
        return other

    def companion(self, kind: Callable[[Problem], T]) -> T:
        """The object of class ``kind`` that belongs to this problem, made as ``kind(self)`` once.

        The engine of products is such an object: all operators on a problem share it, and it is
        freed with the problem, to which it must hold a weak reference. One with a method
        ``renewed()`` gives what of it serves :meth:`renewed` problems.
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
