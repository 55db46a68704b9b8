"""Fused operations taken apart into elementary ones, so that each part has a simple derivative.

Normalization layers and the backward passes of softmax are single ATen operations whose kernels
have no forward derivative. Their formulas are written out here with the same arguments and results;
the recorder runs these in place of the kernels. Running statistics are read but never updated. A
batch norm whose statistics are frozen stays as it is (:mod:`curvescope.record.rules.batch_norm`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
Maybe = Tensor | None
Triple = tuple[Maybe, Maybe, Maybe]


def _mean(t: Tensor, dims: Sequence[int]) -> Tensor:
    return t.mean(list(dims), keepdim=True)


def _sum(t: Tensor, dims: Sequence[int]) -> Tensor:
    return t.sum(list(dims)) if dims else t


def _normalize(x: Tensor, dims: Sequence[int], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """``(x − mean) · rstd`` with the biased variance, and the two statistics."""
    mean = _mean(x, dims)
    centered = x - mean
    rstd = (_mean(centered * centered, dims) + eps).rsqrt()
    return centered * rstd, mean, rstd


def _normalize_backward(g: Tensor, xhat: Tensor, rstd: Tensor, dims: Sequence[int]) -> Tensor:
    """Through ``xhat = (x − mean(x)) rstd(x)``: ``rstd (g − mean g − xhat mean(g xhat))``."""
    return rstd * (g - _mean(g, dims) - xhat * _mean(g * xhat, dims))


# Root-mean-square norm: over the last dimensions ------------------------------------------------


def _last(x: Tensor, shape: Sequence[int]) -> tuple[list[int], list[int]]:
    split = x.ndim - len(shape)
    return list(range(split, x.ndim)), list(range(split))


def rms_norm(x: Tensor, shape: Any, w: Maybe, eps: float | None) -> tuple[Tensor, Tensor]:
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    rstd = (_mean(x * x, _last(x, shape)[0]) + eps).rsqrt()
    y = x * rstd
    return (y if w is None else y * w), rstd


def rms_norm_backward(
    g: Tensor, x: Tensor, shape: Any, rstd: Tensor, w: Maybe, mask: Any
) -> tuple[Maybe, Maybe]:
    over, rest = _last(x, shape)
    xhat = x * rstd
    scaled = g if w is None else g * w
    gx = rstd * (scaled - xhat * _mean(scaled * xhat, over)) if mask[0] else None
    return gx, (_sum(g * xhat, rest) if mask[1] else None)


# Batch norm: over everything but the channels ---------------------------------------------------


def _channels(t: Tensor, x: Tensor) -> Tensor:
    return t.reshape(1, -1, *(1,) * (x.ndim - 2))


def _all_but_channels(x: Tensor) -> list[int]:
    return [0, *range(2, x.ndim)]


def batch_norm(
    x: Tensor, w: Maybe, b: Maybe, mean: Maybe, var: Maybe, training: bool, momentum: float,
    eps: float,
) -> Triple:  # fmt: skip
    y, m, rstd = _normalize(x, _all_but_channels(x), eps)
    y = y if w is None else y * _channels(w, x)
    return (y if b is None else y + _channels(b, x)), m.flatten(), rstd.flatten()


def batch_norm_backward(
    g: Tensor, x: Tensor, w: Maybe, mean: Maybe, var: Maybe, saved_mean: Maybe, saved_rstd: Maybe,
    training: bool, eps: float, mask: Any,
) -> Triple:  # fmt: skip
    over = _all_but_channels(x)
    scaled = g if w is None else g * _channels(w, x)
    assert saved_mean is not None
    assert saved_rstd is not None
    rstd = _channels(saved_rstd, x)
    xhat = (x - _channels(saved_mean, x)) * rstd
    gx = _normalize_backward(scaled, xhat, rstd, over) if mask[0] else None
    return gx, (_sum(g * xhat, over) if mask[1] else None), (_sum(g, over) if mask[2] else None)


def cudnn_batch_norm(
    x: Tensor, w: Tensor, b: Maybe, mean: Maybe, var: Maybe, training: bool, factor: float,
    eps: float,
) -> tuple[Maybe, Maybe, Maybe, Tensor]:  # fmt: skip
    norm = batch_norm if training else aten.native_batch_norm
    y, m, rstd = norm(x, w, b, mean, var, training, factor, eps)
    return y, m, rstd, x.new_empty(0, dtype=torch.uint8)


def cudnn_batch_norm_backward(
    x: Tensor, g: Tensor, w: Tensor, mean: Maybe, var: Maybe, saved_mean: Maybe, saved_rstd: Maybe,
    eps: float, reserve: Tensor,
) -> Triple:  # fmt: skip
    mask = [True, True, True]
    return batch_norm_backward(g, x, w, None, None, saved_mean, saved_rstd, True, eps, mask)


# Group norm: over the channels of a group and all positions -------------------------------------


def group_norm(
    x: Tensor, w: Maybe, b: Maybe, n: int, c: int, positions: int, groups: int, eps: float
) -> Triple:
    y, mean, rstd = _normalize(x.reshape(n, groups, -1), [2], eps)
    y = y.reshape(x.shape)
    y = y if w is None else y * _channels(w, x)
    y = y if b is None else y + _channels(b, x)
    return y, mean.reshape(n, groups), rstd.reshape(n, groups)


def group_norm_backward(
    g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, w: Maybe, n: int, c: int, positions: int,
    groups: int, mask: Any,
) -> Triple:  # fmt: skip
    grouped = (n, groups, -1)
    r = rstd.reshape(n, groups, 1)
    xhat = (x.reshape(grouped) - mean.reshape(n, groups, 1)) * r
    scaled = g if w is None else g * _channels(w, x)
    over = _all_but_channels(x)
    gx = _normalize_backward(scaled.reshape(grouped), xhat, r, [2]) if mask[0] else None
    gw = _sum(g * xhat.reshape(x.shape), over) if mask[1] else None
    gx = None if gx is None else gx.reshape(x.shape)
    return gx, gw, (_sum(g, over) if mask[2] else None)


# Weight norm ------------------------------------------------------------------------------------


def _all_but(t: Tensor, dim: int) -> list[int]:
    return [d for d in range(t.ndim) if d != dim % t.ndim]


def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    norm = (v * v).sum(_all_but(v, dim), keepdim=True).sqrt()
    return v * (g / norm), norm


def weight_norm_backward(
    grad: Tensor, v: Tensor, g: Tensor, norm: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    # torch 2.13's own second derivative of this operation is wrong (it is not even symmetric).
    along = (grad * v).sum(_all_but(v, dim), keepdim=True) / norm
    return (g / norm) * (grad - v * (along / norm)), along


# Activations whose backward kernel has no derivative ---------------------------------------------


def mish_backward(g: Tensor, x: Tensor) -> Tensor:
    t, s = torch.tanh(torch.nn.functional.softplus(x)), torch.sigmoid(x)
    return g * (t + x * s * (1 - t * t))


def log_sigmoid_backward(g: Tensor, x: Tensor, buffer: Tensor) -> Tensor:
    return g * torch.sigmoid(-x)


# Softmax, backwards -----------------------------------------------------------------------------


def softmax_backward(g: Tensor, y: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    gy = g * y
    return gy - y * gy.sum(dim, keepdim=True)


def log_softmax_backward(g: Tensor, y: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    return g - y.exp() * g.sum(dim, keepdim=True)


_APART: dict[Any, Callable[..., Any]] = {
    aten.native_batch_norm.default: batch_norm,
    aten.native_batch_norm_backward.default: batch_norm_backward,
    aten.cudnn_batch_norm.default: cudnn_batch_norm,
    aten.cudnn_batch_norm_backward.default: cudnn_batch_norm_backward,
    aten.native_group_norm.default: group_norm,
    aten.native_group_norm_backward.default: group_norm_backward,
    aten._weight_norm_interface.default: weight_norm,
    aten._weight_norm_interface_backward.default: weight_norm_backward,
    aten.mish_backward.default: mish_backward,
    aten.log_sigmoid_backward.default: log_sigmoid_backward,
    aten._softmax_backward_data.default: softmax_backward,
    aten._log_softmax_backward_data.default: log_softmax_backward,
}
if hasattr(aten, "_fused_rms_norm"):
    _APART[aten._fused_rms_norm.default] = rms_norm
    _APART[aten._fused_rms_norm_backward.default] = rms_norm_backward
_TRAINING = {aten.native_batch_norm.default: 5, aten.native_batch_norm_backward.default: 7}


def in_pieces(func: Any, args: Sequence[Any]) -> Callable[..., Any] | None:
    """What runs in place of an operation, None for one that stays as it is.

    A batch norm does with statistics that are given and frozen.
    """
    flag = _TRAINING.get(func)
    if flag is not None and not args[flag] and args[3] is not None and args[4] is not None:
        return None
    return _APART.get(func)
