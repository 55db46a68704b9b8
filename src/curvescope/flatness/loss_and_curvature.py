"""What the loss says about the curvature, and the curvature about the loss (PP theorem 1, eq. 1).

**Theorem 1** of PP says that the spectral norm of the Hessian of a ReLU network with cross-entropy
tends to 0 with the training loss. It has no numbers; these are ours, for fully connected layers
without biases. With the probability ``q = 1 − exp(−ℓ)`` that a sample with the loss ``ℓ`` gives to
wrong classes, spectral norms ``s_l`` of the weights, and ``H = G + E``,

    λ_max(diag p − p pᵀ) ≤ 2 q (1 − q), or ½ where q > ½        (Gershgorin)
    ‖J‖² ≤ ‖x‖² Σ_l Π_{k≠l} s_k²
    ‖p − e_y‖ ≤ √2 q
    ‖Σ_c a_c ∇²z_c‖ ≤ ‖a‖ ‖x‖ ‖C‖,   C_kl = Π_{j≠k,l} s_j for k ≠ l, 0 on the diagonal

where the last line bounds each block of second derivatives, those of a layer with itself being 0.
Samples add up to ``‖H‖ ≤ (mean of the bounds of G) + (mean of those of E)``.

The bound is the loss times a polynomial in the norms: what PP's proof rests on, too, and what the
theorem leaves out. Without a bound on the norms it does not hold: two layers rescaled by ``α`` and
``1/α`` have the same loss and as large a curvature as one likes, so that the curvature may grow
while the loss falls to 0.

**Eq. 1** compares a shift's change of the loss with the trace and the largest eigenvalue. PP prints
``δᵀHδ`` where the second-order term is half of that; halves are put in here.

References:
    PP: *A Practical PAC-Bayes Generalisation Bound for Deep Learning* (2020).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from curvescope import _checks
from curvescope._checks import AnyFloat
from curvescope._state import full_precision
from curvescope.errors import CurvescopeError
from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem


@dataclass(frozen=True)
class CurvatureBound:
    """Upper bounds of spectral norms: of the Gauss–Newton matrix and of the residual ``E``."""

    gauss_newton: AnyFloat
    residual: AnyFloat

    @property
    def hessian(self) -> float:
        """Of ``H = G + E``."""
        return self.gauss_newton + self.residual


def curvature_bound(
    losses: Tensor, input_norms: Tensor, weight_norms: Sequence[float]
) -> CurvatureBound:
    """How large the Hessian can be where the loss is as small as it is (PP theorem 1).

    For a fully connected network without biases, with activations that are piecewise linear with
    slopes between −1 and 1 (ReLU), under cross-entropy of its outputs. It tends to 0 with the
    losses where the norms stay bounded, or grow more slowly than the losses fall.

    Args:
        losses: cross-entropy of each sample, ``[N]``; one that is rounded to 0 (torch's are, below
            ``1e-16`` in float64) counts as 0.
        input_norms: ``‖x‖`` of each sample, ``[N]``.
        weight_norms: spectral norms of the weights, one for each layer.

    >>> one = curvature_bound(torch.tensor([0.1]), torch.tensor([2.0]), [3.0])
    >>> round(one.gauss_newton, 4), one.residual  # 2 q (1 − q) ‖x‖²; a single layer is linear
    (0.6889, 0.0)
    """
    where = "curvature_bound"
    if losses.ndim != 1 or losses.shape != input_norms.shape or len(losses) == 0:
        rule = "needs losses and norms of inputs [N]"
        given = f"{list(losses.shape)} and {list(input_norms.shape)}"
        raise CurvescopeError(where, rule, given=given)
    if not weight_norms:
        raise CurvescopeError(where, "needs a weight")
    losses, x = losses.double().cpu(), input_norms.double().cpu()
    s = [
        _checks.finite_float(where, "each of `weight_norms`", w, minimum=0.0) for w in weight_norms
    ]
    for name, values in (("losses", losses), ("input_norms", x)):
        if not bool((values >= 0).all()) or not bool(values.isfinite().all()):
            raise CurvescopeError(where, f"`{name}` must be finite and not negative")
    q = -torch.expm1(-losses)
    outputs = torch.where(q > 0.5, 0.5, 2 * q * torch.exp(-losses))
    jacobian = sum(_product(s, k) ** 2 for k in range(len(s)))
    layers = range(len(s))
    C = [[0.0 if k == j else _product(s, k, j) for j in layers] for k in layers]
    norm = float(torch.linalg.matrix_norm(torch.tensor(C, dtype=torch.float64), 2))
    return CurvatureBound(
        float((outputs * x.square()).mean() * jacobian),
        float((math.sqrt(2) * q * x).mean() * norm),
    )


def _product(norms: Sequence[float], *left_out: int) -> float:
    return math.prod(s for k, s in enumerate(norms) if k not in left_out)


@dataclass(frozen=True)
class ShiftEstimate:
    """The loss after a shift of the weights, less that before, and what curvature says of it.

    ``slope`` is the first-order term, which PP assumes to be small at the end of training. Then
    ``change ≈ quadratic``, which is about ``isotropic`` for a shift that prefers no direction, and
    at most ``worst`` (PP eq. 1).
    """

    change: AnyFloat  # L(w + δ) − L(w)
    slope: AnyFloat  # δᵀ ∇L
    quadratic: AnyFloat  # ½ δᵀ H δ
    isotropic: AnyFloat  # ½ (tr H / P) ‖δ‖²
    worst: AnyFloat  # ½ λ_max ‖δ‖²


def shift_estimate(
    problem: Problem, shift: Tensor, *, trace: float, largest: float
) -> ShiftEstimate:
    """The terms of PP eq. 1 for one shift ``δ`` of the weights.

    Where units have kinks (ReLU), ``½ δᵀHδ`` leaves out those that switch on the way. Over many
    samples there always are some, and ``change − slope`` is not ``quadratic`` (3 to 14 times that
    in the study ``anonymous2021/small-loss``); with smooth units the two agree.

    Cost: a product with the Hessian, a gradient and a pass over the data.

    Args:
        problem: at the weights ``w``, which stay as they are.
        shift: ``δ: [P]``, in the order of the problem's variables.
        trace: ``tr H``, for example of :func:`sharpness`.
        largest: ``λ_max`` of ``H``.

    >>> from torch import nn
    >>> layer = nn.Linear(1, 1, bias=False).double()
    >>> data = (torch.tensor([[3.0]]).double(), layer.weight.detach() * 3)  # at its minimum
    >>> found = shift_estimate(
    ...     Problem(layer, data, loss="mse"), torch.tensor([0.1]).double(), trace=18.0,
    ...     largest=18.0)
    >>> round(found.change, 6), round(found.quadratic, 6), round(found.worst, 6)
    (0.09, 0.09, 0.09)
    """
    where = "shift_estimate"
    P = problem.params.size
    shift = _checks.columns(f"{where}(shift)", shift, P, problem.dtype, problem.device)
    if shift.ndim != 1:
        raise CurvescopeError(where, f"`shift` must be [{P}]", given=list(shift.shape))
    trace = _checks.finite_float(where, "trace", trace)
    largest = _checks.finite_float(where, "largest", largest)
    before, slope = problem.value(), problem.gradient().double() @ shift.double()
    square = float(shift.double().square().sum())
    return ShiftEstimate(
        _loss_after(problem, shift) - float(before),
        float(slope),
        0.5 * float(Hessian(problem).quadratic(shift[:, None])),
        0.5 * trace / P * square,
        0.5 * largest * square,
    )


def _loss_after(problem: Problem, shift: Tensor) -> float:
    steps = problem.params.unflatten(shift)
    total, weight = 0.0, 0.0
    with full_precision(problem.device):
        moved = {
            name: (w.detach() + steps[name]).requires_grad_()
            for name, w in problem.variables().items()
        }
        for batch in problem.batches():
            with problem.evaluation():
                z = problem.output(moved, batch)
            loss = problem.loss_at(z, batch)
            total, weight = total + float(loss.value().double()), weight + loss.weight
    return problem.count(total) / problem.whole_weight(weight)
