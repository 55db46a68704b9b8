"""Torch's recurrent layers and cells, taken to pieces where they are called.

Their fused kernels have no second derivative, and their plain paths are thousands of short
operations. A layer is replaced by a matrix product for all inputs and one ``recurrent`` operator
for each direction; packed sequences by padded ones with the rows picked out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from curvescope.record.recurrent.operators import recurrent

Weights = Sequence[Tensor]  # of the input, of the state, then biases where there are any


class TakenApart(TorchFunctionMode):
    """Replaces the calls of torch's recurrent layers and cells."""

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        replacement = _REPLACED.get(func)
        if replacement is None or kwargs:
            return func(*args, **(kwargs or {}))
        made = replacement(*args)
        return func(*args) if made is None else made


def _direction(kind: str, x: Tensor, weights: Weights, h: Tensor, c: Any) -> tuple[Tensor, Tensor]:
    """All states of one layer in one direction, ``[T, B, H]`` each."""
    w_in, w, *biases = weights
    b_in = b = None
    if biases:
        b_in, b = biases if kind == "gru" else (biases[0] + biases[1], None)
    rows = F.linear(x.flatten(0, 1), w_in, b_in)  # of one matrix: the bias is added on the way
    out, cells, _ = recurrent(kind, rows.unflatten(0, x.shape[:2]), w, b, h, c)
    return out, cells


class _Times:
    """Which entries of ``[T, B]`` belong to a sequence; all of them where nothing is packed."""

    def __init__(self, sizes: Tensor | None) -> None:
        self._sizes = sizes
        if sizes is None:
            return
        steps, batch = len(sizes), int(sizes[0])
        t, b = torch.arange(steps)[:, None], torch.arange(batch)
        self._lengths = (sizes[:, None] > b).sum(0)
        inside = t < self._lengths
        self._rows = (inside.cumsum(1) - 1 + (sizes.cumsum(0) - sizes)[:, None]).clamp_(min=0)
        self._rows = torch.where(inside, self._rows, 0)
        self._valid = (t * batch + b)[inside]
        self._last = (self._lengths - 1) * batch + b
        turned = torch.where(inside, self._lengths - 1 - t, t)
        self._turned = turned * batch + b

    def pad(self, x: Tensor) -> Tensor:
        """``[rows, n]`` as ``[T, B, n]``; what is outside counts for nothing."""
        return x if self._sizes is None else _pick(x, self._rows)

    def pack(self, x: Tensor) -> Tensor:
        """The inverse of :meth:`pad`."""
        return x if self._sizes is None else _pick(x.flatten(0, 1), self._valid)

    def reverse(self, x: Tensor) -> Tensor:
        """Every sequence from its end."""
        return x.flip(0) if self._sizes is None else _pick(x.flatten(0, 1), self._turned)

    def last(self, x: Tensor) -> Tensor:
        """The state after the end of every sequence, ``[B, n]``."""
        return x[-1] if self._sizes is None else _pick(x.flatten(0, 1), self._last)


def _pick(rows: Tensor, index: Tensor) -> Tensor:
    picked = rows.index_select(0, index.flatten().to(rows.device))
    return picked.unflatten(0, index.shape)


def _layers(
    kind: str, x: Tensor, times: _Times, h: Tensor, c: Tensor | None, weights: Weights,
    biased: bool, layers: int, both: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """The result of the last layer, and the last states of all layers and directions."""
    each = 4 if biased else 2
    groups: Iterator[Weights] = iter([weights[i : i + each] for i in range(0, len(weights), each)])
    x = times.pad(x)
    last_h: list[Tensor] = []
    last_c: list[Tensor] = []
    for _ in range(layers):
        results = []
        for backwards in (False, True)[: 1 + both]:
            given = times.reverse(x) if backwards else x
            k = len(last_h)
            out, cells = _direction(kind, given, next(groups), h[k], None if c is None else c[k])
            last_h.append(times.last(out))
            if c is not None:
                last_c.append(times.last(cells))
            results.append(times.reverse(out) if backwards else out)
        x = torch.cat(results, 2) if both else results[0]
    return times.pack(x), torch.stack(last_h), torch.stack(last_c) if c is not None else None


def _layer(kind: str) -> Callable[..., Any]:
    def layer(x: Tensor, second: Any, third: Any, *rest: Any) -> Any:
        if isinstance(rest[0], list | tuple):  # packed: data, sizes, states, weights, …
            states, weights, biased, count, dropout, training, both = third, *rest
            times, first = _Times(second), False
        else:
            states, weights, (biased, count, dropout, training, both, first) = second, third, rest
            times = _Times(None)
        h, c = states if kind == "lstm" else (states, None)
        projected = weights[1].shape[1] * _GATES[kind] != len(weights[1])
        if projected or (dropout and training and count > 1):
            return None  # torch's plain path is recorded, or its random numbers are refused
        x = x.transpose(0, 1) if first else x
        out, h, c = _layers(kind, x, times, h, c, weights, biased, count, both)
        out = out.transpose(0, 1) if first else out
        return (out, h) if c is None else (out, h, c)

    return layer


def _cell(kind: str) -> Callable[..., Any]:
    def cell(x: Tensor, states: Any, *weights: Tensor | None) -> Any:
        h, c = states if kind == "lstm" else (states, None)
        given = [w for w in weights if w is not None]
        out, cells = _direction(kind, x[None], given, h, c)
        return out[0] if c is None else (out[0], cells[0])

    return cell


_GATES = {"lstm": 4, "gru": 3, "tanh": 1, "relu": 1}
_REPLACED: dict[Any, Callable[..., Any]] = {
    torch.lstm: _layer("lstm"), torch.gru: _layer("gru"),
    torch.rnn_tanh: _layer("tanh"), torch.rnn_relu: _layer("relu"),
    torch.lstm_cell: _cell("lstm"), torch.gru_cell: _cell("gru"),
    torch.rnn_tanh_cell: _cell("tanh"), torch.rnn_relu_cell: _cell("relu"),
}  # fmt: skip
