"""The curvature bases of a network at a posterior mean: what DH calls HESSIANCALC.

References:
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from curvescope._state import copied, evaluated, strict_precision
from curvescope.certificates.bases import Bases, Eigenbases
from curvescope.certificates.blocks import Block, Layout
from curvescope.certificates.examples import logits
from curvescope.certificates.losses import single
from curvescope.errors import ModelError
from curvescope.layers import watched_calls
from curvescope.problem.losses.recognize import classifier_loss
from curvescope.problem.problem import Problem
from curvescope.structure.factors import KroneckerFactors, kronecker_factors

Factors = list[tuple[Tensor, Tensor] | None]

SAMPLES = 10_000
"""Examples from which the factors are estimated; a basis is a choice, not part of the bound."""

_CHUNK = 2_000


class CurvatureBases:
    """Eigenbases of ``E[M] ⊗ E[x̃x̃ᵀ]`` of every layer at any weights; ``x̃ = [x; 1]`` with a bias.

    Cost of a call: one forward pass and ``C − 1`` backward passes over at most 10,000 examples, and
    two eigendecompositions for each layer; with ``closed`` the backward passes are spared.

    Args:
        model: The network; a copy of it is used.
        layout: The layout of its parameters.
        data: Inputs and labels, on the model's device.
        closed: Whether ``E[M^(p)] ≈ 4^{−(L−p)} Sᵀ A S`` with ``S = W^(L) … W^(p+1)`` and
            ``A = E[diag p − p pᵀ]`` (DH eq. 56), for a chain of linear layers.

    Raises:
        ModelError: If ``closed`` and the layers are no chain.
    """

    def __init__(
        self, model: nn.Module, layout: Layout, data: tuple[Tensor, Tensor], *, closed: bool = False
    ) -> None:
        self._model = evaluated(copied(model))
        self._layout, self._closed = layout, closed
        self.decompose = Eigenbases(layout)
        every = -(-len(data[0]) // SAMPLES)  # spread over the data, whose order may mean something
        self._X, self._y = (tensor[::every] for tensor in data)
        if closed:
            self._check_chain()

    @strict_precision()
    def __call__(self, mean: Tensor) -> tuple[Bases, Tensor]:
        """The bases at the weights ``mean``, and the curvature of each coordinate."""
        with torch.no_grad():
            for name, value in self._layout.state(mean).items():
                self._model.get_parameter(name).copy_(value)
        factors = self._closed_factors() if self._closed else self._exact_factors()
        return self.decompose(factors, like=mean)

    def _exact_factors(self) -> Factors:
        pieces = list(zip(self._X.split(_CHUNK), self._y.split(_CHUNK), strict=True))
        with torch.no_grad():
            outputs = logits(self._model, self._X[:2])
        problem = Problem(self._model, pieces, loss=classifier_loss(outputs))
        factors_of_layers: dict[str, KroneckerFactors] = {}
        for bias in (True, False):
            layers = [
                _path(block)
                for block in self._layout.blocks
                if block.layer and (block.bias is not None) == bias
            ]
            if layers:
                factors_of_layers |= kronecker_factors(problem, layers=layers, bias=bias)
        products = {path: factors.operator() for path, factors in factors_of_layers.items()}
        return [
            (products[_path(b)].A, products[_path(b)].B) if b.layer else None
            for b in self._layout.blocks
        ]

    @torch.no_grad()
    def _closed_factors(self) -> Factors:
        blocks = self._layout.blocks
        inputs: dict[str, Tensor] = {}
        layers = {block.name: self._model.get_submodule(_path(block)) for block in blocks}

        def add(name: str, x: Tensor, _: Tensor) -> None:
            x = x.double()
            if layers[name].bias is not None:
                x = torch.cat([x, x.new_ones(len(x), 1)], 1)
            inputs[name] = inputs.get(name, 0) + x.T @ x

        with watched_calls(layers, add):
            outputs = torch.cat([logits(self._model, x) for x in self._X.split(_CHUNK)])
        M = _output_curvature(outputs)
        factors: Factors = []
        for block in reversed(blocks):
            factors.append((M, inputs[block.name] / len(self._X)))
            W = self._model.get_parameter(block.weight).double()
            M = W.T @ M @ W / 4
        return factors[::-1]

    def _check_chain(self) -> None:
        blocks = self._layout.blocks
        chained = all(
            b.layer and len(b.shape) == 2 and (b.bias is not None or _no_bias(self._model, b))
            for b in blocks
        ) and all(a.shape[0] == b.shape[1] for a, b in pairwise(blocks))
        if not chained:
            raise ModelError(
                "certify(method='iter.m')",
                "the closed form of the output Hessian needs a chain of trainable linear layers",
                remedy="use `method='iter'`",
            )


def _output_curvature(outputs: Tensor) -> Tensor:
    """``A = E[diag p − p pᵀ]``, or ``E[p (1 − p)]`` for one output."""
    z = outputs.double()
    if single(z):
        p = torch.sigmoid(z.reshape(-1))
        return (p * (1 - p)).mean().reshape(1, 1)
    p = torch.softmax(z, 1)
    return torch.diag(p.mean(0)) - p.T @ p / len(p)


def _path(block: Block) -> str:
    return block.weight.rpartition(".")[0]


def _no_bias(model: nn.Module, block: Block) -> bool:
    return getattr(model.get_submodule(_path(block)), "bias", None) is None
