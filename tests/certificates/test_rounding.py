"""From counts to the printed bound, every step against exact arithmetic: never too small."""

import json
import math
import os
import random
from collections.abc import Iterator
from fractions import Fraction

import mpmath
import pytest
import torch

from curvescope.certificates.bound import (
    Confidence,
    PriorGrid,
    complexity,
    monte_carlo_bound,
)
from curvescope.certificates.divergence import (
    decimal_upwards,
    gaussian_kl,
    kl_inverse,
    quotient_upwards,
    total_upwards,
)
from curvescope.certificates.evaluate import Draws

CASES = 1_000_000 if os.environ.get("CURVESCOPE_FULL") else 20_000
_DIGITS = 80


def exact_kl(q: float, p: float) -> mpmath.mpf:
    """``kl(q‖p)`` to more than 50 digits, without differences of nearly equal numbers."""
    a, b = mpmath.mpf(q), mpmath.mpf(p)
    if p == 1:
        return mpmath.inf if q < 1 else mpmath.mpf(0)
    d, other = b - a, 1 - a
    first = d if q == 0 else a * _excess(d / a)
    return first + (other * _excess(-d / other) if q < 1 else 0)


def _excess(x: mpmath.mpf) -> mpmath.mpf:
    """``x − log(1 + x)``."""
    if abs(x) < mpmath.mpf("1e-20"):
        return x**2 / 2 - x**3 / 3 + x**4 / 4
    return x - mpmath.log(1 + x)


def cases(count: int, seed: int) -> Iterator[tuple[float, float]]:
    """Frequencies and divergences: everyday ones, and every extreme against every other."""
    draw = random.Random(seed)
    frequencies = (
        draw.random,
        lambda: 10 ** draw.uniform(-6, 0),
        lambda: 10 ** draw.uniform(-323, 0),
        lambda: 1 - 10 ** draw.uniform(-16, 0),
        lambda: draw.randrange(1, 1000) / 1000,
        lambda: draw.choice((0.0, 1.0, 5e-324, 2.0**-1022, 2.0**-53, 1 - 2.0**-53, 0.5)),
    )
    divergences = (
        lambda q: 10 ** draw.uniform(-12, 1),
        lambda q: 10 ** draw.uniform(-323, 308),
        lambda q: draw.choice((0.0, 5e-324, 2.0**-1022, 1e300, 36.7, math.inf)),
        lambda q: abs(1 - q) * (1 + draw.choice((-1, 0, 1)) * 10 ** draw.uniform(-16, -1)),
        lambda q: 2 * q * draw.uniform(0.009, 0.011) ** 2,  # where the series ends
        lambda q: q * draw.uniform(0.018, 0.022) ** 2 / 2 / max(1 - q, 2.0**-53),
    )
    for _ in range(count):
        q = draw.choice(frequencies)()
        yield q, max(0.0, draw.choice(divergences)(q))


def check_inverse(q: float, r: float) -> None:
    p = kl_inverse(q, r)
    assert q <= p <= 1
    if p == 1:
        return
    assert exact_kl(q, p) >= mpmath.mpf(r), (q, r, p)
    before = math.nextafter(math.nextafter(p, 0), 0)
    if before > q:
        most = mpmath.mpf(r) * (1 + mpmath.mpf(2e-12)) + mpmath.mpf(2e-290)
        assert exact_kl(q, before) <= most, (q, r, p)


def test_the_inverse_is_never_too_small_and_no_larger_than_it_says() -> None:
    with mpmath.workdps(_DIGITS):
        for q, r in cases(CASES, seed=0):
            check_inverse(q, r)


def test_the_case_that_was_too_small() -> None:
    with mpmath.workdps(_DIGITS):
        check_inverse(1.2071352561956359e-4, 2.669593814504031e-08)


@pytest.mark.parametrize("seed", range(4))
def test_the_monte_carlo_bound_of_counts_is_never_too_small(seed: int) -> None:
    """From integers: the share of errors itself is rounded, and so is ``log(1/δ')/m``."""
    draw = random.Random(seed)
    with mpmath.workdps(_DIGITS):
        for _ in range(500):
            count = draw.choice((1, 3, 7, 60_000, 10 ** draw.randrange(1, 17)))
            block = draw.choice((1, 100))
            errors = min(draw.choice((0, 1, draw.randrange(count * block + 1))), count * block)
            delta = draw.choice((0.01, 0.4, 1e-300, draw.uniform(0.001, 0.5)))
            exact = mpmath.mpf(errors) / (count * block)
            p = Draws(count, block, errors).bound(delta)
            assert p >= exact
            if p < 1:
                least = -mpmath.log(mpmath.mpf(delta)) / count
                assert _between(exact, p) >= least, (count, block, errors, delta)


def _between(q: mpmath.mpf, p: float) -> mpmath.mpf:
    """``kl(q‖p)`` for a frequency that is no float."""
    d = mpmath.mpf(p) - q
    return (d if q == 0 else q * _excess(d / q)) + (1 - q) * _excess(-d / (1 - q))


@pytest.mark.parametrize("form", ["maurer", "seeger"])
def test_the_complexity_is_never_too_small(form: str) -> None:
    draw = random.Random(1)
    grid = PriorGrid()
    with mpmath.workdps(_DIGITS):
        for _ in range(1000):
            n = 10 ** draw.randrange(1, 16) + draw.randrange(1000)
            delta, kl = 10 ** draw.uniform(-300, -0.31), 10 ** draw.uniform(-3, 8)
            places = [draw.randrange(1, 10**5) for _ in range(draw.randrange(1, 6))]
            got = complexity(
                kl, [grid.penalty(j) for j in places], samples=n, delta=delta, form=form
            )
            first = mpmath.mpf(n) if form == "seeger" else 2 * mpmath.sqrt(n)
            exact = mpmath.mpf(kl) + mpmath.log(first / mpmath.mpf(delta))
            exact += sum(mpmath.log(mpmath.pi**2 * j**2 / 6) for j in places)
            exact /= n - (form == "seeger")
            assert exact <= got.value <= exact * (1 + mpmath.mpf(1e-13))


def test_the_union_bound_over_the_grid_spends_no_more_than_delta() -> None:
    grid = PriorGrid()
    with mpmath.workdps(_DIGITS):
        for j in [*range(1, 2000), *(10**k for k in range(4, 15))]:
            assert mpmath.mpf(grid.penalty(j)) >= mpmath.log(mpmath.pi**2 * j**2 / 6)


@pytest.mark.parametrize("seed", range(5))
def test_the_gaussian_divergence_is_never_too_small(seed: int) -> None:
    """Ratios from 1e-18 to 1e12, some within rounding of 1, where all terms cancel."""
    g = torch.Generator().manual_seed(seed)
    size, prior = 400, 10 ** random.Random(seed).uniform(-6, 2)
    powers = torch.rand(size, generator=g, dtype=torch.float64) * 30 - 18
    s = prior * 10**powers
    s[::2] = prior * (1 + 10 ** (powers[::2] - 4).clamp(max=0) * (-1.0) ** torch.arange(size // 2))
    s = s.clamp_min(1e-18 * prior)
    m, m0 = torch.randn(2, size, generator=g, dtype=torch.float64)
    m0[::3] = m[::3] * (1 + 2.0**-52)
    with mpmath.workdps(_DIGITS):
        for pick in (slice(None), slice(0, None, 2), slice(1, 2)):
            exact = mpmath.mpf(0)
            rows = zip(m[pick].tolist(), s[pick].tolist(), m0[pick].tolist(), strict=True)
            for a, b, c in rows:
                exact += _excess(mpmath.mpf(b) / mpmath.mpf(prior) - 1) / 2
                exact += (mpmath.mpf(a) - mpmath.mpf(c)) ** 2 / (2 * mpmath.mpf(prior))
            got = mpmath.mpf(gaussian_kl(m[pick], s[pick], m0[pick], prior))
            assert exact <= got <= exact * (1 + mpmath.mpf(1e-12)) + mpmath.mpf(1e-12)


def test_sums_quotients_and_decimals_are_rounded_up() -> None:
    draw = random.Random(2)
    for _ in range(2000):
        terms = [draw.uniform(0, 1) * 10 ** draw.randrange(-10, 10) for _ in range(5)]
        assert Fraction(total_upwards(terms)) >= sum(map(Fraction, terms))
        a, b = draw.randrange(10**17), draw.randrange(1, 10**17)
        quotient = quotient_upwards(a, b)
        assert Fraction(quotient) >= Fraction(a, b) > Fraction(math.nextafter(quotient, -1))
        value, digits = draw.uniform(0, 1), draw.randrange(1, 8)
        shown = Fraction(decimal_upwards(value, digits))
        assert 0 <= shown - Fraction(value) < Fraction(1, 10**digits)


def test_a_confidence_is_never_said_to_be_larger_than_it_is() -> None:
    draw = random.Random(3)
    for _ in range(2000):
        sample, draws = (10 ** draw.uniform(-320, -0.61) for _ in range(2))
        exact = 1 - Fraction(repr(sample)) - Fraction(repr(draws))
        assert Fraction(str(Confidence(sample, draws).level)) <= exact


def test_a_bound_survives_json_to_the_bit() -> None:
    draw = random.Random(4)
    for _ in range(2000):
        bound = monte_carlo_bound(draw.random(), draw.randrange(1, 10**9), delta=0.01)
        assert json.loads(json.dumps(bound)) == bound
