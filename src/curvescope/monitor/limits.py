"""Where a step becomes unstable: the limit that an optimizer sets to the curvature.

Near a minimum with the Hessian ``H``, an optimizer that works coordinate by coordinate is a linear
recursion. It first becomes unstable by oscillating, ``w_{t+1} = −w_t``. Put into the recursion,
this gives ``c P w = (H + Γ) w`` with a number ``c`` and diagonal ``P``, ``Γ``: it is stable for

    λ_max(P^{-1/2} (H + Γ) P^{-1/2}) < c.

With the rate ``η``, the momentum ``β``, the dampening ``τ`` and the weight decay ``γ``:

===================== ========================================== ===============================
optimizer             ``c``                                      ``P``, ``Γ``
===================== ========================================== ===============================
gradient descent      ``2/η − γ``                                1, 0
momentum              ``2 (1 + β) / ((1 − τ) η) − γ``            1, 0
Nesterov              ``2 (1 + β) / ((1 + 2β) η) − γ``           1, 0
RMSprop               ``2 (1 + β) / η``                          ``√v + ε``, γ
Adagrad               ``2/η``                                    ``(√s + ε)(1 + (t − 1) δ)``, γ
Adam                  ``(2 + 2β₁) / ((1 − β₁) η)``               ``(1 − β₁ᵗ)(√v̂ + ε)``, γ
AdamW                 ``(1 + β₁)/(1 − β₁) · (2/η − γ)``          as Adam, 0
Adafactor             ``(1 + β₁)/(1 − β₁) · (2/η − γ)``          with clipping and scale, 0
===================== ========================================== ===============================

The first three are in Cohen et al. (2021), section 2 and appendix B, and Adam's is in Cohen et al.
(2022), section 3, with the same ``P``. The others, and the decay, follow by the same substitution,
which the tests compare with the spectral radius of the recursions. Where groups of parameters have
rates or momenta of their own, ``c`` is that of the first group and ``P`` makes up for the others.
For other optimizers no limit is given.

References:
    Cohen, Kaur, Li, Kolter and Talwalkar (2021), *Gradient Descent on Neural Networks Typically
    Occurs at the Edge of Stability*.
    Cohen et al. (2022), *Adaptive Gradient Methods at the Edge of Stability*.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from curvescope.operators.base import LinearOperator


@dataclass(frozen=True)
class Limits:
    """``c``, the rate of the first group, and the diagonals of ``P^{-1/2}`` and ``Γ`` as vectors.

    ``P^{-1/2}`` is zero for parameters that the optimizer does not move, and None for ``P = 1``;
    ``Γ`` is None where it is zero.
    """

    threshold: float
    rate: float
    inverse_root: Tensor | None
    decay: Tensor | None = None


class Preconditioned(LinearOperator):
    """``P^{-1/2} (A + Γ) P^{-1/2}`` for diagonal matrices ``P`` and ``Γ``.

    >>> from curvescope.operators.simple import Dense
    >>> A = Dense(torch.tensor([[4.0, 2.0], [2.0, 9.0]]))
    >>> Preconditioned(A, torch.tensor([0.5, 1.0]), torch.tensor([4.0, 0.0])).dense()
    tensor([[2., 1.],
            [1., 9.]])
    """

    def __init__(
        self, A: LinearOperator, inverse_root: Tensor, decay: Tensor | None = None
    ) -> None:
        super().__init__(A.shape, dtype=A.dtype, device=A.device, symmetric=True, psd=A.psd)
        self._A, self._scale = A, inverse_root.to(A.device, A.dtype)[:, None]
        self._decay = None if decay is None else decay.to(A.device, A.dtype)[:, None]

    def _decided_by(self) -> tuple[object, ...]:
        return "preconditioned", self._A, self._scale, self._decay

    def _matmat(self, X: Tensor) -> Tensor:
        scaled = self._scale * X
        image = self._A._matmat(scaled)
        if self._decay is not None:
            image = image + self._decay * scaled
        return self._scale * image


@dataclass(frozen=True)
class Before:
    """What an optimizer's state does not hold: weights and gradients just before its step."""

    weights: Mapping[int, Tensor]
    gradients: Mapping[int, Tensor]


Limit = Callable[[Any, Any, Tensor, Any], Any]
"""``(group, state, parameter, before)`` to ``c``, the parameter's entries of ``P``, and ``γ``.

None where the parameter has not been moved yet.
"""

_Found = tuple[float, Tensor, float] | None
_OF: dict[str, Limit] = {}
_PLAIN = "torch.optim.sgd.SGD"
_TORCH_ADAFACTOR = ("torch.optim.Adafactor", "torch.optim._adafactor.Adafactor")
NEED_BEFORE = (*_TORCH_ADAFACTOR, "transformers.optimization.Adafactor")


def limit_of(*names: str) -> Callable[[Limit], Limit]:
    """Register the limit of optimizers, by the full names of their classes."""

    def register(limit: Limit) -> Limit:
        _OF.update(dict.fromkeys(names, limit))
        return limit

    return register


def unwrapped(optimizer: Any) -> Any:
    """The optimizer inside of the wrappers of training frameworks."""
    while name_of(optimizer) is None and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def name_of(optimizer: Any) -> str | None:
    """The registered class whose step an optimizer takes; None for one that is not recognized."""
    for kind in type(optimizer).__mro__:
        name = f"{kind.__module__}.{kind.__qualname__}"
        if name in _OF:
            mine, theirs = (inspect.unwrap(c.step) for c in (type(optimizer), kind))  # type: ignore[attr-defined]
            return name if mine.__code__ is theirs.__code__ else None
    return None


def scales_coordinates(optimizer: Any) -> bool:
    """Whether an optimizer has a ``P`` of its own, even if it has made no step yet."""
    return optimizer is not None and name_of(optimizer) not in (None, _PLAIN)


def stability_limits(
    optimizer: Any, parameters: Sequence[Tensor], before: Before | None = None
) -> Limits | None:
    """The limits after the optimizer's last step; None where none is derived for it.

    Args:
        optimizer: One of ``torch.optim`` (see above), or the Adafactor of transformers.
        parameters: The variables of a problem, in the order of its vectors.
        before: Weights and gradients just before the step; Adafactor's limit needs them.
    """
    name = None if optimizer is None else name_of(optimizer)
    if name is None or (name in NEED_BEFORE and before is None):
        return None
    places = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    first: tuple[float, float] | None = None
    roots, decays = [], []
    for p in parameters:
        group = places.get(id(p))
        limit = None if group is None else _of(name, group, optimizer.state.get(p, {}), p, before)
        if group is None or limit is None:
            roots.append(p.new_zeros(p.numel()))
            decays.append(0.0)
            continue
        threshold, scale, decay = limit
        if not threshold > 0:
            return None  # the decay alone is unstable
        first = first or (threshold, float(group["lr"] or math.nan))
        scale = torch.as_tensor(scale, dtype=p.dtype, device=p.device) * (threshold / first[0])
        roots.append(scale.detach().rsqrt().expand(p.shape).reshape(-1))
        decays.append(decay)
    if first is None:
        return None
    root = torch.cat(roots)
    inverse_root = None if bool((root == 1).all()) else root
    if not any(decays):
        return Limits(*first, inverse_root)
    rows = [p.new_full((p.numel(),), decay) for p, decay in zip(parameters, decays, strict=True)]
    return Limits(*first, root, torch.cat(rows))


def _of(
    name: str, group: Mapping[str, Any], state: Any, p: Tensor, before: Before | None
) -> tuple[float, float | Tensor, float] | None:
    """A parameter's limit; None where nothing has moved it yet, or its group maximizes."""
    if group.get("maximize") or not float(1.0 if group["lr"] is None else group["lr"]) > 0:
        return None
    limit: tuple[float, float | Tensor, float] | None = _OF[name](group, state, p, before)
    return limit


@limit_of(_PLAIN)
def _sgd(group: Any, state: Any, p: Tensor, before: Any) -> tuple[float, float, float]:
    rate, momentum = float(group["lr"]), float(group["momentum"])
    scalar = 2 * (1 + momentum) / rate
    if momentum and group["nesterov"]:
        scalar /= 1 + 2 * momentum
    elif momentum:
        scalar /= 1 - group["dampening"]
    return scalar - float(group["weight_decay"]), 1.0, 0.0


@limit_of("torch.optim.adam.Adam", "torch.optim.adamw.AdamW")
def _adam(group: Any, state: Any, p: Tensor, before: Any) -> _Found:
    if not float(state.get("step", 0)):
        return None
    rate, (beta_1, beta_2) = float(group["lr"]), (float(b) for b in group["betas"])
    count = float(state["step"])
    second = state["max_exp_avg_sq"] if group["amsgrad"] else state["exp_avg_sq"]
    scale = second.sqrt() / math.sqrt(1 - beta_2**count) + group["eps"]
    scale = scale * (1 - beta_1**count)
    lag = (1 + beta_1) / (1 - beta_1)
    if group.get("decoupled_weight_decay"):
        return lag * (2 / rate - float(group["weight_decay"])), scale, 0.0
    return lag * 2 / rate, scale, float(group["weight_decay"])


@limit_of("curvescope.training.optimizers.Optimizer")
def _ours(group: Any, state: Any, p: Tensor, before: Any) -> _Found:
    """SGD with momentum, Adam or AdamW, whose state is shown as torch's."""
    return _adam(group, state, p, before) if "betas" in group else _sgd(group, state, p, before)


@limit_of("torch.optim.rmsprop.RMSprop")
def _rmsprop(group: Any, state: Any, p: Tensor, before: Any) -> _Found:
    if "square_avg" not in state:
        return None
    second = state["square_avg"]
    if group["centered"]:
        second = second.addcmul(state["grad_avg"], state["grad_avg"], value=-1)
    scale = second.sqrt() + group["eps"]
    threshold = 2 * (1 + group["momentum"]) / float(group["lr"])
    return threshold, scale, float(group["weight_decay"])


@limit_of("torch.optim.adagrad.Adagrad")
def _adagrad(group: Any, state: Any, p: Tensor, before: Any) -> _Found:
    if "sum" not in state or not float(state["step"]):
        return None
    slower = 1 + (float(state["step"]) - 1) * group["lr_decay"]
    scale = (state["sum"].sqrt() + group["eps"]) * slower
    return 2 / float(group["lr"]), scale, float(group["weight_decay"])


@limit_of(*_TORCH_ADAFACTOR)
def _adafactor(group: Any, state: Any, p: Tensor, before: Before) -> _Found:
    """As in torch: the rate is that of the group, all else is in ``p``."""
    gradient = before.gradients.get(id(p))
    if gradient is None or "step" not in state:
        return None
    rate, count = float(group["lr"]), float(state["step"])
    eps_1, eps_2 = group["eps"]
    eps_1 = torch.finfo(p.dtype).eps if eps_1 is None else eps_1
    scale = max(eps_2, _rms(before.weights[id(p)])) * min(rate, count**-0.5)
    if gradient.dim() > 1:
        row, column = state["row_var"], state["col_var"]
        second = (row @ column) / row.mean(dim=-2, keepdim=True).clamp(min=eps_1)
    else:
        second = state["variance"]
    root = second.clamp(min=eps_1**2).sqrt()
    clip = max(1.0, _rms(gradient / root) / group["d"])
    return 2 / rate - group["weight_decay"], root * (clip * rate / scale), 0.0


@limit_of("transformers.optimization.Adafactor")
def _hf_adafactor(group: Any, state: Any, p: Tensor, before: Before) -> _Found:
    """As in transformers, where the decay has the parameter's own rate."""
    gradient = before.gradients.get(id(p))
    if gradient is None or "step" not in state:
        return None
    relative = group["lr"]
    if group["relative_step"]:
        slowest = 1e-6 * state["step"] if group["warmup_init"] else 1e-2
        relative = min(slowest, state["step"] ** -0.5)
    own = max(group["eps"][1], float(state["RMS"])) if group["scale_parameter"] else 1.0
    if gradient.dim() >= 2:
        row, column = state["exp_avg_sq_row"], state["exp_avg_sq_col"]
        row = (row / row.mean(dim=-1, keepdim=True)).unsqueeze(-1)
        root = (row * column.unsqueeze(-2)).sqrt()
    else:
        root = state["exp_avg_sq"].sqrt()
    clip = max(1.0, _rms(gradient / root) / group["clip_threshold"])
    beta = group["beta1"] or 0.0
    lag = (1 + beta) / (1 - beta)
    rest = (2 - relative * own * group["weight_decay"]) / 2
    return lag * 2 / relative, root * (clip * rest / own), 0.0


def _rms(t: Tensor) -> float:
    return float(t.norm()) / math.sqrt(t.numel())
