"""A forward pass that records the input of each layer and the graph edge of its output.

With the input ``x`` of a layer and the cotangent ``δ`` of its output, the gradient by its weight is
a product of the two, and its squared norm often costs much less than the gradient itself, see
:mod:`curvescope.flatness.trace_gradient.pullback`. The pass is watched at the level of torch
functions, where :mod:`curvescope.record.capture` puts hooks on modules: inputs stay part of the
graph, ``nn.Conv2d`` and ``F.conv2d`` look alike, and functions can be replaced by ones whose second
derivative is faster (batch norm, convolution) or right (weight norm).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

from curvescope.flatness.trace_gradient.batch_norm import batch_norm
from curvescope.flatness.trace_gradient.convolution import Pass, Settings, convolve
from curvescope.layers import border

_CONVOLUTIONS: dict[Callable[..., Tensor], int] = {
    torch.conv1d: 1,
    torch.conv2d: 2,
    torch.conv3d: 3,
}


@dataclass(frozen=True)
class LayerCall:
    """One call of a linear or convolutional layer; ``settings`` is None for a linear one."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    output: GradientEdge  # where the cotangent of the output appears, also after in-place changes
    settings: Settings | None
    needed: Pass


class Capture(TorchFunctionMode):
    """Records the layers whose weights are among ``parameters`` while the context is open.

    ``second_order`` prepares convolutions and batch norms for one derivative of their backward pass
    (not for two). ``functions`` are the torch functions called with a tensor that requires grad.
    ``rows`` says how many consecutive rows of each layer belong to a sample, set by
    :meth:`separate`; where it is empty, or 0, gradients are taken for the whole batch.
    """

    def __init__(self, parameters: Iterable[Tensor], *, second_order: bool) -> None:
        super().__init__()
        self._parameters = {id(p): p for p in parameters}
        self._second_order = second_order
        self._uses: Counter[int] = Counter()
        self._calls: list[LayerCall] = []
        self._interacting = False  # a batch norm used the statistics of the batch
        self.functions: set[Any] = set()
        self.samples = 1
        self.rows: tuple[int, ...] = ()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        tensors = _tensors((*args, *kwargs.values()))
        self._uses.update(id(t) for t in tensors if id(t) in self._parameters)
        result = self._run(func, *args, **kwargs)
        if any(t.requires_grad for t in _tensors((result,))):
            self.functions.add(func)
        return result

    def _run(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        if func is F.linear:
            return self._linear(*args, **kwargs)
        if func in _CONVOLUTIONS:
            return self._convolution(func, *args, **kwargs)
        if func is torch._weight_norm:
            return _weight_norm(*args, **kwargs)
        if func is F.batch_norm and _training(*args, **kwargs):
            self._interacting = True
            return (batch_norm if self._prepares(args[0]) else func)(*args, **kwargs)
        return func(*args, **kwargs)

    def _prepares(self, x: Tensor) -> bool:
        """Whether to replace a function; not under autocast, which casts arguments itself."""
        return self._second_order and not torch.is_autocast_enabled(x.device.type)

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        y = F.linear(x, weight, bias)
        self._record(x, weight, bias, y, None, Pass())
        return y

    def _convolution(
        self, func: Callable[..., Tensor], x: Tensor, weight: Tensor, bias: Tensor | None = None,
        stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1,
    ) -> Tensor:  # fmt: skip
        dims = _CONVOLUTIONS[func]
        settings = _settings(weight, dims, stride, padding, dilation, groups)
        if settings is None or x.ndim != dims + 2:
            return func(x, weight, bias, stride, padding, dilation, groups)
        needed = Pass()
        if self._prepares(x):
            y = convolve(x, weight, bias, settings, needed)
        else:
            y = func(x, weight, bias, stride, padding, dilation, groups)
        self._record(x, weight, bias, y, settings, needed)
        return y

    def _record(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, settings: Settings | None,
        needed: Pass,
    ) -> None:  # fmt: skip
        if id(weight) in self._parameters and y.requires_grad:
            edge = get_gradient_edge(y)
            self._calls.append(LayerCall(x, weight, bias, edge, settings, needed))

    # After the pass ------------------------------------------------------------------------------

    @property
    def shared(self) -> bool:
        """Whether some parameter was used more than once."""
        return any(count > 1 for count in self._uses.values())

    def layers(self) -> list[LayerCall]:
        """The layers whose weight was used there and nowhere else."""
        return [call for call in self._calls if self._uses[id(call.weight)] == 1]

    def separate(self, samples: int, rows: tuple[int, ...]) -> None:
        """Set ``rows``, the rows per sample of each layer; ignored if this pass differs."""
        layers = self.layers()
        self.samples = samples
        if self._interacting or len(rows) != len(layers):
            return
        fits = (m * samples == call.x.shape[0] for m, call in zip(rows, layers, strict=True))
        self.rows = tuple(m if fit else 0 for m, fit in zip(rows, fits, strict=True))

    def others(self) -> list[Tensor]:
        """The parameters that belong to no layer of :meth:`layers`, in order."""
        covered = {id(t) for call in self.layers() for t in (call.weight, self.bias_of(call))}
        return [p for key, p in self._parameters.items() if key not in covered]

    def bias_of(self, call: LayerCall) -> Tensor | None:
        """The layer's bias, if it is a parameter that was used there and nowhere else."""
        key = id(call.bias)
        alone = key in self._parameters and self._uses[key] == 1
        return call.bias if alone else None


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """``g v / ‖v‖`` in elementary operations; the fused one has a wrong second derivative."""
    return v * (g / torch.norm_except_dim(v, 2, dim))


def _training(
    x: Tensor, mean: Any, var: Any, weight: Any = None, bias: Any = None, training: bool = False,
    *_: Any, **__: Any,
) -> bool:  # fmt: skip
    return training


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    """The tensors among arguments, and in lists of them."""
    tensors = []
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, list | tuple):
            tensors += [t for t in value if isinstance(t, Tensor)]
    return tensors


def _settings(
    weight: Tensor, dims: int, stride: Any, padding: Any, dilation: Any, groups: int
) -> Settings | None:
    """Numbers for each dimension; None where ``padding="same"`` would pad the sides unequally."""

    def each(value: Any) -> tuple[int, ...]:
        return (value,) * dims if isinstance(value, int) else tuple(value) * (dims // len(value))

    steps = each(dilation)
    sides = border(padding if isinstance(padding, str) else each(padding), weight.shape[2:], steps)
    if any(before != after for before, after in sides):
        return None
    return Settings(each(stride), tuple(before for before, _ in sides), steps, groups)
