"""What a kind of layer has to say, and the register of all kinds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import prod
from typing import ClassVar, TypeVar

from torch import Tensor, nn

from curvescope.layers.moments import add_gram
from curvescope.layers.order import as_matrix


class LayerKind(ABC):
    """A layer ``y[t] = W x[t] + b`` with the parameters ``weight`` and, unless None, ``bias``.

    ``W: [m, n]`` is the weight as a matrix; ``t`` are the ``T`` positions of a sample at which the
    layer is applied: one for a plain linear layer, those along a sequence, the output positions of
    a convolution. With ``groups > 1`` the channels fall into parts that do not meet, and each part
    brings positions of its own.

    An instance belongs to one module. A kind gives :meth:`rows` and :meth:`errors`; the rest
    follows from them, and is overridden where there is a faster way.
    """

    channels: ClassVar[int] = -1
    """The dimension of the layer's output that counts the channels."""

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
    def matrix(self) -> Tensor:
        """``W: [m, n]``."""
        m, _ = self.matrix_shape
        return as_matrix(self.weight.flatten(), m, transposed=self.transposed)

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """``(m, n)``."""
        shape = self.weight.shape[::-1] if self.transposed else self.weight.shape
        return shape[0], prod(shape[1:])

    @property
    def groups(self) -> int:
        """In how many parts the channels fall that do not meet."""
        return 1

    @abstractmethod
    def rows(self, x: Tensor, samples: int) -> Tensor:
        """The layer's input as ``[B, T, n]``; the positions of one group after those of another."""

    @abstractmethod
    def errors(self, e: Tensor, samples: int) -> Tensor:
        """A cotangent of the layer's output as ``[B, T, m]``, positions as in :meth:`rows`.

        At the positions of one group the channels of the others are zero.
        """

    def rows_first(self, e: Tensor, samples: int) -> Tensor:
        """A cotangent with rows in its first dimension: several dimensions may count positions."""
        return e.flatten(0, -2) if self.channels == -1 and e.shape[0] % samples else e

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


Kind = TypeVar("Kind", bound=type[LayerKind])
_KINDS: dict[type[nn.Module], type[LayerKind]] = {}


def layer_kind(*modules: type[nn.Module]) -> Callable[[Kind], Kind]:
    """Register a kind for some classes of modules and for subclasses that compute the same."""

    def register(kind: Kind) -> Kind:
        _KINDS.update(dict.fromkeys(modules, kind))
        return kind

    return register


def kinds() -> tuple[type[nn.Module], ...]:
    """The classes of modules that are of some kind."""
    return tuple(_KINDS)


def kind_of(module: nn.Module) -> LayerKind | None:
    """The kind of a module, or None: another class, a changed ``forward``, or no plain weight.

    >>> layer = kind_of(nn.Conv2d(3, 8, 5))
    >>> type(layer).__name__, layer.matrix_shape
    ('Convolution', (8, 75))
    >>> kind_of(nn.ReLU()) is None
    True
    """
    base = next((base for base in type(module).__mro__ if base in _KINDS), None)
    if base is None or not _KINDS[base].computes(module, base):
        return None
    return _KINDS[base](module) if isinstance(module._parameters.get("weight"), Tensor) else None


def registered(module: nn.Module) -> LayerKind | None:
    """The kind of a registered class, whatever a subclass computes with its weight."""
    kind = next((_KINDS[base] for base in type(module).__mro__ if base in _KINDS), None)
    return None if kind is None else kind(module)
