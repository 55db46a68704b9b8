"""What the file of a certificate alone shows: whether its numbers follow from each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from curvescope.certificates.bound import risk_bound
from curvescope.certificates.divergence import total_upwards
from curvescope.certificates.methods import posterior_method
from curvescope.certificates.posterior import Posterior
from curvescope.errors import CurvescopeError

if TYPE_CHECKING:
    from curvescope.certificates.certificate import Certificate, PriorTerm

_SAME = 1e-12  # relative, for numbers that another machine computes
_SAME_SUM = 1e-9  # and for sums over a posterior


@dataclass(frozen=True)
class Check:
    """One thing that was checked."""

    what: str
    passed: bool
    detail: str


def arithmetic(c: Certificate) -> list[Check]:
    """Every number again from those it follows from."""
    checks: list[Check] = []
    for term in c.prior:
        right = _same(term.penalty, c.grid.penalty(term.j)) and _same(
            term.variance, c.grid.variance(term.j)
        )
        where = ", ".join(term.layers)
        checks.append(Check(f"prior of {where}", right, f"j = {term.j}, λ = {term.variance:.6g}"))
    names = tuple(block.name for block in c.layout)
    groups = [(name,) for name in names] if c.method.layer_priors else [names]
    complete = [term.layers for term in c.prior] == groups
    checks.append(Check("layers", complete, f"{len(names)} layers, {len(groups)} prior(s)"))
    again = risk_bound(
        c.draws.mean,
        c.draws.count,
        [term.kl for term in c.prior],
        [term.penalty for term in c.prior],
        samples=c.samples,
        confidence=c.confidence,
        form=c.form,
    )
    terms = again.terms
    right = c.terms.divisor == terms.divisor and all(
        _same(getattr(c.terms, name), getattr(terms, name)) for name in ("kl", "grid", "confidence")
    )
    detail = f"KL {terms.kl:.2f} + grid {terms.grid:.2f} + confidence {terms.confidence:.2f}"
    checks.append(Check("terms", right, detail))
    for what, stated, value in (
        ("empirical error", c.error_bound, again.error_bound),
        ("bound", c.bound, again.value),
    ):
        checks.append(Check(what, _same(stated, value), f"{value:.6f}"))
    return checks


def _same(stated: float, recomputed: float, tolerance: float = _SAME) -> bool:
    return abs(stated - recomputed) <= tolerance * abs(recomputed)


def unusual(c: Certificate) -> list[str]:
    """Settings that may have been chosen after the fact; those of the methods were not."""
    try:
        usual = posterior_method(c.method.name)
    except CurvescopeError:
        return [f"method: {c.method.name!r} is none of the library's, nor are grid and inequality"]
    if (c.grid, c.form, c.method.layer_priors) == (usual.grid, usual.form, usual.layer_priors):
        return []
    return [
        f"grid, inequality and groups: {c.grid}, {c.form!r} and layer_priors="
        f"{c.method.layer_priors} are not those of {usual.name!r}; nobody can tell whether they "
        "were fixed before the examples were seen"
    ]


def divergence(certificate: Certificate, posterior: Posterior) -> Check:
    """The divergence again from the posterior's tensors."""
    what, names = "divergence of the posterior", [block.name for block in certificate.layout]
    if not all(name in names for term in certificate.prior for name in term.layers):
        return Check(what, False, "the prior names layers that the posterior does not have")
    try:
        recomputed = [posterior_kl(certificate, posterior, term) for term in certificate.prior]
    except CurvescopeError as error:
        return Check(what, False, str(error))
    right = all(
        _same(term.kl, kl, _SAME_SUM)
        for term, kl in zip(certificate.prior, recomputed, strict=True)
    )
    return Check(what, right, f"KL = {total_upwards(recomputed):.4f}")


def posterior_kl(certificate: Certificate, posterior: Posterior, term: PriorTerm) -> float:
    """The divergence of a posterior on the layers of one prior term."""
    names = [block.name for block in certificate.layout]
    return total_upwards(posterior.kl(names.index(name), term.variance) for name in term.layers)


def trusted(c: Certificate) -> tuple[str, ...]:
    """What no computation can show."""
    prior = "network, initial weights and settings were chosen without these examples"
    if c.request.prior_split is not None:
        prior += ", and one split of the prior was tried"
    return ("the examples are independent and of one distribution", prior)
