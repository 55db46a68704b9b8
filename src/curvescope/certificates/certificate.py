"""The certificate: its numbers, what they say, and how to check them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from curvescope import _random, io
from curvescope._checks import positive_int
from curvescope.certificates.blocks import Block, Layout
from curvescope.certificates.bound import Complexity, Confidence, PriorGrid
from curvescope.certificates.divergence import percent_upwards
from curvescope.certificates.evaluate import Draws
from curvescope.certificates.methods import Method
from curvescope.certificates.optimize import Point, Progress
from curvescope.certificates.posterior import Posterior
from curvescope.certificates.prior import State
from curvescope.certificates.request import Request
from curvescope.certificates.verification import Verification, verify
from curvescope.errors import CurvescopeError
from curvescope.identity import checksum, digest, file_digest


@dataclass(frozen=True)
class PriorTerm:
    """The prior of some layers: ``N(m₀, λ_j I)``, its divergence and what its choice cost."""

    layers: tuple[str, ...]
    j: int
    variance: float
    kl: float
    penalty: float


@dataclass(frozen=True)
class Orientation:
    """Errors that help to place the bound; none of them is certified."""

    mean_train: float
    mean_test: float | None = None
    stochastic_test: float | None = None


@dataclass(frozen=True)
class Source:
    """The examples that are certified on, by number and name, and those behind the prior mean."""

    samples: int
    data: str
    prior_samples: int = 0
    seed: int = 0  # of the split and of the training of the prior mean on a part of the data

    def __post_init__(self) -> None:
        positive_int("Source", "samples", self.samples)
        positive_int("Source", "prior_samples", self.prior_samples, 0)
        _random.check_seed("Source", self.seed)


@dataclass(frozen=True)
class Certificate:
    """An upper bound on the error of a stochastic network, with everything needed to check it.

    ``bound`` holds for the network whose weights are drawn anew from the posterior for every
    prediction, with probability ``confidence.level`` over the examples and the draws. ``terms`` are
    the parts of the right-hand side, ``prior`` says where its divergence comes from, ``draws`` what
    the empirical error was estimated from, ``error_bound`` the upper bound on it, ``request`` what
    was certified and how.
    """

    FORMAT: ClassVar[int] = 2

    bound: float
    error_bound: float
    terms: Complexity
    prior: tuple[PriorTerm, ...]
    draws: Draws
    source: Source
    request: Request
    orientation: Orientation
    layout: tuple[Block, ...]
    history: tuple[Point, ...] = ()
    posterior_sha256: str = ""
    posterior: Posterior | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("bound", "error_bound"):
            if not 0 <= getattr(self, name) <= 1:
                rule = f"`{name}` must lie in [0, 1]"
                raise CurvescopeError("Certificate", rule, given=repr(getattr(self, name)))
        if not self.layout or not self.prior:
            rule = "layout and prior must not be empty"
            raise CurvescopeError("Certificate", rule, remedy="nothing would be certified")

    @property
    def confidence(self) -> Confidence:
        """δ and δ'."""
        return self.request.confidence

    @property
    def method(self) -> Method:
        """How the posterior was optimized."""
        return self.request.method

    @property
    def grid(self) -> PriorGrid:
        """The prior variances that were allowed."""
        return self.method.grid

    @property
    def form(self) -> str:
        """Which of the two inequalities the bound is."""
        return self.method.form

    @property
    def kl(self) -> float:
        """``KL(Q‖P)``."""
        return self.terms.kl

    @property
    def empirical_error(self) -> float:
        """The share of errors among the draws."""
        return self.draws.mean

    @property
    def samples(self) -> int:
        """``n``."""
        return self.source.samples

    @property
    def vacuous(self) -> bool:
        """Whether the bound says no more than that an error rate is at most 1."""
        return self.bound >= 1

    @property
    def statement(self) -> str:
        """What is certified, in words; every number in it is rounded to the safe side."""
        source, prior = self.source, "was fixed before these examples were seen (by the caller)"
        if source.prior_samples:
            prior = f"was trained on {source.prior_samples:,} other examples (data-dependent prior)"
        risks, grid = self.confidence, self.grid
        return (
            f"With probability at least {risks.level} over the choice of the {source.samples:,} "
            f"examples (risk {risks.sample}) and of the {self.draws.count:,} draws (risk "
            f"{risks.draws}), the stochastic network, whose weights are drawn anew from the "
            "posterior for every prediction, errs on at most "
            f"{percent_upwards(self.bound)} of new examples from the same distribution. "
            f"The prior mean {prior}; its variances are on the grid {grid.largest} "
            f"exp(−j/{grid.precision}), the inequality is that of {self.form.title()}, and both "
            "were fixed before, too. Nothing is claimed about the network at the posterior mean."
        )

    def verify(
        self,
        *,
        model: nn.Module | None = None,
        initial_state: State | None = None,
        data: Any = None,
        prior_data: Any = None,
        generator: torch.Generator | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> Verification:
        """Check the arithmetic, the posterior and, with what was certified, everything else.

        See :func:`curvescope.certificates.verification.verify`.
        """
        return verify(
            self, model=model, initial_state=initial_state, data=data, prior_data=prior_data,
            generator=generator, progress=progress,
        )  # fmt: skip

    # Disk ---------------------------------------------------------------------------------

    def save(self, path: io.PathLike, *, overwrite: bool = False) -> None:
        """Write the certificate as JSON, and its posterior beside it as ``.posterior.safetensors``.

        Both are complete on the disk before either is seen, and a certificate that was there before
        goes when the new one comes: at no time do two files of different certificates stand there.

        Args:
            path: The JSON file; its folder must exist.
            overwrite: Whether other files in these two places may be replaced; those of the same
                request are in any case.

        Raises:
            CurvescopeError: If the certificate has no posterior, something else is there, or a file
                cannot be written.
        """
        if self.posterior is None:
            rule = "the posterior is missing"
            raise CurvescopeError("Certificate.save", rule, remedy="save what certify returned")
        if not overwrite:
            refuse_others(path, self.request)
        tensors, key = posterior_file(path), digest(self.request)
        raw = io.tensor_bytes(tensors, self.posterior.tensors(), {"request": key})
        stored = replace(self, posterior_sha256=checksum(raw)).to_json()
        text = io.json_text(path, stored)
        with io.atomic_all(tensors, path) as (posterior, certificate):
            posterior.write_bytes(raw)
            certificate.write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, path: io.PathLike) -> Certificate:
        """Read a certificate, and its posterior where the file beside it exists.

        Raises:
            CurvescopeError: If the file is no certificate, or the posterior not the one it names.
        """
        where = f"{str(path)!r}"
        certificate = cls.from_json(io.read_json(path), where)
        tensors = posterior_file(path)
        if not tensors.exists():
            return certificate
        if file_digest(io.check_tensors(tensors)) != certificate.posterior_sha256:
            rule = f"{tensors.name} is not the posterior that the certificate names"
            raise CurvescopeError(where, rule)
        stored, _ = io.read_tensors(tensors, ours=True)
        posterior = Posterior.from_tensors(Layout(certificate.layout), stored)
        return replace(certificate, posterior=posterior)

    def to_json(self) -> dict[str, Any]:
        """Plain numbers, texts and lists, with the derived values beside them for readers."""
        packed = io.pack(replace(self, posterior=None))
        del packed["posterior"]
        head = {name: packed.pop(name) for name in ("type", "format", "checksum")}
        return {**head, **self._derived(), **packed}

    def _derived(self) -> dict[str, Any]:
        """What a reader of the file wants to see, and what follows from the rest."""
        return {
            "statement": self.statement,
            "kl": self.kl,
            "empirical_error": self.empirical_error,
            "complexity": self.terms.value,
            "confidence_level": self.confidence.level,
        }

    @classmethod
    def from_json(cls, stored: Any, where: str = "Certificate.from_json") -> Certificate:
        """The inverse of :meth:`to_json`; derived values must be those that are derived here.

        Raises:
            CurvescopeError: If it is no certificate, of another version, or has changed.
        """
        names = ("statement", "kl", "empirical_error", "complexity", "confidence_level")
        plain = stored
        if isinstance(stored, Mapping):
            plain = {name: value for name, value in stored.items() if name not in names}
            if "posterior" in plain:
                raise CurvescopeError(where, "is damaged, the posterior lies in a file of its own")
            if io.header(plain) is not None:
                plain["posterior"] = None
        certificate = io.unpack(cls, plain, where)
        for name, value in certificate._derived().items():
            if type(stored.get(name)) is not type(value) or stored[name] != value:
                rule = f"is damaged, its {name!r} does not follow from its numbers"
                raise CurvescopeError(where, rule)
        return certificate


def refuse_others(path: io.PathLike, request: Request) -> None:
    """Refuse to replace anything but the files of a certificate of this very request.

    Raises:
        CurvescopeError: If something else is there.
    """
    file, tensors, key = Path(path), posterior_file(path), digest(request)
    remedy = "name another file, or replace it with `overwrite=True`"
    if file.exists():
        if digest(Certificate.load(file).request) != key:
            raise CurvescopeError(repr(str(path)), "holds another certificate", remedy=remedy)
    elif tensors.exists() and io.read_tensors(tensors)[1].get("request") != key:
        rule = "is not this certificate's posterior"
        raise CurvescopeError(repr(str(tensors)), rule, remedy=remedy)


def posterior_file(path: io.PathLike) -> Path:
    """Where the posterior of a certificate lies: the same name, ``.posterior.safetensors``.

    >>> posterior_file("mlp.json").name
    'mlp.posterior.safetensors'
    """
    return Path(path).with_suffix(".posterior.safetensors")
