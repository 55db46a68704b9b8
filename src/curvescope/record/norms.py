"""Derivatives of each sample by the scale and shift of batch norms with fixed statistics.

In evaluation mode a batch norm is ``y = γ x̂ + β`` with ``x̂ = (x − μ)/√(σ² + ε)`` for each channel
(TR D.3 sets it so). The derivative of a direction ``⟨u, z⟩`` of one sample is therefore
``Σ_t e[t] x̂[t]`` by ``γ`` and ``Σ_t e[t]`` by ``β``, with ``e = ∂⟨u, z⟩/∂y``: one backward pass for
each direction serves all samples, where rows by autograd alone would take one for each sample too.

References:
    TR: Papyan (2020), *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra*.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from curvescope.problem.batches import Batch
from curvescope.problem.problem import Problem
from curvescope.record.capture import passage
from curvescope.record.layers import Directions, checked_directions
from curvescope.record.selection import join


def is_fixed_norm(problem: Problem, name: str) -> bool:
    """Whether a module is a batch norm with a scale, a shift and statistics that do not move."""
    module = problem.model.get_submodule(name)
    fixed = problem.mode == "eval" and getattr(module, "running_mean", None) is not None
    return isinstance(module, _BatchNorm) and module.affine and fixed


def record_norms(
    problem: Problem, batch: Batch, norms: Sequence[str], directions: Directions
) -> dict[str, tuple[Tensor, Tensor]]:
    """By scale and by shift: ``([B, K, channels], [B, K, channels])`` for each of ``norms``.

    Cost: one forward pass, and ``K`` passes backward for all samples and norms together. The names
    must be those of batch norms for which :func:`is_fixed_norm` holds.

    Raises:
        UnsupportedLayer: a norm that is used more than once, or not at all.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1)).double().eval()
    >>> with torch.no_grad():
    ...     _ = [p.fill_(2.0) for p in model.parameters()]
    >>> three = torch.full((1, 1), 3.0).double()
    >>> problem = Problem(model, (three, torch.zeros(1, 1).double()), "mse")
    >>> up = lambda z, y: torch.ones(1, 1, 1).double()
    >>> scale, shift = record_norms(problem, next(problem.batches()), ["1"], up)["1"]
    >>> scale.round(decimals=3), shift  # x̂ = 8 / √(1 + ε)
    (tensor([[[8.]]], dtype=torch.float64), tensor([[[1.]]], dtype=torch.float64))
    """
    modules = {name: problem.model.get_submodule(name) for name in norms}
    variables = {
        join(name, part): module.get_parameter(part).detach().requires_grad_()
        for name, module in modules.items()
        for part in ("weight", "bias")
    }
    record = passage(problem, batch, modules, variables)
    u = checked_directions(record.output, directions(record.output.detach(), batch.target))
    normal = {name: _normalized(module, record.inputs[name]) for name, module in modules.items()}
    slopes: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in norms}
    with record.backward() as pull_back:
        for k in range(u.shape[1]):
            for name, e in pull_back(u[:, k], k == u.shape[1] - 1).items():
                error = e.reshape(*e.shape[:2], -1)
                slopes[name].append(((error * normal[name]).sum(2), error.sum(2)))
    return {
        name: (torch.stack([s for s, _ in each], 1), torch.stack([b for _, b in each], 1))
        for name, each in slopes.items()
    }


def _normalized(module: Any, x: Tensor) -> Tensor:
    """``x̂: [B, channels, positions]``."""
    flat = x.reshape(*x.shape[:2], -1)
    spread = torch.rsqrt(module.running_var + module.eps)
    return (flat - module.running_mean[:, None]) * spread[:, None]
