"""The interface of losses: value, gradient and Hessian with respect to the model's output.

A loss is a weighted average of *terms*. Each batch contributes the sum of its weighted terms and
their total weight, and the mean over all data is the ratio of the two sums: cutting the data into
other batches changes nothing but rounding.

All products below take ``t: [k, *output.shape]``, ``k`` directions at once. A new loss is one file
with a :class:`Loss` and a :class:`LossAt`, and one line in ``recognize.py``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor, nn

from curvescope.errors import CurvescopeError
from curvescope.identity import digest
from curvescope.problem.losses.groups import Groups
from curvescope.problem.losses.probes import OutputRoot


@dataclass(frozen=True)
class Terms:
    """The loss of each term that counts, its weight, and whether its prediction is wrong."""

    losses: Tensor
    weights: Tensor
    wrong: Tensor | None  # None where a loss has no right answers


@dataclass(frozen=True)
class Classes:
    """Probability and output gradient of every class for every term (``record.extended``).

    Probabilities are kept as logarithms in float64: they may underflow, their ratios within a
    class must not. An ignored term has the label −1 and the probability 0 for every class.

    ``toward(S)`` is ``Σ_{c' in S} p_c' ∂ℓ(z, y_c')/∂z / Σ_{c' in S} p_c'`` for a set of classes
    ``[C]``: the mean gradient if the label were one of them. Gradients are made one by one, since
    all of a large vocabulary do not fit into memory.
    """

    labels: Tensor  # [terms], int64
    log_p: Tensor  # [terms, C], float64
    toward: Callable[[Tensor], Tensor]  # [C] of booleans to [terms, c], the entries of a term

    @property
    def classes(self) -> int:
        """``C``."""
        return self.log_p.shape[1]

    @property
    def count(self) -> int:
        """The terms that are not ignored."""
        return int((self.labels >= 0).sum())

    @property
    def directions(self) -> Tensor:
        """``∂ℓ(z, y_c')/∂z``: ``[terms, C, c]``."""
        return torch.stack([self.direction(c) for c in range(self.classes)], 1)

    def direction(self, c: int) -> Tensor:
        """``∂ℓ(z, y_c)/∂z`` for one class: ``[terms, c]``."""
        return self.toward(torch.arange(self.classes, device=self.log_p.device) == c)

    def roots(self) -> Tensor:
        """``√p_c' · ∂ℓ(z, y_c')/∂z``: ``[terms, C, c]`` with ``Σ_c' r rᵀ = ∂²ℓ/∂z²``."""
        directions = self.directions
        half = torch.exp(0.5 * self.log_p).to(directions.dtype)
        return half[..., None] * directions

    def grouped(self, groups: Groups) -> Classes:
        """The same for groups of classes: the probability of a group and its mean gradient."""
        members = groups.tensor(self.log_p.device)

        def toward(chosen: Tensor) -> Tensor:
            return self.toward(chosen[members])

        return Classes(groups.labels(self.labels), groups.log_sums(self.log_p), toward)


class LossAt(ABC):
    """A loss at one batch's output ``z``: a sum of weighted terms, and their total ``weight``."""

    weight: float
    count: int  # terms that are not ignored

    @cached_property
    def draws(self) -> dict[Any, Tensor]:
        """A place to store the samples drawn at this output."""
        return {}

    @abstractmethod
    def value(self) -> Tensor:
        """The sum of the weighted terms."""

    @abstractmethod
    def gradient(self) -> Tensor:
        """``∂/∂z`` of the sum, shaped like ``z``."""

    @abstractmethod
    def hessian(self, t: Tensor) -> Tensor:
        """``∂²/∂z² [t]`` of the sum, for each of the ``k`` directions."""

    def terms(self, t: Tensor) -> Tensor:
        """``[k, *z.shape]`` seen as ``[k, terms, entries of a term]``; here a term per sample."""
        return t.flatten(2) if t.ndim > 2 else t.unsqueeze(-1)

    def scatter(self, t: Tensor, like: Tensor) -> Tensor:
        """The inverse of :meth:`terms`."""
        return t.reshape(like.shape)

    def slopes(self) -> Tensor:
        """``√w ∂ℓ/∂z`` of each term: ``[1, terms, c]``; their outer products add up with ``w``."""
        return self.terms(self.gradient()[None])

    def root(self) -> Tensor | None:
        """``[s, terms, c]`` with ``Σ_s q qᵀ`` the Hessian of each weighted term, if it is psd.

        Here the eigendecomposition of every term's Hessian.
        """
        like = self.gradient()[None]
        _, terms, c = self.terms(like).shape
        units = torch.eye(c, dtype=like.dtype, device=like.device)
        columns = units[:, None].expand(c, terms, c).contiguous()
        t = self.scatter(columns, like.expand(c, *like.shape[1:]))
        hessian = self.terms(self.hessian(t)).movedim(0, -1)  # [terms, c, c]
        values, vectors = torch.linalg.eigh((hessian + hessian.mT) / 2)
        slack = 100 * c * torch.finfo(like.dtype).eps * values.abs().amax()
        if bool((values < -slack).any()):
            return None
        roots = (values.clamp_min(0).sqrt()[:, None] * vectors).movedim(-1, 0)
        alive = (values > slack).any(0)
        return roots[alive] if bool(alive.any()) else roots[-1:]

    @property
    def rank(self) -> int:
        """How many vectors :meth:`root` has at most: here the entries of a term."""
        return self.terms(self.gradient()[None]).shape[2]

    @abstractmethod
    def sample(self, samples: int, generator: torch.Generator) -> Tensor:
        """``[samples, *z.shape]``: gradients at targets drawn from the model's own distribution.

        Their second moment, term by term, is the output Hessian: the Fisher information.
        """

    def each(self) -> Terms | None:
        """The terms one by one; None for a loss that does not show them."""
        return None

    def classes(self, where: str) -> Classes | None:
        """Probabilities and gradients of every class; None for a loss without classes.

        Raises:
            CurvescopeError: if its targets or weights leave none.
        """
        return None


class DiagonalAt(LossAt):
    """A loss whose Hessian is diagonal in the output: ``_curvature``, shaped like it."""

    _curvature: Tensor

    def hessian(self, t: Tensor) -> Tensor:
        """See :class:`LossAt`."""
        return self._curvature * t

    def root(self) -> Tensor | None:
        """See :class:`LossAt`: a unit vector for each entry."""
        curvature = self.terms(self._curvature[None])[0]
        return torch.diag_embed(curvature.sqrt()).movedim(-1, 0)


class Loss(ABC):
    """A loss function: :meth:`at` an output, and properties that hold for every output."""

    name: str
    average: str  # what it averages over, as a word
    convex: bool = True  # in the output, so that the Gauss–Newton matrix is psd
    closed_form: bool = True  # the Hessian is no derivative taken by autograd
    has_classes: bool = False  # whether the class structure of G is defined
    even: bool = True  # whether every sample of one shape weighs the same

    modules: ClassVar[tuple[type[nn.Module], ...]] = ()
    functions: ClassVar[tuple[Callable[..., Tensor], ...]] = ()
    """Its torch modules and functions, whose settings :meth:`from_torch` takes."""

    @classmethod
    def from_torch(cls, **settings: Any) -> Loss:
        """The loss for the settings of its torch module or function, torch's own where not given.

        An unknown one is a ``TypeError``.
        """
        return cls(**settings)

    @property
    def identity(self) -> str:
        """A digest of the kind of loss, its settings and, for a callable, its code and values."""
        return digest(type(self), vars(self))

    @abstractmethod
    def at(self, output: Tensor, target: Any) -> LossAt:
        """The loss at a batch's output; refuses targets that do not fit with one sentence."""

    def mean(self, output: Tensor, target: Any) -> Tensor:
        """The mean over one batch, differentiable by the output; looks at no numbers."""
        return self.probe(output, target).value

    @abstractmethod
    def probe(self, output: Tensor, target: Any) -> OutputRoot:
        """A differentiable root of the output Hessian, or a refusal; looks at no numbers."""

    def outputs(self, output: Tensor, target: Any) -> int:
        """The entries of one term, for classes their number."""
        return max(int(output[:1].numel()), 1)

    def classes(self, outputs: int) -> int | None:
        """The number of classes for a number of outputs; None for a loss without classes."""
        return None

    def width(self, classes: int) -> int:
        """The number of outputs for a number of classes."""
        return classes

    def right(self, output: Tensor, target: Tensor) -> Tensor | None:
        """How many predictions of a batch are right; None for a loss without right answers.

        Looks at no numbers.
        """
        return None

    def check_target(self, target: Any) -> None:  # noqa: B027
        """Refuse targets that fit no output; by default none is refused."""

    def tensors(self) -> list[Tensor]:
        """Tensors outside this object that enter the loss and might be changed."""
        return []

    def check(  # noqa: B027
        self, output: Tensor, target: Any, *, first: torch.Size, variables: Sequence[Tensor]
    ) -> None:
        """Refuse a loss that is not the stated average, as far as one batch shows it.

        Args:
            output: the model's.
            target: what it is compared with.
            first: the shape of the first batch's output.
            variables: the parameters to differentiate by, as they are in the model.
        """


def need_tensor(name: str, target: Any) -> None:
    """Refuse targets that are not a tensor."""
    if not isinstance(target, Tensor):
        raise CurvescopeError(name, "the target must be a tensor", given=type(target).__name__)


def no_likelihood(name: str) -> NoReturn:
    """Refuse to draw targets from a loss that belongs to no distribution."""
    rule = f"the loss {name!r} has no known distribution of targets"
    remedy = "use `loss='cross_entropy'`, 'binary_logistic' or 'mse', or take GaussNewton"
    raise CurvescopeError("MonteCarloFisher", rule, remedy=remedy)
