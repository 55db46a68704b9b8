"""From a layer to its stored factors: which parameters, what shape, which form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from curvescope.engine.layer_factors import Factors, Gradients, Products
from curvescope.engine.lookups import Lookups
from curvescope.engine.squeeze import Part
from curvescope.errors import CurvescopeError
from curvescope.layers import Kind, LayerKind, LookupKind, ScaleKind
from curvescope.problem import ParamSpace, Problem
from curvescope.record.capture import Capture
from curvescope.record.selection import layer_of, layers_of_any_kind


def part_of(problem: Problem, space: ParamSpace) -> Part | None:
    """The layer that all parameters of a space belong to, if it is one with a closed form."""
    layers = space.layers
    kinds = [name.rpartition(".")[2] for name in space.names]
    if len(layers) != 1 or kinds not in (["weight", "bias"], ["weight"], ["bias"]):
        return None
    try:
        layers_of_any_kind(problem, layers[0])
    except CurvescopeError:
        return None
    layer = layer_of(problem.model, layers[0])
    turned = isinstance(layer, LayerKind) and layer.transposed
    transposed = layer.matrix_shape[0] if turned else None
    return Part(layers[0], "weight" in kinds, "bias" in kinds, transposed)


@dataclass(frozen=True)
class Sizes:
    """The shape of a layer's record: directions, positions, outputs, inputs, rows of a sample.

    ``units`` is 1, or how many positions a sample has where each is a row of its own (``t`` is 1
    then): those of :func:`curvescope.record.samples.terms_apart`.
    """

    kind: Kind
    k: int
    t: int
    m: int
    n: int
    units: int = 1

    @classmethod
    def of(cls, record: Capture, layer: str, directions: int, *, by_term: bool = False) -> Sizes:
        """The shape that recording so many directions will have."""
        kind, positions = record.layers[layer], record.positions[layer]
        t, units = (1, positions) if by_term else (positions, 1)
        return cls(kind, directions, t, *kind.matrix_shape, units)

    @property
    def by_gradients(self) -> bool:
        """Whether the vectors ``g_bk`` are clearly less work than errors and inputs."""
        if isinstance(self.kind, LookupKind):
            return False
        scale = isinstance(self.kind, ScaleKind)  # for which they are no longer than the errors
        return scale or self.k * self.n <= 0.7 * self.t * (self.n + self.k)

    @property
    def numbers(self) -> int:
        """How many numbers are stored for one sample."""
        if self.by_gradients:
            return self.units * self.k * self.m * (self.n + 1)
        inputs = 1 if isinstance(self.kind, LookupKind) else self.n
        return self.units * self.t * (self.k * self.m + inputs)

    @property
    def worthwhile(self) -> bool:
        """Whether a product is less work than differentiating through the layer, at 2 T m n.

        Behind a table or a scale of ``m`` channels there is at least a matrix with ``m`` inputs.
        """
        if not isinstance(self.kind, LayerKind):
            return self.k <= self.m
        work = self.k * self.n if self.by_gradients else self.t * (self.n + self.k)
        return work <= 2 * self.t * self.n


def factors_of(
    record: Capture, layer: str, directions: Tensor, *, by_term: bool = False
) -> Factors:
    """Pull ``directions: [B, K, …]`` back to the layer, and keep what products need."""
    kind, k = record.layers[layer], directions.shape[1]
    sizes = Sizes.of(record, layer, k, by_term=by_term)
    x = record.rows(layer)
    x = x.flatten(0, 1)[:, None] if by_term else x
    with record.backward() as pull_back:
        pulled = (
            record.errors(layer, pull_back(directions[:, i], i == k - 1)[layer]) for i in range(k)
        )
        errors = (e.flatten(0, 1)[:, None] if by_term else e for e in pulled)
        if isinstance(kind, LookupKind):
            return Lookups(kind.reaching(torch.stack(list(errors), 1), x), x, sizes.n)
        if not sizes.by_gradients:
            return Products(torch.stack(list(errors), 1), x)
        return Gradients(_gradients(errors, x, sizes), sizes.m)


def _gradients(errors: Iterator[Tensor], x: Tensor, sizes: Sizes) -> Tensor:
    """The vectors ``g_bk``, by weight and bias: ``[B K, m n + m]``."""
    matrix = x.new_empty(x.shape[0], sizes.k, sizes.m * (sizes.n + 1))
    for k, e in enumerate(errors):
        if isinstance(sizes.kind, ScaleKind):
            weight = (e * x).sum(1)
        else:
            weight = torch.bmm(e.mT, x).flatten(1)
        matrix[:, k] = torch.cat([weight, e.sum(1)], 1)
    return matrix.flatten(0, 1)
