"""The certificate: its numbers, what they say, and how to check them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from curvescope import io
from curvescope._checks import CurvescopeError
from curvescope.certificates.blocks import Block, Layout
from curvescope.certificates.bound import Complexity, Confidence, PriorGrid
from curvescope.certificates.evaluate import Draws
from curvescope.certificates.optimise import Point
from curvescope.certificates.posterior import Posterior
from curvescope.certificates.verify import Verification, verify
from curvescope.identity import checksum, file_digest

FORMAT = "curvescope certificate 2"


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
    """What the certificate is about: the examples by number and checksum, and the prior mean."""

    samples: int
    data: str
    data_sha256: str
    prior_mean: str
    prior_samples: int = 0
    split: tuple[float, int] | None = None  # share of the data that the prior took, and the seed


@dataclass(frozen=True)
class Certificate:
    """An upper bound on the error of a stochastic network, with everything needed to check it.

    ``bound`` holds for the network whose weights are drawn anew from the posterior for every
    prediction, with probability ``confidence.level`` over the examples and the draws. ``terms`` are
    the parts of the right-hand side, ``prior`` says where its divergence comes from, ``draws`` what
    the empirical error was estimated from, ``error_bound`` the upper bound on it.
    """

    bound: float
    error_bound: float
    confidence: Confidence
    terms: Complexity
    prior: tuple[PriorTerm, ...]
    grid: PriorGrid
    form: str
    draws: Draws
    source: Source
    orientation: Orientation
    method: dict[str, Any]
    layout: tuple[Block, ...]
    history: tuple[Point, ...] = ()
    posterior_sha256: str = ""
    posterior: Posterior | None = field(default=None, compare=False, repr=False)

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
        """What is certified, in words."""
        source, prior = self.source, "was fixed before these examples were seen (by the caller)"
        if source.prior_samples:
            prior = f"was trained on {source.prior_samples:,} other examples (data-dependent prior)"
        return (
            f"With probability at least {self.confidence.level:g} over the choice of the "
            f"{source.samples:,} examples and of the {self.draws.count:,} draws, the stochastic "
            "network, whose weights are drawn anew from the posterior for every prediction, errs "
            f"on at most {100 * self.bound:.2f} % of new examples from the same distribution. "
            f"The prior mean {prior}. Nothing is claimed about the network at the posterior mean."
        )

    def verify(
        self,
        *,
        model: nn.Module | None = None,
        data: Any = None,
        generator: torch.Generator | None = None,
    ) -> Verification:
        """Check the arithmetic, the posterior and, with model and data, fresh draws.

        See :func:`curvescope.certificates.verify.verify`.
        """
        return verify(self, model=model, data=data, generator=generator)

    # Disk ---------------------------------------------------------------------------------

    def save(self, path: io.PathLike, configuration: Mapping[str, Any] | None = None) -> None:
        """Write the certificate as JSON, and its posterior beside it as ``.safetensors``.

        Both are complete on the disk before either is seen, and a certificate that was there before
        goes when the new one comes: at no time do two files of different certificates stand there.

        Args:
            path: The JSON file; its folder must exist.
            configuration: What decided the numbers, kept in the file for :func:`configuration_of`.

        Raises:
            CurvescopeError: If the certificate has no posterior, or a file cannot be written.
        """
        if self.posterior is None:
            msg = "Certificate.save: the posterior is missing; save what certify returned"
            raise CurvescopeError(msg)
        tensors = posterior_file(path)
        raw = io.tensor_bytes(tensors, self.posterior.tensors(), {"curvescope": "posterior"})
        stored = replace(self, posterior_sha256=checksum(raw)).to_json()
        if configuration is not None:
            stored["configuration"] = dict(configuration)
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
        if file_digest(tensors) != certificate.posterior_sha256:
            msg = f"{where}: {tensors.name} is not the posterior that the certificate names"
            raise CurvescopeError(msg)
        stored, _ = io.read_tensors(tensors)
        return replace(
            certificate, posterior=Posterior.from_tensors(Layout(certificate.layout), stored)
        )

    def to_json(self) -> dict[str, Any]:
        """Plain numbers, texts and lists, with the derived values beside them for readers."""
        plain = asdict(replace(self, posterior=None))
        del plain["posterior"]
        return {
            "format": FORMAT,
            "statement": self.statement,
            "kl": self.kl,
            "empirical_error": self.empirical_error,
            "complexity": self.terms.value,
            "confidence_level": self.confidence.level,
            **plain,
        }

    @classmethod
    def from_json(cls, stored: Any, where: str = "Certificate.from_json") -> Certificate:
        """The inverse of :meth:`to_json`; derived values are not read but computed again.

        Raises:
            CurvescopeError: If it is no certificate of this version.
        """
        if not isinstance(stored, Mapping) or stored.get("format") != FORMAT:
            msg = f"{where}: is no certificate of this version ({FORMAT!r})"
            raise CurvescopeError(msg)
        try:
            return cls(
                bound=float(stored["bound"]),
                error_bound=float(stored["error_bound"]),
                confidence=Confidence(**stored["confidence"]),
                terms=Complexity(**stored["terms"]),
                prior=tuple(
                    PriorTerm(**{**term, "layers": tuple(term["layers"])})
                    for term in stored["prior"]
                ),
                grid=PriorGrid(**stored["grid"]),
                form=str(stored["form"]),
                draws=Draws(**stored["draws"]),
                source=_source(stored["source"]),
                orientation=Orientation(**stored["orientation"]),
                method=dict(stored["method"]),
                layout=tuple(
                    Block(**{**block, "shape": tuple(block["shape"])}) for block in stored["layout"]
                ),
                history=tuple(Point(**point) for point in stored["history"]),
                posterior_sha256=str(stored["posterior_sha256"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            msg = f"{where}: is damaged ({type(error).__name__}: {error})"
            raise CurvescopeError(msg) from None


def _source(stored: Mapping[str, Any]) -> Source:
    split = stored["split"]
    return Source(**{**stored, "split": None if split is None else (split[0], split[1])})


def configuration_of(path: io.PathLike) -> dict[str, Any] | None:
    """What decided the numbers of a saved certificate, if it was saved with that.

    Raises:
        CurvescopeError: If the file is no certificate of this version.
    """
    stored = io.read_json(path)
    Certificate.from_json(stored, f"{str(path)!r}")
    found = stored.get("configuration")
    return found if isinstance(found, dict) else None


def posterior_file(path: io.PathLike) -> Path:
    """Where the posterior of a certificate lies: the same name, ``.safetensors``."""
    return Path(path).with_suffix(".safetensors")
