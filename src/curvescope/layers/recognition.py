"""The kind of a module, by its class or by what it computes.

Many modules multiply by a matrix or a scale without being one of torch's: GPT-2's ``Conv1D``, the
RMS norms of Llama and its relatives, layer norms with the channels second. A module that has a
``weight``, perhaps a ``bias`` and else nothing but numbers and words is tried out: with random
parameters its output must be ``x W + b``, ``x Wᵀ + b``, ``w ⊙ x̂(x) + b`` or ``s W[i]``. Names say
nothing. What it computes is compared once more on the data, see
:func:`curvescope.record.samples.check_samples`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import torch
from torch import Tensor, nn

from curvescope.layers.embedding import LookupKind, ScaledEmbedding
from curvescope.layers.kind import Kind, LayerKind, registered_kind
from curvescope.layers.linear import Linear, TransposedLinear
from curvescope.layers.scale import ChannelScale, Scale
from curvescope.layers.twin import twin

_MISTAKES = (
    RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError,
    ArithmeticError,
)  # fmt: skip
_LARGE = 1 << 24  # entries of a weight; larger ones are tried out with equal columns, in float32
_PLAIN = (bool, int, float, str, type(None), torch.dtype)
_cache: dict[Hashable, type[Kind] | None] = {}  # modules made of the same compute the same


def kind_of(module: nn.Module) -> Kind | None:
    """The kind of a module, or None: it computes something else, or has no plain weight.

    >>> layer = kind_of(nn.Conv2d(3, 8, 5))
    >>> type(layer).__name__, layer.matrix_shape
    ('Convolution', (8, 75))
    >>> kind_of(nn.ReLU()) is None
    True
    """
    if not isinstance(module._parameters.get("weight"), Tensor):
        return None
    kind = registered_kind(module) or recognized(module)
    return None if kind is None else kind(module)


def matrix_kind(module: nn.Module) -> LayerKind | None:
    """The kind of a module that multiplies by a matrix; None for scales, tables and all else.

    >>> matrix_kind(nn.LayerNorm(2)) is None
    True
    """
    kind = kind_of(module)
    return kind if isinstance(kind, LayerKind) else None


def recognized(module: nn.Module) -> type[Kind] | None:
    """The kind of a module of any class, tried out once on random numbers.

    >>> class Conv1D(nn.Module):
    ...     def __init__(self, inputs, outputs):
    ...         super().__init__()
    ...         self.weight = nn.Parameter(torch.zeros(inputs, outputs))
    ...     def forward(self, x):
    ...         return x @ self.weight
    >>> recognized(Conv1D(2, 3)).__name__
    'TransposedLinear'
    """
    parameters = {name for name, p in module._parameters.items() if p is not None}
    if not {"weight"} <= parameters <= {"weight", "bias"} or module._modules:
        return None
    if getattr(module, "scale_grad_by_freq", False):  # its derivative is not that of its output
        return None
    weight = module._parameters["weight"]
    assert weight is not None
    key = _made_of(module, weight)
    if key is None:
        return None
    if key not in _cache:
        _cache[key] = _tried(module, weight)
    return _cache[key]


def _made_of(module: nn.Module, weight: Tensor) -> Hashable | None:
    """Class, shapes and settings of a module; None where a trial might change a setting."""
    internal = nn.Module().__dict__
    settings = {name: value for name, value in module.__dict__.items() if name not in internal}
    if not all(_plain(value) for value in settings.values()):
        return None
    if any(b is not None and b.numel() != 1 for b in module._buffers.values()):
        return None  # larger state may move
    numbers = tuple((name, None if b is None else float(b)) for name, b in module._buffers.items())
    has_bias = isinstance(module._parameters.get("bias"), Tensor)
    made_of = (type(module), type(module).forward, tuple(weight.shape), has_bias)
    return *made_of, numbers, tuple(sorted(settings.items()))


def _plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(_plain(each) for each in value)
    return isinstance(value, _PLAIN)


def _tried(module: nn.Module, weight: Tensor) -> type[Kind] | None:
    if not weight.is_floating_point():
        return None
    numbers = torch.Generator().manual_seed(0)
    large = weight.numel() > _LARGE
    dtype = torch.float32 if large else torch.float64

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=numbers, dtype=dtype)

    def draw_weight() -> Tensor:
        first, *rest = weight.shape
        return draw(first, *(1 for _ in rest)).expand(weight.shape) if large else draw(first, *rest)

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        has_bias = isinstance(module._parameters.get("bias"), Tensor)
        for kind, shape, outputs in _candidates(weight):
            parts: dict[str, Tensor | None] = {"weight": draw_weight()}
            if has_bias:
                parts["bias"] = draw(outputs)
            x = draw(*shape)
            if issubclass(kind, LookupKind):
                x = (x.abs() * len(weight)).long() % len(weight)
            if _says(kind, twin(module, **parts), x):
                return kind
    return None


def _candidates(weight: Tensor) -> Iterator[tuple[type[Kind], tuple[int, ...], int]]:
    """Kinds that fit the shape of a weight, the shape of an input, and the length of a bias."""
    if weight.ndim == 2:
        rows, columns = weight.shape
        yield ScaledEmbedding, (2, 3), columns
        yield Linear, (2, 3, columns), rows
        yield TransposedLinear, (2, 3, rows), columns
    if weight.ndim == 1:
        m = len(weight)
        yield Scale, (2, 3, m), m
        yield Scale, (2, 2, 3, m), m
        yield ChannelScale, (2, m, 2, 3), m


def _says(kind: type[Kind], module: nn.Module, x: Tensor) -> bool:
    """Whether a module computes what the kind says, and not nothing."""
    try:
        y = module.forward(x)
        return isinstance(y, Tensor) and bool(y.norm() > 0) and kind(module).agrees(x, y)
    except _MISTAKES:
        return False
