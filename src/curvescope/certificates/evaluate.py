"""The stochastic network's empirical error, bounded from independent draws.

``ê(Q) = E_{w∼Q} (1/n) Σ_i 1[f_w(x_i) ≠ y_i]`` is an expectation, known only through draws. Two
schemes give independent numbers in [0, 1] whose expectations average to ``ê(Q)``, which is all that
:func:`~curvescope.certificates.bound.monte_carlo_bound` asks for:

**Examples.** Where every example of a batch has weights of its own (local noise), a pass over the
data gives one error indicator for each example, all of them independent: indicator i has the
expectation ``P_{w∼Q}[f_w(x_i) ≠ y_i]``, and these average to ``ê(Q)``. T passes are ``T·n`` draws.
Local noise draws the layers' outputs instead of the weights; for one example the two have the same
distribution, so the indicator has it too.

**Blocks.** Otherwise a draw is one set of weights together with a random block of examples, drawn
anew and independently of everything else. The share of errors in the block has the expectation
``ê(Q)``, because every example is in the block with the same probability. The examples of a block
share their weights and are not independent: a block is one draw, whatever its size.

The number of draws is fixed before the first of them, from a separate estimate; stopping when the
result looks good would spend confidence that nobody has paid.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from curvescope import _random, io
from curvescope._checks import finite_float, positive_int
from curvescope._state import strict_precision
from curvescope.certificates.bound import draws_for_slack, monte_carlo_bound
from curvescope.certificates.divergence import quotient_upwards
from curvescope.certificates.losses import error_rate
from curvescope.certificates.network import StochasticNetwork, network_digest
from curvescope.certificates.optimize import Progress
from curvescope.certificates.posterior import Posterior
from curvescope.errors import CurvescopeError

BLOCK = 100  # the bound counts blocks, so a larger one would only cost more
_BATCH = 2000
_SAVE_EVERY = 1.0  # seconds between reports and saved states


def check_slack(slack: float | None) -> float | None:
    """Refuse a slack that is not a positive number, before any work is done for it."""
    if slack is None:
        return None
    number = finite_float("certify", "slack", slack)
    if not number > 0:
        raise CurvescopeError("certify", "`slack` must be positive", given=repr(slack))
    return number


@dataclass(frozen=True)
class Draws:
    """What was drawn: ``errors`` wrong answers among ``count`` draws of ``block`` examples each.

    With the same ``seed``, on a ``device`` of the same type, they are drawn again.
    """

    count: int
    block: int
    errors: int
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        positive_int("Draws", "count", self.count)
        positive_int("Draws", "block", self.block)
        _random.check_seed("Draws", self.seed)
        if positive_int("Draws", "errors", self.errors, 0) > self.count * self.block:
            rule = f"there cannot be {self.errors} errors in {self.count * self.block} answers"
            raise CurvescopeError("Draws", rule)

    @property
    def mean(self) -> float:
        """The share of errors, rounded up."""
        return quotient_upwards(self.errors, self.count * self.block)

    def bound(self, delta: float) -> float:
        """The upper bound on ``ê(Q)``, with probability 1 − δ'."""
        return monte_carlo_bound(self.mean, self.count, delta=delta)


def evaluate(
    model: nn.Module,
    posterior: Posterior,
    data: tuple[Tensor, Tensor],
    *,
    generator: torch.Generator,
    delta: float = 0.01,
    slack: float | None = None,
    checkpoint: Path | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Draws:
    """Draw as often as the Monte-Carlo bound needs to lie ``slack`` above the error.

    In float32 or float64 as the model is, without the reduced precision of tensor cores. Cost: for
    a network of linear layers ``log(1/δ')·2ê/slack²`` forward passes of one example (a few
    passes over the data), otherwise as many of a block of up to 100 examples.

    Args:
        model: The network whose weights the posterior replaces.
        posterior: ``Q``, on the model's device.
        data: The examples that are certified on.
        generator: Seeds the draws.
        delta: δ'.
        slack: How far above the error the bound may lie; by default a thirtieth of the error but
            at least 0.001 where every example has weights of its own, 0.01 for blocks.
        checkpoint: A file for the state; the same call continues from it to the same result.
        progress: Called now and then.

    Raises:
        CurvescopeError: If the checkpoint belongs to another posterior or other settings.
    """
    seed = _random.seed(generator)
    plan = Plan(model, posterior, data, seed, slack=slack, delta=delta)
    return plan.draw(checkpoint, progress)


class Plan:
    """How many draws there will be, fixed by a seed before the first of them.

    Args:
        model: As for :func:`evaluate`, and so are the others.
        posterior: ``Q``.
        data: The examples.
        seed: Decides the estimate that the number follows from, and the draws.
        slack: How far above the error the bound may lie.
        delta: δ'.
        error: What the number follows from; by default an estimate from other draws.
    """

    def __init__(
        self,
        model: nn.Module,
        posterior: Posterior,
        data: tuple[Tensor, Tensor],
        seed: int,
        *,
        slack: float | None,
        delta: float,
        error: float | None = None,
    ) -> None:
        self._network = network = StochasticNetwork(model, posterior.layout, data[0][:4])
        self._posterior, self._data, self._seed = posterior, data, seed
        self._belongs = {
            "network": network_digest(model, data[0]), "posterior": posterior.tensors(),
            "data": data, "seed": seed,
            "slack": check_slack(slack), "delta": delta,
        }  # fmt: skip
        self._noise = torch.Generator(device=data[0].device).manual_seed(seed)
        self._size = n = len(data[0])
        self.block = 1 if network.independent else min(n, BLOCK)
        with strict_precision(), torch.no_grad():
            guess = _guess(network, posterior, data, self.block, self._noise)
        guess = guess if error is None else error
        if slack is None:
            slack = max(guess / 30, 1e-3) if network.independent else 1e-2
        least = draws_for_slack(guess, slack, delta=delta)
        self.rounds = -(-least // n) if network.independent else least
        self.count = self.rounds * (n if network.independent else 1)

    def draw(
        self,
        checkpoint: Path | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> Draws:
        """The draws, once; a checkpoint of the same plan is continued."""
        place = None if checkpoint is None else self._place(checkpoint)
        saved = None if place is None else place.load()
        errors: Tensor | int = 0
        done = 0
        if saved is not None:
            errors, done = saved.notes
            self._noise.set_state(saved.tensors["noise"])
        written = time.monotonic()
        with strict_precision(), torch.no_grad():
            while done < self.rounds:
                errors += self._round()
                done += 1
                if time.monotonic() - written >= _SAVE_EVERY or done == self.rounds:
                    if place is not None:
                        place.save({"noise": self._noise.get_state()}, [int(errors), done])
                    if progress is not None:
                        drawn = done * (self._size if self._network.independent else self.block)
                        progress(Progress("draw", done, self.rounds, int(errors) / drawn))
                    written = time.monotonic()
        device = self._data[0].device.type
        return Draws(self.count, self.block, int(errors), self._seed, device)

    def _place(self, checkpoint: Path) -> io.Checkpoint:
        return io.Checkpoint(
            checkpoint, self._belongs, where="certify", what="evaluation",
            remedy="remove it, or name another folder",
        )  # fmt: skip

    def _round(self) -> Tensor:
        if self._network.independent:
            return _pass(self._network, self._posterior, self._data, self._noise)
        return _block(self._network, self._posterior, self._data, self.block, self._noise)


def stochastic_error(
    model: nn.Module,
    posterior: Posterior,
    data: tuple[Tensor, Tensor],
    *,
    generator: torch.Generator,
    rounds: int = 20,
) -> float:
    """The stochastic network's error on any data, estimated from a few draws; no bound."""
    network = StochasticNetwork(model, posterior.layout, data[0][:4])
    seed = _random.seed(generator)
    noise = torch.Generator(device=data[0].device).manual_seed(seed)
    with strict_precision(), torch.no_grad():
        errors = sum(_pass(network, posterior, data, noise) for _ in range(rounds))
    return float(errors) / (rounds * len(data[0]))


def mean_error(model: nn.Module, posterior: Posterior, data: tuple[Tensor, Tensor]) -> float:
    """The error of the network at the posterior mean, which no certificate covers."""
    network = StochasticNetwork(model, posterior.layout, data[0][:4])
    still = torch.zeros_like(posterior.variance)
    errors = torch.zeros((), device=data[0].device)
    with strict_precision(), torch.no_grad():
        for x, y in zip(data[0].split(_BATCH), data[1].split(_BATCH), strict=True):
            size = network.noise_size(len(x))
            silence = torch.zeros(size, dtype=still.dtype, device=still.device)
            z = network(x, posterior.mean, still, posterior.bases, silence)
            errors += error_rate(z, y).sum()
    return float(errors) / len(data[0])


def _pass(
    network: StochasticNetwork,
    posterior: Posterior,
    data: tuple[Tensor, Tensor],
    noise: torch.Generator,
) -> Tensor:
    """Errors of one pass; with local noise each example has weights of its own."""
    total = torch.zeros((), dtype=torch.float64, device=data[0].device)
    for x, y in zip(data[0].split(_BATCH), data[1].split(_BATCH), strict=True):
        total += _errors(network, posterior, x, y, noise)
    return total


def _block(
    network: StochasticNetwork,
    posterior: Posterior,
    data: tuple[Tensor, Tensor],
    block: int,
    noise: torch.Generator,
) -> Tensor:
    """Errors of one set of weights on a random block."""
    x, y = data
    if block < len(x):
        chosen = torch.randperm(len(x), generator=noise, device=noise.device)[:block]
        x, y = x[chosen], y[chosen]
    return _errors(network, posterior, x, y, noise)


def _errors(
    network: StochasticNetwork, posterior: Posterior, x: Tensor, y: Tensor, noise: torch.Generator
) -> Tensor:
    draw = torch.randn(
        network.noise_size(len(x)), generator=noise, dtype=posterior.mean.dtype, device=x.device
    )
    z = network(x, posterior.mean, posterior.variance.sqrt(), posterior.bases, draw)
    return error_rate(z, y).double().sum()


def _guess(
    network: StochasticNetwork,
    posterior: Posterior,
    data: tuple[Tensor, Tensor],
    block: int,
    noise: torch.Generator,
) -> float:
    """A first estimate of the error, from draws that are not used again."""
    if network.independent:
        return float(_pass(network, posterior, data, noise)) / len(data[0])
    errors = sum(_block(network, posterior, data, block, noise) for _ in range(8))
    return float(errors) / (8 * block)
