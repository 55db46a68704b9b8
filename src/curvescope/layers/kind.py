"""What a kind of layer has to say, and the register of all kinds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import prod
from typing import ClassVar, TypeVar

from torch import Tensor, nn

from curvescope.layers.moments import add_gram
from curvescope.layers.order import as_matrix


class Kind(ABC):
    """A module whose output depends linearly on ``weight`` and, unless it is None, on ``bias``.

    With a cotangent ``e`` of its output and what its weight meets, ``x``, the derivative by the
    weight is a sum over the ``T`` positions ``t`` of a sample, of ``e[t] x[t]ᵀ`` for a matrix
    (:class:`LayerKind`), of ``e[t] ⊙ x[t]`` for a scale, of ``e[t]`` in row ``x[t]`` for a table;
    by the bias it is ``Σ_t e[t]``. An instance belongs to one module.
    """

    channels: ClassVar[int] = -1
    """The dimension of the module's output that counts the channels."""

    transposed: ClassVar[bool] = False
    """Whether the weight is stored as ``[n, m]``, a row for each input."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    @classmethod
    def computes(cls, module: nn.Module, base: type[nn.Module]) -> bool:
        """Whether a subclass of a registered class still computes what that class does."""
        return type(module).forward is base.forward

    @property
    def weight(self) -> Tensor:
        """The weight as the module stores it."""
        weight = self.module.weight
        assert isinstance(weight, Tensor)
        return weight

    @property
    @abstractmethod
    def matrix_shape(self) -> tuple[int, int]:
        """``(m, n)``: outputs at a position, and inputs that the weight meets there."""

    @property
    def groups(self) -> int:
        """In how many parts the channels fall that do not meet."""
        return 1

    def works_in(self, mode: str) -> bool:
        """Whether the module is what its kind says in this mode of a problem."""
        return True

    @abstractmethod
    def rows(self, x: Tensor, samples: int) -> Tensor:
        """What the weight meets, ``[B, T, …]``; the positions of one group after another's."""

    @abstractmethod
    def errors(self, e: Tensor, samples: int) -> Tensor:
        """A cotangent of the module's output as ``[B, T, m]``, positions as in :meth:`rows`.

        At the positions of one group the channels of the others are zero.
        """

    def agrees(self, x: Tensor, y: Tensor) -> bool:
        """Whether ``y`` is what the kind says of ``x``; asked where no class is registered."""
        return True

    def rows_first(self, e: Tensor, samples: int) -> Tensor:
        """A cotangent with rows in its first dimension: several dimensions may count positions."""
        return e.flatten(0, -2) if self.channels == -1 and e.shape[0] % samples else e


class LayerKind(Kind):
    """A layer ``y[t] = W x[t] + b`` with a matrix ``W: [m, n]``.

    ``t`` are the ``T`` positions of a sample at which the layer is applied: one for a plain linear
    layer, those along a sequence, the output positions of a convolution. With ``groups > 1`` the
    channels fall into parts that do not meet, and each part brings positions of its own.

    A kind gives :meth:`rows`, the layer's input as ``[B, T, n]``, and :meth:`errors`; the rest
    follows from them, and is overridden where there is a faster way.
    """

    @property
    def matrix(self) -> Tensor:
        """``W: [m, n]``."""
        m, _ = self.matrix_shape
        return as_matrix(self.weight.flatten(), m, transposed=self.transposed)

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """See :class:`Kind`."""
        shape = self.weight.shape[::-1] if self.transposed else self.weight.shape
        return shape[0], prod(shape[1:])

    def neurons(self, y: Tensor) -> int:
        """How many channels an output has."""
        return y.shape[self.channels]

    def add_input_moments(self, x: Tensor, samples: int, second: Tensor, first: Tensor) -> None:
        """Add ``Σ_b X_b X_bᵀ`` to ``second: [n, n]`` and ``Σ_b X_b`` to ``first: [n, T]``.

        ``X_b: [n, T]`` is the input of a sample at its positions. Of ``second`` only the part on
        and above the diagonal is needed.
        """
        rows = self.rows(x, samples)
        add_gram(second, rows.flatten(0, 1).T)
        first += rows.sum(0).T

    def add_error_moment(self, e: Tensor, samples: int, second: Tensor) -> None:
        """Add ``Σ e eᵀ`` over samples and positions to the upper part of ``second: [m, m]``."""
        add_gram(second, self.errors(e, samples).flatten(0, 1).T)


SomeKind = TypeVar("SomeKind", bound=type[Kind])
_KINDS: dict[type[nn.Module], type[Kind]] = {}


def layer_kind(*modules: type[nn.Module]) -> Callable[[SomeKind], SomeKind]:
    """Register a kind for some classes of modules and for subclasses that compute the same."""

    def register(kind: SomeKind) -> SomeKind:
        _KINDS.update(dict.fromkeys(modules, kind))
        return kind

    return register


def kinds() -> tuple[type[nn.Module], ...]:
    """The classes of modules that are of some kind."""
    return tuple(_KINDS)


def class_names(*, matrices: bool) -> list[str]:
    """The classes of modules that are of some kind, or of one that multiplies by a matrix."""
    return [m.__name__ for m, k in _KINDS.items() if issubclass(k, LayerKind) or not matrices]


def registered_kind(module: nn.Module) -> type[Kind] | None:
    """The kind that is registered for the module's class, if the module computes the same."""
    base = next((base for base in type(module).__mro__ if base in _KINDS), None)
    return _KINDS[base] if base is not None and _KINDS[base].computes(module, base) else None


def registered(module: nn.Module) -> LayerKind | None:
    """The kind of a registered class of layers, whatever a subclass computes with its weight."""
    kind = next((_KINDS[base] for base in type(module).__mro__ if base in _KINDS), None)
    return kind(module) if kind is not None and issubclass(kind, LayerKind) else None
