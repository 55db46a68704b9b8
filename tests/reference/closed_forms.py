"""Matrices known with pencil and paper."""

from __future__ import annotations

import torch
from torch import Tensor


def linear_mse(X: Tensor, outputs: int) -> Tensor:
    """Hessian and GGN of ``mean (W x − y)²`` in ``vec(W)`` (rows first): ``(2/C) I_C ⊗ E[x xᵀ]``.

    ``L = (1/NC) Σ_n ‖W x_n − y_n‖²``, so
    ``∂²L/∂W_{ca}∂W_{c'b} = (2/NC) δ_{cc'} Σ_n x_{na} x_{nb}``.
    """
    second_moment = X.T @ X / X.shape[0]
    return torch.kron((2 / outputs) * torch.eye(outputs, dtype=X.dtype), second_moment)


def softmax_regression(X: Tensor, W: Tensor) -> Tensor:
    """Hessian and GGN of the cross-entropy of logits ``W x``: ``E[(diag(p) − p pᵀ) ⊗ x xᵀ]``."""
    p = torch.softmax(X @ W.T, 1)
    samples = zip(p, X, strict=True)
    return sum(
        torch.kron(torch.diag(q) - torch.outer(q, q), torch.outer(x, x)) for q, x in samples
    ) / len(X)


def logistic_regression(X: Tensor, w: Tensor) -> Tensor:
    """Hessian and GGN of logistic regression: ``E[p (1 − p) x xᵀ]``."""
    p = torch.sigmoid(X @ w)
    return (X * (p * (1 - p))[:, None]).T @ X / X.shape[0]


def scalar_product_mse(a: float, b: float, x: float, y: float) -> tuple[Tensor, Tensor]:
    """H and G of ``(a b x − y)²`` in ``(a, b)``: the smallest model with ``H ≠ G``.

    With ``r = a b x − y``: ``G = 2 x² [[b², ab], [ab, a²]]``, ``H = G + 2 r x [[0, 1], [1, 0]]``.
    """
    r = a * b * x - y
    G = 2 * x**2 * torch.tensor([[b * b, a * b], [a * b, a * a]], dtype=torch.float64)
    return G + 2 * r * x * torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64), G
