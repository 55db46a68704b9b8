"""The spectral measure by stochastic Lanczos quadrature (Golub and Welsch 1969; TR alg. 2–4).

The spectrum of ``A`` is the measure ``φ = (1/n) Σ_i δ_{λ_i}``. For a random unit vector ``v`` the
Ritz values ``θ_m`` of ``M`` Lanczos steps and the squared first entries of their vectors,
``ω_m = y_m[1]²``, are the Gauss quadrature of ``v``'s own spectral measure, whose expectation is
``φ``: ``∫ f dφ ≈ (1/n_vec) Σ_l Σ_m ω_m^l f(θ_m^l)``, exactly in ``f`` of degree ``2M − 1`` for each
probe. Everything else (density, distribution function, moments) is a view of these numbers.

References:
    TR: Papyan (2020), *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra*.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from curvescope import _checks
from curvescope.errors import CurvescopeError
from curvescope.operators.base import LinearOperator
from curvescope.spectra import density as views
from curvescope.spectra.control import Status, require_symmetric
from curvescope.spectra.course import below, nested
from curvescope.spectra.eigensolver import EigenPairs, ExtremePairs
from curvescope.spectra.estimate import Estimate, Samples
from curvescope.spectra.recurrence import Recurrence
from curvescope.spectra.resumable import End, Estimator, State, run
from curvescope.vectors import columns_in

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from curvescope.spectra.control import Control

_MEMORY = 2 << 30
"""Bytes up to which ``reorthogonalize="auto"`` keeps a basis, over all ranks."""
_NORMALIZATION_STEPS = 32
"""``M0`` of TR alg. 4 (sec. D.2)."""


@dataclass(frozen=True)
class SpectralMeasure:
    """Nodes and weights, one row per probe; the spread between rows is the sampling error.

    Weights of a row sum to 1, or to ``1 − c/n`` when ``c`` ``outliers`` were taken out exactly;
    each of those has the mass ``1/n``. ``support`` encloses the Ritz values and their residuals
    (TR alg. 4, without its margin). ``residuals`` tell nodes that are eigenvalues from nodes that
    stand for a stretch of the bulk. A probe that broke down is padded with weights 0.
    """

    nodes: Tensor  # [probes, steps], float64, ascending
    weights: Tensor  # [probes, steps], float64
    residuals: Tensor  # [probes, steps], float64
    outliers: Tensor  # [c], float64
    dimension: int
    support: tuple[float, float]
    products: int
    status: Status

    @property
    def probes(self) -> int:
        """How many probes."""
        return self.nodes.shape[0]

    def expectation(self, f: Callable[[Tensor], Tensor]) -> Estimate[float]:
        """``∫ f dφ = tr f(A) / n`` for an elementwise ``f``, with its error over the probes."""
        samples = Samples(())
        exact = f(self.outliers).sum() / self.dimension if len(self.outliers) else 0.0
        samples.add((self.weights * f(self.nodes)).sum(1) + exact)
        return samples.estimate(self.products, self.status)

    def moment(self, k: int) -> Estimate[float]:
        """``(1/n) tr A^k = ∫ λ^k dφ``; times ``dimension`` it is the trace, or ``‖A‖_F²``."""
        _checks.positive_int("SpectralMeasure.moment(k)", "k", k, minimum=0)
        return self.expectation(lambda x: x**k)

    def cdf(self, x: Tensor) -> Tensor:
        """The share of eigenvalues up to each of ``x: [j]``: :func:`density.share_below`."""
        x = torch.as_tensor(x, dtype=torch.float64)
        outliers = torch.searchsorted(self.outliers.sort().values, x, right=True)
        return views.share_below(self, x) + outliers.double() / self.dimension

    def density(
        self, points: int = 1024, kappa: float = 3.0, *, margin: float = 0.05
    ) -> views.Curve:
        """``φ`` with every node widened to a Gaussian, on a grid: :func:`density.of_measure`."""
        return views.of_measure(self, points, kappa, margin=margin)

    def log_density(
        self,
        eps: float = 1e-5,
        points: int = 1024,
        kappa: float = 1.04,
        *,
        margin: float = 0.05,
        jacobian: bool = False,
    ) -> views.Curve:
        """The density of ``log(|λ| + eps)``: :func:`density.of_log_measure`."""
        return views.of_log_measure(self, eps, points, kappa, margin=margin, jacobian=jacobian)


def spectral_measure(
    A: LinearOperator,
    *,
    generator: torch.Generator,
    steps: int = 128,
    probes: int = 1,
    deflate: int | EigenPairs = 0,
    reorthogonalize: bool | str = "auto",
    kind: str = "gaussian",
    **control: Unpack[Control],
) -> SpectralMeasure:
    """The spectral measure of a symmetric operator from ``probes`` random vectors.

    All probes advance together, ``probes`` columns a product. ``deflate=C`` first takes the ``C``
    largest eigenpairs out exactly (or those given) and samples the rest of the space: resolution
    then goes to the bulk (TR fig. 17); ctrl-C during that first part is raised in any case.
    ``reorthogonalize="auto"`` does so while the basis, ``probes · steps · n`` numbers, fits in
    2 GiB; the papers' FastLanczos is ``False``.

    Cost: ``steps · probes`` products (plus those of the eigenpairs); memory as for
    :func:`curvescope.lanczos`, per probe.

    >>> from curvescope.operators.simple import Diagonal
    >>> A = Diagonal(torch.tensor([0.0, 0.0, 0.0, 2.0], dtype=torch.float64))
    >>> measure = spectral_measure(A, probes=100, generator=torch.Generator().manual_seed(0))
    >>> abs(measure.moment(1).value - 0.5) <= 4 * measure.moment(1).stderr
    True
    """
    where = f"spectral_measure({A})"
    require_symmetric(where, A)
    steps = _checks.positive_int(where, "steps", steps)
    probes = _checks.positive_int(where, "probes", probes)
    _checks.generator(where, generator)
    if not isinstance(deflate, EigenPairs):
        deflate = _checks.positive_int(where, "deflate", deflate, minimum=0)
        if deflate >= A.shape[0]:
            rule = f"`deflate` must leave a bulk of the {A.shape[0]} dimensions"
            raise CurvescopeError(where, rule, given=deflate)
    return run(
        Quadrature, A, control, generator=generator, steps=steps, probes=probes, deflate=deflate,
        reorthogonalize=reorthogonalize, kind=kind,
    )  # fmt: skip


class Quadrature(Estimator[SpectralMeasure]):
    """First the outliers, if requested; then a recurrence for each probe orthogonal to them."""

    task = "spectral_measure"
    vectors = ("basis", "now", "before", "outside")

    def __init__(
        self,
        A: LinearOperator,
        *,
        generator: torch.Generator,
        steps: int,
        probes: int = 1,
        deflate: int | EigenPairs = 0,
        reorthogonalize: bool | str = "auto",
        kind: str = "gaussian",
    ) -> None:
        self._operator, self._generator, self._kind = A, generator, kind
        self._steps, self._probes = steps, probes
        if reorthogonalize == "auto":
            size = A.shape[0] * torch.finfo(A.dtype).bits // 8
            reorthogonalize = probes * size * (steps + 1) <= _MEMORY
        self._reorthogonalize = bool(reorthogonalize)
        self._search: ExtremePairs | None = None
        self._values: Tensor = torch.empty(0)
        self._outside: Tensor | None = None  # this rank's share of the outliers' vectors, [n, c]
        if isinstance(deflate, EigenPairs):
            self._values = deflate.values
            self._outside = columns_in(A.domain, deflate.local, deflate.domain)
        elif deflate:
            self._search = ExtremePairs(A, deflate, generator=generator)
        self._recurrence: Recurrence | None = None
        if self._search is None:
            self._recurrence = self._recur(self._draw())

    def _draw(self) -> Tensor:
        space, generator = self._operator.domain, self._generator
        return space.random(self._probes, kind=self._kind, generator=generator)

    def _recur(self, rows: Tensor) -> Recurrence:
        return Recurrence(
            self._operator,
            rows,
            self._steps,
            reorthogonalize=self._reorthogonalize,
            outside=self._outside,
        )

    @property
    def done(self) -> int:
        """Converged outliers, and steps of the recurrences."""
        if self._recurrence is None:
            return 0 if self._search is None else self._search.done
        return self._outliers + self._recurrence.done

    @property
    def total(self) -> int:
        """Requested outliers, and all steps of the recurrences."""
        bound = self._operator.shape[0] if self._reorthogonalize else self._steps
        return self._outliers + min(self._steps, bound)

    @property
    def _outliers(self) -> int:
        """The number of outliers to compute; 0 if they were given."""
        return 0 if self._search is None else self._search.total

    @property
    def finished(self) -> bool:
        """Whether the recurrences have finished."""
        return self._recurrence is not None and self._recurrence.finished

    @property
    def has_result(self) -> bool:
        """True after the first step of the recurrences."""
        return self._recurrence is not None and self._recurrence.done > 0

    def step(self) -> None:
        """One step of the search for outliers, or of all recurrences."""
        if self._recurrence is not None:
            self._recurrence.step()
        elif self._search is not None:
            if not self._search.finished:
                self._search.step()
            if self._search.finished:
                pairs = self._search.result(End(0, complete=True))
                self._values, self._outside = pairs.values, pairs.local
                self._recurrence = self._recur(self._draw())

    @property
    def state(self) -> State:
        """The state of the search; afterwards the outliers and the state of the recurrences."""
        if self._recurrence is None:
            return {} if self._search is None else nested("search", self._search.state)
        state = nested("recurrence", self._recurrence.state())
        if self._search is None or self._outside is None:
            return state
        return {**state, "values": self._values, "outside": self._outside.T}

    @state.setter
    def state(self, state: State) -> None:
        recurrence = below("recurrence", state)
        if self._search is not None and not recurrence:
            self._search.state = below("search", state)
            return
        if self._search is not None:
            device = self._operator.device
            self._values = state["values"].to(device)
            self._outside = state["outside"].to(device).T.contiguous()  # as it was before
        self._recurrence = self._recur(recurrence["now"].to(self._operator.device))
        self._recurrence.load(recurrence)

    def result(self, end: End) -> SpectralMeasure:
        """Quadratures of all probes."""
        assert self._recurrence is not None
        n = self._operator.shape[0]
        return _assemble(self._recurrence, self._values.cpu().double(), n, end)


def _assemble(run: Recurrence, outliers: Tensor, n: int, end: End) -> SpectralMeasure:
    """Quadratures of all probes, padded to the same length."""
    rules, ends = [], []
    for probe in range(run.probes):
        alphas, betas = run.coefficients(probe)
        rules.append((*quadrature(alphas, betas), _residuals(alphas, betas)))
        ends.append(_enclosure(alphas, betas))
    longest = max(len(rule[0]) for rule in rules)
    nodes = torch.stack([_padded(rule[0], longest, float(rule[0][-1])) for rule in rules])
    weights = torch.stack([_padded(rule[1], longest, 0.0) for rule in rules])
    residuals = torch.stack([_padded(rule[2], longest, 0.0) for rule in rules])
    support = (min(low for low, _ in ends), max(high for _, high in ends))
    share = (n - len(outliers)) / n
    return SpectralMeasure(
        nodes, weights * share, residuals, outliers, n, support, end.products, end.status
    )


def quadrature(alphas: Tensor, betas: Tensor) -> tuple[Tensor, Tensor]:
    """Gauss nodes, ascending, and weights of a tridiagonal matrix (Golub and Welsch 1969).

    >>> quadrature(torch.zeros(2).double(), torch.ones(2).double())[1]
    tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    if len(alphas) < 2:
        return alphas.clone(), torch.ones_like(alphas)
    nodes, vectors = _ritz(alphas, betas)
    return nodes, vectors[0] ** 2


def _residuals(alphas: Tensor, betas: Tensor) -> Tensor:
    """Ritz residuals ``β_m |y_m|``, in the order of the nodes."""
    if len(alphas) < 2:
        return betas.clone()
    return betas[-1] * _ritz(alphas, betas)[1][-1].abs()


def _ritz(alphas: Tensor, betas: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, ascending, and eigenvectors of a tridiagonal matrix."""
    from scipy.linalg import eigh_tridiagonal  # a fifth of a second to import

    values, vectors = eigh_tridiagonal(alphas.numpy(), betas[:-1].numpy())
    return torch.from_numpy(values), torch.from_numpy(vectors)


def _enclosure(alphas: Tensor, betas: Tensor) -> tuple[float, float]:
    """Ritz values and, after ``M0`` steps, the outermost ones widened by their residuals."""
    m = min(len(alphas), _NORMALIZATION_STEPS)
    early, late = quadrature(alphas[:m], betas[:m])[0], quadrature(alphas, betas)[0]
    reach = _residuals(alphas[:m], betas[:m])
    low, high = early[0] - reach[0], early[-1] + reach[-1]
    return min(float(low), float(late[0])), max(float(high), float(late[-1]))


def _padded(x: Tensor, length: int, value: float) -> Tensor:
    return torch.nn.functional.pad(x, (0, length - len(x)), value=value)
