"""Checking a certificate: its arithmetic, its posterior, and what it was made from."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from curvescope import _random
from curvescope.certificates.blocks import Layout
from curvescope.certificates.consistency import (
    Check,
    arithmetic,
    divergence,
    posterior_kl,
    trusted,
    unusual,
)
from curvescope.certificates.divergence import kl_inverse, kl_lower_inverse, total_upwards
from curvescope.certificates.evaluate import Plan
from curvescope.certificates.examples import as_examples, home
from curvescope.certificates.optimize import Progress
from curvescope.certificates.posterior import Posterior
from curvescope.certificates.prior import State, Task, prepare
from curvescope.certificates.request import state_digest
from curvescope.errors import CurvescopeError
from curvescope.identity import digest

if TYPE_CHECKING:
    from curvescope.certificates.certificate import Certificate

_SUSPICION = 1e-6  # how unlikely fresh draws must be to convict a certificate
_OVERLOOKED = 0.01  # with which probability an error that can be told apart is not
_FINENESS = 50.0  # fresh draws of single examples: their slack is this part of the error
_PRIOR_SHIFT = 0.01  # by how much training the prior anew may move the divergence
_FLIPS = 1e-5  # share of answers that rounding may change on another machine
_MOST_ANSWERS = 10**9  # more are not drawn again

Verdict = Literal["verified", "consistent", "refuted"]


@dataclass(frozen=True)
class Verification:
    """What was checked, what was not although it can be, and what nobody can check.

    Args:
        checks: Each with its outcome.
        unchecked: What needs the network, its data or another device.
        trusted: What no computation can show.
    """

    checks: tuple[Check, ...]
    unchecked: tuple[str, ...] = ()
    trusted: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """``"refuted"`` if a check failed, ``"verified"`` if nothing is left that can be checked.

        Otherwise ``"consistent"``: nothing speaks against the certificate, but anyone could have
        made up numbers that fit together.
        """
        if not self.passed:
            return "refuted"
        return "consistent" if self.unchecked else "verified"

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return all(check.passed for check in self.checks)


def verify(
    certificate: Certificate,
    *,
    model: nn.Module | None = None,
    initial_state: State | None = None,
    data: Any = None,
    prior_data: Any = None,
    generator: torch.Generator | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Verification:
    """Check a certificate as far as what is given allows.

    Alone: every number follows from those it is computed from, the divergence from the posterior's
    tensors. With network and data: the weights and the examples are those that were certified; the
    examples are counted; the draws are drawn again, once with their own seed, which gives the same
    errors, and once with another, which must not contradict the bound on the error. With the
    initial state too: the prior mean is made anew from it. Cost: a few times that of the draws.

    Args:
        certificate: What :func:`certify` returned, or :meth:`Certificate.load` read.
        model: The trained network.
        initial_state: The state before training, or a file with it.
        data: The examples ``(X, y)`` or a data set.
        prior_data: The examples that ``initial_state`` was trained on, if it was.
        generator: Seeds the fresh draws; without it there are none.
        progress: Called now and then while drawing.

    Raises:
        CurvescopeError: If a model is given without data.
    """
    checks, unchecked = arithmetic(certificate), unusual(certificate)
    if certificate.posterior is not None:
        checks.append(divergence(certificate, certificate.posterior))
    else:
        unchecked.append("divergence of the posterior: the posterior's file is missing")
    if model is None:
        unchecked.append("network, examples, prior mean and draws: these need the network, its "
                         "initial weights and its data")  # fmt: skip
        return Verification(tuple(checks), tuple(unchecked), trusted(certificate))
    device, dtype = home("verify", model)
    examples = as_examples("verify", data, device, dtype)
    checks += [_network(certificate, model), _examples(certificate, examples)]
    if not all(check.passed for check in checks) or certificate.posterior is None:
        return Verification(tuple(checks), tuple(unchecked), trusted(certificate))
    posterior = certificate.posterior.to(device)
    if initial_state is None:
        unchecked.append("prior mean: needs the weights before training")
        if certificate.request.prior_split is not None:
            unchecked.append("draws: their examples depend on the split of the prior")
            return Verification(tuple(checks), tuple(unchecked), trusted(certificate))
    else:
        of_prior, task = _prior(certificate, posterior, model, initial_state, examples, prior_data)
        checks += of_prior
        if task is None:
            return Verification(tuple(checks), tuple(unchecked), trusted(certificate))
        examples = task.examples
    if certificate.request.prior_data is not None and prior_data is None:
        unchecked.append("examples of the prior: whether they are other ones needs prior_data")
    checks += _draws(certificate, model, posterior, examples, generator, progress, unchecked)
    return Verification(tuple(checks), tuple(unchecked), trusted(certificate))


# With what it was made from -----------------------------------------------------------------


def _network(c: Certificate, model: nn.Module) -> Check:
    if Layout.of(model).blocks != c.layout:
        return Check("network", False, "the model has other layers than the certificate")
    if c.posterior is not None and c.posterior.mean.dtype != home("verify", model)[1]:
        return Check("network", False, "the posterior has numbers of another precision")
    same = state_digest(model.state_dict()) == c.request.weights
    detail = "the weights are those that were certified" if same else "these are other weights"
    return Check("network", same, detail)


def _examples(c: Certificate, examples: tuple[Tensor, Tensor]) -> Check:
    """The examples given, counted and compared; a part of them may have trained the prior."""
    n, request = len(examples[0]), c.request
    if digest(*examples) != request.data or n != request.samples:
        return Check("examples", False, f"these {n:,} examples are not those of the certificate")
    taken = c.source.prior_samples if request.prior_split is not None else 0
    right = c.samples == n - taken
    return Check("examples", right, f"{n:,} examples, certified on {c.samples:,} of them")


def _prior(
    c: Certificate,
    posterior: Posterior,
    model: nn.Module,
    initial_state: State,
    examples: tuple[Tensor, Tensor],
    prior_data: Any,
) -> tuple[list[Check], Task | None]:
    """The prior mean, made anew from the initial state; and the task that this gives."""
    what, request = "prior mean", c.request
    try:
        task = prepare(
            model, initial_state, examples, prior_split=request.prior_split, prior_data=prior_data,
            declared=request.prior_data is not None, seed=c.source.seed,
        )  # fmt: skip
    except CurvescopeError as error:
        return [Check(what, False, str(error))], None
    prior_is_checked = request.prior_data is None or prior_data is not None
    if prior_is_checked and task.prior_samples != c.source.prior_samples:
        detail = f"{task.prior_samples:,} examples were used for it, not {c.source.prior_samples:,}"
        return [Check(what, False, detail)], None
    if task.prior_mean.dtype == posterior.prior_mean.dtype and torch.equal(
        task.prior_mean, posterior.prior_mean
    ):
        return [Check(what, True, "made anew from the initial weights, equal to the bit")], task
    if request.prior_split is None:
        return [Check(what, False, "differs from the initial weights")], None
    anew = Posterior(
        posterior.mean, task.prior_mean, posterior.variance, posterior.bases, posterior.curvature
    )
    kl = total_upwards(posterior_kl(c, anew, term) for term in c.prior)
    detail = (
        f"trained anew it gives KL = {kl:.2f}, stated are {c.kl:.2f}; up to "
        f"{100 * _PRIOR_SHIFT:g} % is rounding on another machine"
    )
    return [Check(what, c.kl >= kl * (1 - _PRIOR_SHIFT), detail)], task


def _draws(
    c: Certificate,
    model: nn.Module,
    posterior: Posterior,
    examples: tuple[Tensor, Tensor],
    generator: torch.Generator | None,
    progress: Callable[[Progress], None] | None,
    unchecked: list[str],
) -> list[Check]:
    """The draws themselves again, and others that do not know of them."""
    delta, checks = c.confidence.draws, []
    plan = Plan(model, posterior, examples, c.draws.seed, slack=c.request.slack, delta=delta)
    if examples[0].device.type != c.draws.device:
        unchecked.append(f"draws: they are drawn again on a device of type {c.draws.device}")
    elif (plan.count, plan.block) != (c.draws.count, c.draws.block):
        detail = (
            f"{c.draws.count:,} of {c.draws.block:,} are claimed, the seed and the slack give "
            f"{plan.count:,} of {plan.block:,}"
        )
        return [Check("draws", False, detail)]
    elif plan.count * plan.block > _MOST_ANSWERS:
        unchecked.append(f"draws: {plan.count:,} are too many to be drawn again")
    else:
        again = plan.draw(progress=progress)
        answers = again.count * again.block
        right = abs(again.errors - c.draws.errors) <= 3 + _FLIPS * answers
        detail = f"{again.errors:,} errors in {answers:,} answers, as with the same seed before"
        if not right:
            detail = f"{again.errors:,} errors with the same seed, {c.draws.errors:,} are claimed"
        checks.append(Check("draws", right, detail))
        if not right:
            return checks
    if generator is None:
        unchecked.append("fresh draws: these need a generator")
        return checks
    return [*checks, _fresh(c, model, posterior, examples, generator, progress)]


def _fresh(
    c: Certificate,
    model: nn.Module,
    posterior: Posterior,
    examples: tuple[Tensor, Tensor],
    generator: torch.Generator,
    progress: Callable[[Progress], None] | None,
) -> Check:
    """Whether independent draws contradict the bound on the empirical error."""
    slack = max(c.error_bound - c.empirical_error, 5e-3)
    if c.draws.block == 1:
        slack = max(c.error_bound / _FINENESS, 4e-4)
    error = min(c.error_bound, 1 - slack)
    seed = _random.seed(generator)
    plan = Plan(model, posterior, examples, seed, slack=slack, delta=0.01, error=error)
    fresh = plan.draw(progress=progress)
    least = kl_lower_inverse(fresh.mean, -math.log(_SUSPICION) / fresh.count)
    return Check(
        "fresh draws",
        least <= c.error_bound,
        f"error {fresh.mean:.4f} in {fresh.count:,} others, certified at most {c.error_bound:.4f}; "
        f"one above {told_apart(c.error_bound, fresh.count):.4f} would be found out",
    )


def told_apart(bound: float, count: int) -> float:
    """The error that fresh draws tell apart from one within ``bound``, in 99 of 100 cases.

    They convict if their mean is at least t, the least number with ``kl(t‖bound) ≥ log(10⁶)/m``;
    with an error e above t they miss it with probability ``exp(−m kl(t‖e))`` at most.

    >>> round(told_apart(0.1, 100_000), 4)
    0.108
    """
    convicted = -math.log(_SUSPICION) / count
    low, high = bound, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if kl_lower_inverse(middle, convicted) > bound:
            high = middle
        else:
            low = middle
    return kl_inverse(high, -math.log(_OVERLOOKED) / count)
