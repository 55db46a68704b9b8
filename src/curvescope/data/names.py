"""Names of data sets: a base, ``-2`` for 0–4 against 5–9, ``-R`` for random labels."""

from __future__ import annotations

from dataclasses import dataclass

from curvescope.data import mixture, topics
from curvescope.data.embedded import EMBEDDED
from curvescope.data.sources import SOURCES
from curvescope.errors import CurvescopeError

# As the papers and torchvision write them.
_ALIASES = {"cifar10": "cifar-10", "cifar100": "cifar-100", "fashionmnist": "fashion-mnist"}


@dataclass(frozen=True)
class Name:
    """A parsed name; ``str()`` gives its normal form."""

    base: str
    binary: bool
    random: bool

    def __str__(self) -> str:
        return self.base + "-2" * self.binary + "-R" * self.random


def base_names() -> list[str]:
    """The names without variants, embedded sets first."""
    return [*EMBEDDED, topics.NAME, *SOURCES]


def parse(where: str, name: str) -> Name:
    """Take a name apart, whatever its case.

    Raises:
        CurvescopeError: If no such data set is known.

    >>> parse("example", "MNIST-2-R"), str(parse("example", "CIFAR10-r"))
    (Name(base='mnist', binary=True, random=True), 'cifar-10-R')
    """
    lower = name.lower() if isinstance(name, str) else ""
    base = lower.removesuffix("-r")
    random = base != lower
    base, before = base.removesuffix("-2"), base
    binary = base != before
    base = _ALIASES.get(base, base)
    parameters = mixture.parameters(base)
    characters = topics.context(base)
    if characters is not None:
        base = topics.full_name(characters)
    elif parameters is not None:
        t, classes, dimension = parameters
        base = f"gaussian-mixture-C{classes}-D{dimension}-t{t:g}"
    elif base not in base_names():
        rule = (
            f"a data set must be one of {', '.join(base_names())} or like {mixture.FORM} or "
            f"{topics.FORM} (windows of 64 characters), with -2 (0–4 against 5–9) or -R (random "
            "labels) after it where wanted"
        )
        raise CurvescopeError(where, rule, given=repr(name))
    return Name(base, binary, random)
