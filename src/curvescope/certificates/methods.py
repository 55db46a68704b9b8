"""Methods: how a posterior is optimized. Those of DH by their names there, and our own.

=============== ==================================================================================
``"base"``      Dziugaite & Roy 2017: variances in the standard basis
``"appr"``      variances in the Kronecker eigenbasis at the trained weights (DH, η = T)
``"iter"``      the eigenbasis follows the posterior mean every η = 10 epochs
``"iter(d)"``   η grows tenfold whenever the rate falls tenfold
``"iter.m"``    like ``"iter"`` with ``E[M]`` in closed form (DH eq. 56)
``"local"``     ours: the same family of posteriors, optimized better (see below)
=============== ==================================================================================

DH's methods minimize ``L(Q) + √(B_RE/2)`` by RMSprop with one draw of the weights per step; L is
the training loss (alg. 1, line 5), where eq. 63 has ě, its upper bound of the error. ``"local"``
differs in six ways: each example has noise of its own (local reparametrization); the
objective is the kl-inverse itself, through its exact derivatives; the error is not replaced by a
convex upper bound, but for two classes integrated over the last layer's noise, for more smoothed by
a softmax; each layer has its own prior variance, at its closed-form optimum in every step;
variances start at ``1/(1/λ + β h)`` from the curvature h; and means and deviations follow the
natural gradient in the coordinates of the eigenbasis, in which the posterior's own variances are
the preconditioner, so that flat directions are not shaken by the noise of sharp ones.

References:
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import cos, pi

from curvescope._checks import finite_float, one_of, positive_int
from curvescope.certificates.bound import FORMS, PriorGrid
from curvescope.errors import CurvescopeError

SURROGATES = ("cross_entropy", "logistic", "sigmoid", "error")
_LARGEST_STEP = 0.2  # of the natural gradient, on tiny data


@dataclass(frozen=True)
class Method:
    """Every choice that the optimization of a posterior makes.

    Args:
        name: How it is called in a certificate.
        basis: ``"standard"``, ``"kronecker"`` (eigenbasis of ``E[M] ⊗ E[xxᵀ]``) or ``"closed"``
            (``E[M]`` from DH eq. 56; for chains of linear layers).
        refresh: The basis is computed anew every so many epochs (0: never).
        refresh_grows: Whether ``refresh`` is multiplied by 10 when the rate is divided by 10.
        follow: Whether variances follow the basis when it changes; otherwise they stay at their
            positions in the order of eigenvalues, as in the authors' code.
        local: Whether each example has noise of its own.
        objective: ``"root"`` (surrogate ``+ √(B_RE/2)``, DH eq. 63) or ``"kl"`` (the kl-inverse).
        surrogate: ``"cross_entropy"`` (DH alg. 1), ``"logistic"`` (that over log 2, Dziugaite &
            Roy), ``"sigmoid"``, or ``"error"``: the error itself for two classes (the noise of the
            last layer integrated out), the sigmoid for more.
        temperature: Of the sigmoid, in units of the mean absolute margin.
        layer_priors: Whether each layer has a prior variance of its own at its closed-form optimum;
            otherwise one variance for all is learned by gradient descent.
        optimizer: ``"rmsprop"`` (in the standard basis) or ``"natural"`` (natural gradient in the
            eigenbasis).
        rate: The learning rate: of a step for RMSprop, of an epoch for the natural gradient.
        epochs: Passes over the data.
        batch_size: Examples in a step.
        form: Of the final bound, ``"maurer"`` or ``"seeger"``.
        grid: The prior variances that are allowed.

    >>> posterior_method("iter").refresh, posterior_method("appr").refresh
    (10, 0)
    >>> posterior_method("local", epochs=50).epochs
    50
    """

    name: str
    basis: str = "kronecker"
    refresh: int = 0
    refresh_grows: bool = False
    follow: bool = True
    local: bool = False
    objective: str = "root"
    surrogate: str = "cross_entropy"
    temperature: float = 0.05
    layer_priors: bool = False
    optimizer: str = "rmsprop"
    rate: float = 1e-3
    epochs: int = 2000
    batch_size: int = 128
    form: str = "seeger"
    grid: PriorGrid = field(default_factory=PriorGrid)

    def __post_init__(self) -> None:
        where = "Method"
        one_of(where, "basis", self.basis, ("standard", "kronecker", "closed"))
        one_of(where, "objective", self.objective, ("root", "kl"))
        one_of(where, "surrogate", self.surrogate, SURROGATES)
        one_of(where, "optimizer", self.optimizer, ("rmsprop", "natural"))
        one_of(where, "form", self.form, FORMS)
        positive_int(where, "refresh", self.refresh, 0)
        positive_int(where, "epochs", self.epochs)
        positive_int(where, "batch_size", self.batch_size)
        for name in ("temperature", "rate"):
            if not finite_float(where, name, getattr(self, name)) > 0:
                rule = f"`{name}` must be positive"
                raise CurvescopeError(where, rule, given=repr(getattr(self, name)))

    @property
    def rotated(self) -> bool:
        """Whether the means are optimized in the coordinates of the basis."""
        return self.optimizer == "natural"

    def step_rate(self, epoch: int, share: float) -> float:
        """The rate of a step on a ``share`` of the data.

        DH: ``rate``, ×0.1 at every fifth of the epochs. Natural gradient: ``rate × share``, so that
        the noise of a step does not depend on the batch, falling like half a cosine.
        """
        if self.optimizer == "natural":
            decay = 0.5 * (1 + cos(pi * epoch / self.epochs))
            return min(self.rate * share, _LARGEST_STEP) * decay
        return self.rate * 0.1 ** self._stage(epoch)

    def refreshes(self, epoch: int) -> bool:
        """Whether the basis is computed anew before this epoch (the first one is always there)."""
        if self.refresh == 0 or self.basis == "standard" or epoch == 0:
            return False
        every = self.refresh * (10 ** self._stage(epoch) if self.refresh_grows else 1)
        return epoch % every == 0

    def _stage(self, epoch: int) -> int:
        return 5 * epoch // self.epochs


_METHODS = {
    "base": Method("base", basis="standard"),
    "appr": Method("appr"),
    "iter": Method("iter", refresh=10),
    "iter(d)": Method("iter(d)", refresh=10, refresh_grows=True),
    "iter.m": Method("iter.m", basis="closed", refresh=10),
    "local": Method(
        "local",
        refresh=10,
        local=True,
        objective="kl",
        surrogate="error",
        layer_priors=True,
        optimizer="natural",
        rate=3.0,
        epochs=60,
        batch_size=250,
        form="maurer",
        grid=PriorGrid(precision=10.0, largest=100.0),
    ),
}


def posterior_method(name: str, **changes: object) -> Method:
    """The method of this name, with some of its choices changed.

    Args:
        name: One of those above.
        **changes: Fields of :class:`Method`.

    Raises:
        CurvescopeError: If the name or a field is unknown, or a value outside its range.
    """
    chosen = _METHODS[one_of("posterior_method", "name", name, _METHODS)]
    for change in changes:
        if change not in Method.__dataclass_fields__:
            fields = ", ".join(Method.__dataclass_fields__)
            rule = f"a method has no {change!r}"
            raise CurvescopeError(f"posterior_method({name!r})", rule, remedy=f"it has {fields}")
    return replace(chosen, **changes)  # type: ignore[arg-type]
