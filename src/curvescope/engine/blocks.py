"""From a layer to its stored factors: which parameters, what shape, which form."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from curvescope.engine.layer_factors import Factors, Gradients, Products
from curvescope.engine.squeeze import Part
from curvescope.errors import CurvescopeError
from curvescope.problem import ParamSpace, Problem
from curvescope.record.capture import Capture
from curvescope.record.selection import layer_of, linear_layers


def part_of(problem: Problem, space: ParamSpace) -> Part | None:
    """The layer that all parameters of a space belong to, if it is one with a closed form."""
    layers = space.layers
    kinds = [name.rpartition(".")[2] for name in space.names]
    if len(layers) != 1 or kinds not in (["weight", "bias"], ["weight"], ["bias"]):
        return None
    try:
        linear_layers(problem, layers[0])
    except CurvescopeError:
        return None
    layer = layer_of(problem.model, layers[0])
    transposed = layer.matrix_shape[0] if layer.transposed else None
    return Part(layers[0], "weight" in kinds, "bias" in kinds, transposed)


@dataclass(frozen=True)
class Sizes:
    """The shape of a layer's record: directions, positions, outputs, inputs."""

    k: int
    t: int
    m: int
    n: int

    @classmethod
    def of(cls, record: Capture, layer: str, directions: Tensor) -> Sizes:
        """The shape that recording these directions will have."""
        return cls(directions.shape[1], record.positions[layer], *record.layers[layer].matrix_shape)

    @property
    def by_gradients(self) -> bool:
        """Whether the vectors ``g_bk`` are clearly less work than errors and inputs."""
        return self.k * self.n <= 0.7 * self.t * (self.n + self.k)

    @property
    def numbers(self) -> int:
        """How many numbers are stored for one sample."""
        if self.by_gradients:
            return self.k * self.m * (self.n + 1)
        return self.t * (self.k * self.m + self.n)

    @property
    def worthwhile(self) -> bool:
        """Whether a product is less work than differentiating through the layer, at 2 T m n."""
        work = self.k * self.n if self.by_gradients else self.t * (self.n + self.k)
        return work <= 2 * self.t * self.n


def factors_of(record: Capture, layer: str, directions: Tensor) -> Factors:
    """Pull ``directions: [B, K, …]`` back to the layer, and keep what products need."""
    sizes = Sizes.of(record, layer, directions)
    x = record.rows(layer)
    with record.backward() as pull_back:
        pulled = (
            record.errors(layer, pull_back(directions[:, k], k == sizes.k - 1)[layer])
            for k in range(sizes.k)
        )
        if not sizes.by_gradients:
            return Products(torch.stack(list(pulled), 1), x)
        matrix = x.new_empty(record.samples, sizes.k, sizes.m * (sizes.n + 1))
        for k, e in enumerate(pulled):
            matrix[:, k] = torch.cat([torch.bmm(e.mT, x).flatten(1), e.sum(1)], 1)
        return Gradients(matrix.flatten(0, 1), sizes.m)
