"""Traces of dense curvature matrices as differentiable functions of the weights, by plain autograd.

Nothing here is shared with the library: the Jacobian is taken row by row, the output Hessian is the
closed form of ``tests.reference.losses``, and both keep their graphs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tests.reference.curvature import Reference


def flat_grad(reference: Reference, scalar: Tensor, *, create_graph: bool = False) -> Tensor:
    """The gradient by the reference's parameters, flat; zeros where there is none."""
    if not scalar.requires_grad:
        return torch.zeros(reference.size, dtype=torch.float64)
    grads = torch.autograd.grad(
        scalar,
        reference.parameters,
        create_graph=create_graph,
        retain_graph=True,
        allow_unused=True,
        materialize_grads=True,
    )
    return torch.cat([g.reshape(-1) for g in grads])


def trace_of_gauss_newton(reference: Reference) -> Tensor:
    """``(1/M) Σ_m Σ_cd B_cd ⟨J_c, J_d⟩`` with its graph."""
    z, y = reference.rows()
    middle = reference.loss.hessians(z, y)
    total = torch.zeros((), dtype=torch.float64)
    for row, B in zip(z, middle, strict=True):
        J = torch.stack([flat_grad(reference, entry, create_graph=True) for entry in row])
        total = total + (B * (J @ J.T)).sum()
    return total / len(z)


def trace_of_hessian(reference: Reference) -> Tensor:
    """``Σ_i ∂²L/∂w_i²`` with its graph."""
    slope = flat_grad(reference, reference.value(), create_graph=True)
    total = torch.zeros((), dtype=torch.float64)
    for i, entry in enumerate(slope):
        total = total + flat_grad(reference, entry, create_graph=True)[i]
    return total
