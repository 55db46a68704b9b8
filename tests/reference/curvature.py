"""Dense curvature matrices of a model by plain autograd, one row at a time, in float64.

Everything is written from the definition: the loss is the mean over all terms of all batches, the
parameters are the model's own leaves (no functional calls, no transforms, no forward mode). In
``train`` mode batch-norm layers use the statistics of each batch and all else is in ``eval`` mode.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm


def call(model: nn.Module, x: Any) -> Tensor:
    """The model's output tensor for a tensor, tuple or dict input."""
    # The reference needs second derivatives, which only the plain attention kernel has.
    with sdpa_kernel(SDPBackend.MATH):
        output = (
            model(**x) if isinstance(x, dict) else model(*x) if isinstance(x, tuple) else model(x)
        )
    return output if isinstance(output, Tensor) else output.logits


def concatenate(batches: Sequence[tuple[Any, Tensor]]) -> list[tuple[Any, Tensor]]:
    """All batches as one."""
    inputs, targets = [b[0] for b in batches], torch.cat([b[1] for b in batches])
    if isinstance(inputs[0], dict):
        return [({k: torch.cat([x[k] for x in inputs]) for k in inputs[0]}, targets)]
    if isinstance(inputs[0], tuple):
        return [(tuple(torch.cat(parts) for parts in zip(*inputs, strict=True)), targets)]
    return [(torch.cat(inputs), targets)]


class Reference:
    """Dense references of one model, data set and loss.

    ``names`` are the parameters, in the order of ``model.named_parameters()``; ``per_batch`` keeps
    the batches apart (needed when the output of a sample depends on its batch).
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Sequence[tuple[Any, Tensor]],
        loss: Any,
        *,
        names: Sequence[str] | None = None,
        mode: str = "eval",
        per_batch: bool = False,
    ) -> None:
        model = copy.deepcopy(model).eval()
        if mode == "train":
            for module in model.modules():
                if isinstance(module, _BatchNorm):
                    module.train()
        named = dict(model.named_parameters())
        self.names = (
            [n for n, p in named.items() if p.requires_grad] if names is None else list(names)
        )
        self.parameters = [named[n] for n in self.names]
        if any(p.dtype != torch.float64 for p in self.parameters):
            msg = "the reference is computed in float64"
            raise TypeError(msg)
        self.size = sum(p.numel() for p in self.parameters)
        self.model, self.loss = model, loss
        self.batches = list(batches) if per_batch or mode == "train" else concatenate(batches)

    def slice(self, name: str) -> slice:
        """Where one parameter lies in the flat vector."""
        start = sum(p.numel() for p in self.parameters[: self.names.index(name)])
        return slice(start, start + self.parameters[self.names.index(name)].numel())

    def indices(self, names: Sequence[str]) -> Tensor:
        """The flat positions of several parameters."""
        return torch.cat([torch.arange(self.size)[self.slice(n)] for n in names])

    def rows(self) -> tuple[Tensor, Tensor]:
        """The rows ``z: [M, C]`` of all terms, with their graph, and the targets."""
        parts = [self.loss.rows(call(self.model, x), y) for x, y in self.batches]
        return torch.cat([z for z, _ in parts]), torch.cat([y for _, y in parts])

    def _flat_grad(self, scalar: Tensor, *, create_graph: bool = False) -> Tensor:
        if not scalar.requires_grad:
            return torch.zeros(self.size, dtype=torch.float64)
        grads = torch.autograd.grad(
            scalar, self.parameters, create_graph=create_graph, retain_graph=True, allow_unused=True
        )
        pairs = zip(grads, self.parameters, strict=True)
        return torch.cat([(torch.zeros_like(p) if g is None else g).reshape(-1) for g, p in pairs])

    def value(self) -> Tensor:
        """The mean loss."""
        return self.loss.terms(*self.rows()).mean()

    def gradient(self) -> Tensor:
        """The gradient of the mean loss, ``[P]``."""
        return self._flat_grad(self.value()).detach()

    def hessian(self) -> Tensor:
        """``[P, P]``: the gradient differentiated once more, row by row."""
        gradient = self._flat_grad(self.value(), create_graph=True)
        return torch.stack([self._flat_grad(entry) for entry in gradient]).detach()

    def jacobian(self) -> Tensor:
        """``[M, C, P]``: one backward pass for each output entry of each term."""
        z, _ = self.rows()
        return torch.stack([torch.stack([self._flat_grad(entry) for entry in row]) for row in z])

    def _sandwich(self, inner: Tensor) -> Tensor:
        J = self.jacobian()
        return sum(j.T @ m @ j for j, m in zip(J, inner, strict=True)) / len(J)

    def gauss_newton(self) -> Tensor:
        """``(1/M) Σ_m J_mᵀ (∂²ℓ_m) J_m``."""
        z, y = self.rows()
        return self._sandwich(self.loss.hessians(z.detach(), y))

    def expected_fisher(self) -> Tensor:
        """``(1/M) Σ_m J_mᵀ E_y[∂ℓ ∂ℓᵀ] J_m``, labels from the model: the mean of Monte-Carlo."""
        z, _ = self.rows()
        return self._sandwich(self.loss.expected_squared_gradients(z.detach()))

    def term_gradients(self) -> Tensor:
        """``[M, P]``: the gradient of each term."""
        return torch.stack([self._flat_grad(term) for term in self.loss.terms(*self.rows())])

    def empirical_fisher(self) -> Tensor:
        """``(1/M) Σ_m g_m g_mᵀ``."""
        return sum(torch.outer(g, g) for g in self.term_gradients()) / len(self.rows()[0])

    def finite_difference_product(self, v: Tensor, step: float) -> Tensor:
        """``(∇L(θ + hv) − ∇L(θ − hv)) / 2h``: no second derivative is taken."""

        def gradient_at(shift: float) -> Tensor:
            start = 0
            with torch.no_grad():
                for p in self.parameters:
                    p.add_(v[start : start + p.numel()].view_as(p), alpha=shift)
                    start += p.numel()
            return self.gradient()

        up = gradient_at(step)
        down = gradient_at(-2 * step)
        gradient_at(step)
        return (up - down) / (2 * step)
