"""Optimizing a posterior: the loop around :class:`~curvescope.certificates.descent.Descent`.

References:
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from curvescope import _random, io
from curvescope._state import fast_precision
from curvescope.certificates.bases import Bases
from curvescope.certificates.blocks import Layout
from curvescope.certificates.bound import complexity
from curvescope.certificates.curvature import CurvatureBases
from curvescope.certificates.descent import Descent, Standing
from curvescope.certificates.divergence import kl_inverse
from curvescope.certificates.losses import margins
from curvescope.certificates.methods import Method
from curvescope.certificates.network import StochasticNetwork
from curvescope.certificates.posterior import Posterior
from curvescope.errors import CurvescopeError

log = logging.getLogger("curvescope")

EVERY = 3.0  # seconds between two saved states
_FIRST_RHO = -3.0  # ϱ at the start: λ = e^{−6} (DH alg. 1)
_LEAST_DEVIATION = 1e-4  # log|w| of a weight that is zero
_FIRST_WEIGHT = 1.5  # β/n before anything is known
_LARGEST_WEIGHT = 6.0
_PRIOR_TIMES = 10.0  # a layer's prior variance covers its way so many times over, by factors of e


@dataclass(frozen=True)
class Progress:
    """How far a task has come; ``bound`` is the value that it would certify now, roughly."""

    task: str
    done: int
    total: int
    bound: float


@dataclass(frozen=True)
class Point:
    """One epoch of the optimization: an estimate of the bound and its parts."""

    epoch: int
    bound: float
    error: float
    kl: float


@dataclass(frozen=True)
class Optimized:
    """A posterior, the prior variances it was optimized for, and how it got there."""

    posterior: Posterior
    prior_variances: tuple[float, ...]
    history: tuple[Point, ...]


def optimize(
    model: nn.Module,
    prior_mean: Tensor,
    data: tuple[Tensor, Tensor],
    method: Method,
    *,
    generator: torch.Generator,
    delta: float = 0.025,
    progress: Callable[[Progress], None] | None = None,
    graph: bool = True,
    checkpoint: io.Checkpoint | None = None,
) -> Optimized:
    """The posterior that ``method`` finds, starting from the model's weights (DH alg. 1).

    Nothing here has to be trusted: whatever posterior comes out, the certificate is computed for it
    afterwards. Cost of an epoch: that of one of training, times about 2 to 3.

    Args:
        model: The trained network, from whose weights the means start.
        prior_mean: ``m₀``, flat in the order of ``Layout.of(model)``.
        data: Inputs ``[N, …]`` and labels ``[N]`` on the model's device.
        method: See :mod:`curvescope.certificates.methods`.
        generator: Orders the examples and seeds the noise.
        delta: δ of the bound.
        progress: Called after every epoch.
        graph: Whether steps are replayed as a CUDA graph, where there is CUDA.
        checkpoint: A place for the state after an epoch; the same call goes on from it to the same
            posterior.

    Raises:
        CurvescopeError: If the optimization diverges.
    """
    layout = Layout.of(model)
    network = StochasticNetwork(model, layout, data[0][:4], local=method.local)
    start = layout.flatten(model.state_dict()).clone()
    source: CurvatureBases | None = None
    bases, curvature = Bases.standard(layout), torch.zeros_like(start)
    if method.basis != "standard":
        source = CurvatureBases(model, layout, data, closed=method.basis == "closed")
        bases, curvature = source(start)
    samples = len(data[0])
    prior_variance, variance = _start(bases, curvature, start, prior_mean, method, samples)
    descent = Descent(
        network, data, method, mean=start, prior_mean=prior_mean, bases=bases, variance=variance,
        prior_variance=prior_variance, delta=delta,
    )  # fmt: skip
    descent.weight.fill_(_FIRST_WEIGHT * samples)
    descent.temperature.fill_(method.temperature * _typical_margin(network, start, data))
    history: list[Point] = []
    with fast_precision(), stepping(descent, graph=graph) as step:
        noise_source = _noise_source(generator, start.device)
        journey = _Journey(descent, source, generator, noise_source)
        saved, written = None if checkpoint is None else checkpoint.load(), time.monotonic()
        if saved is not None:
            curvature = journey.load(saved.tensors)
            history = [Point(**point) for point in saved.notes]
        for epoch in range(len(history), method.epochs):
            if source is not None and method.refreshes(epoch):
                bases, curvature = source(descent.mean)
                descent.change_basis(bases)
            descent.rate.fill_(method.step_rate(epoch, len(descent.index) / samples))
            draws = _epoch(descent, step, samples, generator, noise_source)
            standing = descent.standing(draws)
            point, weight = _estimate(epoch, standing, samples, delta, method)
            history.append(point)
            if method.objective == "kl":
                descent.weight.fill_(weight * samples)
                descent.temperature.fill_(method.temperature * (standing.margin or 1.0))
            if method.layer_priors:
                descent.adapt_priors(min(1.0, _PRIOR_TIMES / method.epochs))
            if checkpoint is not None and time.monotonic() - written >= EVERY:
                checkpoint.save(journey.tensors(curvature), [asdict(point) for point in history])
                written = time.monotonic()
            if progress is not None:
                progress(Progress("optimize", epoch + 1, method.epochs, point.bound))
    if method.layer_priors:
        descent.adapt_priors(1.0)
    posterior = Posterior(descent.mean, prior_mean, descent.variance, descent.bases, curvature)
    return Optimized(posterior, descent.standing(0).prior_variances, tuple(history))


@dataclass(frozen=True)
class _Journey:
    """All that an optimization carries from one epoch to the next."""

    descent: Descent
    source: CurvatureBases | None
    order: torch.Generator
    noise: torch.Generator

    def tensors(self, curvature: Tensor) -> dict[str, Tensor]:
        """By names."""
        tensors = self.descent.state() | {"curvature": curvature}
        tensors |= {"order": self.order.get_state(), "noise": self.noise.get_state()}
        if self.source is not None:
            tensors |= self.source.decompose.tensors()
        return tensors

    def load(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Take over such tensors; returns the curvature among them."""
        self.descent.load(tensors)
        self.order.set_state(tensors["order"])
        self.noise.set_state(tensors["noise"])
        device = self.descent.index.device
        if self.source is not None:
            self.source.decompose.load(tensors, device)
        return tensors["curvature"].to(device)


def _start(
    bases: Bases,
    curvature: Tensor,
    mean: Tensor,
    prior_mean: Tensor,
    method: Method,
    samples: int,
) -> tuple[Tensor, Tensor]:
    """The first prior variances, one for each block, and the first posterior variances.

    DH: ``λ = e^{−6}`` and ``s = w²``, with w the coordinate in the basis. Ours: the Laplace
    approximation ``s = 1/(1/λ + β h)``, and λ by MacKay's fixed point ``λ = ‖m − m₀‖²/γ`` with
    γ = ``Σ (1 − s/λ)``, the number of coordinates that the data determine.
    """
    layout = bases.layout
    groups = len(layout.blocks)
    if not method.layer_priors:
        prior = torch.full((groups,), math.exp(2 * _FIRST_RHO), dtype=mean.dtype)
        return prior.to(mean.device), bases.rotate(mean).abs().clamp_min(_LEAST_DEVIATION).square()
    index = layout.groups(mean.device)

    def total(flat: Tensor) -> Tensor:
        return torch.stack([piece.sum() for piece in flat.split(layout.sizes)])

    length = total((mean - prior_mean).square())
    sizes = torch.tensor(layout.sizes, dtype=mean.dtype, device=mean.device)
    prior = (length / sizes).clamp_min(1e-6)
    push = _FIRST_WEIGHT * samples * curvature
    for _ in range(30):
        variance = 1 / (1 / prior[index] + push)
        determined = total(1 - variance / prior[index]).clamp_min(1.0)
        prior = torch.where(length > 0, length / determined, prior)
        prior = prior.clamp(1e-6, 0.5 * method.grid.largest)
    return prior, 1 / (1 / prior[index] + push)


@torch.no_grad()
def _typical_margin(network: StochasticNetwork, mean: Tensor, data: tuple[Tensor, Tensor]) -> float:
    """The mean absolute margin at the start, the unit of the sigmoid's temperature."""
    x, y = (tensor[:: -(-len(tensor) // 1000)] for tensor in data)
    silence = torch.zeros(network.noise_size(len(x)), dtype=mean.dtype, device=mean.device)
    still, standard = torch.zeros_like(mean), Bases.standard(network.layout)
    typical = float(margins(network(x, mean, still, standard, silence), y).abs().mean())
    return typical if 0 < typical < math.inf else 1.0


def _epoch(
    descent: Descent,
    step: Callable[[], None],
    samples: int,
    generator: torch.Generator,
    noise_source: torch.Generator,
) -> int:
    """One pass over the data in random order; an incomplete last batch waits for the next epoch."""
    order = torch.randperm(samples, generator=generator, device=generator.device)
    order, size = order.to(descent.index.device), len(descent.index)
    batches = order[: samples // size * size].view(-1, size)
    for batch in batches:
        descent.index.copy_(batch)
        descent.noise.normal_(generator=noise_source)
        step()
    return batches.numel()


def _estimate(
    epoch: int, standing: Standing, samples: int, delta: float, method: Method
) -> tuple[Point, float]:
    """The bound that the numbers of an epoch suggest, and ``β/n = logit p − logit q``."""
    if not (math.isfinite(standing.kl) and math.isfinite(standing.error)):
        rule = f"the optimization diverged in epoch {epoch + 1}"
        remedy = "lower the rate, or start from weights that classify better than chance"
        raise CurvescopeError("certify", rule, remedy=remedy)
    q = min(max(standing.error, 1e-4), 0.999)
    allowed = complexity(
        max(standing.kl, 0.0), [], samples=samples, delta=delta, form=method.form
    ).value
    p = min(kl_inverse(q, allowed), 1 - 1e-6)
    weight = min(math.log(p / (1 - p)) - math.log(q / (1 - q)), _LARGEST_WEIGHT)
    return Point(epoch + 1, kl_inverse(q, allowed), standing.error, standing.kl), weight


def _noise_source(generator: torch.Generator, device: torch.device) -> torch.Generator:
    seed = _random.seed(generator)
    return torch.Generator(device=device).manual_seed(seed)


@contextmanager
def stepping(descent: Descent, *, graph: bool = True) -> Iterator[Callable[[], None]]:
    """The step as a callable: on CUDA one launch of a captured graph, elsewhere the step itself.

    Capturing runs a few steps to let kernels be chosen; the variables are put back afterwards. A
    model that cannot be captured (its forward waits for the device) is stepped plainly.
    """
    if not graph or descent.index.device.type != "cuda":
        yield descent.step
        return
    copies = [tensor.detach().clone() for tensor in descent.variables()]
    try:
        step: Callable[[], None] = _captured(descent)
    except RuntimeError as error:
        log.warning("certify: steps are not captured as a CUDA graph (%s)", error)
        step = descent.step
    for tensor, value in zip(descent.variables(), copies, strict=True):
        tensor.detach().copy_(value)
    yield step


def _captured(descent: Descent) -> Callable[[], None]:
    device = descent.index.device
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(3):
            descent.step()
    torch.cuda.current_stream(device).wait_stream(stream)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        descent.step()
    return captured.replay
