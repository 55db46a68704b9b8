"""Divergences: outward rounding against exact arithmetic, Gaussians against torch."""

import math

import mpmath
import pytest
import torch

from curvescope.certificates.divergence import (
    binary_kl,
    gaussian_kl,
    kl_inverse,
    kl_lower_inverse,
    total_upwards,
)
from curvescope.errors import CurvescopeError

mpmath.mp.dps = 700  # 1 − 5e-324 must not be 1

QS = [0.0, 5e-324, 1e-300, 1e-12, 1e-5, 0.023, 0.1, 1 / 3, 0.5, 0.77, 0.999, 1 - 1e-12, 1 - 2**-53]
RS = [0.0, 5e-324, 1e-30, 1e-16, 1e-9, 1e-5, 0.01, 0.063, 0.5, 1.0, 10.0, 36.0, 700.0, 1e6, 1e300]


def exact_kl(q: float, p: float) -> mpmath.mpf:
    q, p = mpmath.mpf(q), mpmath.mpf(p)
    if p == 1 and q < 1:
        return mpmath.inf
    first = q * mpmath.log(q / p) if q > 0 else mpmath.mpf(0)
    second = (1 - q) * mpmath.log((1 - q) / (1 - p)) if q < 1 else mpmath.mpf(0)
    return first + second


@pytest.mark.parametrize("r", RS)
@pytest.mark.parametrize("q", QS)
def test_the_inverse_is_never_too_small_and_hardly_too_large(q: float, r: float) -> None:
    p = kl_inverse(q, r)
    assert q <= p <= 1
    assert exact_kl(q, p) >= mpmath.mpf(r)
    if q < p < 1:  # a slightly smaller p is inside: the bound is tight
        slightly = max(q, p - 1e-9 * (p - q) - 2**-52 * p)
        assert exact_kl(q, slightly) <= mpmath.mpf(r) * (1 + mpmath.mpf(1e-6)) + 2e-290


@pytest.mark.parametrize("r", RS)
def test_a_frequency_of_one_has_the_trivial_bound(r: float) -> None:
    assert kl_inverse(1.0, r) == 1.0


def test_the_inverse_grows_with_both_arguments() -> None:
    values = [[kl_inverse(q, r) for r in RS] for q in QS]
    for row in values:
        assert row == sorted(row)
    for column in zip(*values, strict=True):
        assert list(column) == sorted(column)


@pytest.mark.parametrize("q", [*QS, 1.0])
@pytest.mark.parametrize("r", RS)
def test_the_lower_inverse_is_never_too_large(q: float, r: float) -> None:
    p = kl_lower_inverse(q, r)
    assert 0 <= p <= q
    assert p == 0 or exact_kl(q, p) >= mpmath.mpf(r) * (1 - mpmath.mpf(1e-11))


@pytest.mark.parametrize(
    ("q", "p"),
    [(q, q + step) for q in QS for step in (1e-15, 1e-9, 1e-4, 0.1) if q < q + step < 1],
)
def test_binary_kl_is_accurate_where_it_is_tiny(q: float, p: float) -> None:
    exact = exact_kl(q, p)
    assert abs(mpmath.mpf(binary_kl(q, p)) - exact) <= exact * mpmath.mpf(2e-13)


@pytest.mark.parametrize("prior", [0.01, 1.0, 7.0])
def test_gaussian_kl_against_torch_distributions(prior: float, generator) -> None:
    m, m0 = torch.randn(2, 500, generator=generator, dtype=torch.float64)
    s = torch.exp(3 * torch.randn(500, generator=generator, dtype=torch.float64))
    normal = torch.distributions.Normal
    expected = torch.distributions.kl_divergence(
        normal(m, s.sqrt()), normal(m0, torch.full_like(m, prior**0.5))
    ).sum()
    value = gaussian_kl(m, s, m0, prior)
    assert value == pytest.approx(expected.item(), rel=1e-12)


def test_gaussian_kl_is_not_below_the_exact_value(generator) -> None:
    m, m0 = torch.randn(2, 200, generator=generator, dtype=torch.float64)
    prior = 0.3
    s = prior * (1 + torch.logspace(-16, 3, 200, dtype=torch.float64))
    exact = mpmath.mpf(0)
    for a, b, c in zip(m.tolist(), m0.tolist(), s.tolist(), strict=True):
        ratio = mpmath.mpf(c) / mpmath.mpf(prior)
        exact += (ratio - 1 - mpmath.log(ratio)) / 2
        exact += (mpmath.mpf(a) - mpmath.mpf(b)) ** 2 / (2 * mpmath.mpf(prior))
    value = mpmath.mpf(gaussian_kl(m, s, m0, prior))
    assert exact <= value <= exact * (1 + mpmath.mpf(1e-11))


def test_gaussian_kl_in_a_rotated_basis_is_that_of_the_full_covariance(generator) -> None:
    n, prior = 12, 0.2
    Q, _ = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64))
    m, m0 = torch.randn(2, n, generator=generator, dtype=torch.float64)
    s = torch.rand(n, generator=generator, dtype=torch.float64) + 0.01
    full = torch.distributions.MultivariateNormal(m, Q @ torch.diag(s) @ Q.T)
    isotropic = torch.distributions.MultivariateNormal(m0, prior * torch.eye(n).double())
    expected = torch.distributions.kl_divergence(full, isotropic)
    assert gaussian_kl(Q.T @ m, s, Q.T @ m0, prior) == pytest.approx(expected.item(), rel=1e-11)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: kl_inverse(-0.1, 1.0), "q must be a probability"),
        (lambda: kl_inverse(0.1, -1.0), "r must be at least 0"),
        (lambda: kl_inverse(0.1, math.nan), "r must be at least 0"),
        (lambda: binary_kl(0.1, 1.5), "p must be a probability"),
        (lambda: gaussian_kl(torch.zeros(1), torch.zeros(1), torch.zeros(1), 1.0), "positive and"),
        (lambda: gaussian_kl(torch.zeros(1), torch.ones(2), torch.zeros(1), 1.0), "1, 2 and 1"),
        (lambda: gaussian_kl(torch.ones(1), torch.ones(1), torch.zeros(1), 0.0), "prior_variance"),
        (
            lambda: gaussian_kl(torch.tensor([math.inf]), torch.ones(1), torch.zeros(1), 1.0),
            "not finite",
        ),
    ],
)
def test_misuse_is_one_sentence(call, match: str) -> None:
    with pytest.raises(CurvescopeError, match=match):
        call()


def test_a_sum_is_rounded_up() -> None:
    terms = [0.1, 0.2, 0.3, 1e-20]
    assert mpmath.mpf(total_upwards(terms)) >= mpmath.fsum(mpmath.mpf(t) for t in terms)
