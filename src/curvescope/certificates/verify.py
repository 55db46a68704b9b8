"""Checking a certificate: its arithmetic, its posterior, and fresh draws."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from curvescope import _checks
from curvescope.certificates.blocks import Layout
from curvescope.certificates.bound import risk_bound
from curvescope.certificates.divergence import kl_lower_inverse, total_upwards
from curvescope.certificates.evaluate import evaluate
from curvescope.certificates.examples import as_examples, digest, home, split

if TYPE_CHECKING:
    from curvescope.certificates.certificate import Certificate, PriorTerm

_SUSPICION = 1e-6  # how unlikely fresh draws must be to convict a certificate


@dataclass(frozen=True)
class Check:
    """One thing that was checked."""

    what: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class Verification:
    """The checks of a certificate; it passes when all of them do.

    ``unchecked`` says what could not be looked at, and what for. Without the posterior's file any
    divergence could be claimed: such a certificate may pass and is not ``verified``.
    """

    checks: tuple[Check, ...]
    unchecked: tuple[str, ...] = ()
    posterior: bool = True  # whether the posterior was there

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return all(check.passed for check in self.checks)

    @property
    def verified(self) -> bool:
        """Whether nothing is wrong and the divergence was among what was checked."""
        return self.passed and self.posterior


def verify(
    certificate: Certificate,
    *,
    model: nn.Module | None = None,
    data: Any = None,
    generator: torch.Generator | None = None,
    slack: float | None = None,
) -> Verification:
    """Check a certificate as far as what is given allows.

    Alone: every number follows from the numbers it is computed from. With its posterior: the
    divergence is recomputed from the tensors. With model and data: the data are those that were
    certified on, and fresh draws do not contradict the bound on the empirical error (by chance they
    would once in a million times). That the examples are independent, and the prior mean chosen
    without them, no computation can check.

    Args:
        certificate: What :func:`certify` returned, or :meth:`Certificate.load` read.
        model: The network, with any weights.
        data: The examples ``(X, y)`` or a data set.
        generator: Seeds the fresh draws; needed with a model.
        slack: The precision of the fresh draws; by default that of the certificate, or 0.005.

    Raises:
        CurvescopeError: If a model is given without data or generator.
    """
    checks, unchecked = _arithmetic(certificate), []
    if certificate.posterior is not None:
        checks.append(_divergence(certificate))
    else:
        unchecked.append("divergence of the posterior: the posterior's file is missing")
    if model is None:
        unchecked.append("examples and empirical error: these need the network and its data")
    else:
        where = "verify"
        generator = _checks.generator(where, generator)
        device, dtype = home(where, model)
        examples = as_examples(where, data, device, dtype)
        if certificate.source.split is not None:
            _, examples = split(examples, *certificate.source.split)
        same = digest(examples) == certificate.source.data_sha256
        detail = "the checksum agrees" if same else "the checksum differs"
        checks.append(Check("examples", same, detail))
        checks.append(_redraw(certificate, model, examples, generator, slack))
    return Verification(tuple(checks), tuple(unchecked), certificate.posterior is not None)


def _arithmetic(certificate: Certificate) -> list[Check]:
    c = certificate
    checks: list[Check] = []
    for term in c.prior:
        names = ", ".join(term.layers)
        right = (
            term.penalty >= c.grid.penalty(term.j) * (1 - 1e-12)
            and abs(term.variance - c.grid.variance(term.j)) <= 1e-12 * term.variance
        )
        checks.append(Check(f"prior of {names}", right, f"j = {term.j}, λ = {term.variance:.6g}"))
    layers = [name for term in c.prior for name in term.layers]
    complete = sorted(layers) == sorted(block.name for block in c.layout)
    checks.append(Check("layers", complete, f"{len(layers)} layers have a prior"))
    again = risk_bound(
        c.draws.mean,
        c.draws.count,
        [term.kl for term in c.prior],
        [term.penalty for term in c.prior],
        samples=c.samples,
        confidence=c.confidence,
        form=c.form,
    )
    terms, error_bound, bound = again.terms, again.error_bound, again.value
    checks.append(
        Check(
            "terms",
            c.terms.value >= terms.value * (1 - 1e-12) and c.terms.divisor == terms.divisor,
            f"KL {terms.kl:.2f} + grid {terms.grid:.2f} + confidence {terms.confidence:.2f}",
        )
    )
    checks.append(
        Check("empirical error", c.error_bound >= error_bound * (1 - 1e-12), f"{error_bound:.6f}")
    )
    checks.append(Check("bound", c.bound >= bound * (1 - 1e-12), f"{bound:.6f}"))
    return checks


def _divergence(certificate: Certificate) -> Check:
    assert certificate.posterior is not None
    recomputed = [_posterior_kl(certificate, term) for term in certificate.prior]
    right = all(
        term.kl >= kl * (1 - 1e-9) for term, kl in zip(certificate.prior, recomputed, strict=True)
    )
    return Check("divergence of the posterior", right, f"KL = {total_upwards(recomputed):.4f}")


def _posterior_kl(certificate: Certificate, term: PriorTerm) -> float:
    """The divergence of the stored posterior on the layers of one prior term."""
    assert certificate.posterior is not None
    names = [block.name for block in certificate.layout]
    return total_upwards(
        certificate.posterior.kl(names.index(name), term.variance) for name in term.layers
    )


def _redraw(
    certificate: Certificate,
    model: nn.Module,
    examples: tuple[torch.Tensor, torch.Tensor],
    generator: torch.Generator,
    slack: float | None,
) -> Check:
    what = "fresh draws"
    if certificate.posterior is None:
        return Check(what, False, "the posterior's file is missing")
    if Layout.of(model).blocks != certificate.layout:
        return Check(what, False, "the model has other layers than the certificate")
    posterior = certificate.posterior.to(examples[0].device)
    slack = slack or max(5e-3, certificate.error_bound - certificate.empirical_error)
    fresh = evaluate(model, posterior, examples, generator=generator, slack=slack)
    least = kl_lower_inverse(fresh.mean, -math.log(_SUSPICION) / fresh.count)
    return Check(
        what,
        least <= certificate.error_bound,
        f"{fresh.mean:.4f} ± {fresh.bound(0.01) - fresh.mean:.4f} in {fresh.count:,} draws, "
        f"certified {certificate.error_bound:.4f}",
    )
