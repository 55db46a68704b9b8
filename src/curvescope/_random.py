"""Random numbers come from an explicit generator, never from torch's global one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from curvescope._checks import positive_int
from curvescope.errors import CurvescopeError

_SEEDS = 2**62


def child(generator: torch.Generator) -> torch.Generator:
    """A new CPU generator, seeded by the next draw of its parent."""
    return torch.Generator().manual_seed(seed(generator))


def seed(generator: torch.Generator) -> int:
    """A seed, by the next draw of a generator."""
    return int(torch.randint(_SEEDS, (), generator=generator, device=generator.device))


def check_seed(where: str, value: int) -> int:
    """Return ``value`` if :func:`seed` can produce it.

    Raises:
        CurvescopeError: If it cannot.
    """
    if positive_int(where, "seed", value, 0) >= _SEEDS:
        raise CurvescopeError(where, "`seed` must be below 2^62", given=repr(value))
    return value


def gaussian(
    shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Standard normal numbers, drawn where the generator lives so that devices agree on a seed."""
    return torch.randn(shape, generator=generator, dtype=dtype, device=generator.device).to(device)


def rademacher(
    shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Independent signs ±1."""
    bits = torch.randint(0, 2, shape, generator=generator, device=generator.device)
    return (2 * bits - 1).to(device=device, dtype=dtype)


@contextmanager
def global_generators_kept() -> Iterator[None]:
    """Whatever the block draws from the generators that all code shares is put back.

    Those of torch (the processor's and every GPU's), NumPy and Python. A loader draws from torch's
    whenever it is walked through, for instance.

    >>> with torch.random.fork_rng(devices=[]):
    ...     with global_generators_kept():
    ...         a = torch.rand(())
    ...     bool(a == torch.rand(()))
    True
    """
    processor, numpy, python = torch.get_rng_state(), np.random.get_state(), random.getstate()
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        torch.set_rng_state(processor)
        np.random.set_state(numpy)
        random.setstate(python)
        if devices:
            torch.cuda.set_rng_state_all(devices)
