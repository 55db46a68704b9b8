"""Inputs of some layers, and output directions of each sample pulled back to them.

From a forward pass that remembers its layers, see :mod:`curvescope.record.capture`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from curvescope.errors import CurvescopeError
from curvescope.layers import Kind
from curvescope.problem.batches import Batch
from curvescope.problem.problem import Problem
from curvescope.record.capture import capture
from curvescope.record.samples import check_samples
from curvescope.record.selection import layers_of_any_kind

Directions = Callable[[Tensor, Any], Tensor]


@dataclass(frozen=True)
class LayerRecord:
    """One layer on one batch of ``B`` samples with ``K`` output directions each.

    ``inputs`` is what the weight meets at the layer's ``T`` positions: one for a plain linear
    layer, those along a sequence, or the output positions of a convolution. For a matrix they are
    ``x: [B, T, n]``, those of a convolution unfolded in the order of ``weight.flatten(1)``; for a
    table the indices ``[B, T]`` of its rows, for a scale ``x̂: [B, T, m]``.
    ``errors: [B, K, T, m]`` are the directions pulled back to the output. The derivative of the
    k-th direction of sample b by the bias is ``Σ_t errors[b,k,t]``, by the weight the sum over
    positions of ``errors[b,k,t] inputs[b,t]ᵀ``, of ``errors[b,k,t]`` in row ``inputs[b,t]``, or of
    ``errors[b,k,t] ⊙ inputs[b,t]``. With ``groups > 1`` each group brings its own positions, at
    which the errors of the other groups' channels are zero.
    """

    name: str
    kind: Kind
    inputs: Tensor
    errors: Tensor


def record_layers(
    problem: Problem,
    batch: Batch,
    layers: str | Iterable[str] | None,
    directions: Directions,
    *,
    shared: bool = False,
    by_term: bool = False,
) -> dict[str, LayerRecord]:
    """Inputs of some layers, and ``K`` output directions of each sample pulled back to them.

    Cost: one forward pass, and ``K`` passes backward that take no derivative by a parameter.
    Memory: what is returned, ``B·T·n + B·K·T·m`` numbers for each layer, and the graph.

    Args:
        problem: its model, mode and loss; ``layers`` need not be among its variables.
        batch: one of ``problem.batches()``.
        layers: names of layers (None: all of some kind among the variables).
        directions: a function of ``(z, target)`` that returns ``[B, K, *z.shape[1:]]``: the output
            directions of each sample, for example the columns of the output Hessian's root.
        shared: whether a weight may have other uses, which are not recorded.
        by_term: take every position as a sample. That is right for a direction that is one of each
            term at the layers of :func:`curvescope.record.samples.terms_apart`.

    Raises:
        UnsupportedLayer: a layer of another kind, used twice or not at all, with a shared weight,
            or behind which samples see each other (batch statistics).

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Linear(1, 2, bias=False)).double()
    >>> with torch.no_grad():
    ...     _ = model[1].weight.copy_(torch.tensor([[3.0], [4.0]]))
    >>> problem = Problem(model, (torch.tensor([[5.0, 6.0]]).double(), torch.tensor([0])))
    >>> each_output = lambda z, y: torch.eye(2).double()[None]
    >>> record = record_layers(problem, next(problem.batches()), "0", each_output)["0"]
    >>> record.inputs, record.errors.flatten()
    (tensor([[[5., 6.]]], dtype=torch.float64), tensor([3., 4.], dtype=torch.float64))
    """
    problem.check_unchanged()
    names = layers_of_any_kind(problem, layers, shared=shared)
    check_samples(problem, batch, names, shared=shared)
    record = capture(problem, batch, names, shared=shared)
    u = checked_directions(record.output, directions(record.output.detach(), batch.target))
    pulled: dict[str, list[Tensor]] = {name: [] for name in names}
    with record.backward() as pull_back:
        for k in range(u.shape[1]):
            for name, e in pull_back(u[:, k], k == u.shape[1] - 1).items():
                pulled[name].append(record.errors(name, e))
    records = {
        name: LayerRecord(
            name, record.layers[name], record.rows(name), torch.stack(pulled[name], 1)
        )
        for name in names
    }
    return {name: _by_term(each) for name, each in records.items()} if by_term else records


def _by_term(record: LayerRecord) -> LayerRecord:
    """Every position as a sample of its own."""
    errors = record.errors.transpose(1, 2).flatten(0, 1)[:, :, None]  # [B T, K, 1, m]
    return replace(record, errors=errors, inputs=record.inputs.flatten(0, 1)[:, None])


def checked_directions(z: Tensor, u: Tensor) -> Tensor:
    """The output directions of a batch, ``[B, K, *z.shape[1:]]``."""
    if u.ndim != z.ndim + 1 or u.shape[0] != z.shape[0] or u.shape[2:] != z.shape[1:]:
        needed = ", ".join(["B", "K", *map(str, z.shape[1:])])
        rule = f"must return [{needed}] with B = {z.shape[0]}"
        raise CurvescopeError("record_layers(directions)", rule, given=list(u.shape))
    return u.detach()
