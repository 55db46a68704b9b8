"""One step of optimizing a posterior, as tensor operations that a CUDA graph can hold.

The variables are the means ``m`` and the log-deviations ``ρ`` (``s = e^{2ρ}``). With ``β`` the
weight of the surrogate ``ě`` and ``κ`` that of the divergence, a step follows

    g_m = β ∂ě/∂m + κ (m − m₀)/λ,        g_ρ = β ∂ě/∂ρ + κ (s/λ − 1).

``"root"`` (DH eq. 63): β = 1, κ = ∂√(B_RE/2)/∂KL, and ``ϱ = ½ log λ`` descends as well. Here
``B_RE = (KL + 2 log(b log(c/λ)) + log(π² n/(6δ))) / (n − 1)`` (DH eq. 62 with the arguments of KL
the right way round) for any λ below c; a certificate rounds λ to the grid.
``"kl"``: let ``p = kl⁻¹(q, K)`` be the bound with ``kl(q‖p) = K = (KL + …)/n``. Differentiating
this equation gives ``∂p/∂K = p(1−p)/(p−q)`` and ``∂p/∂q = ∂p/∂K · (logit p − logit q)``, so the
bound falls along β = n (logit p − logit q), κ = 1, up to a factor. β moves slowly and is set
between epochs, like the prior variances: each layer's λ goes slowly to its optimum
``(Σ s + ‖m − m₀‖²)/P``. Slowly, because a network of ReLUs does not see the scale of a layer: with
λ always at its optimum nothing would hold that scale, and the noise of the steps, which can only
lengthen a vector on average, would blow it up until the prior mean is worth nothing.

References:
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from curvescope._state import strict_precision
from curvescope.certificates.bases import Bases
from curvescope.certificates.losses import error_rate, margins, surrogate
from curvescope.certificates.methods import Method
from curvescope.certificates.network import StochasticNetwork

_MEMORY = 0.9  # of the averaged gradient
_ALPHA = 0.9  # RMSprop, as Dziugaite & Roy
_EPSILON = 1e-8


@dataclass(frozen=True)
class Standing:
    """Where the optimization stands, as plain numbers."""

    error: float
    kl: float
    margin: float  # mean absolute margin
    prior_variances: tuple[float, ...]


class Descent:
    """The variables of an optimization and its step; every tensor keeps its place in memory.

    Args:
        network: The stochastic network.
        data: Inputs and labels, on the device.
        method: How to optimize.
        mean: The first means, flat, in the standard basis.
        prior_mean: ``m₀``, likewise.
        bases: The first bases.
        variance: The first variances, in ``bases``.
        prior_variance: The first λ, one for each block (all alike for one common prior).
        delta: δ of the bound.
    """

    def __init__(
        self,
        network: StochasticNetwork,
        data: tuple[Tensor, Tensor],
        method: Method,
        *,
        mean: Tensor,
        prior_mean: Tensor,
        bases: Bases,
        variance: Tensor,
        prior_variance: Tensor,
        delta: float,
    ) -> None:
        self.network, self.method = network, method
        self._X, self._y = data
        self._samples = len(self._X)
        self._delta = delta
        self.bases = bases.clone()
        self.prior_standard = prior_mean
        with strict_precision():
            center = bases.rotate(prior_mean) if method.rotated else prior_mean
            start = bases.rotate(mean) if method.rotated else mean
        self._prior = center.clone()
        self._theta = torch.stack([start, 0.5 * variance.log()]).requires_grad_()
        self._first = torch.zeros_like(self._theta.detach())
        self._second = torch.zeros_like(self._first)
        layout = network.layout
        self._groups = layout.groups(mean.device)
        self._sizes = torch.tensor(layout.sizes, dtype=mean.dtype, device=mean.device)
        self._lambda = prior_variance.clone()
        self._rho = 0.5 * prior_variance[:1].log()
        self._rho_second = torch.zeros_like(self._rho)
        self._cap = method.grid.largest * math.exp(-1 / method.grid.precision)
        self.weight = torch.ones((), dtype=mean.dtype, device=mean.device)  # β
        self.temperature = torch.ones_like(self.weight)
        self.rate = torch.zeros((), dtype=mean.dtype, device=mean.device)
        size = min(method.batch_size, self._samples)
        self.index = torch.zeros(size, dtype=torch.int64, device=mean.device)
        noise = network.noise_size(size)
        self.noise = torch.zeros(noise, dtype=mean.dtype, device=mean.device)
        self.errors = torch.zeros((), dtype=mean.dtype, device=mean.device)
        self.margin = torch.zeros_like(self.errors)  # the sum of absolute margins

    # The step -----------------------------------------------------------------------------

    def step(self) -> None:
        """One step from ``index`` and ``noise``; no number leaves the device."""
        x, y = self._X.index_select(0, self.index), self._y.index_select(0, self.index)
        with torch.enable_grad():
            mean, rho = self._theta.unbind(0)
            output = self.network(
                x, mean, rho.exp(), self.bases, self.noise, rotated=self.method.rotated
            )
            loss = self._loss(output, y)
            (slope,) = torch.autograd.grad(loss, self._theta)
        with torch.no_grad():
            self.errors.add_(error_rate(output, y).sum())
            if self._smoothed:
                self.margin.add_(margins(output, y).abs().sum())
            self._descend(slope)
        self.network.release()

    def _loss(self, output: Tensor, y: Tensor) -> Tensor:
        if self._smoothed:
            return surrogate(output, y, kind="sigmoid", temperature=self.temperature)
        if self.method.surrogate != "error":
            return surrogate(output, y, kind=self.method.surrogate, temperature=1.0)
        return self.network.expected_error(output, y)

    @property
    def _smoothed(self) -> bool:
        """Whether the loss has a temperature."""
        kind = self.method.surrogate
        return kind == "sigmoid" or (kind == "error" and not self.network.integrable)

    def _descend(self, slope: Tensor) -> None:
        mean, rho = self._theta.detach().unbind(0)
        distance, variance = mean - self._prior, (2 * rho).exp()
        if self.method.objective == "kl":
            rates = self._lambda.index_select(0, self._groups)
            slope.mul_(self.weight)
            slope[0].addcdiv_(distance, rates)
            slope[1].addcdiv_(variance, rates).sub_(1)
        else:
            prior = self._lambda[0].clone()
            push = self._root_push(variance, distance, rho)
            slope[0].addcmul_(distance, push / prior)
            slope[1].addcmul_(variance, push / prior).sub_(push)
        if self.method.optimizer == "natural":
            self._natural(slope, variance)
        else:
            self._second.mul_(_ALPHA).addcmul_(slope, slope, value=1 - _ALPHA)
            self._theta.detach().addcdiv_(
                slope.mul_(-self.rate), self._second.sqrt().add_(_EPSILON)
            )

    def _natural(self, slope: Tensor, variance: Tensor) -> None:
        """A step against the natural gradient, averaged over a few steps and bounded.

        The Fisher matrix of a Gaussian in ``(m, ρ)`` is ``diag(1/s, 2)``. A mean moves by at most
        half of its deviation, a log-deviation by at most 0.1.
        """
        self._first.lerp_(slope, 1 - _MEMORY)
        move = self._first * self.rate
        reach = variance.sqrt().mul_(0.5)
        move[0].mul_(variance).clamp_(-reach, reach)
        move[1].mul_(0.5).clamp_(-0.1, 0.1)
        self._theta.detach().sub_(move)

    def _root_push(self, variance: Tensor, distance: Tensor, rho: Tensor) -> Tensor:
        """``κ = ∂√(B_RE/2)/∂KL``; ϱ takes its own step on the way (RMSprop)."""
        n, grid = self._samples, self.method.grid
        prior = (2 * self._rho).exp()
        total = (variance.sum() + distance @ distance) / prior
        size = float(self._groups.numel())
        kl = 0.5 * (total - size) - rho.sum() + size * self._rho
        gap = math.log(grid.largest) - 2 * self._rho  # j = b · gap
        constant = 2 * math.log(grid.precision) + math.log(math.pi**2 * n / (6 * self._delta))
        b_re = (kl + 2 * gap.log() + constant) / (n - 1)
        push = 0.25 / (n - 1) / (0.5 * b_re).sqrt()
        slope = push * (size - total - 4 / gap)
        self._rho_second.mul_(_ALPHA).addcmul_(slope, slope, value=1 - _ALPHA)
        self._rho.sub_(self.rate * slope / (self._rho_second.sqrt() + _EPSILON))
        self._rho.clamp_(max=0.5 * math.log(self._cap))
        self._lambda.copy_((2 * self._rho).exp().expand_as(self._lambda))
        return push

    def _sums(self, flat: Tensor) -> Tensor:
        """The sum over each block, ``[blocks]``."""
        return torch.stack([piece.sum() for piece in flat.split(self.network.layout.sizes)])

    def variables(self) -> list[Tensor]:
        """Everything that a step changes."""
        return [
            self._theta, self._first, self._second, self._lambda, self._rho, self._rho_second,
            self.errors, self.margin,
        ]  # fmt: skip

    def state(self) -> dict[str, Tensor]:
        """Everything that an epoch changes, by names; the tensors themselves."""
        named = {f"variable.{i}": t.detach() for i, t in enumerate(self.variables())}
        for i, pair in enumerate(self.bases.pairs):
            named |= {} if pair is None else {f"basis.{i}.0": pair[0], f"basis.{i}.1": pair[1]}
        return named | {
            "prior": self._prior, "weight": self.weight, "temperature": self.temperature
        }  # fmt: skip

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Go on from such a state, in place."""
        for name, tensor in self.state().items():
            tensor.copy_(state[name])

    # Between epochs -----------------------------------------------------------------------

    def standing(self, draws: int) -> Standing:
        """The error counted since the last call over ``draws`` draws, and the divergence now."""
        mean, rho = self._theta.detach().double().unbind(0)
        prior = self._lambda.double().index_select(0, self._groups)
        ratio = (2 * rho).exp() / prior
        kl = 0.5 * (ratio - 1 - ratio.log() + (mean - self._prior).square() / prior).sum()
        error, margin = (float(total) / max(draws, 1) for total in (self.errors, self.margin))
        self.errors.zero_()
        self.margin.zero_()
        return Standing(error, float(kl), margin, tuple(self._lambda.tolist()))

    @torch.no_grad()
    def adapt_priors(self, share: float) -> None:
        """Move each layer's λ by a ``share`` of the way to its optimum ``(Σ s + ‖m − m₀‖²)/P``."""
        mean, rho = self._theta.detach().unbind(0)
        total = self._sums((2 * rho).exp() + (mean - self._prior).square())
        best = (total / self._sizes).clamp(1e-12, self._cap)
        self._lambda.copy_(self._lambda.log().lerp_(best.log(), share).exp_())

    @property
    def mean(self) -> Tensor:
        """The means now, in the standard basis."""
        mean = self._theta.detach()[0]
        with strict_precision():
            return self.bases.restore(mean) if self.method.rotated else mean.clone()

    @property
    def variance(self) -> Tensor:
        """The variances now, in the bases."""
        return (2 * self._theta.detach()[1]).exp()

    @torch.no_grad()
    @strict_precision()
    def change_basis(self, bases: Bases) -> None:
        """Go over to new bases: means turn, variances follow (or stay, as the method says).

        The averaged gradient goes along: that of means turns like them, that of log-deviations like
        variances.
        """
        old, theta = self.bases.clone(), self._theta.detach()
        if self.method.rotated:
            theta[0].copy_(bases.rotate(old.restore(theta[0])))
            self._prior.copy_(bases.rotate(self.prior_standard))
            self._first[0].copy_(bases.rotate(old.restore(self._first[0])))
            self._first[1].copy_(bases.carry(self._first[1], old))
        if self.method.follow:
            theta[1].copy_(0.5 * bases.carry((2 * theta[1]).exp(), old).log())
        self.bases.copy_(bases)
