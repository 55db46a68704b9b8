"""Squared norms of gradients by the parameters, from layer inputs and pulled-back errors.

For a cotangent ``u`` of the output, let ``g_n = J_nᵀ u_n`` be the part of sample ``n``. In a linear
layer ``g_n = Σ_t δ_nt x_ntᵀ`` over the positions ``t`` (one of them in a plain linear layer), and
there ``‖g_n‖² = ‖δ_n‖² ‖x_n‖²`` without the gradient being formed. With several positions the
output channels are first folded into ``k`` by random signs, ``R: [k, m]`` with one ±1 in every
column: ``E[RᵀR] = I``, so that ``E‖R g_n‖² = ‖g_n‖²`` while ``R g_n`` costs ``k/m`` of ``g_n``.

Where samples see each other (batch norm in train mode) there are no ``g_n``, and the norm of the
sum over the batch takes their place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from curvescope.flatness.trace_gradient.capture import Capture, LayerCall
from curvescope.flatness.trace_gradient.correlation import correlate
from curvescope.flatness.trace_gradient.signs import Signs

_ROWS_APART, _ROWS_TOGETHER = 1, 2


class Folding:
    """Folds the channels of ``δ: [B, m, …]`` into a few by random signs, or not at all.

    Where samples are kept apart, each has its own signs and one row is left: the errors of ``B``
    samples average out. Where they are not, all share the signs of two rows. The signs of all
    layers are drawn at once, which on a GPU takes one launch instead of ten a layer.

    >>> fold = Folding(Signs(torch.Generator().manual_seed(0)))
    >>> fold.prepare([(3, 6)], torch.ones(1))
    >>> fold(torch.ones(3, 6, 5), groups=2, apart=True).shape
    torch.Size([3, 2, 5])
    """

    def __init__(self, stream: Signs, *, whole: bool = False) -> None:
        self._stream, self._whole = stream, whole
        self._signs, self._used = torch.empty(0), 0

    def prepare(self, sizes: Iterable[tuple[int, int]], like: Tensor) -> None:
        """Draw the signs of all layers, of ``m`` channels with ``times`` independent sets each."""
        size = 0 if self._whole else sum(times * m for times, m in sizes)
        self._signs = self._stream.draw((size,), like)
        self._used = 0

    def __call__(self, delta: Tensor, *, groups: int, apart: bool) -> Tensor:
        """``[B, k, …]``; groups of channels do not mix."""
        batch, m = delta.shape[:2]
        each = m // groups
        k = each if self._whole else _divisor(each, _ROWS_APART if apart else _ROWS_TOGETHER)
        if k == each:
            return delta
        times = batch if apart else 1
        s = self._signs[self._used : self._used + times * m].reshape(times, -1, 1, each // k)
        self._used += times * m
        flat = delta.reshape(batch * groups * k, each // k, -1)
        s = s.expand(batch, -1, -1, -1).reshape(-1, 1, each // k)
        return torch.bmm(s, flat).reshape(batch, -1, *delta.shape[2:])


@lru_cache
def _divisor(m: int, most: int) -> int:
    return max(k for k in range(1, min(m, most) + 1) if m % k == 0)


def pull_back(
    capture: Capture, z: Tensor, u: Tensor, *, create_graph: bool
) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """Cotangents of the layers' outputs, and gradients by the other parameters."""
    layers = capture.layers()
    places = [*(call.output for call in layers), *map(get_gradient_edge, capture.others())]
    for call in layers:
        call.needed.weights = False
    try:
        gradients: Sequence[Tensor | None] = torch.autograd.grad(
            z, places, u, create_graph=create_graph, retain_graph=True, allow_unused=True
        )
    finally:
        for call in layers:
            call.needed.weights = True
    return list(gradients[: len(layers)]), list(gradients[len(layers) :])


def squared_gradients(
    capture: Capture, z: Tensor, u: Tensor, fold: Folding, *, create_graph: bool
) -> tuple[Tensor, Tensor]:
    """``‖g_n‖²`` over the layers for every sample, and the rest of ``Σ_n ‖g_n‖²`` as one number.

    The rest belongs to parameters outside the layers, or to all parameters where samples interact.
    It is the squared norm of a gradient over the whole batch; where the ``u_n`` are independent and
    of mean zero, the mixed terms vanish in expectation.
    """
    errors, rest = pull_back(capture, z, u, create_graph=create_graph)
    samples, layers = capture.samples, capture.layers()
    rows = capture.rows or (0,) * len(layers)
    apart = [
        m == 1 or (m > 1 and call.settings is None and call.x.ndim == 2)
        for m, call in zip(rows, layers, strict=True)
    ]
    times = [samples if alone else 1 for alone in apart]
    fold.prepare(zip(times, (call.weight.shape[0] for call in layers), strict=True), z)
    separate: list[Tensor] = []  # [B, …], whose squares are summed for each sample
    together = [g.flatten() for g in rest if g is not None]
    by_sample = torch.zeros(samples, dtype=z.dtype, device=z.device)
    for call, delta, alone, m in zip(layers, errors, apart, rows, strict=True):
        bias = capture.bias_of(call) is not None
        if delta is None:  # the output does not depend on this layer
            continue
        if alone and m > 1:  # the positions of a sample are separate rows
            call = replace(call, x=call.x.unflatten(0, (samples, m)))
            delta = delta.unflatten(0, (samples, m))
        if alone and call.x.ndim == 2:
            by_sample = by_sample + _sum(delta.square()) * (_sum(call.x.square()) + float(bias))
        elif alone:
            separate += [g.flatten(1) for g in _gradients(call, delta, bias, fold, apart=True)]
        else:
            together += [g.flatten() for g in _gradients(call, delta, bias, fold, apart=False)]
    if separate:
        by_sample = by_sample + _sum(torch.cat(separate, 1).square())
    flat = torch.cat(together) if together else z.new_zeros(1)
    return by_sample, torch.dot(flat, flat)


def _sum(t: Tensor) -> Tensor:
    return t.flatten(1).sum(1)


def _gradients(
    call: LayerCall, delta: Tensor, bias: bool, fold: Folding, *, apart: bool
) -> list[Tensor]:
    """Folded gradients by a layer's weight and bias, for each sample or for the whole batch."""
    x, settings = call.x, call.settings
    if settings is None and x.ndim == 2:
        folded = fold(delta, groups=1, apart=apart)
        return [folded.T @ x, folded.sum(0)] if bias else [folded.T @ x]
    if settings is None:  # positions last, as in a convolution
        x, delta = x.flatten(1, -2).mT, delta.flatten(1, -2).mT
        folded = fold(delta, groups=1, apart=apart)
        g = torch.bmm(folded, x.mT)
        g = g if apart else g.sum(0)
    else:
        folded = fold(delta, groups=settings.groups, apart=apart)
        g = correlate(folded, x, call.weight.shape[2:], settings, apart=apart)
    if not bias:
        return [g]
    return [g, folded.sum([*(() if apart else (0,)), *range(2, folded.ndim)])]
